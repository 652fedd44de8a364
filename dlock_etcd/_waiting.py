"""Waiting in both colours: each wait, and what keeps the places of all of them while there are any."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError
from dlock_core.kit import Call
from dlock_etcd._queue import TICK_S

if TYPE_CHECKING:
    from dlock_core.record import LockRecord

__all__ = ["AsyncWaits", "Waits"]

_LEAVE_S = 0.25
_UPKEEP = Call("release", None, 2.0)
_log = logging.getLogger("dlock.etcd")


class Waits:
    """``wait``, for threads (clauses N1 to N3)."""

    _keeper: threading.Thread | None = None

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came."""
        key, queue, woken = record.key, self._verbs.queue, False
        call = Call("read", key, timeout_s)
        deadline = self._begin(call)
        own = queue.attend(key, ticket)
        self._keep()

        def enter() -> bool:
            left_s = max(deadline - time.monotonic(), 0.001)
            return bool(self._run(queue.enter(key, own), Call("read", key, left_s)))

        try:
            self._link.watch.wait(own.bell.decode(), timeout_s, enter)
            woken = time.monotonic() < deadline
        except Exception as error:  # noqa: BLE001  # it is raised again
            if time.monotonic() < deadline:
                self._raise(error, call)
        finally:
            if woken:
                queue.keep(key, own)
            else:
                with suppress(StoreError):
                    self._run(queue.leave(key, own), Call("release", key, _LEAVE_S))

    def _keep(self: Any) -> None:
        with self._mutex:
            if self._keeper is None:
                # A context of its own: it must not inherit the time-out of the call that begins it.
                self._keeper = threading.Thread(target=Context().run, args=(self._work,), name="dlock-etcd", daemon=True)
                self._keeper.start()

    def _work(self: Any) -> None:
        while not self._closed.wait(TICK_S):
            try:
                goes_on = self._run(self._verbs.queue.upkeep(), _UPKEEP)
            except StoreError as error:
                _log.debug("the places of the waiters were not kept: %s", error)
            else:
                with self._mutex:
                    if not goes_on:
                        self._keeper = None
                        return

    def close(self: Any) -> None:
        """Refuse every later call, end the waits, and close what the store opened itself; may be repeated."""
        self._closed.set()
        super().close()  # type: ignore[misc]


class AsyncWaits:
    """As :class:`Waits`, for asyncio."""

    _keeper: asyncio.Task[None] | None = None

    async def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`Waits.wait`; a waiter that is cancelled leaves the queue."""
        key, queue, woken = record.key, self._verbs.queue, False
        call = Call("read", key, timeout_s)
        deadline = self._begin(call)
        own = queue.attend(key, ticket)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._work(), context=Context())

        async def enter() -> bool:
            left_s = max(deadline - time.monotonic(), 0.001)
            return bool(await self._run(queue.enter(key, own), Call("read", key, left_s)))

        try:
            await self._link.watch.wait(own.bell.decode(), timeout_s, enter)
            woken = time.monotonic() < deadline
        except Exception as error:  # noqa: BLE001  # it is raised again
            if time.monotonic() < deadline:
                self._raise(error, call)
        finally:
            if woken:
                queue.keep(key, own)
            else:
                with suppress(StoreError):
                    await self._run(queue.leave(key, own), Call("release", key, _LEAVE_S))

    async def _work(self: Any) -> None:
        goes_on = True
        while goes_on:
            await asyncio.sleep(TICK_S)
            try:
                goes_on = await self._run(self._verbs.queue.upkeep(), _UPKEEP)
            except StoreError as error:
                _log.debug("the places of the waiters were not kept: %s", error)

    async def close(self: Any) -> None:
        """As :meth:`Waits.close`."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await super().close()  # type: ignore[misc]
