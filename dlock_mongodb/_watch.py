"""The waiters of a client, by key, and the one change stream that wakes them.

The stream is opened when somebody first waits, and closed when nobody has waited for a while. A release wakes, in each client, the one
who has waited there longest. So does the first renewal after a waiter has marked the document: it drops the mark, and the stream
tells nothing of the renewals of other locks. A stream that breaks wakes everybody: they try, and whoever waits again opens it again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeAlias

from pymongo.errors import PyMongoError

from dlock_mongodb._wire import SOUGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

__all__ = ["AsyncWatch", "Queues", "Watch"]

_AWAIT_MS = 500
# How long closing waits for the stream to end.
_CLOSE_S = 2 * _AWAIT_MS / 1000
_IDLE_ROUNDS = 60
# A pipeline update may be told as an update or as a replacement.
_NEWS: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"fullDocument.state": {"$in": ["free", "gone"]}},
                {"updateDescription.updatedFields.state": {"$in": ["free", "gone"]}},
                {"updateDescription.removedFields": SOUGHT},
            ]
        }
    },
    {"$project": {"documentKey": 1}},
]
Wake: TypeAlias = "Callable[[], None]"


class Queues:
    """The waiters of each key, first come first woken."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[str, deque[Wake]] = {}

    def enter(self, key: str, wake: Wake) -> None:
        """Queue *wake* for the next news of *key*."""
        with self._mutex:
            self._queues.setdefault(key, deque()).append(wake)

    def leave(self, key: str, wake: Wake, *, used: bool) -> None:
        """Take *wake* out of the queue; if it was woken and has not *used* that, wake the next one."""
        with self._mutex:
            queue = self._queues.get(key, deque())
            if wake in queue:
                queue.remove(wake)
            elif not used and queue:
                queue.popleft()()
            if not queue:
                self._queues.pop(key, None)

    def wake(self, key: str) -> None:
        """Wake the first who waits for *key*."""
        with self._mutex:
            if queue := self._queues.get(key):
                queue.popleft()()

    def wake_all(self) -> None:
        """Wake everybody."""
        with self._mutex:
            for queue in self._queues.values():
                while queue:
                    queue.popleft()()

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queues)


class _Run:
    """One run of the stream. The event *opened* is set once it is open, or *error* says why it is not."""

    def __init__(self, opened: threading.Event | asyncio.Event) -> None:
        self.opened: Any = opened
        self.error: Exception | None = None
        self.worker: Any = None


class _Stream:
    """The stream, the same for both colours: :meth:`_follow` yields the results of pymongo's methods, which asyncio has to await."""

    def __init__(self, collection: Any) -> None:
        self.queues = Queues()
        self._collection = collection
        self._mutex = threading.Lock()
        self._run: _Run | None = None
        self._closed = False

    def _follow(self, run: _Run) -> Generator[Any, Any, None]:
        idle = 0
        stream = None
        try:
            stream = yield self._collection.watch(_NEWS, max_await_time_ms=_AWAIT_MS)
            run.opened.set()
            # One whose cursor the server has ended (the collection was dropped or renamed) gives nothing, without a pause.
            while stream.alive and not self._closed and idle < _IDLE_ROUNDS:
                change = yield stream.try_next()
                if change is not None:
                    self.queues.wake(change["documentKey"]["_id"])
                idle = 0 if self.queues else idle + 1
        except (PyMongoError, OSError, RuntimeError) as error:
            run.error = error
        finally:
            if stream is not None:
                yield stream.close()
            with self._mutex:
                self._run = None
            run.opened.set()
            self.queues.wake_all()


class Watch(_Stream):
    """For threads: a thread of its own follows the stream."""

    def wait(self, key: str, timeout_s: float, is_free: Callable[[], bool]) -> None:
        """Return when *key* was released or renewed, at *timeout_s*, or at once if it *is_free*, asked when no news can be missed."""
        end = time.monotonic() + timeout_s
        woken = threading.Event()
        wake, used = woken.set, False
        self.queues.enter(key, wake)
        try:
            used = (self._open(end) and is_free()) or woken.wait(_left(end))
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
                run = self._run = _Run(threading.Event())
                # A context of its own: the stream must not inherit the time-out of the call that opens it.
                run.worker = threading.Thread(
                    target=Context().run, args=(self._work, run), name="dlock-mongodb-watch", daemon=True
                )
                run.worker.start()
        opened: bool = run.opened.wait(_left(end))
        if run.error is not None:
            raise run.error
        return opened

    def _work(self, run: _Run) -> None:
        steps, came = self._follow(run), None
        with suppress(StopIteration):
            while True:
                came = steps.send(came)


class AsyncWatch(_Stream):
    """For the tasks of one event loop: a task of its own follows the stream."""

    async def wait(self, key: str, timeout_s: float, is_free: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """As :meth:`Watch.wait`; a cancelled waiter passes an unused wake-up on."""
        woken = asyncio.Event()
        wake, used = woken.set, False
        self.queues.enter(key, wake)
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
                used = await is_free() or await woken.wait()
        except TimeoutError:
            return
        finally:
            self.queues.leave(key, wake, used=used)

    async def close(self) -> None:
        """As :meth:`Watch.close`."""
        self._closed = True
        self.queues.wake_all()
        if (run := self._run) is not None:
            # A task that is cancelled while pymongo connects leaves the socket open.
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await run.opened.wait()
            run.worker.cancel()
            await asyncio.gather(run.worker, return_exceptions=True)
        self.queues.wake_all()

    async def _open(self) -> None:
        run = self._run
        if run is None:
            run = self._run = _Run(asyncio.Event())
            run.worker = asyncio.get_running_loop().create_task(self._work(run), context=Context())
        await run.opened.wait()
        if run.error is not None:
            raise run.error

    async def _work(self, run: _Run) -> None:
        steps = self._follow(run)
        with suppress(StopIteration):
            awaited = steps.send(None)
            while True:
                try:
                    came = await awaited
                except BaseException as error:  # noqa: BLE001  # also a cancellation is the generator's to handle
                    awaited = steps.throw(error)
                else:
                    awaited = steps.send(came)


def _left(end: float) -> float:
    return min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
