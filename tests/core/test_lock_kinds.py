"""One key asked for in two ways: as an exclusive lock, a read/write lock or a semaphore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import RecordError
from tests.core.jobs_support import enter
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

KINDS: dict[str, Any] = {
    "exclusive": {},
    "under a session": {"renewal": "session"},
    "permits": {"permits": 2},
    "read": {"mode": "read"},
    "write": {"mode": "write"},
}


@both_colours
async def test_key_that_is_held_in_another_way_is_refused(world: World) -> None:
    """At once, also while an exclusive lock would wait."""
    async with world.client() as a, world.client() as b:
        held = [await a.acquire("s", permits=2), await a.acquire("x")]

        for options in ({}, {"timeout": 0}, {"mode": "read"}):
            with pytest.raises(RecordError, match="'s' is held as a semaphore"):
                await b.acquire("s", **options)
        with pytest.raises(
            RecordError, match="'x' is held as an exclusive lock, and was asked for as a read/write lock"
        ):
            await b.acquire("x", mode="write")
        with pytest.raises(RecordError, match="'s' is held as a semaphore"):
            await enter(b, "s", slot=1)
        assert all(lease.is_valid for lease in held)


@both_colours
@pytest.mark.parametrize(
    ("left", "asked"),
    [
        ("exclusive", "permits"),
        ("under a session", "read"),
        ("permits", "exclusive"),
        ("permits", "write"),
        ("read", "exclusive"),
        ("write", "permits"),
    ],
)
async def test_key_that_the_dead_held_in_another_way_is_had_after_their_lease(
    world: World, left: str, asked: str
) -> None:
    """It is refused at once for so long; then nobody has to break it by hand. The token goes on from theirs."""
    store = world.another_store()
    async with world.client(store, lease_duration=10) as dead, world.client(lease_duration=10) as b:
        held = await dead.acquire("k", **KINDS[left])
        await world.live(6)
        with store.outage():
            for _ in range(4):
                with pytest.raises(RecordError, match="if its holder has died, ask again after its lease"):
                    await b.acquire("k", timeout=60, **KINDS[asked])
                await world.live(2)
            await world.live(6)

            taken = await b.acquire("k", timeout=0, **KINDS[asked])

            assert taken.fencing_token > held.fencing_token
            assert not held.is_valid
