"""Calls of what belongs to the user, by threads that may not be had."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest

from dlock_core.engine import user_calls
from dlock_core.engine.process import DaemonThread
from dlock_core.engine.seats import Seat
from dlock_core.engine.user_calls import Callbacks, Feed, guarded_logger, log_elsewhere, run_in_daemon_thread
from dlock_core.errors import StoreUnavailableError
from proof.interrupts.points import Tracer


class Threads:
    """Makes threads as the product does, but for those whose name is refused."""

    def __init__(self) -> None:
        self.refused: dict[str, BaseException] = {}
        self.made: list[threading.Thread] = []

    def make(self, name: str, function: Callable[..., object], *arguments: Any) -> DaemonThread:
        """Make one; its start fails if its name is refused."""
        thread = DaemonThread(name, function, *arguments)
        error = self.refused.get(name)
        if error is not None:

            def refuse() -> None:
                raise error

            thread.start = refuse  # type: ignore[method-assign]
        self.made.append(thread)
        return thread

    def end(self) -> None:
        """Wait for all that was started; those that are waited for may start more."""
        for thread in self.made:
            if thread.ident is not None:
                thread.join(10)
                assert not thread.is_alive()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Those of the calls."""
    made = Threads()
    monkeypatch.setattr(user_calls, "DaemonThread", made.make)
    return made


