"""What goes into one batch of renewals, and what goes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import OutcomeUnknownError, State
from tests.core.scheduler_support import batches
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from dlock_core.engine.renewals import Job
    from tests.core.worlds import World


def _fail_release(world: World, store: Any) -> set[str]:
    """Have releases on *store* of the keys that are returned get no answer, and not arrive."""
    release, failing = store.release, {"released"}

    def fail(request: Any, **how: Any) -> Any:
        if request.record.key in failing:
            raise OutcomeUnknownError("no answer", key=request.record.key)
        return release(request, **how)

    async def afail(request: Any, **how: Any) -> Any:
        return await fail(request, **how)

    store.release = fail if world.colour == "sync" else afail
    return failing


@both_colours
async def test_release_that_is_repeated_goes_beside_a_batch(world: World) -> None:
    """As does what is due of a lease that was dropped: nothing. Each would have the store refuse the batch."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        kept = [await client.acquire(f"kept{number}") for number in range(2)]
        released = await client.acquire("released")
        dropped = [await client.acquire("dropped")]
        with pytest.warns(ResourceWarning, match="unreleased lease of lock 'dropped'"):
            dropped.clear()
        failing = _fail_release(world, store)
        with pytest.raises(OutcomeUnknownError):
            await released.release()

        await world.jump(6)

        assert store.sizes == [2]
        assert all(lease.remaining > 19 for lease in kept)
        assert world.space.records["released"].held
        failing.clear()
        await world.live(10)
        assert world.space.records["released"].state is State.FREE
        assert all(lease.is_valid for lease in kept)
        await world.live(10)


@both_colours
async def test_beat_of_a_session_goes_beside_a_batch(world: World) -> None:
    """It is in more of a hurry than any of them, and waits for none."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        kept = await client.acquire("kept", renewal="session")
        await world.live(11)
        assert raw(kept)._handle.keeper is not None
        leases = [await client.acquire(f"k{number}") for number in range(3)]
        store.sizes.clear()

        await world.jump(7)

        assert store.sizes == [3]
        assert kept.is_valid
        assert kept.remaining > 19
        assert all(lease.is_valid for lease in leases)


@async_only
async def test_lock_that_is_released_while_its_batch_waits_holds_up_no_other(world: World) -> None:
    """Its renewal is sent with theirs, and refused."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        first, *kept = [await client.acquire(f"k{number}") for number in range(3)]
        renewals = client._engine.renewals
        world.clock.advance(6)
        jobs: list[Job] = []
        renewals.collect(jobs)
        await first.release()
        for job in jobs:
            await renewals.run(job)

        assert store.sizes == [3]
        assert all(lease.remaining > 19 for lease in kept)
