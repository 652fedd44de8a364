"""The waiters of a client, by key, and the one stream of news from the server that wakes them.

The stream is opened when somebody first waits, and closed when nobody has waited for a while. News of a key wake, in each client, the one
who has waited there longest. A stream that breaks wakes everybody: they try, and whoever waits again opens it again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from dlock_core.engine.process import DaemonThread
from dlock_core.errors import StoreError
from dlock_core.kit.exchange import Call, aperform, perform
from dlock_core.kit.forks import BeginsAnew, watch_forks
from dlock_core.store import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from dlock_core.kit.exchange import Exchange
    from dlock_core.record import LockRecord

# How long closing waits for the stream to end.
_CLOSE_S = 1.0
_IDLE_ROUNDS = 60
_UPKEEP_S = 0.5
Wake: TypeAlias = "Callable[[], None]"


class News(NamedTuple):
    """Where the news come from. For asyncio, what *open* and the methods of a stream return is awaited.

    *open* gives a stream: ``try_next()`` gives news, or None after half a second at most without any; ``alive``, if it has that, is false
    once there will be no more; ``close()`` ends it. *keys* says which keys news are about. An error in *trouble* ends the stream, any other
    is a bug. While the stream runs *upkeep* is called twice a second, and tried again where it raises a StoreError.
    """

    open: Callable[[], Any]
    keys: Callable[[Any], Iterable[str]]
    trouble: tuple[type[Exception], ...]
    upkeep: Callable[[], Any] | None = None


class Queues:
    """The waiters of each key, first come first woken.

    A signal handler may wait while its thread is anywhere in here: the mutex lets it in, and it may empty the queue that was looked at.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._queues: dict[str, deque[Wake]] = {}

    def enter(self, key: str, wake: Wake) -> None:
        """Queue *wake* for the next news of *key*."""
        with self._mutex:
            self._queues.setdefault(key, deque()).append(wake)

    def leave(self, key: str, wake: Wake, *, used: bool) -> None:
        """Take *wake* out of the queue; if it was woken and has not *used* that, wake the next one."""
        with self._mutex:
            queue = self._queues.get(key, deque())
            try:
                queue.remove(wake)
            except ValueError:
                if not used:
                    _wake_first(queue)
            if not queue:
                self._queues.pop(key, None)

    def wake(self, key: str) -> None:
        """Wake the first who waits for *key*."""
        with self._mutex:
            _wake_first(self._queues.get(key))

    def wake_all(self) -> None:
        """Wake everybody."""
        with self._mutex:
            for queue in list(self._queues.values()):
                while queue:
                    _wake_first(queue)

    def __contains__(self, key: str) -> bool:
        """Whether anybody waits for *key*."""
        return key in self._queues

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queues)


def _wake_first(queue: deque[Wake] | None) -> None:
    if queue:
        with suppress(IndexError):  # a signal handler has emptied it in between
            queue.popleft()()


class _Run:
    """One run of the stream. The event *opened* is set once it is open, or *error* says why it is not."""

    def __init__(self, opened: threading.Event | asyncio.Event) -> None:
        self.opened: Any = opened
        self.error: Exception | None = None
        self.worker: Any = None


class _Stream(BeginsAnew):
    """The stream, the same for both colours: :meth:`_follow` yields the results of a driver's methods, as steps that asyncio awaits."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._closed = False
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without a stream: the thread that follows it is the parent's, and so is its connection."""
        self.queues = Queues()
        self._mutex = threading.RLock()
        self._run: _Run | None = None

    def _follow(self, run: _Run) -> Generator[Any, Any, None]:
        idle, kept_at = 0, time.monotonic()
        stream = None
        try:
            stream = yield self._news.open()
            run.opened.set()
            while getattr(stream, "alive", True) and not self._closed and idle < _IDLE_ROUNDS:
                if self._news.upkeep is not None and time.monotonic() >= kept_at + _UPKEEP_S:
                    with suppress(StoreError):
                        yield self._news.upkeep()
                    kept_at = time.monotonic()
                news = yield stream.try_next()
                for key in () if news is None else self._news.keys(news):
                    self.queues.wake(key)
                idle = 0 if self.queues else idle + 1
        except self._news.trouble as error:
            run.error = error
        finally:
            try:
                with suppress(*self._news.trouble):  # it has ended, whatever its close says
                    if stream is not None:
                        yield stream.close()
            finally:
                self._forget(run)

    def _forget(self, run: _Run) -> None:
        """Let the next waiter open another stream, and those who wait for this one ask again."""
        with self._mutex:
            if self._run is run:
                self._run = None
        run.opened.set()
        self.queues.wake_all()


