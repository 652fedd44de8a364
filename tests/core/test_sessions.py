"""Locks that a session keeps: moved by their first renewal, valid while it is, and free for others once it is over."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    Grade,
    OutcomeUnknownError,
    SessionRef,
    State,
    StoreUnavailableError,
    UnsafeStoreError,
)
from dlock_core.engine.handle import Handle
from dlock_core.record import LockRecord
from dlock_core.testing import FakeClock, FaultyStore
from tests.core.test_scheduler import sent_keys
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

KEEPS: dict[str, Any] = {"lease_duration": 10, "renewal": "session"}


def sessions_of(world: World) -> dict[str, LockRecord]:
    """Return the records of sessions."""
    return {key: record for key, record in world.space.records.items() if "~dlock/" in key}


async def moved(world: World, client: Any, *keys: str, **options: Any) -> list[Any]:
    """Return leases of *keys* that a session keeps by now."""
    leases = [await client.acquire(key, **options) for key in keys]
    await world.live(6)
    assert all(world.space.records[client_key(client, key)].session is not None for key in keys)
    return leases


def client_key(client: Any, key: str) -> str:
    """Return *key* with the prefix of *client*."""
    return f"{client.options.prefix}{key}"


@both_colours
async def test_first_renewals_move_locks_under_one_session(world: World) -> None:
    """Until then they are as any other; from then on the session alone is renewed."""
    async with world.client(**KEEPS) as client:
        leases = [await client.acquire(f"k{number}") for number in range(20)]
        assert all(record.lease_ms == 10_000 for record in world.space.records.values())
        await world.live(6)

        (key, session), *others = sessions_of(world).items()
        assert not others
        ref = SessionRef(key, 10_000, session.fencing_token)
        before = {name: record for name, record in world.space.records.items() if record.session == ref}
        assert len(before) == 20
        assert all(record.lease_ms is None and record.held for record in before.values())

        before_requests = world.store.requests.total()
        await world.live(25)

        assert {name: world.space.records[name] for name in before} == before
        assert all(lease.is_valid and 5 < lease.remaining < 10 and lease.lease_duration == 10 for lease in leases)
        assert world.store.requests.total() - before_requests < 24  # ten beats, and an audit of one lock after each
        assert client.health().held == 20


@both_colours
async def test_session_of_a_lock_with_a_delay_has_the_delay(world: World) -> None:
    """The lock itself has no lease that a delay could be a part of; whoever waits for a dead holder waits the delay out."""
    store = world.another_store()
    async with world.client(lease_duration=10) as other, world.client(store, **KEEPS, lock_delay=3) as client:
        (lease,) = await moved(world, client, "k")
        (session,) = sessions_of(world).values()
        assert (session.lease_ms, session.delay_ms) == (13_000, 3_000)
        assert world.space.records["k"].delay_ms is None
        assert lease.lease_duration == 10
        waiting = world.spawn(other.acquire("k", timeout=60))
        with store.outage():
            await world.live(10)
            assert not lease.is_valid
            assert not waiting.done
            await world.live(5)
            assert (await waiting.result()).is_valid


@both_colours
async def test_beat_of_a_session_goes_before_what_is_more_urgent(world: World) -> None:
    """Many locks may lapse with it."""
    store, order = sent_keys(world)
    async with world.client(store) as client:
        kept = await client.acquire("kept", renewal="session", lease_duration=40)
        await world.live(11)
        short = await client.acquire("short", lease_duration=16)
        order.clear()

        await world.jump(12)

        assert "~dlock/" in order[0]
        assert "short" in order[1:]
        assert kept.is_valid
        assert short.is_valid


@both_colours
async def test_short_lock_costs_what_it_costs_without_a_session(world: World) -> None:
    """A claim and a release, and no session is opened."""
    async with world.client(**KEEPS) as client:
        async with client.lock("k"):
            pass

        assert dict(world.store.requests) == {"claim": 1, "release": 1}
        assert not sessions_of(world)


@both_colours
async def test_session_that_keeps_nothing_is_given_back_and_its_key_is_used_again(world: World) -> None:
    """So the records of sessions stay few; the locks of the session before are not those of the next one."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        await lease.release()
        await world.live(8)
        assert [record.state for record in sessions_of(world).values()] == [State.GONE]

        for _ in range(30):
            (lease,) = await moved(world, client, "k")
            await lease.release()
            await world.live(8)

        assert len(sessions_of(world)) <= 8
        assert max(record.fencing_token for record in sessions_of(world).values()) > 1


