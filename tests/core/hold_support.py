"""What the tests of a held lock share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.core.worlds import raw

if TYPE_CHECKING:
    from dlock_core import AsyncLease
    from tests.core.worlds import World


class Boom(Exception):  # noqa: N818  # it is what a body happens to raise
    """Raised by a body."""


async def steal(world: World, lease: AsyncLease) -> None:
    """Let somebody else hold the key, as after a pause longer than the lease of which this process knows nothing."""
    async with world.client(owner="thief") as thief:
        assert await thief.break_lock(lease.key, fencing_token=lease.fencing_token, now=True)
        stolen = await thief.acquire(lease.key, fail_closed=True, timeout=5)
        raw(stolen)._closed = True  # it stays held when the thief's client is closed
        thief_engine = getattr(thief, "_inner", thief)._engine
        thief_engine.driver.held.clear()
