"""Early takeover through the clients: bounded wall clocks, the store's clock, a probe of the owner."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockOptions, LockRecord, OutcomeUnknownError, OwnerState, Stamp, UnsupportedError
from dlock_core.client import LockClient
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.options import trusts_server_clock
from dlock_core.record import State
from tests.core.early_support import dies, vanish
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_lock_of_long_ago_is_had_at_once_by_wall_clocks(world: World) -> None:
    """A newcomer that has seen nothing: lease, drift and skew have passed since the stamp."""
    token = await dies(world, clock_skew=1)
    await world.jump(11.2)

    async with world.client(clock_skew=1) as client:
        lease = await client.try_acquire("k")

        assert lease is not None
        assert lease.fencing_token == token + 1


@both_colours
async def test_renewals_are_stamped_anew(world: World) -> None:
    """A holder that lives is never old."""
    async with world.client(clock_skew=1, lease_duration=10) as holder, world.client(clock_skew=1) as client:
        lease = await holder.acquire("k")
        await world.live(30)

        assert await client.try_acquire("k") is None
        record = await client.get("k")
        assert record is not None
        assert isinstance(record.stamp, Stamp)
        assert record.stamp.rvn == record.rvn
        assert lease.is_valid


@both_colours
async def test_without_the_option_nothing_is_stamped_and_no_stamp_is_read(world: World) -> None:
    """The default is observation."""
    await dies(world)
    async with world.client() as client:
        record = await client.get("k")
        assert record is not None
        assert record.stamp is None
        assert record.process is None
    await dies(world, "stamped", clock_skew=1)
    await world.jump(1000)

    async with world.client() as client:
        assert await client.try_acquire("stamped") is None


@both_colours
async def test_wall_clock_that_is_behind_the_holders_observes(world: World) -> None:
    """The stamp is of its future."""
    await dies(world, clock_skew=1)
    await world.jump(100)
    world.clock.skew = -200

    async with world.client(clock_skew=1) as client:
        assert await client.try_acquire("k") is None


@both_colours
async def test_record_that_another_writer_renewed_without_a_stamp_is_not_old(world: World) -> None:
    """The stamp left behind is of an earlier write: F17."""
    await dies(world, clock_skew=1)
    record = world.space.records["k"]
    left = LockRecord("k", State.HELD, "renewed", 1, "other", 10_000, stamp=record.stamp)
    world.space.records["k"] = left
    await world.jump(100)

    async with world.client(clock_skew=1) as client:
        assert await client.try_acquire("k") is None


@both_colours
async def test_what_one_attempt_trusted_does_not_count_for_the_next(world: World) -> None:
    """Attempts of one client share what was observed, and nothing that a clock has told one of them."""
    await dies(world, clock_skew=5)
    await world.jump(14)
    async with world.client() as client:
        assert await client.try_acquire("k", clock_skew=5) is None
        await world.jump(2)

        assert await client.try_acquire("k") is None
        lease = await client.try_acquire("k", clock_skew=5)
        assert lease is not None


def of_space(world: World, space: MemorySpace) -> Any:
    """Return a store on *space* that tells ages, in the colour of *world*."""
    return MemoryStore(space) if world.colour == "sync" else AsyncMemoryStore(space)


@both_colours
async def test_lock_of_long_ago_is_had_at_once_by_the_stores_clock(world: World) -> None:
    """Two requests more than a free key costs."""
    store = of_space(world, MemorySpace(world.clock.now))
    client = world.client(store, auto_renew=False, lease_duration=10)
    await client.__aenter__()
    await vanish(client, await client.acquire("k"))
    await world.jump(11)

    async with world.client(store, server_clock=True) as newcomer:
        lease = await newcomer.try_acquire("k")
        assert lease is not None
        assert lease.fencing_token == 2


@both_colours
async def test_lock_of_long_ago_is_had_at_once_though_a_reply_is_lost(world: World) -> None:
    """The read that follows asks for the age, too."""
    space = MemorySpace(world.clock.now)
    client = world.client(of_space(world, space), auto_renew=False, lease_duration=10)
    await client.__aenter__()
    await vanish(client, await client.acquire("k"))
    await world.jump(11)
    store = of_space(world, space)
    claim, lost = store.claim, list[str]()

    def lose(reply: Any) -> Any:
        if lost:
            return reply
        lost.append("reply")
        raise OutcomeUnknownError("no answer", key="k")

    async def aclaim(request: Any, **how: Any) -> Any:
        return lose(await claim(request, **how))

    store.claim = aclaim if world.colour == "async" else lambda request, **how: lose(claim(request, **how))
    async with world.client(store, server_clock=True) as newcomer:
        lease = await newcomer.try_acquire("k")

        assert lost
        assert lease is not None
        assert lease.fencing_token == 2


@both_colours
async def test_lock_that_is_renewed_is_young_by_the_stores_clock(world: World) -> None:
    """However long it has been held."""
    store = of_space(world, MemorySpace(world.clock.now))
    async with world.client(store, lease_duration=10) as holder, world.client(store, server_clock=True) as other:
        lease = await holder.acquire("k")
        for _ in range(10):
            await world.live(2.5)
            assert await other.try_acquire("k") is None
        assert lease.is_valid


@both_colours
async def test_store_without_a_clock_is_refused_when_the_client_is_built(world: World) -> None:
    """And a call that asks for it is refused before anything is sent."""
    with pytest.raises(UnsupportedError, match="server_clock needs a store that tells the age"):
        async with world.client(server_clock=True):
            pass
    async with world.client() as client:
        with pytest.raises(UnsupportedError, match="server_clock"):
            await client.acquire("k", server_clock=True)
        assert not world.store.requests


@both_colours
async def test_owner_that_a_probe_calls_dead_is_taken_over_from_at_once(world: World) -> None:
    """By what the user knows of it; the probe is shown the record."""
    token = await dies(world, owner="host-7")
    asked: list[LockRecord] = []

    def probe(record: LockRecord) -> str:
        asked.append(record)
        return "dead" if record.owner == "host-7" else "unknown"

    async with world.client(owner_probe=probe) as client:
        lease = await client.try_acquire("k")

    assert lease is not None
    assert lease.fencing_token == token + 1
    assert [record.owner for record in asked] == ["host-7"]


def raises(record: LockRecord) -> OwnerState:
    """Fail."""
    raise RuntimeError(record.key)


@both_colours
@pytest.mark.parametrize(
    ("probe", "told"),
    [
        (lambda record: OwnerState.ALIVE, ""),
        (lambda record: OwnerState.UNKNOWN, ""),
        (lambda record: True, "must answer alive, dead or unknown"),
        (lambda record: None, "must answer alive, dead or unknown"),
        (raises, "raised"),
    ],
    ids=["alive", "unknown", "true", "none", "raises"],
)
async def test_anything_but_dead_is_waited_for(
    world: World, probe: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A probe that is wrong costs time, and never exclusion."""
    await dies(world)

    async with world.client(owner_probe=probe) as client:
        assert await client.try_acquire("k") is None

    assert told in caplog.text


