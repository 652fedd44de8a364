"""A lane of threads makes calls for callers who go on when their time is over."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import Lane


def test_a_lane_has_no_more_threads_than_its_width_and_uses_them_again() -> None:
    """And raises what a call raises."""
    lane, names = Lane(4), set[str]()

    def note() -> None:
        names.add(str(threading.get_ident()))

    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda _: lane.run(note, 10), range(200)):
            pass
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: 1 // 0, 10)

    assert 1 <= len(names) <= 4


def test_a_lane_without_threads_makes_the_calls_on_those_of_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the interpreter ends, and a lock is released then."""

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    lane = Lane(2)

    assert [lane.run(lambda: 7, 1) for _ in range(5)] == [7] * 5


def test_a_caller_goes_on_when_its_time_is_over_and_knows_whether_the_call_was_begun() -> None:
    """A call that no thread took is never made."""
    lane, end, made = Lane(1), threading.Event(), list[int]()

    with pytest.raises(TimeoutError):
        lane.run(end.wait, 0.05)
    with pytest.raises(StoreUnavailableError, match="nothing was sent"):
        lane.run(lambda: made.append(1), 0.05)
    end.set()

    assert lane.run(lambda: 7, 10) == 7
    assert made == []


def test_what_comes_too_late_is_handed_over() -> None:
    """Once, and only what a call returned."""
    lane, end, late = Lane(1), threading.Event(), list[int]()

    with pytest.raises(TimeoutError):
        lane.run(lambda: end.wait() and 7, 0.05, late.append)
    assert late == []
    end.set()

    assert lane.run(lambda: 8, 10, late.append) == 8
    assert late == [7]


def test_each_answer_goes_to_its_caller_or_is_late() -> None:
    """However the end of a call and that of its time fall together."""
    lane, late, came = Lane(4), list[int](), list[int]()

    def ask(number: int) -> None:
        def answer() -> int:
            time.sleep(0.001)
            return number

        with suppress(TimeoutError, StoreUnavailableError):
            # Of three calls one is surely late, and one has all the time that a busy machine may need.
            came.append(lane.run(answer, (0.0006, 0.0012, 10.0)[number % 3], late.append))

    for number in range(400):
        ask(number)
    lane.run(lambda: None, 10)

    begun = sorted(came + late)
    assert len(set(begun)) == len(begun)
    assert late
    assert came


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signal can come at an instant here")
def test_an_interrupted_caller_leaves_its_answer_too() -> None:
    """As by Ctrl-C; a connection is not lost by it."""
    lane, end, late = Lane(1), threading.Event(), list[int]()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            lane.run(lambda: end.wait() and 7, 10, late.append)
    finally:
        signal.signal(signal.SIGALRM, old)
    end.set()

    lane.run(lambda: None, 10)
    assert late == [7]
