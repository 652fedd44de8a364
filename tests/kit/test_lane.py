"""A lane of threads makes calls for callers who go on when their time is over."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from dlock_core.engine.seats import Seat, Seats
from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import Lane, in_own_thread
from dlock_core.kit.forks import watched
from dlock_core.kit.lane import _Job
from proof.interrupts.points import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_a_call_whose_time_is_over_already_ends_as_one_that_takes_too_long() -> None:
    """A deadline may pass while its caller counts what is left."""
    ended = threading.Event()
    lane = Lane(1)

    with pytest.raises((TimeoutError, StoreUnavailableError)):
        lane.run(lambda: ended.wait(20), -0.5)
    ended.set()


def test_what_comes_too_late_is_handed_over() -> None:
    """Once, and only what a call returned."""
    lane, end, late = Lane(1), threading.Event(), list[int]()

    with pytest.raises(TimeoutError):
        lane.run(lambda: end.wait() and 7, 0.05, late.append)
    assert late == []
    end.set()

    assert lane.run(lambda: 8, 10, late.append) == 8
    assert late == [7]


def test_what_fails_too_late_is_handed_over_to_nobody() -> None:
    """There is no answer that would have to be closed."""
    lane, end, late = Lane(1), threading.Event(), list[object]()

    with pytest.raises(TimeoutError):
        lane.run(lambda: end.wait() and 1 // 0, 0.05, late.append)
    end.set()

    assert lane.run(lambda: 8, 10) == 8
    assert late == []


def test_a_thread_without_work_ends_and_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps no process from its end either."""
    monkeypatch.setattr("dlock_core.kit.lane._IDLE_S", 0.01)
    lane = Lane(1)

    first: threading.Thread = lane.run(threading.current_thread, 10)
    first.join(10)

    assert first.daemon
    assert first.name == "dlock-lane"
    assert not first.is_alive()
    assert lane.run(threading.current_thread, 10) is not first


def test_a_thread_that_is_idle_is_used_before_another_is_started() -> None:
    """Its place is the only one that is taken."""
    lane = Lane(3)
    lane.run(int, 10)
    _wait_until(lambda: bool(lane._idle))  # the thread is on its way from the call to its rest

    assert lane.run(lambda: 7, 10) == 7
    assert lane._places.taken == 1