@both_colours
async def test_auto_moves_locks_once_there_are_many(world: World) -> None:
    """With fewer a session would not pay."""
    async with world.client(lease_duration=10, renewal="auto") as client:
        leases = [await client.acquire(f"k{number}") for number in range(15)]
        await world.live(10)
        assert not sessions_of(world)

        leases += [await client.acquire(f"k{number}") for number in range(15, 17)]
        await world.live(10)

        assert sum(record.session is not None for record in world.space.records.values()) == 17
        assert all(lease.is_valid for lease in leases)


@both_colours
async def test_a_session_keeps_no_more_locks_than_it_may(world: World) -> None:
    """Another one keeps the others; a failed beat takes only its own."""
    async with world.client(**KEEPS, session_locks_max=2) as client:
        leases = [await client.acquire(f"k{number}") for number in range(5)]
        await world.live(20)

        kept = [record.session for record in world.space.records.values() if record.session is not None]
        assert len(kept) == len(leases) == 5
        assert sorted(kept.count(session) for session in set(kept)) == [1, 2, 2]


@both_colours
async def test_data_of_a_kept_lock_changes_and_it_stays_kept(world: World) -> None:
    """The one write of its record between the move and the release."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k", data=b"one")
        session = world.space.records["k"].session

        await lease.renew(data=b"two")

        assert (world.space.records["k"].session, world.space.records["k"].data) == (session, b"two")
        found = await client.get("k")
        assert found is not None
        assert found.data == lease.data == b"two"


@both_colours
async def test_data_whose_write_got_no_answer_is_resolved(world: World) -> None:
    """A kept lock is renewed by nobody; what is in doubt is written again."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        world.store.lose_request("replace", 2)
        with pytest.raises(OutcomeUnknownError):
            await lease.renew(data=b"two")
        assert client.health().at_risk == ("k",)

        await world.live(3)

        assert client.health().at_risk == ()
        assert lease.is_valid


@both_colours
@pytest.mark.parametrize(("options", "left"), [(KEEPS, "8.8"), ({"fail_closed": True}, "inf")])
async def test_log_says_how_long_a_lock_lasts_whose_data_could_not_be_written(
    world: World, caplog: pytest.LogCaptureFixture, options: dict[str, Any], left: str
) -> None:
    """As long as its session; for ever where it has no lease."""
    async with world.client(**options) as client:
        lease = await client.acquire("k")
        await world.live(6)
        world.store.fail("replace", 2)
        with pytest.raises(StoreUnavailableError):
            await lease.renew(data=b"b")

    assert [each for each in caplog.messages if "at risk" in each] == [
        f"lock 'k' is at risk: a renewal failed, {left} s left (replace of 'k' was not sent (injected))"
    ]


@both_colours
async def test_renewing_a_kept_lock_is_a_beat(world: World) -> None:
    """As is ``ensure`` where too little is left."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        await world.jump(1)
        session, own = sessions_of(world), world.space.records["k"]

        await lease.renew()
        await world.settle()

        assert sessions_of(world) != session
        assert world.space.records["k"] == own
        assert lease.remaining > 9.7
        await world.jump(1)
        await lease.ensure(9.2)
        assert lease.remaining > 9.7


@both_colours
async def test_risk_of_a_session_is_told_to_the_holders_of_its_locks(world: World) -> None:
    """As that of a lock is: once for each stretch, where a beat failed, or where none has succeeded for the safe time."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        risks: list[Any] = []
        late: list[Any] = []
        lease.on_risk(risks.append)
        lease.on_risk(late.append, safe_time=6)
        await world.live(10)
        assert not risks + late
        for stretch in (1, 2):
            with world.store.outage():
                await world.live(5)
                await world.until(lambda stretch=stretch: len(risks) == stretch)  # type: ignore[misc]  # a default binds the number
                await world.live(2)
                await world.until(lambda stretch=stretch: len(late) == stretch)  # type: ignore[misc]  # as above
            await world.live(5)
        assert lease.is_valid