class Watch(_Stream):
    """For threads: a thread of its own follows the stream."""

    def wait(self, key: str, timeout_s: float, moved_on: Callable[[], bool]) -> None:
        """Return when there are news of *key*, at *timeout_s*, or at once if it has *moved_on*, asked when no news can be missed."""
        end = time.monotonic() + timeout_s
        woken = threading.Event()
        wake, used = woken.set, False
        try:
            self.queues.enter(key, wake)
            used = (self._open(end) and moved_on()) or woken.wait(_left(end))
        finally:
            self.queues.leave(key, wake, used=used)

    def close(self) -> None:
        """End the stream, and every wait; may be repeated."""
        self._closed = True
        if (run := self._run) is not None:
            run.worker.join(_CLOSE_S)
        self.queues.wake_all()

    def _open(self, end: float) -> bool:
        with self._mutex:
            run = self._run
            if run is None:
                run = _Run(threading.Event())
                # A context of its own: the stream must not inherit the time-out of the call that opens it.
                run.worker = DaemonThread("dlock-watch", perform, self._follow(run))
                run.worker.begin()
                if self._run is None:  # a signal handler may have opened another meanwhile
                    self._run = run
        opened: bool = run.opened.wait(_left(end))
        if run.error is not None:
            raise run.error
        return opened


class AsyncWatch(_Stream):
    """For the tasks of one event loop: a task of its own follows the stream."""

    async def wait(self, key: str, timeout_s: float, moved_on: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """As :meth:`Watch.wait`; a cancelled waiter passes an unused wake-up on."""
        woken = asyncio.Event()
        wake, used = woken.set, False
        self.queues.enter(key, wake)
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
                used = await moved_on() or await woken.wait()
        except TimeoutError:
            return
        finally:
            self.queues.leave(key, wake, used=used)

    async def close(self) -> None:
        """As :meth:`Watch.close`."""
        self._closed = True
        self.queues.wake_all()
        if (run := self._run) is not None:
            # A task that is cancelled while a driver connects may leave the socket open.
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await run.opened.wait()
            run.worker.cancel()
            # A driver may tell the server that the stream is over, and wait for an answer for as long as there is no server.
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await asyncio.shield(asyncio.gather(run.worker, return_exceptions=True))
        self.queues.wake_all()

    async def _open(self) -> None:
        run = self._run
        if run is None:
            run = self._run = _Run(asyncio.Event())
            run.worker = asyncio.get_running_loop().create_task(aperform(self._follow(run)), context=Context())
        await run.opened.wait()
        if run.error is not None:
            raise run.error


class _Wait(Protocol):
    def __call__(self, record: LockRecord, *, ticket: str, timeout_s: float) -> Any: ...


class Waits:
    """Mix into a store of either colour that waits on a :class:`Watch` (clauses N1 to N3); its verbs have ``moved_on``.

    It has no ``wait`` until :meth:`_notify` is called. A waiter is woken by news of its key, or of another *name*; ``moved_on`` is asked
    about the same.
    """

    wait: _Wait
    # How long asking whether a key is free may take: longer, and the waiter goes without the answer.
    _asking_max_s = threading.TIMEOUT_MAX

    def _notify(self: Any, watch: Watch | AsyncWatch) -> None:
        """Wait on *watch* from now on. To be called once it is known that the server sends news."""
        self._link.watch = watch
        self.wait = self._wait
        self.capabilities |= {Capability.NOTIFY}

    def _moved_on(self: Any, record: LockRecord, name: str, deadline: float) -> Any:
        """Ask whether *record* stands no more, for who waits under *name*; for asyncio the answer is awaited."""
        left_s = max(deadline - time.monotonic(), 0.001)
        return self._run(self._verbs.moved_on(name, record), Call("read", record.key, min(left_s, self._asking_max_s)))

    def _wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        return self._perform(self._waiting(record, record.key, timeout_s))

    def _waiting(self: Any, record: LockRecord, name: str, timeout_s: float) -> Exchange[None]:
        call = Call("read", record.key, timeout_s)
        deadline = self._begin(call)
        try:
            yield self._link.watch.wait(name, timeout_s, partial(self._moved_on, record, name, deadline))
        except Exception as error:  # noqa: BLE001  # it is raised again
            self._raise(error, call)


def _left(end: float) -> float:
    return min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