def test_a_thread_that_a_caller_counts_on_does_not_end() -> None:
    """It had nothing to do for so long, and the caller came at the same instant."""
    lane, counted_on = Lane(1), threading.Event()

    class Jobs(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if counted_on.is_set():
                return super().get(block, timeout)
            lane._idle.clear()
            counted_on.set()
            raise queue.Empty

    lane._jobs = Jobs()
    first = lane.run(threading.current_thread, 10)

    assert counted_on.wait(10)
    assert lane.run(threading.current_thread, 10) is first


def test_nobody_counts_on_a_thread_that_took_the_call_for_which_another_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller comes as one thread goes to rest: it starts another, the first one makes the call, and both of them end."""
    monkeypatch.setattr("dlock_core.kit.lane._IDLE_S", 0.01)
    lane = Lane(2)
    caller = threading.Thread(target=lane.run, args=(int, 10))
    taken = threading.Event()

    class Jobs(queue.SimpleQueue[Any]):
        def get_nowait(self) -> Any:
            if caller.ident is not None and not taken.is_set():
                assert taken.wait(10)  # the other thread has just begun
            try:
                return super().get_nowait()
            except queue.Empty:
                if caller.ident is None:  # the first thread is on its way to its rest
                    caller.start()
                    _wait_until(lambda: lane._places.taken == 2)
                raise

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            job = super().get(block, timeout)
            taken.set()
            return job

    lane._jobs = Jobs()
    lane.run(int, 10)
    assert taken.wait(10)
    caller.join(10)
    _wait_until(lambda: not lane._places.taken)

    assert lane.run(lambda: 7, 1) == 7


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until
        threading.Event().wait(0.001)


def test_a_forked_child_counts_on_no_thread_of_its_parent() -> None:
    """None of those is there."""
    lane = Lane(1)
    lane.run(int, 10)
    lane._idle[Seat(queue.SimpleQueue())] = True

    lane.after_fork_in_child()

    assert lane.run(lambda: 7, 10) == 7


def test_a_lane_is_told_of_forks() -> None:
    """So nobody has to tell it."""
    lane = Lane(1)

    assert any(each is lane for each in watched())


def test_an_answer_that_comes_as_its_caller_leaves_is_handed_over_by_the_caller() -> None:
    """The call was over, and its thread had left the answer for the caller, when the time was over, too."""
    late = list[int]()
    job = _Job(lambda: 7, late.append)

    class EndsTooLate:
        """The end of the call, which comes between the end of the time and what the caller does then."""

        def acquire(self, timeout: float) -> bool:
            job.run()
            return False

        def release(self) -> None:
            """Nobody waits for it."""

    job._done = cast("threading.Lock", EndsTooLate())

    with pytest.raises(TimeoutError):
        job.result(1)

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


def test_a_task_that_is_cancelled_as_its_answer_comes_leaves_it() -> None:
    """A connection was left open, and the garbage collector warned of it."""
    late = list[int]()

    async def scene() -> None:
        task = asyncio.create_task(in_own_thread(lambda: 7, late.append))
        before = set(threading.enumerate())
        await asyncio.sleep(0)
        for thread in set(threading.enumerate()) - before:
            thread.join()
        asyncio.get_running_loop().call_soon(task.cancel)  # the loop has the answer, and then this
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert late == [7]


def test_calls_of_the_main_thread_are_made_aside_and_those_of_others_where_they_are() -> None:
    """Only the main thread runs signal handlers, which could interrupt the call."""
    lane = Lane(1)
    there: list[threading.Thread] = []
    caller = threading.Thread(target=lambda: there.append(lane.aside(threading.current_thread, 10)))

    caller.start()
    caller.join()

    assert lane.aside(threading.current_thread, 10).name == "dlock-lane"
    assert there == [caller]


def test_call_aside_that_has_begun_is_waited_for_to_its_end() -> None:
    """It ends by itself, and only then it is known what it has sent."""
    begun, end = threading.Event(), threading.Event()

    def call() -> int:
        begun.set()
        assert end.wait(10)
        return 7

    class Taken:
        def acquire(self, *, blocking: bool) -> bool:
            end.set()  # the caller's time is over
            return blocking

    class Begun(Lane):
        def _asked(self, call: Callable[[], Any], late: Callable[[Any], object] | None) -> _Job:
            job = _Job(call, late)
            threading.Thread(target=job.run, daemon=True).start()
            assert begun.wait(10)
            job._turn = cast("Any", Taken())
            return job

    assert Begun(1).aside(call, 0) == 7


def test_caller_waits_for_an_answer_and_never_for_a_place() -> None:
    """A thread that is free before a place is serves it as well, and in time."""
    asked: list[float] = []

    class Places(Seats):
        def take(self, timeout_s: float) -> Seat | None:
            asked.append(timeout_s)
            return super().take(timeout_s)

    lane = Lane(1)
    lane._places = Places(1)

    assert lane.run(lambda: 7, 10) == 7
    assert asked == [0]


def test_call_aside_is_never_begun_late() -> None:
    """A caller who has gone has nothing sent."""
    lane, end, made = Lane(1), threading.Event(), list[int]()

    with pytest.raises(TimeoutError):
        lane.run(end.wait, 0.05)
    with pytest.raises(StoreUnavailableError, match="no thread was free"):
        lane.aside(lambda: made.append(1), 0.05)
    with pytest.raises(StoreUnavailableError, match="within 0 s"):  # whose time was over before
        lane.run(lambda: made.append(1), -0.05)
    end.set()

    assert lane.aside(lambda: 7, 10) == 7
    assert not made


def test_thread_whose_start_is_interrupted_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every point, also where Python has it end or hang before it runs."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # CPython tells there of a thread that it has forgotten

    def interrupted(at: int) -> int:
        lane, raised = Lane(1), list[BaseException]()

        def act() -> None:
            raise TimeoutError

        def call() -> None:
            tracer.watch()
            try:
                lane.run(int, 10)
            except TimeoutError as error:
                raised.append(error.with_traceback(None))
            finally:
                tracer.end()

        tracer = Tracer(act, at)
        caller = threading.Thread(target=call)
        caller.start()
        caller.join()
        assert len(raised) == bool(tracer.where), (
            tracer.where
        )  # where the answer is there at once, there are fewer points
        assert lane.run(lambda: 7, 10) == 7, tracer.where
        return tracer.count

    for at in range(1, interrupted(0) + 1):
        interrupted(at)