@both_colours
async def test_another_lease_takes_a_lock_out_of_its_session(world: World) -> None:
    """It has its own until the next renewal, which moves it under a session of that lease."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")

        await lease.renew(lease_duration=20)

        record = world.space.records["k"]
        assert (record.lease_ms, record.session) == (20_000, None)
        assert lease.remaining > 19
        await world.live(12)
        session = world.space.records["k"].session
        assert session is not None
        assert session.lease_ms == 20_000
        assert lease.is_valid
        assert [key for key, record in sessions_of(world).items() if record.held] == [session.key]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"fail_closed": True}, "fail_closed=True"), ({"auto_renew": False}, "auto_renew=False")],
)
def test_session_cannot_keep_what_is_not_renewed(options: dict[str, Any], named: str) -> None:
    """Refused before anything is sent; the message names both."""
    for renewal in ("session", "auto"):
        with pytest.raises(ConfigurationError, match=f"renewal='{renewal}' does not go with {named}"):
            FakeClock().client(renewal=renewal, **options)


def test_session_is_refused_where_its_key_would_be_too_long() -> None:
    """No record could name it, so none of its locks would ever be moved, and each renewal would fail first."""
    longest = "p" * 1000
    FakeClock().client(renewal="session", prefix=longest).close()
    FakeClock().client(prefix=f"{longest}p").close()

    with pytest.raises(ConfigurationError, match=r"too long for renewal='session'.*; 1000 bytes are possible"):
        FakeClock().client(renewal="session", prefix=f"{longest}p")


def test_session_is_refused_where_records_may_come_back() -> None:
    """A failover could give a second holder until the next audit: only who accepts that by name has it."""
    store = FaultyStore()
    weak = replace(store.guarantees(), grade=Grade.C)
    store.guarantees = lambda: weak  # type: ignore[method-assign]  # a store of another grade

    with pytest.raises(UnsafeStoreError, match="session-rollback") as caught:
        FakeClock().client(store, renewal="session")
    assert caught.value.name == "session-rollback"
    accepting = FakeClock().client(store, renewal="session", allow_unsafe={"session-rollback"})
    with accepting, accepting.lock("k", timeout=0) as lease:
        assert lease.is_valid


@both_colours
async def test_elections_and_jobs_are_renewed_by_themselves(world: World) -> None:
    """Their observers look at the record."""
    async with world.client(**KEEPS) as client:
        async with await client.election("e").campaign() as term:
            await world.live(12)
            assert world.space.records["e"].lease_ms == 10_000
            assert term.is_valid
        with pytest.raises(ConfigurationError, match="renewal is not an option of election 'e'"):
            client.election("e", renewal="session")


@both_colours
async def test_lock_that_is_moved_again_is_audited_as_often_as_others(world: World) -> None:
    """Each renewal of another length moves it; it has one place among those that are due."""
    read: list[str] = []
    store = world.hooked_store(lambda verb, key: read.append(key) if verb == "read" else None)
    async with world.client(store, **KEEPS, audit_period=5) as client:
        leases = await moved(world, client, "a", "b")
        for _ in range(5):
            await leases[0].renew(lease_duration=10)
            await world.live(6)
        read.clear()
        await world.live(20)

        assert abs(read.count("a") - read.count("b")) <= 1 < len(read)


@both_colours
async def test_lock_that_was_released_is_not_kept_for_an_audit(world: World) -> None:
    """A client that has ever new locks beside some that it keeps would else grow for a quarter of an hour."""

    def are_forgotten() -> bool:
        gc.collect()
        return not any(type(each) is Handle and each.key.startswith("short/") for each in gc.get_objects())

    async with world.client(**KEEPS) as client:
        kept = await moved(world, client, *(f"kept/{number}" for number in range(10)))
        for lease in await moved(world, client, *(f"short/{number}" for number in range(5))):
            await lease.release()
        del lease
        await world.live(3)  # two beats at most

        await world.until(are_forgotten)  # a thread that renews may be about to let go of one
        assert all(lease.is_valid for lease in kept)
