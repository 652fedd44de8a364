"""Waiting in both colours: the way of a waiter into the queue, and out of it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError
from dlock_core.kit import AsyncWaits, Call, Waits

if TYPE_CHECKING:
    from dlock_core.record import LockRecord

_LEAVE_S = 0.25


class Queues(Waits):
    """``wait``, for threads (clauses N1 to N3)."""

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came."""
        queue, until, woken = self._verbs.queue, time.monotonic() + timeout_s, False
        bell = queue.attend(record.key, ticket)
        try:
            self._wait(record, ticket=ticket, timeout_s=timeout_s, name=bell)
            woken = time.monotonic() < until
        finally:
            if woken:
                queue.keep(bell)
            else:
                with suppress(StoreError):  # the place is given up a little later
                    self._run(queue.leave(bell), Call("leave", record.key, _LEAVE_S))


class AsyncQueues(AsyncWaits):
    """As :class:`Queues`, for asyncio."""

    async def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`Queues.wait`; a waiter that is cancelled leaves the queue."""
        queue, until, woken = self._verbs.queue, time.monotonic() + timeout_s, False
        bell = queue.attend(record.key, ticket)
        try:
            await self._wait(record, ticket=ticket, timeout_s=timeout_s, name=bell)
            woken = time.monotonic() < until
        finally:
            if woken:
                queue.keep(bell)
            else:
                with suppress(StoreError):
                    await self._run(queue.leave(bell), Call("leave", record.key, _LEAVE_S))
