"""The looks that follow a renewal take no time that another renewal needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.core.scheduler_support import batches
from tests.core.test_sessions import KEEPS, moved
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


def _reading_slowly(world: World, seconds: list[float]) -> Any:
    """Return a store that renews in batches, and of which each read takes as long as *seconds* say by then; it notes the time-outs."""
    store = batches(world)
    read, store.looks = store.read, []

    def slowly(key: str, *, timeout_s: float) -> Any:
        store.looks.append(timeout_s)
        world.clock.advance(seconds[-1])
        return read(key, timeout_s=timeout_s)

    store.read = slowly
    return store


@both_colours
@pytest.mark.parametrize("slow_s", [0.4, 1.3])
async def test_audits_of_a_slow_store_end_no_session(world: World, slow_s: float) -> None:
    """Of 60 locks each is to be read in 10 s, which takes longer: they are read as fast as the store allows."""
    seconds = [0.0]
    store = _reading_slowly(world, seconds)
    async with world.client(store, **KEEPS, audit_period=10) as client:
        leases = await moved(world, client, *(f"k{number}" for number in range(60)))
        seconds.append(slow_s)
        store.looks.clear()
        await world.live(40)

        assert all(lease.is_valid for lease in leases)
        assert len(store.looks) > 8  # one at least after each beat
        assert 10 / 12 <= min(store.looks) <= max(store.looks) <= 10 / 6  # half of a request's time-out at least
        seconds.append(0.0)
        del world.space.records["k7"]
        await world.live(15)
        assert not leases[7].is_valid


@both_colours
async def test_looks_at_places_of_a_slow_store_lose_none(world: World) -> None:
    """Each renewal of a place looks at its record, and so many one after the other take longer than a lease."""
    seconds = [0.0]
    async with world.client(_reading_slowly(world, seconds), lease_duration=10) as client:
        kept = [await client.acquire(f"k{number}", permits=1) for number in range(12)]
        seconds.append(0.9)
        await world.live(20)

        assert all(lease.is_valid for lease in kept)
        seconds.append(0.0)
