"""A thread or task that acquires a key which it seems to hold: the lock was lost, and nobody has noticed yet."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import AcquireTimeoutError, LockLostError, Loss, State
from tests.core.worlds import both_colours, raw

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

        with pytest.raises(AcquireTimeoutError, match="held by 'thief'") as raised:
            await waiting.result()
        assert "reentrant" not in str(raised.value)


@both_colours
async def test_lock_that_ran_out_unnoticed_is_lost_for_who_joins_it(world: World) -> None:
    """As after a pause of the whole process, before any thread of the client has run."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:
        outer = await client.acquire("k")
        world.clock.advance(10)

        with pytest.raises(LockLostError):
            await client.acquire("k", timeout=0)
        assert not outer.is_valid


@both_colours
async def test_who_joins_a_lost_lock_has_its_callbacks_called(world: World) -> None:
    """Nothing else would tell of the loss: this lock is not renewed."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:
        outer = await client.acquire("k")
        losses: list[Loss] = []
        outer.on_lost(losses.append)
        await world.settle()
        with client._engine.runtime.mutex:
            world.clock.advance(10)

        with pytest.raises(LockLostError):
            await client.acquire("k", timeout=0)
        await world.until(lambda: bool(losses))
        with pytest.raises(LockLostError):
            await outer.release()


@pytest.mark.parametrize("state", [None, State.FREE])
@both_colours
async def test_lock_whose_record_is_not_held_is_acquired_anew(world: World, state: State | None) -> None:
    """Its holder waits for nobody: somebody has removed the record, or freed it. A greater token tells that the first lease was lost."""
    async with world.client(auto_renew=True) as client:
        outer = await client.acquire("k")
        record = world.space.records.pop("k")
        if state is not None:
            world.space.records["k"] = dataclasses.replace(record, state=state, lease_ms=None)

        inner = await client.acquire("k", timeout=1)

        assert inner.is_valid
        await inner.release()
        with pytest.raises(LockLostError) if state is State.FREE else nullcontext():
            await outer.release()


@both_colours
async def test_lock_that_ran_out_unnoticed_is_told_to_who_is_interrupted(world: World) -> None:
    """Before it is given back, as that of who goes on is."""
    async with world.client(lease_duration=10) as client:
        lease = await client.acquire("k")
        told: list[Any] = []
        lease.on_lost(told.append)
        world.clock.advance(10)

        raw(lease)._leave_to_scheduler()

        await world.until(lambda: bool(told))
        await world.settle()
        assert not world.space.records["k"].held
        assert not raw(client)._engine.driver.held


@both_colours
async def test_lock_that_ran_out_unnoticed_is_waited_for(world: World) -> None:
    """Its own thread or task gets it anew, once its record has stood for a lease."""
    async with world.client(lease_duration=10) as client:

        async def nested() -> list[int]:
            outer = await client.acquire("k")
            world.clock.advance(10)
            async with client.lock("k", timeout=30) as inner:
                return [outer.fencing_token, inner.fencing_token]

        waiting = world.spawn(nested())
        await world.live(12)

        assert await waiting.result() == [1, 2]
