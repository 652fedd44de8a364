"""Who waits for which key, and the one change stream of a client that wakes them.

The stream is opened when somebody first waits, and closed when nobody has waited for a while. A release wakes, in each client, the one
who has waited there longest, and so does the first renewal after a waiter has marked the document: it drops the mark, and the stream
tells nothing of the renewals that nobody waits for. A stream that breaks wakes everybody: they try, and whoever waits again opens it
again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from dlock_mongodb._wire import SOUGHT

__all__ = ["AsyncWatch", "Queues", "Watch"]

_AWAIT_MS = 500
# How long closing waits for what is under way.
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
Wake = Callable[[], None]


class Queues:
    """Who waits, first come first woken, by key."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self._queues: dict[str, deque[Wake]] = {}

    def enter(self, key: str, wake: Wake) -> None:
        """Queue *wake* for the next news of *key*."""
        with self.mutex:
            self._queues.setdefault(key, deque()).append(wake)

    def leave(self, key: str, wake: Wake, *, used: bool) -> None:
        """Take *wake* out of the queue; if it was woken and has not *used* that, wake the next one."""
        with self.mutex:
            queue = self._queues.get(key, deque())
            if wake in queue:
                queue.remove(wake)
            elif not used and queue:
                queue.popleft()()
            if not queue:
                self._queues.pop(key, None)

    def wake(self, key: str) -> None:
        """Wake the first who waits for *key*."""
        with self.mutex:
            if queue := self._queues.get(key):
                queue.popleft()()

    def wake_all(self) -> None:
        """Wake everybody."""
        with self.mutex:
            for queue in self._queues.values():
                while queue:
                    queue.popleft()()

    def waited_for(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queues)


class _Following:
    """One run of the stream. *opened* is set once it is open, or *error* says why it is not."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.error: Exception | None = None
        self.task: Any = None


class Watch:
    """The queues of the threads of a client, and the thread that follows the stream for them."""

    def __init__(self, collection: Collection[Any]) -> None:
        self._collection = collection
        self._queues = Queues()
        self._mutex = threading.Lock()
        self._following: _Following | None = None
        self._closed = False

    def wait(self, key: str, timeout_s: float, is_free: Callable[[], bool]) -> None:
        """Return when *key* was released or renewed, at *timeout_s*, or at once if it *is_free*, asked when no news can be missed."""
        end = time.monotonic() + timeout_s
        woken = threading.Lock()
        woken.acquire()
        wake = woken.release
        self._queues.enter(key, wake)
        used = False
        try:
            used = (self._open(end) and is_free()) or woken.acquire(timeout=_left(end))
        finally:
            self._queues.leave(key, wake, used=used)

    def close(self) -> None:
        """End the stream, and every wait."""
        self._closed = True
        following = self._following
        if following is not None:
            following.task.join(_CLOSE_S)
        self._queues.wake_all()

    def _open(self, end: float) -> bool:
        with self._mutex:
            following = self._following
            if following is None:
                following = self._following = _Following(threading.Event())
                # A context of its own: the stream must not inherit the time-out of the call that opens it.
                following.task = threading.Thread(
                    target=Context().run, args=(self._follow, following), name="dlock-mongodb-watch", daemon=True
                )
                following.task.start()
        opened: bool = following.opened.wait(_left(end))
        if following.error is not None:
            raise following.error
        return opened

    def _follow(self, following: _Following) -> None:
        idle = 0
        try:
            with self._collection.watch(_NEWS, max_await_time_ms=_AWAIT_MS) as stream:
                following.opened.set()
                # One whose cursor the server has ended (the collection was dropped or renamed) gives nothing, without a pause.
                while stream.alive and not self._closed and idle < _IDLE_ROUNDS:
                    change = stream.try_next()
                    if change is not None:
                        self._queues.wake(change["documentKey"]["_id"])
                    idle = 0 if self._queues.waited_for() else idle + 1
        except (PyMongoError, OSError, RuntimeError) as error:
            following.error = error
        finally:
            with self._mutex:
                self._following = None
            following.opened.set()
            self._queues.wake_all()


class AsyncWatch:
    """As :class:`Watch`, for the tasks of one event loop.

    A task that is cancelled while pymongo connects leaves the socket open, for the garbage collector to complain about. So nobody who may
    be cancelled asks by itself.
    """

    def __init__(self, collection: AsyncCollection[Any]) -> None:
        self._collection = collection
        self._queues = Queues()
        self._following: _Following | None = None
        self._asking: set[asyncio.Task[bool]] = set()

    async def wait(self, key: str, timeout_s: float, is_free: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """As :meth:`Watch.wait`; a cancelled waiter passes an unused wake-up on."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        self._queues.enter(key, wake)
        used = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
                if not await self._asked(is_free):
                    await woken
                used = True
        except TimeoutError:
            return
        finally:
            self._queues.leave(key, wake, used=used)

    async def close(self) -> None:
        """As :meth:`Watch.close`."""
        self._queues.wake_all()
        following = self._following
        if following is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await following.opened.wait()
            following.task.cancel()
            await asyncio.gather(following.task, return_exceptions=True)
        if self._asking:
            await asyncio.wait(self._asking, timeout=_CLOSE_S)
        self._queues.wake_all()

    async def _asked(self, is_free: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Ask to the end, within the time-out of the call, also if the answer is not waited for any more."""
        task = asyncio.get_running_loop().create_task(is_free())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return await asyncio.shield(task)

    async def _open(self) -> None:
        following = self._following
        if following is None:
            following = self._following = _Following(asyncio.Event())
            following.task = asyncio.get_running_loop().create_task(self._follow(following), context=Context())
        await following.opened.wait()
        if following.error is not None:
            raise following.error

    async def _follow(self, following: _Following) -> None:
        idle = 0
        try:
            async with await self._collection.watch(_NEWS, max_await_time_ms=_AWAIT_MS) as stream:
                following.opened.set()
                while stream.alive and idle < _IDLE_ROUNDS:
                    change = await stream.try_next()
                    if change is not None:
                        self._queues.wake(change["documentKey"]["_id"])
                    idle = 0 if self._queues.waited_for() else idle + 1
        except (PyMongoError, OSError, RuntimeError) as error:
            following.error = error
        finally:
            self._following = None
            following.opened.set()
            self._queues.wake_all()


def _left(end: float) -> float:
    return min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
