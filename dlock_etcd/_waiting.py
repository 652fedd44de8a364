"""Waiting: the way of a waiter into the queue, and out of it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError
from dlock_core.kit import Call, Waits

if TYPE_CHECKING:
    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord

_LEAVE_S = 0.25


class Queues(Waits):
    """``wait``, for both colours (clauses N1 to N3)."""

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came.

        A waiter that is interrupted leaves the queue.
        """
        return self._perform(self._queueing(record.key, ticket, timeout_s))

    def _queueing(self: Any, key: str, ticket: str, timeout_s: float) -> Exchange[None]:
        queue, until, woken = self._verbs.queue, time.monotonic() + timeout_s, False
        bell = queue.attend(key, ticket)
        try:
            yield from self._waiting(key, bell, timeout_s)
            woken = time.monotonic() < until
        finally:
            if woken:
                queue.keep(bell)
            else:
                with suppress(StoreError):  # the place is given up a little later
                    yield self._run(queue.leave(bell), Call("leave", key, _LEAVE_S))
