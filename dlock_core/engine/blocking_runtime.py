"""The blocking colour: the engine's coroutines run on a runtime that never suspends, so they end in one step, without an event loop.

Each client has at most one thread for renewals at rest, started with its first lock and ended soon after its last. While a request of
it hangs and another lock becomes urgent, a second thread goes on, up to a bound.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.clock import SYSTEM_CLOCK, Clock
from dlock_core.engine.callers import thread_identities
from dlock_core.engine.engine import Engine
from dlock_core.engine.process import DaemonThread
from dlock_core.engine.user_calls import Callbacks, Feed, guarded_logger, log_elsewhere, run_in_daemon_thread
from dlock_core.errors import StoreUnavailableError
from dlock_core.timings import NANOS, NEVER, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dlock_core.engine.renewals import Job

_log = guarded_logger("dlock.engine")
_T = TypeVar("_T")

_LINGER_NS = 2 * NANOS
HELPERS_MAX = 4
LOOK_S = 1.0


def run_blocking(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run *coroutine* to its end in one step; it must await nothing that suspends. What it raises is raised, also a StopIteration."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: _T = stop.value
        return value
    except RuntimeError as error:
        # Python's disguise of it where a coroutine ends.
        if type(error.__cause__) is StopIteration and str(error) == "coroutine raised StopIteration":
            raise error.__cause__ from None
        raise
    coroutine.close()
    raise AssertionError("the engine awaited something that suspends")


class _Signal:
    """Waited for by one thread. Not an Event, whose mutex a signal handler could find held by its own thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it was set before
            self._gate.release()

    async def wait(self, timeout_s: float) -> None:
        self._gate.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class _Turn:
    def __init__(self, runtime: BlockingRuntime) -> None:
        self._runtime = runtime
        self.gate = threading.Condition(runtime.mutex)
        self.is_set = False

    def set(self) -> None:
        with self.gate:
            self.is_set = True
            self.gate.notify()

    async def wait(self, timeout_s: float) -> None:
        await self._runtime.sleep(timeout_s, self)