@both_colours
async def test_probe_that_hangs_is_left_behind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its answer, when it comes, is nobody's."""
    await dies(world)
    hung = threading.Event()

    async with world.client(owner_probe=lambda record: hung.wait(60) and "dead", request_timeout=0.05) as client:
        assert await client.try_acquire("k") is None

    hung.set()
    assert "did not answer within" in caplog.text


@async_only
async def test_probe_of_an_asyncio_client_may_be_a_coroutine_function(world: World) -> None:
    """It is awaited in the loop."""
    await dies(world)

    async def probe(record: LockRecord) -> OwnerState:
        await asyncio.sleep(0)
        return OwnerState.DEAD

    async with world.client(owner_probe=probe) as client:
        lease = await client.try_acquire("k")
        assert lease is not None
    with pytest.raises(UnsupportedError, match="coroutine function"):
        LockClient(MemoryStore(), owner_probe=probe)


@pytest.mark.parametrize(
    ("options", "trusted"),
    [
        ({"timeout": 0}, True),
        ({"timeout": 0, "timeout_after_lease": True}, True),
        ({"timeout": 19.9}, True),
        ({"timeout": 19.9, "timeout_after_lease": True}, False),
        ({"timeout": 20}, False),
        ({}, False),
        ({"retries": 3}, True),
        ({"timeout": 0, "server_clock": False}, False),
        ({"server_clock": True}, True),
    ],
)
def test_stores_clock_counts_by_default_where_the_wait_is_too_short_to_watch(
    options: dict[str, Any], trusted: bool
) -> None:
    """A lease of 20 s takes 20 s to watch; who has said whether it counts has the last word."""
    assert trusts_server_clock(LockOptions(lease_duration=20, **options), has_one=True) is trusted
    assert trusts_server_clock(LockOptions(lease_duration=20, **options), has_one=False) is (
        options.get("server_clock", False)
    )
