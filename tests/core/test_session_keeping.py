"""How a client keeps its sessions: which lock goes under which, how many there are, and what happens to those that nobody has in hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import StoreUnavailableError
from dlock_core.engine.keeper import KEEPERS_MAX
from dlock_core.members import session_key
from tests.core.test_sessions import KEEPS, moved, sessions_of
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_lock_of_another_lease_has_another_session(world: World) -> None:
    """It would end before its own lease, or last longer than its holder's."""
    async with world.client(**KEEPS) as client:
        (first,) = await moved(world, client, "first")
        second = await client.acquire("second", lease_duration=20)
        await world.live(40)  # the first keys that are tried may be that of the first session

        sessions = [world.space.records[key].session for key in ("first", "second")]
        assert [each and each.lease_ms for each in sessions] == [10_000, 20_000]
        assert first.is_valid
        assert second.remaining > 10


@both_colours
async def test_session_is_opened_in_the_time_of_a_renewal_and_keeps_locks_that_were_waited_for_in_any_way(
    world: World,
) -> None:
    """The thread that opens it renews other locks, too."""
    store = world.hooked_store(lambda *_: None)
    async with world.client(store, lease_duration=12, renewal="session") as client:
        first = await moved(world, client, "first")
        second = await moved(world, client, "second", timeout=30, timeout_after_lease=True)

        assert [seconds for verb, seconds in store.timeouts if verb == "claim"] == [6, 2, 6]
        assert len(sessions_of(world)) == 1
        assert all(lease.is_valid for lease in first + second)


@both_colours
async def test_session_that_could_not_be_opened_is_cleaned_up(world: World) -> None:
    """Nobody knows whether it is there until a look tells; then it is given back."""
    async with world.client(lease_duration=12, renewal="session") as client, client.lock("k") as lease:
        world.store.lose_reply("claim")
        world.store.fail("read", 3)
        await world.live(3)
        assert client.health().unresolved == 1
        await world.live(12)

        assert client.health().unresolved == 0
        assert sum(record.held for record in sessions_of(world).values()) == 1
        assert lease.is_valid


@both_colours
async def test_client_has_a_few_sessions_at_most(world: World) -> None:
    """Locks for which there is none have leases of their own."""
    async with world.client(**KEEPS) as client:
        leases = []
        # One after the other: those that are opened at once are not counted yet.
        for seconds in range(10, 12 + KEEPERS_MAX):
            leases.append(await client.acquire(f"k{seconds}", lease_duration=seconds))
            await world.live(30, 0.5)

        assert len(sessions_of(world)) == KEEPERS_MAX
        assert all(lease.is_valid for lease in leases)


@both_colours
async def test_sessions_that_are_over_do_not_count(world: World) -> None:
    """A client that runs for long has had many."""
    async with world.client(lease_duration=10, renewal="session") as client:
        for number in range(KEEPERS_MAX + 2):
            (lease,) = await moved(world, client, f"k{number}")
            await lease.release()
            await world.live(8, 0.5)


@both_colours
async def test_session_whose_key_is_taken_gets_another(world: World) -> None:
    """The first keys are those of other clients; each try that fails widens the choice."""
    async with world.client(prefix="app/", **KEEPS) as client, world.client() as other:
        taken = await other.acquire("taken", lease_duration=60)
        for number in range(8):
            key = session_key("app/", number)
            world.space.records[key] = replace(world.space.records["taken"], key=key)
        leases = [await client.acquire(f"k{number}") for number in range(3)]
        await world.live(30)

        assert all(world.space.records[f"app/k{number}"].session is not None for number in range(3))
        assert all(lease.is_valid for lease in leases)
        await taken.release()


@both_colours
async def test_keys_of_sessions_are_few_and_have_the_prefix(world: World) -> None:
    """A rule of the store may allow a client nothing else."""
    async with world.client(prefix="app/", **KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        assert lease.is_valid
        assert {*sessions_of(world)} <= {session_key("app/", number) for number in range(8)}


@both_colours
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("handed_out", [True, False])
async def test_lock_that_nobody_has_in_hand_ends_under_its_session(
    world: World, noted: bool, handed_out: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A dropped one a lease later, and one that no caller has ever had at once; where its parting went unnoted, an audit sees it."""
    async with world.client(**KEEPS, audit_period=10) as client:
        kept, lease = await moved(world, client, "kept", "k")
        handle = raw(lease)._handle
        raw(lease)._closed = True  # the collector takes the references to a lease away before it runs the finalizer
        if noted:
            handle.note_parting()
        if not handed_out:
            handle.views.clear()
        del lease

        await world.live(3 if noted else 6)
        assert world.space.records["k"].held == handed_out
        await world.live(14)
        assert not world.space.records["k"].held
        assert kept.is_valid
    assert "failed" not in caplog.text


@both_colours
async def test_lock_that_an_audit_cannot_read_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Reads may fail where writes do not."""

    def before(verb: str, request: Any) -> None:
        if verb == "read":
            raise StoreUnavailableError("not sent (injected)")

    async with world.client(world.hooked_store(before), **KEEPS, audit_period=10) as client:
        leases = await moved(world, client, "a", "b")
        await world.live(30)
        assert all(lease.is_valid for lease in leases)
    assert not caplog.records


@async_only
async def test_lock_whose_write_is_on_its_way_is_not_lost_by_an_audit(world: World) -> None:
    """The record shows the write before its answer does."""
    goes_on, current = asyncio.Event(), list[Any]()

    def before(verb: str, request: Any) -> None:
        current[:] = [verb, request]

    async def after(verb: str) -> None:
        if verb == "replace" and current[1].record.key == "k" and current[1].record.data == b"new":
            await goes_on.wait()

    async with world.client(world.hooked_store(before, after), **KEEPS, audit_period=10) as client:
        (lease,) = await moved(world, client, "k")
        writing = asyncio.create_task(lease.renew(data=b"new"))
        await asyncio.sleep(0)
        for _ in range(16):
            world.clock.advance(0.5)
            for _ in range(20):
                await asyncio.sleep(0)
        assert lease.loss is None
        goes_on.set()
        await writing
        assert lease.is_valid


@both_colours
async def test_end_of_a_session_takes_no_lock_that_has_left_it(world: World) -> None:
    """Another thread may take one out while the others are told."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        keeper = raw(lease)._handle.keeper
        await lease.renew(lease_duration=20)
        keeper.kept[raw(lease)._handle] = None
        client._engine.driver.keepers.end_all(keeper)
        del keeper.kept[raw(lease)._handle]

        assert lease.is_valid
