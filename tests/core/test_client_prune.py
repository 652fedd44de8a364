"""``client.prune``: which records go, and what stays."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.engine.pruning import OLDER_THAN_MIN_S
from dlock_core.errors import ConfigurationError, UnsupportedError
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

DAY_S = 86_400


def store_of(world: World) -> Any:
    """Return a store of the world's space that tells ages, and has what it declares."""
    return (AsyncMemoryStore if world.colour == "async" else MemoryStore)(world.space)


def days_pass(world: World, days: float) -> None:
    """Move the clock of the records."""
    now = world.space.now()
    world.space.now = lambda: now + int(days * DAY_S * 1e9)


@both_colours
async def test_prune_removes_what_is_free_and_old_under_the_prefix(world: World) -> None:
    """Young records, those of other prefixes, and held ones stay; the number that was seen counts all under the prefix."""
    async with world.client(store_of(world)) as client:
        for key in ("a/1", "a/2", "b/1"):
            async with client.lock(key):
                pass
        held = await client.acquire("a/held")
        days_pass(world, 31)
        async with client.lock("a/young"):
            pass

        assert await client.prune(older_than=timedelta(days=32), prefix="a/") == (0, 4)
        pruned = await client.prune(older_than=timedelta(days=30), prefix="a/")

        assert pruned == (2, 4)
        assert [record.key async for record in client.scan()] == ["a/held", "a/young", "b/1"]
        assert client.holds("a/held")
        await held.release()


@both_colours
async def test_prune_sends_more_than_one_page(world: World) -> None:
    """At most 500 records are asked about at once."""
    async with world.client(store_of(world)) as client:
        for number in range(501):
            async with client.lock(f"k{number}"):
                pass
        days_pass(world, 2)

        assert await client.prune(older_than=OLDER_THAN_MIN_S, dry_run=True) == (501, 501)
        assert await client.prune(older_than=OLDER_THAN_MIN_S) == (501, 501)


@both_colours
async def test_tokens_go_on_above_what_was_pruned(world: World) -> None:
    """Of the key itself and of every new one."""
    async with world.client(store_of(world)) as client:
        last = 0
        for _ in range(5):
            async with client.lock("k") as lease:
                last = lease.fencing_token
        days_pass(world, 2)
        await client.prune(older_than=OLDER_THAN_MIN_S)

        async with client.lock("k") as lease:
            assert lease.fencing_token > last


@both_colours
async def test_what_carries_data_stays(world: World) -> None:
    """The last slot of a job, the result of a run, the data and attributes of a lock: somebody may look them up."""
    async with world.client(store_of(world)) as client:
        async with client.lock("data", data=b"x"):
            pass
        async with client.lock("attributes", attributes={"a": 1}):
            pass
        async with client.lock("gone", delete_on_release=True):
            pass
        days_pass(world, 2)

        assert await client.prune(older_than=OLDER_THAN_MIN_S) == (1, 3)


@both_colours
async def test_a_dry_run_counts_and_removes_nothing(world: World) -> None:
    """The same numbers."""
    async with world.client(store_of(world)) as client:
        async with client.lock("k"):
            pass
        days_pass(world, 2)

        assert await client.prune(older_than=OLDER_THAN_MIN_S, dry_run=True) == (1, 1)
        assert await client.get("k") is not None


@both_colours
async def test_prune_refuses_what_is_not_safe(world: World) -> None:
    """Too short a time, a store that needs its records, and locks that have no lease; each message says why."""
    async with world.client(store_of(world)) as client:
        for seconds in (-1, 0, 3600, OLDER_THAN_MIN_S - 1):
            with pytest.raises(
                ConfigurationError, match=r"is less than 90000 s|-1 is not a finite number of seconds, 90000 or more"
            ):
                await client.prune(older_than=seconds)
        assert await client.prune(older_than=OLDER_THAN_MIN_S) == (0, 0)
    async with world.client(store_of(world), fail_closed=True) as client:
        with pytest.raises(UnsupportedError, match="without a lease"):
            await client.prune(older_than=OLDER_THAN_MIN_S)
    async with world.client() as client:
        with pytest.raises(UnsupportedError, match="keeps the record of each key"):
            await client.prune(older_than=OLDER_THAN_MIN_S)
