"""The asyncio colour of the engine's runtime: a timer at rest, a task for each request that renews."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.clock import SYSTEM_CLOCK, Cancellable, Clock
from dlock_core.engine.user_calls import guarded_logger, run_in_daemon_thread
from dlock_core.errors import LeaseStateError
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from dlock_core.engine.engine import Engine
    from dlock_core.engine.renewals import Job

_log = guarded_logger("dlock.engine")

CALLBACK_LIMIT_S = 5.0
REQUESTS_MAX = 256
LOOK_S = 1.0


class _Signal:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return


class _Turn:
    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        await self._runtime.sleep(timeout_s, self._event)


class AsyncRuntime:
    """Clock, sleep, callbacks and the timer that renews. One loop, one thread: nothing needs a mutex."""

    mutex = nullcontext()
    caller_kind = "task"

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.now = clock.now
        self.wall_ms = clock.wall_ms
        self.engine: Engine
        self.loop = asyncio.get_running_loop()
        self._clock = clock
        self._timers: tuple[Cancellable, ...] = ()
        self._planned = NEVER
        self._closed = False
        self._sleepers: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = asyncio.Semaphore(REQUESTS_MAX)

    def caller(self) -> object | None:
        """Return an object that stands for the running task and does not keep it alive; None outside of any task."""
        task = asyncio.current_task()
        return None if task is None else weakref.ref(task)

    async def sleep(self, seconds: float, over: asyncio.Event | None = None) -> None:
        """Wait until *over* is set, or the client is closed, at most so long."""
        over = over or asyncio.Event()
        timer = self._clock.call_later(self.loop, seconds, over.set)
        self._sleepers.add(over)
        try:
            await over.wait()
        finally:
            self._sleepers.discard(over)
            timer.cancel()

    async def pause(self, seconds: float) -> None:
        """Wait in real time."""
        if self._clock is SYSTEM_CLOCK:
            await asyncio.sleep(seconds)

    def signal(self) -> _Signal:
        """Return a new signal."""
        return _Signal()

    def turn(self) -> _Turn:
        """Return a new signal for which to wait as :meth:`sleep` does."""
        return _Turn(self)

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run *callback* as a callback of the loop, or as a task where it is a coroutine function."""
        self.loop.call_soon(self._call, callback, argument)

    async def run_probe(self, question: Callable[[Any], Any], argument: Any, timeout_s: float) -> Any:
        """Await *question* where it is a coroutine function; else run it on a thread of its own."""
        async with asyncio.timeout(timeout_s):
            if inspect.iscoroutinefunction(question):
                return await question(argument)
            return await asyncio.wrap_future(run_in_daemon_thread(question, argument))

    def is_inside(self) -> bool:
        """There is no mutex."""
        return False

    def retry(self) -> None:
        """Nothing can be refused: no thread is needed."""

    def arm(self) -> None:
        """Set the timer, if a handle is due before what it is set to."""
        first = self.engine.driver.timers.first()
        if first is None or first.due >= self._planned or self._closed:
            return
        # A timer does not count the time in which the machine sleeps, and leases do: the clock is looked at now and then.
        seconds = min((first.due - self.now()) / NANOS, LOOK_S)
        before = self._timers
        # Two, since a signal handler may raise on entry to the first call, which no code of ours can catch; see :meth:`_ring`.
        self._timers = (
            self._clock.call_later(self.loop, seconds, self._ring),
            self._clock.call_later(self.loop, seconds, self._ring),
        )
        self._planned = first.due
        _cancel(before)

    def _ring(self) -> None:
        jobs: list[Job] = []
        try:
            self._planned = NEVER
            _cancel(self._timers)
            self.engine.renewals.collect(jobs)
            while jobs:
                self._spawn(self._run(jobs[0]), jobs[0])
                jobs.pop(0)
            self.arm()
        except BaseException:  # a signal handler may raise out of the event loop, which goes on in a notebook
            for job in jobs:
                self.engine.renewals.drop(job)
            self._planned = NEVER
            self.arm()
            raise

    async def _run(self, job: Job) -> None:
        async with self._requests:
            await self.engine.renewals.run(job)

    def _call(self, callback: Callable[[Any], object], argument: Any) -> None:
        try:
            result = callback(argument)
        except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
            _log.exception("callback %r raised", callback)
            return
        if inspect.iscoroutine(result):
            self._spawn(self._finish(callback, result))

    async def _finish(self, callback: Callable[[Any], object], result: Coroutine[Any, Any, object]) -> None:
        try:
            async with asyncio.timeout(CALLBACK_LIMIT_S):
                await result
        except TimeoutError:
            _log.warning("callback %r was cancelled after %g s", callback, CALLBACK_LIMIT_S)
        except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
            _log.exception("callback %r raised", callback)

    def _spawn(self, work: Coroutine[Any, Any, None], job: Job | None = None) -> None:
        # Without the context variables of whoever armed the timer: a time limit that a driver keeps in one must not bind renewals. Not as
        # an argument, which a task factory of the user may not know.
        task = Context().run(self.loop.create_task, work)
        task.add_done_callback(partial(self._ended, job))
        self._tasks.add(task)

    def _ended(self, job: Job | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if job is not None and (task.cancelled() or error is not None):
            self.engine.renewals.drop(job)  # here, since a task may be interrupted or cancelled before its first line
        if error is not None:
            _log.error("a task of the client failed", exc_info=error)

    async def close(self) -> None:
        """Stop the timer, and let what is under way end."""
        self._closed = True
        for over in self._sleepers:
            over.set()
        _cancel(self._timers)
        while others := {task for task in self._tasks if not task.done()} - {asyncio.current_task()}:
            await asyncio.wait(others)


def _cancel(timers: Iterable[Cancellable]) -> None:
    for timer in timers:
        timer.cancel()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs. Raises: LeaseStateError: none of asyncio does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise LeaseStateError(
            "no event loop of asyncio runs here, which the asyncio client needs; under trio use connect() in a thread"
        ) from error


def check_loop(runtime: AsyncRuntime, what: str) -> None:
    """Raise LeaseStateError in any other event loop than the one that *what* belongs to."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not runtime.loop:
        raise LeaseStateError(
            f"{what} belongs to another event loop; use it where it was opened, or aconnect() in this one"
        )
