"""What is done for places in shared locks unasked: looking whether each still stands in the record, and leaving it in the end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from dlock_core import ConfigurationError, LockLostError, LossReason, StoreUnavailableError
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.membership import check_exclusive
from dlock_core.memory import MemoryStore
from dlock_core.options import LockOptions
from dlock_core.record import NewerRecord
from dlock_core.timings import NANOS
from tests.core.scheduler_support import batches
from tests.core.test_shared_locks import lived
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.core.worlds import World

_EVICTED = "lock %r has lost its holder %r: its record was rolled back, or changed by hand"


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dlock.engine")


def _found(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of places that were looked at."""
    return sorted(each for each in caplog.messages if "has lost its holder" in each or "could not be looked at" in each)


@both_colours
async def test_who_was_looked_at_longest_ago_is_looked_at_first(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """At most 16 between two renewals of a batch, so of 40 each has its turn within three; a lock of one holder has nothing to look at."""
    store = batches(world)
    async with world.client(store, lease_duration=20, owner="me") as client:
        alone = await client.acquire("alone")
        leases = [await client.acquire(f"k{number}", permits=1) for number in range(40)]
        gone = {"k0", "k20", "k39"}
        for key in gone:
            del world.space.records[key]

        await world.live(20)

        assert store.sizes[:4] == [41, 40, 39, 38]  # each look finds one
        assert alone.is_valid
        assert {lease.key for lease in leases if not lease.is_valid} == gone
        assert {lease.loss.reason for lease in leases if lease.loss is not None} == {LossReason.BROKEN}
    assert _found(caplog) == [_EVICTED % (key, "me") for key in sorted(gone)]


@both_colours
async def test_place_that_stands_costs_one_look_at_each_renewal(world: World) -> None:
    """And no other request; what was seen last is what the member leaves by."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        lease = await client.acquire("k", permits=2)
        beside = await other.acquire("k", permits=2)
        await world.live(15.5)
        await beside.release()
        world.store.requests.clear()
        await world.live(15)
        assert world.store.requests == {"replace": 3, "read": 3}

        await lease.release()

        assert world.store.requests == {"replace": 3, "read": 3, "release": 2}


@both_colours
@pytest.mark.parametrize("linearizable", [True, False])
async def test_refusal_that_may_be_old_is_not_what_the_next_try_rests_on(world: World, linearizable: bool) -> None:
    """One read shows what stands; where refusals are up to date they show it."""
    guarantees = replace(MemoryStore(world.space).guarantees(), refusal_linearizable=linearizable)
    store = world.hooked_store(lambda *_: None)
    store.guarantees = (lambda: guarantees) if world.colour == "sync" else AsyncMock(return_value=guarantees)
    async with world.client(store) as client, world.client() as other:
        lease = await client.acquire("k", permits=3)
        beside = await other.acquire("k", permits=3)
        store.timeouts.clear()

        await lease.release()

        assert [verb for verb, _ in store.timeouts] == [
            "release",
            *([] if linearizable else ["read"]),
            "replace",
            "release",
        ]
        assert {seconds for _, seconds in store.timeouts} == {lease._handle.state.terms.timings.timeout_ns / NANOS}
        assert beside.is_valid


@both_colours
async def test_leaving_ends_with_the_time_of_a_request(world: World) -> None:
    """However often it is refused meanwhile; the session's end follows."""
    asked: list[str] = []
    seconds = 0.0

    def fail(verb: str, request: Any) -> None:
        if verb == "release":
            asked.append(request.record.key)
            world.clock.advance(seconds / 2)
            raise StoreUnavailableError("no answer", key=request.record.key)

    async with world.client(world.hooked_store(fail), lease_duration=10) as client:
        lease = await client.acquire("k", permits=1)
        seconds = lease._handle.state.terms.timings.timeout_ns / NANOS
        with pytest.raises(StoreUnavailableError):
            await lived(world, world.spawn(lease.release()), 20)
        assert asked[:3] == ["k", "k", "k~dlock/session/0"]


@both_colours
async def test_holder_whose_record_is_of_a_newer_format_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody here can tell whether it is a member; its session says that it lives."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k", permits=1)
        record = world.space.records["k"]
        world.space.records["k"] = NewerRecord("k", record.state, record.rvn, record.fencing_token, "", None)

        world.store.requests.clear()
        await world.live(30)

        assert lease.is_valid
        assert world.store.requests == {"replace": 6, "read": 6}
        assert _found(caplog) == []
        world.space.records["k"] = record


def _releasing(world: World, leaving: list[Any], at: Callable[[str, Any], bool]) -> Any:
    """Return a store before whose request *at* the lease in *leaving*, if there is one, is released."""

    def leave(verb: str, request: Any) -> Any:
        if leaving and at(verb, request):
            released = leaving.pop().release()
            return run_blocking(released) if world.colour == "sync" else released
        return None

    return world.hooked_store(leave)