@pytest.mark.parametrize(
    ("kind", "refused"), [(Callbacks, "dlock-callbacks"), (Callbacks, "dlock-callback"), (Feed, "dlock-feed")]
)
def test_a_call_waits_for_a_thread_that_can_be_started(
    kind: type[Callbacks | Feed], refused: str, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is forgotten, called twice or out of order; the log names what waits, and why."""
    calls, told = kind(), list[int]()
    threads.refused[refused] = RuntimeError("can't start new thread")
    for number in (1, 2):
        calls.post(told.append, number)
        threads.end()
    assert (told, calls.is_idle) == ([], False)
    assert len(caplog.messages) == 2
    for text in caplog.messages:
        assert repr(told.append) in text
        assert text.endswith("is not called yet: the process gets no more threads: can't start new thread")

    threads.refused.clear()
    calls.post(told.append, 3)
    if isinstance(calls, Feed):
        calls.close()
    threads.end()

    assert (told, calls.is_idle) == ([1, 2, 3], True)


@pytest.mark.parametrize(("kind", "refused"), [(Callbacks, "dlock-callbacks"), (Feed, "dlock-feed")])
def test_what_a_signal_handler_raises_at_the_start_of_a_thread_is_handed_on(
    kind: type[Callbacks | Feed], refused: str, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    """The next call runs both."""
    calls, told = kind(), list[int]()
    threads.refused[refused] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        calls.post(told.append, 1)
    threads.refused.clear()
    calls.post(told.append, 2)
    if isinstance(calls, Feed):
        calls.close()
    threads.end()

    assert (told, caplog.messages) == ([1, 2], [])


@pytest.mark.parametrize("kind", [Callbacks, Feed])
def test_a_call_that_is_interrupted_at_any_point_stops_no_other(
    kind: type[Callbacks | Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it has the turn, before its thread has."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # CPython tells there of a thread that it has forgotten

    def interrupted(at: int) -> int:
        calls, again = kind(), threading.Event()

        def act() -> None:
            raise KeyboardInterrupt

        def post() -> None:
            tracer.watch()
            with suppress(KeyboardInterrupt):
                calls.post(id, None)
            tracer.end()

        tracer = Tracer(act, at)
        poster = threading.Thread(target=post)
        poster.start()
        poster.join()
        calls.post(lambda _: again.set(), None)
        assert again.wait(10), tracer.where
        return tracer.count

    for at in range(1, interrupted(0) + 1):
        interrupted(at)


@pytest.mark.parametrize("kind", [Callbacks, Feed])
def test_a_call_that_comes_as_the_thread_ends_is_made_by_the_next(
    kind: type[Callbacks | Feed], threads: Threads
) -> None:
    """It comes behind the last look at the queue, while the thread has the turn."""
    calls, told, late = kind(), list[int](), [2]
    leave = calls._turns.leave

    def leaving(seat: Seat) -> None:
        if late:
            calls.post(told.append, late.pop())
        leave(seat)

    calls._turns.leave = leaving  # type: ignore[method-assign]
    calls.post(told.append, 1)
    if isinstance(calls, Feed):
        calls.close()
    threads.end()

    assert (told, calls.is_idle) == ([1, 2], True)


def test_callbacks_run_one_after_the_other_until_one_takes_too_long(
    threads: Threads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that hangs is told once; those after it wait for nobody until it has ended, and then for each other again."""
    calls, over, begun = Callbacks(), threading.Event(), threading.Event()
    told, overlapped = list[str](), list[bool]()

    def slow(number: int) -> None:
        begun.clear()
        overlapped.append(begun.wait(0.05))
        told.append(f"slow {number}")

    def quick(number: int) -> None:
        begun.set()
        told.append(f"quick {number}")

    def in_order(number: int) -> None:
        calls.post(slow, number)
        calls.post(quick, number)

    in_order(1)
    threads.end()
    assert (told, overlapped, calls.is_idle) == (["slow 1", "quick 1"], [False], True)

    monkeypatch.setattr(user_calls, "CALLBACK_LIMIT_S", 0.05)
    ended = threading.Event()
    calls.post(lambda _: over.wait(10), None)
    calls.post(lambda _: told.append("passed it by"), None)
    calls.post(lambda _: ended.wait(10), None)  # not waited for, and not told
    calls.post(lambda _: ended.set(), None)
    ended.wait(10)
    monkeypatch.setattr(user_calls, "CALLBACK_LIMIT_S", 10)
    over.set()
    threads.end()
    in_order(2)
    threads.end()

    assert told == ["slow 1", "quick 1", "passed it by", "slow 2", "quick 2"]
    assert overlapped == [False, False]
    (late,) = [text for text in caplog.messages if "still runs after 0.05 s" in text]
    assert late.endswith("the others do not wait for it")


def test_a_feed_forgets_the_oldest_of_too_many(threads: Threads) -> None:
    """A function that hangs does not fill the memory."""
    feed, told = Feed(), list[int]()
    threads.refused["dlock-feed"] = RuntimeError("can't start new thread")
    for number in range(1_002):
        feed.post(told.append, number)
    threads.refused.clear()
    feed.close()
    feed.post(told.append, 1_002)
    threads.end()

    assert told == list(range(3, 1_003))


def test_a_question_without_a_thread_is_answered_by_the_error(threads: Threads) -> None:
    """And one that nobody waits for any more is not asked."""
    asked = list[int]()
    threads.refused["dlock-question"] = RuntimeError("can't start new thread")
    with pytest.raises(StoreUnavailableError, match="can't start new thread"):
        run_in_daemon_thread(asked.append, 1).result(10)

    class Late(Threads):
        def make(self, name: str, function: Callable[..., object], *arguments: Any) -> DaemonThread:
            """Make one that begins when the answer is not wanted any more."""
            return DaemonThread(name, self.wait, function)

        def wait(self, function: Callable[[], object]) -> None:
            """Begin."""
            self.answered.wait(10)
            function()
            self.over.set()

        answered, over = threading.Event(), threading.Event()

    late = Late()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_calls, "DaemonThread", late.make)
        answer = run_in_daemon_thread(asked.append, 2)
    answer.cancel()
    late.answered.set()
    assert late.over.wait(10)
    with pytest.raises(CancelledError):
        answer.result(0)
    assert asked == []


def test_a_log_record_names_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it is handed to another thread; an error given as such is told with its traceback."""
    logger, handed = guarded_logger("dlock.engine"), list[tuple[Callable[[Any], object], Any]]()
    trouble = ValueError("trouble")
    logger.warning("here", exc_info=trouble)
    log_elsewhere(lambda *call: handed.append(call))
    try:
        logger.warning("there")
    finally:
        log_elsewhere(None)  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["here"]
    ((handle, record),) = handed
    handle(record)

    here, there = caplog.records
    place = "test_a_log_record_names_the_line_that_logs", here.lineno
    assert (here.funcName, here.lineno, there.funcName, there.lineno - 3) == place * 2
    assert (here.exc_info, there.exc_info) == ((ValueError, trouble, trouble.__traceback__), None)
