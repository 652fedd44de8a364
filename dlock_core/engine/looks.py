"""What the waiters of one client share where their store wakes nobody: the newest look at their key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.store import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dlock_core.errors import StoreError
    from dlock_core.record import LockRecord

__all__ = ["Look"]


class Look:
    """The newest look at one key, by any waiter of this client.

    A look that began while a waiter paused serves that waiter as well as one of its own: each write names the version that it expects. So
    a hundred waiters of one key ask as often as one does. Only a held record is shared: of a free one each waiter makes sure, or all of
    them would claim a lock that the first has just got.
    """

    def __init__(self) -> None:
        self._newest: tuple[int, LockRecord] | None = None

    async def read(
        self, since: int, now: Callable[[], int], send: Callable[[], Awaitable[Reply | StoreError]]
    ) -> Reply | StoreError:
        """Return the record of a look that began after *since*; *send* looks if nobody has."""
        newest = self._newest
        if newest is not None and newest[0] > since:
            return Reply(applied=False, record=newest[1])
        began = now()
        reply = await send()
        record = reply.record if isinstance(reply, Reply) else None
        self._newest = (began, record) if record is not None and record.held else None
        return reply