@both_colours
async def test_holder_that_was_released_while_it_was_looked_at_has_lost_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its member had left by then."""
    leaving: list[Any] = []
    store = _releasing(world, leaving, lambda verb, request: verb == "read" and request == "k")
    async with world.client(store, lease_duration=20) as client:
        leaving.append(await client.acquire("k", permits=1))
        store.timeouts.clear()
        await world.live(8)
        assert not leaving
        assert world.space.records["k"].members is None
        assert [verb for verb, _ in store.timeouts] == ["replace", "read", "release", "release"]
    assert _found(caplog) == []


@both_colours
async def test_holder_that_is_released_while_its_session_is_broken_ends_no_renewals(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing of it to renew by then."""
    leaving: list[Any] = []
    store = _releasing(world, leaving, lambda verb, request: verb == "replace" and request.record.broken is not None)
    async with world.client(store, lease_duration=20) as client:
        leaving.append(await client.acquire("k", permits=1))
        kept = await client.acquire("other")
        del world.space.records["k"]
        await world.live(30)
        assert not leaving
        assert kept.is_valid
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@both_colours
async def test_place_that_its_renewal_has_lost_is_not_looked_at(world: World) -> None:
    """Its session was broken, and it knows: one more request would tell nothing, and in an outage cost its time."""
    store = world.hooked_store(lambda *_: None)
    async with world.client(store, lease_duration=20) as client, world.client() as other:
        lease = await client.acquire("k", permits=1)
        assert await other.break_lock("k", fencing_token=lease.fencing_token)
        store.timeouts.clear()

        await world.live(6)

        assert not lease.is_valid
        assert [verb for verb, _ in store.timeouts] == ["replace"]


@both_colours
async def test_store_that_shows_no_record_of_a_place_ends_no_renewals(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An adapter's mistake, or an outage of reads only: what nobody could look at stays."""
    broken: list[str] = []

    def fail(verb: str, request: Any) -> None:
        if verb == "read" and request in broken:
            raise TypeError("an adapter's mistake")

    async with world.client(world.hooked_store(fail), lease_duration=20) as client:
        kept = [await client.acquire(key, permits=1) for key in ("a", "b", "c")]
        broken += ["a", "b"]
        del world.space.records["c"]
        await world.live(60)

        assert [lease.is_valid for lease in kept] == [True, True, False]
    assert len(_found(caplog)) >= 2 * 60 // 20


@both_colours
@pytest.mark.parametrize("has_left", [True, False])
async def test_release_whose_session_does_not_end_is_unknown_only_where_the_place_was_not_left(
    world: World, has_left: bool
) -> None:
    """A place that is out of the record is free, whatever becomes of its session."""
    failing: list[str] = []

    def fail(verb: str, request: Any) -> None:
        if verb == "release" and request.record.key in failing:
            raise StoreUnavailableError("no answer", key=request.record.key)

    async with world.client(world.hooked_store(fail), lease_duration=10) as client:
        lease = await client.acquire("k", permits=1)
        failing += ["k~dlock/session/0"] if has_left else ["k~dlock/session/0", "k"]
        releasing = world.spawn(lease.release())
        if has_left:
            await lived(world, releasing, 20)
        else:
            with pytest.raises(StoreUnavailableError):
                await lived(world, releasing, 20)
        assert (world.space.records["k"].members is None) == has_left
        failing.clear()


@async_only
async def test_holder_that_the_record_has_lost_may_be_renewing_at_that_moment(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own call tells it then, and nothing fails."""
    goes_on, renewing = asyncio.Event(), list[asyncio.Task[None]]()

    async def held_up(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.broken is not None and not renewing:
            renewing.append(asyncio.create_task(leases[0].renew()))
            await asyncio.sleep(0)  # it is sent
        elif renewing and verb == "replace" and request.record.broken is None:
            await goes_on.wait()

    store = world.hooked_store(held_up)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire("a", permits=1)]
        del world.space.records["a"]
        world.clock.advance(5.5)
        await world.until(lambda: world.space.records["a~dlock/session/0"].broken is not None)

        goes_on.set()
        with pytest.raises(LockLostError):
            await renewing[0]
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_options_of_one_holder_are_taken_where_only_those_are() -> None:
    """And the message names what asks for another kind."""
    check_exclusive(LockOptions(), "lock_all")
    for options, asked in ((LockOptions(permits=2), "permits=2"), (LockOptions(mode="read"), "mode='read'")):
        with pytest.raises(ConfigurationError, match=f"^lock_all takes exclusive locks, and {asked} asks for"):
            check_exclusive(options, "lock_all")
