"""Threads, and tasks, that make calls for callers who never wait beyond their time-out, whatever a call does.

There is no mutex: a signal handler may use a lane while its thread is anywhere in it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.engine.process import DaemonThread
from dlock_core.engine.seats import Seat, Seats
from dlock_core.errors import StoreUnavailableError
from dlock_core.kit.forks import BeginsAnew, watch_forks
from dlock_core.kit.seats import AsyncSeats

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_IDLE_S = 2.0
_T = TypeVar("_T")


class _Job:
    """A call for a caller who may give it up: before it begins nothing is sent, after that its answer goes to *late*."""

    def __init__(self, call: Callable[[], Any], late: Callable[[Any], object] | None) -> None:
        self._call, self._late = call, late
        # Who takes it decides: whether the call is made or given up, and whether its answer goes to the caller or is late.
        self._turn, self._fate = threading.Lock(), threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self._error = error
        if not self._fate.acquire(blocking=False):
            self._hand_over()
        self._done.release()

    def result(self, timeout_s: float, *, ends: bool = False) -> Any:
        try:
            came = self._done.acquire(timeout=max(timeout_s, 0)) or (
                ends and not self._turn.acquire(blocking=False) and self._done.acquire()
            )
        except BaseException:  # of a signal handler
            self._leave()
            raise
        if not came:
            if ends or self._turn.acquire(blocking=False):
                raise _crowded("thread", timeout_s)
            self._leave()
            raise TimeoutError(f"no end of the call within {timeout_s:.3g} s")
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._answer
        finally:
            del error  # its traceback names this frame, and would keep alive what its callers have

    def _leave(self) -> None:
        if not self._fate.acquire(blocking=False):
            self._hand_over()  # the answer came at the same instant

    def _hand_over(self) -> None:
        if self._late is not None and self._error is None:
            self._late(self._answer)


class Lane(BeginsAnew):
    """Up to *width* threads. One that had nothing to do for some seconds ends."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.after_fork_in_child()
        watch_forks(self)

    def run(self, call: Callable[[], Any], timeout_s: float, late: Callable[[Any], object] | None = None) -> Any:
        """Return what *call* returns, or raise what it raises, within *timeout_s*.

        *late* is called with what *call* returns when nobody waits for it any more.

        Raises:
            StoreUnavailableError: no thread was free; *call* was not begun and never will be.
            TimeoutError: *call* was begun and is not over.
        """
        return self._asked(call, late).result(timeout_s)

    def aside(self, call: Callable[[], Any], timeout_s: float) -> Any:
        """Return what *call* returns, or raise what it raises. For the main thread, which runs signal handlers, the lane makes it.

        For drivers that keep mutexes which Python implements, as a ``threading.Condition`` is: an exception from a handler, such as
        KeyboardInterrupt, on the way in or out of one leaves it held for ever. *call* has to end by itself.

        Raises: StoreUnavailableError: no thread was free within *timeout_s*; *call* was not begun and never will be.
        """
        if threading.current_thread() is not threading.main_thread():
            return call()
        return self._asked(call, None).result(timeout_s, ends=True)

    def _asked(self, call: Callable[[], Any], late: Callable[[Any], object] | None) -> _Job:
        job = _Job(call, late)
        self._jobs.put(job)
        if not _taken_from(self._idle) and (place := self._places.take(0)) is not None:
            self._start(place)
        return job

    def after_fork_in_child(self) -> None:
        """Begin without threads; a forked child has none of its parent's."""
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle: dict[Seat, bool] = {}  # of threads that wait for a job, and on which no caller counts yet
        self._places = Seats(self._width)

    def _start(self, place: Seat) -> None:
        # Whatever becomes of the thread, its place is free with it: an exception from a signal handler can end it before it runs.
        try:
            DaemonThread("dlock-lane", self._work, place).begin()
        except StoreUnavailableError:  # the process gets no more threads: the callers make the calls themselves
            with suppress(queue.Empty):  # another caller makes this one's
                self._jobs.get_nowait().run()

    def _work(self, place: Seat) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                self._idle[place] = True
                try:
                    job = self._jobs.get(timeout=_IDLE_S)
                except queue.Empty:
                    if self._idle.pop(place, False):
                        break
                    continue  # a caller counts on this thread
                self._idle.pop(place, None)  # the caller came just before this thread was idle, and counts on another
            job.run()
            del job
        self._places.leave(place)


class AsyncLane:
    """As :class:`Lane`, up to *width* tasks of one event loop: a call that nobody waits for any more goes on, until :meth:`close`."""

    def __init__(self, width: int) -> None:
        self._places = AsyncSeats(width)
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(
        self, call: Callable[[], Coroutine[Any, Any, _T]], timeout_s: float, late: Callable[[_T], object] | None = None
    ) -> _T:
        """As :meth:`Lane.run`; what *call* returns is awaited. A caller that is cancelled leaves the answer, too."""
        until = time.monotonic() + timeout_s
        if not await self._places.take(timeout_s):
            raise _crowded("task", timeout_s)
        task = asyncio.get_running_loop().create_task(call(), context=Context())
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await asyncio.shield(task)
        except BaseException as error:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):
                raise StoreUnavailableError("the store was closed meanwhile; nothing was sent") from error
            if late is not None:
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception() or late(ended.result()))
            raise

    async def close(self) -> None:
        """End the calls that are under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._places.leave()
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more


def _crowded(what: str, timeout_s: float) -> StoreUnavailableError:
    return StoreUnavailableError(f"no {what} was free within {max(timeout_s, 0):.3g} s; nothing was sent")


async def in_own_thread(call: Callable[[], _T], late: Callable[[_T], object]) -> _T:
    """Return what *call* returns, or raise what it raises; *late* is called with what it returns if nobody waits for it any more.

    Not by ``asyncio.to_thread``: the threads of the loop's executor are the user's, whose work may have all of them for minutes.

    Raises: StoreUnavailableError: the process gets no more threads; *call* was not begun.
    """
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    DaemonThread("dlock-lane", _answer, future, call, late).begin()
    try:
        return await future
    except BaseException:
        # An answer may have come in the same round of the loop as the cancellation.
        if not future.cancel() and not future.cancelled() and future.exception() is None:
            late(future.result())
        raise


def _answer(future: asyncio.Future[_T], call: Callable[[], _T], late: Callable[[_T], object]) -> None:
    answer: Any = None
    error: BaseException | None = None
    try:
        answer = call()
    except BaseException as raised:  # noqa: BLE001  # the caller raises it
        error = raised

    def settle() -> None:
        if not future.done():
            future.set_result(answer) if error is None else future.set_exception(error)
        elif error is None:
            late(answer)

    try:
        future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop was closed
        if error is None:
            late(answer)


def _taken_from(idle: dict[Seat, bool]) -> bool:
    """Take one of *idle*, in one step; False if there is none."""
    try:
        idle.popitem()
    except KeyError:
        return False
    return True