class BlockingRuntime:
    """Clock, mutex, sleep, callbacks, and the thread that renews."""

    caller_kind = "thread"

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.now = clock.now
        self.wall_ms = clock.wall_ms
        self.caller = thread_identities()
        self.mutex = threading.RLock()
        self.engine: Engine
        self.client: object = None
        self._clock = clock
        self._wake = threading.Condition(self.mutex)
        self._thread: threading.Thread | None = None
        self._planned = NEVER
        self._busy_until = 0
        self._retired: set[threading.Thread] = set()
        self._closed = self._refused = False
        self._sleepers: set[_Turn] = set()
        self._helping = 0
        # What is due and not begun: of the thread that renews, and of its helpers.
        self._jobs: deque[Job] = deque()
        self._waiting_jobs: list[Job] = []
        self._callbacks = Callbacks()
        self._messages = Feed()
        self._owned = self.mutex._is_owned  # type: ignore[attr-defined]  # what Condition uses

    async def sleep(self, seconds: float, over: _Turn | None = None) -> None:
        """Wait until *over* is set, or the client is closed, at most so long."""
        over, until = over or _Turn(self), self.now() + nanoseconds(seconds)
        with self.mutex:  # no other: whoever ends the wait holds it, and so may a signal handler of this thread
            self._sleepers.add(over)
            try:
                while not (self._closed or over.is_set) and (left := until - self.now()) > 0:
                    self._clock.wait(over.gate, left / NANOS)
            finally:
                self._sleepers.discard(over)
        self.engine.driver.tell()  # what such a handler has noted inside of the mutex

    async def pause(self, seconds: float) -> None:
        """Wait in real time."""
        if self._clock is SYSTEM_CLOCK:
            threading.Event().wait(seconds)

    def signal(self) -> _Signal:
        """Return a new signal."""
        return _Signal()

    def turn(self) -> _Turn:
        """Return a new signal for which to wait as :meth:`sleep` does."""
        return _Turn(self)

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run *callback* on a thread of its own."""
        self._callbacks.post(callback, argument)

    async def run_probe(self, question: Callable[[Any], Any], argument: Any, timeout_s: float) -> Any:
        """Run *question* on a thread of its own, which is left behind where it takes too long."""
        return run_in_daemon_thread(question, argument).result(timeout_s)

    def is_inside(self) -> bool:
        """Whether this thread is inside of the mutex."""
        return bool(self._owned())

    def arm(self) -> None:
        """Wake the thread, or start it, if a handle is due before the thread would look. Also calls callbacks that could not be called."""
        self._callbacks.start()
        with self.mutex:
            first = self.engine.driver.timers.first()
            if first is None or self._closed:
                return
            if self._thread is None:
                self._start()
            elif first.due < self._busy_until and self._thread is not threading.current_thread():
                self._relieve(self._thread)
            elif first.due < self._planned:
                self._planned = first.due
                self._wake.notify()

    def retry(self) -> None:
        """Start the thread that could not be started, if there is one."""
        if self._refused:
            self.arm()

    def close(self) -> None:
        """End the thread; what it is doing is not waited for beyond its request."""
        with self.mutex:
            self._closed = True
            for over in self._sleepers:
                over.gate.notify()
            thread, self._thread = self._thread, None
            self._wake.notify_all()
        # A signal handler may close the client inside of the mutex, without which the thread cannot end.
        if thread is not None and thread is not threading.current_thread() and not self.is_inside():
            thread.join(timeout=1.0)
        self._messages.close()

    def _relieve(self, busy: threading.Thread) -> None:
        """Start a successor of the thread *busy*, whose request may take longer than a lock that came meanwhile can wait."""
        if len(self._retired) >= HELPERS_MAX:
            return
        self._start()
        if self._thread is not busy:
            self._helping += 1
            self._busy_until, self._planned = 0, NEVER
            self._retired.add(busy)

    def _start(self) -> None:
        thread, before = DaemonThread("dlock-renewals", self._run), self._thread
        self._thread = thread
        try:
            thread.begin()
        except StoreUnavailableError as error:
            self._thread = before
            # Once, until it succeeds. At the end of the interpreter no thread is started any more, and none is needed.
            if not self._refused and "shutdown" not in str(error):
                self.engine.driver.later(
                    _log.warning,
                    "locks are not renewed: %s; tried again at the next call of the client or a lease",
                    error,
                )
            self._refused = True
        except BaseException:
            self._thread = before
            self._refused = True
            raise
        else:
            self._refused = False

    def _run(self) -> None:
        log_elsewhere(self._messages.post)
        me = threading.current_thread()
        try:
            self._renew(me)
        finally:
            if self._thread is me:
                self._thread = None  # the next step starts another one
        if me in self._retired:
            self._retired.discard(me)
            self._help(self._next_job())

    def _renew(self, me: threading.Thread) -> None:
        while self._pause(me):
            try:
                self.engine.renewals.collect(self._jobs)
            except Exception:  # noqa: BLE001  # our own mistake about one lock must not end the renewals of all others
                _log.exception("finding what is due failed")
            while (job := self._take(me)) is not None:
                self._perform(job)

    def _take(self, me: threading.Thread) -> Job | None:
        """Return the next job; None where none is left, or where another thread was started in the place of this one."""
        with self.mutex:
            return self._jobs.popleft() if self._jobs and self._thread is me else None

    def _pause(self, me: threading.Thread) -> bool:
        """Wait until something is due; False when this thread is to end."""
        with self.mutex:
            idle_since: int | None = None
            while self._thread is me and not self._closed:
                first = self.engine.driver.timers.first()
                now = self.now()
                if self._jobs:
                    return True  # left by the thread in whose place this one was started
                if first is None:
                    idle_since = now if idle_since is None else idle_since
                    if now - idle_since >= _LINGER_NS:
                        break
                elif first.due <= now:
                    return True
                else:
                    idle_since = None
                # A lock that came and went leaves its instant planned: the next one, due later, then need not wake this thread.
                planned = self._planned if now < self._planned else NEVER
                self._planned = min(planned, now + _LINGER_NS if first is None else first.due)
                # What waits does not count the time in which the machine sleeps, and leases do: the clock is looked at now and then.
                self._clock.wait(self._wake, min((self._planned - now) / NANOS, LOOK_S))
            if self._thread is me:
                self._thread, self._planned = None, NEVER
            return False

    def _perform(self, job: Job) -> None:
        """Do *job* here if its hanging could hurt no other; else on a helper."""
        me = threading.current_thread()
        with self.mutex:  # a lock that comes meanwhile is looked at here, or finds this thread busy
            until = self.now() + job.timeout_ns
            urgent_at = min((other.urgent_at for other in self._jobs), default=NEVER)
            # The end of a lock that is at risk, and the stop before it, have to be told while its renewal hangs.
            ends = job.doubtful or until > min(handle.due for handle in job.handles)
            hurts = ends or until > urgent_at or job.timeout_ns > self.engine.driver.shortest_lease_ns // 4
            if hurts and self._hand_over(job):
                return
            if self._thread is me:
                self._busy_until = until
        self._run_job(job)
        with self.mutex:
            if self._thread is me:
                self._busy_until = 0

    def _hand_over(self, job: Job) -> bool:
        """Have a helper do *job*, now or once there is one; False if no thread can be started."""
        with self.mutex:
            if self._helping < self._helpers_for(job):
                helper = DaemonThread("dlock-renewals-helper", self._help, job)
                try:
                    helper.begin()
                except StoreUnavailableError:
                    return False
                self._helping += 1
            else:
                self._waiting_jobs.append(job)
            return True

    def _helpers_for(self, job: Job) -> int:
        """Return at how many busy helpers *job* has to wait: the longer it may hang, the more are kept for shorter ones.

        Each step is a factor of 4, so that however many requests of long leases hang, a short lease finds a thread within its time.
        """
        limit, step_ns = HELPERS_MAX, self.engine.driver.shortest_lease_ns
        while job.timeout_ns > step_ns and limit > 1:
            limit, step_ns = limit - 1, 4 * step_ns
        return limit

    def _help(self, job: Job | None) -> None:
        log_elsewhere(self._messages.post)
        while job is not None:
            self._run_job(job)
            job = self._next_job()

    def _next_job(self) -> Job | None:
        """Return the most urgent job that waits for a helper, those that failed before last; None ends the helper."""
        with self.mutex:
            self._helping -= 1
            ready = [job for job in self._waiting_jobs if self._helping < self._helpers_for(job)]
            if not ready:
                return None
            first = min(ready, key=lambda job: (job.doubtful, job.urgent_at))
            self._waiting_jobs = [job for job in self._waiting_jobs if job is not first]
            self._helping += 1
            return first

    def _run_job(self, job: Job) -> None:
        try:
            run_blocking(self.engine.renewals.run(job))
        except BaseException:  # noqa: BLE001  # whatever a store raises, a thread that renews goes on: it is there for all locks
            _log.exception("the renewal of %d locks failed", len(job.handles))
