"""A thread or task that acquires a key which it seems to hold: the lock was lost, and nobody has noticed yet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from dlock_core import AcquireTimeoutError, LockLostError
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_lock_that_another_has_taken_over_is_no_nested_one(world: World) -> None:
    """The wait is for the other holder, and not for itself."""
    async with world.client() as client:

        async def nested() -> None:
            outer = await client.acquire("k")
            record = world.space.records["k"]
            world.space.records["k"] = dataclasses.replace(record, rvn="stolen", fencing_token=2, owner="thief")
            try:
                await client.acquire("k", timeout=1)
            finally:
                assert outer.fencing_token == 1

        waiting = world.spawn(nested())
        await world.live(2)

        with pytest.raises(AcquireTimeoutError, match="held by 'thief'"):
            await waiting.result()


@both_colours
async def test_lock_that_ran_out_unnoticed_is_lost_for_who_joins_it(world: World) -> None:
    """As after a pause of the whole process, before any thread of the client has run."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:
        outer = await client.acquire("k")
        world.clock.advance(10)

        with pytest.raises(LockLostError):
            await client.acquire("k", timeout=0)
        assert not outer.is_valid
