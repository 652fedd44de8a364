"""Places in shared locks when something goes wrong: holders that die, answers that are lost, records that are changed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    LockLostError,
    LossReason,
    OutcomeUnknownError,
    State,
    StoreUnavailableError,
)
from tests.core.test_shared_locks import lived
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_permit_of_a_dead_holder_is_taken_over_after_its_lease(world: World) -> None:
    """Not before; and it hears of it by itself, by the key and the token that it knows."""
    store = world.another_store()
    async with world.client(store, lease_duration=10) as dead, world.client(lease_duration=10) as live:
        lease = await dead.acquire("k", permits=1)
        losses: list[Any] = []
        lease.on_lost(losses.append)
        waiting = world.spawn(live.acquire("k", permits=1, timeout=60))
        with store.outage():
            await world.live(9)
            assert not waiting.done
            taken = await lived(world, waiting, 15)
            assert not lease.is_valid

        assert taken.fencing_token == 2
        assert sorted(key for key, record in world.space.records.items() if record.held) == ["k", "k~dlock/session/0"]
        assert [(loss.key, loss.fencing_token, loss.record) for loss in losses] == [("k", 1, None)]
        with pytest.raises(LockLostError, match=r"lock 'k' \(token 1\) was lost"):
            await lease.ensure()
        with pytest.raises(LockLostError):
            await lease.release()
        assert taken.is_valid


@both_colours
async def test_dropped_place_comes_free_after_a_lease(world: World) -> None:
    """Nobody renews its session any more."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        leases = [await a.acquire("k", permits=1)]
        with pytest.warns(ResourceWarning, match="unreleased lease of lock 'k'"):
            leases.clear()

        waiting = world.spawn(b.acquire("k", permits=1, timeout=60))
        await world.live(5)
        assert not waiting.done

        assert (await lived(world, waiting, 10)).is_valid


@both_colours
async def test_session_whose_row_is_gone_counts_for_one_more_lease(world: World) -> None:
    """Its holder may not have heard of it yet (Q4); nobody takes its place before that."""
    store = world.another_store()
    async with world.client(store, lease_duration=10) as a, world.client(lease_duration=10) as b:
        lease = await a.acquire("k", permits=1, auto_renew=True)
        with store.outage():
            del world.space.records["k~dlock/session/0"]
            waiting = world.spawn(b.acquire("k", permits=1, timeout=60))
            await world.live(9.5)
            assert not waiting.done
            await lived(world, waiting, 6)

            assert not lease.is_valid


@both_colours
@pytest.mark.parametrize("fault", ["removed", "rolled back"])
async def test_holder_that_the_record_has_lost_is_told_at_its_next_renewal(world: World, fault: str) -> None:
    """A failover that loses the joining would else leave one holder too many for as long as it lives."""
    async with world.client(lease_duration=20) as client, world.client(lease_duration=20) as other:
        kept = await other.acquire("k", permits=2)
        before = world.space.records["k"]
        lease = await client.acquire("k", permits=2)
        assert await lease.ensure() == 2
        if fault == "removed":
            del world.space.records["k"]
        else:
            world.space.records["k"] = before

        await world.live(6)

        assert not lease.is_valid
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.BROKEN
        assert kept.is_valid == (fault == "rolled back")


@both_colours
async def test_store_that_is_silent_ends_an_acquire(world: World) -> None:
    """After a lease, or when its time is over; a short silence does not."""
    async with world.client(lease_duration=10) as client:
        with world.store.outage():
            asking = world.spawn(client.acquire("k", permits=1))
            await world.live(3)
            assert not asking.done
        assert (await lived(world, asking, 3)).is_valid
        with world.store.outage(), pytest.raises(StoreUnavailableError):
            await lived(world, world.spawn(client.acquire("other", permits=1)), 15)


@both_colours
@pytest.mark.parametrize("verb", ["claim", "replace", "release", "read"])
async def test_lost_answers_cost_no_place(world: World, verb: str) -> None:
    """What was written is found by the member's id; what was left is free."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        kept = await b.acquire("k", permits=2)
        for _ in range(3):
            world.store.lose_reply(verb, 2)
            lease = await lived(world, world.spawn(a.acquire("k", permits=2, timeout=30)), 30)
            assert await b.try_acquire("k", permits=2) is None
            await lived(world, world.spawn(lease.release()), 30)
        assert kept.is_valid
        await kept.release()
        again = [await lived(world, world.spawn(b.acquire("k", permits=2, timeout=30)), 30) for _ in range(2)]

        assert {lease.slot for lease in again} == {0, 1}


@both_colours
async def test_late_joining_holds_a_place_for_nobody(world: World) -> None:
    """Its session is over by then, and it needs the version that it has seen (B3)."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        async with a.semaphore("k", 1):
            pass
        store = world.another_store()
        async with world.client(store, lease_duration=10) as slow:
            store.delay("claim", 40)
            with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)):
                await lived(world, world.spawn(slow.acquire("k", permits=1, timeout=0.3)), 30)
            await _delivered(store)
            lease = await lived(world, world.spawn(b.acquire("k", permits=1, timeout=60)), 40)

            assert lease.is_valid
            await lease.release()


async def _delivered(store: Any) -> None:
    found = store.deliver()
    if found is not None:
        await found


@both_colours
async def test_break_of_a_shared_lock_reaches_each_member(world: World) -> None:
    """By its session, which tells it; the key is closed for one lease of theirs."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        leases = [await a.acquire("k", mode="read"), await b.acquire("k", mode="read")]
        assert await b.break_lock("k", fencing_token=1)
        sessions = [world.space.records[f"k~dlock/session/{number}"] for number in range(2)]
        assert all(session.broken is not None for session in sessions)
        waiting = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(5)

        assert [lease.loss and lease.loss.reason for lease in leases] == [LossReason.BROKEN] * 2
        assert not waiting.done
        writer = await lived(world, waiting, 10)
        assert writer.fencing_token > 2


@both_colours
@pytest.mark.parametrize("now", [True, False])
async def test_break_of_a_shared_lock_spares_a_writer_that_waits(world: World, now: bool) -> None:
    """It has nothing to lose. Let in by a session that was broken, it would believe in a lock that others may have."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b, world.client() as operator:
        reader = await a.acquire("k", mode="read")
        waiting = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        assert await operator.break_lock("k", fencing_token=reader.fencing_token, now=now)
        writer = await lived(world, waiting, 2 if now else 20)

        assert await operator.try_acquire("k", mode="read") is None
        await world.live(20)
        assert writer.is_valid
        await writer.release()


@both_colours
async def test_break_of_a_shared_lock_passes_members_whose_sessions_are_over_or_broken(world: World) -> None:
    """Their places are taken all the same, and nothing is written for them."""
    silent = world.another_store()
    async with world.client(silent, lease_duration=10) as a, world.client(world.another_store()) as operator:
        leases = [await a.acquire("k", permits=3) for _ in range(3)]
        gone, broken, third = (f"k~dlock/session/{number}" for number in range(3))
        with silent.outage():
            assert await operator.break_session(broken)
            before = world.space.records[broken]
            del world.space.records[gone]

            assert await operator.break_lock("k", fencing_token=world.space.records["k"].fencing_token)

            assert gone not in world.space.records
            assert world.space.records[broken] == before
            assert world.space.records[third].broken is not None
            assert world.space.records["k"].broken is not None
            await world.live(11)
        assert all(lease.loss is not None for lease in leases)


@both_colours
async def test_key_is_closed_for_the_lease_that_a_member_has_by_now(world: World) -> None:
    """It was lengthened after the member had joined, and the holder, who can't be told, believes in it."""
    store = world.another_store()
    async with world.client(store, lease_duration=10) as a, world.client(lease_duration=10) as b:
        lease, another = [await a.acquire("k", permits=2) for _ in range(2)]
        await lease.renew(lease_duration=40)
        with store.outage():
            assert await b.break_lock("k", fencing_token=another.fencing_token)
            waiting = world.spawn(b.acquire("k", permits=2, timeout=90))
            await world.live(35)
            assert not waiting.done
            await lived(world, waiting, 10)
            assert not lease.is_valid


@both_colours
async def test_break_of_an_older_version_breaks_no_member(world: World) -> None:
    """Somebody has joined since it was seen."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        first = await a.acquire("k", mode="read")
        seen: Any = await a.get("k")
        second = await b.acquire("k", mode="read")

        assert not await b.break_lock("k", fencing_token=seen.fencing_token, rvn=seen.rvn)

        await world.live(5)
        assert (first.is_valid, second.is_valid) == (True, True)


@both_colours
async def test_break_during_which_somebody_joins_says_what_it_has_broken(world: World) -> None:
    """The members that it found have lost their places, though the record has another token by now."""

    def join(verb: str, request: Any) -> None:
        record = world.space.records["k"]
        if verb == "replace" and "~dlock/" in request.record.key and record.fencing_token == 1:
            world.space.records["k"] = replace(record, rvn="joined", fencing_token=2)

    async with world.client(lease_duration=10) as a, world.client(world.hooked_store(join)) as operator:
        lease = await a.acquire("k", permits=2)

        assert await operator.break_lock("k", fencing_token=1)

        await world.live(5)
        assert not lease.is_valid


@both_colours
async def test_key_of_a_broken_shared_lock_is_never_an_exclusive_one(world: World) -> None:
    """Whoever comes first after the quarantine joins in one write; others who look meanwhile would take another record for a mistake."""
    kinds: set[str] = set()

    def look(_: str) -> None:
        record = world.space.records.get("k")
        if record is not None and record.held and record.broken is None:
            kinds.add("exclusive" if record.members is None else record.members.kind)

    store = world.hooked_store(lambda *_: None, look)
    async with world.client(lease_duration=10) as a, world.client(store, lease_duration=10) as b:
        reader = await a.acquire("k", mode="read")
        assert await a.break_lock("k", fencing_token=reader.fencing_token)
        writer = await lived(world, world.spawn(b.acquire("k", mode="write", timeout=60)), 20)

        assert writer.is_valid
        assert kinds == {"rw"}


@both_colours
async def test_leaving_beside_others_that_come_and_go_is_tried_anew(world: World) -> None:
    """Its place is out of the record before its session ends, whatever came in between."""
    async with world.client() as a, world.client() as b:
        first, second = await a.acquire("k", permits=3), await b.acquire("k", permits=3)

        await first.release()

        left = world.space.records["k"].members
        assert left is not None
        assert [member.slot for member in left.members] == [second.slot] == [1]
        await second.release()
        assert world.space.records["k"].state is State.FREE


@both_colours
async def test_lost_answer_to_leaving_costs_nobody_a_lease(world: World) -> None:
    """It is asked again, and the release of a place that is free raises nothing."""
    async with world.client() as a, world.client() as b:
        for verb in ("replace", "release"):
            first, second = await a.acquire("k", permits=2), await b.acquire("k", permits=2)
            assert second.is_valid
            world.store.lose_request(verb)

            await lived(world, world.spawn(first.release()), 10)
            left = world.space.records["k"].members
            assert left is not None
            assert len(left.members) == 1
            again = await b.acquire("k", permits=2, timeout=0)

            for lease in (second, again):
                await lived(world, world.spawn(lease.release()), 10)


@both_colours
async def test_writer_whose_session_was_lost_meanwhile_begins_anew(world: World) -> None:
    """Whoever took its session over counts it out; it has another one, and says anew that it waits."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        reader = await a.acquire("k", mode="read")
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)
        del world.space.records["k~dlock/session/1"]
        await world.live(6)
        await reader.release()

        assert (await lived(world, writing, 30)).is_valid


@both_colours
async def test_retries_are_counted(world: World) -> None:
    """One look, and two more."""
    async with world.client() as a, world.client() as b:
        held = await a.acquire("k", permits=1)
        before = world.store.requests["read"]
        with pytest.raises(AcquireTimeoutError):
            await lived(world, world.spawn(b.acquire("k", permits=1, retries=2)), 30)
        assert held.is_valid
        assert 3 <= world.store.requests["read"] - before <= 6


@both_colours
async def test_place_that_could_not_be_left_is_free_with_its_session(world: World) -> None:
    """Whoever comes next looks whether the session is held, and does not wait for its lease."""
    async with world.client() as a, world.client() as b:
        lease = await a.acquire("k", permits=1)
        world.store.fail("release", 16)

        await lived(world, world.spawn(lease.release()), 10)

        assert world.space.records["k"].members is not None
        again = await b.acquire("k", permits=1, timeout=0)
        assert again.is_valid


@both_colours
async def test_who_waits_for_a_permit_keeps_no_session(world: World) -> None:
    """It would be renewed for nothing, and may be that of a dead holder whose place it then kept."""
    store = world.another_store()
    async with world.client() as a, world.client(store) as b:
        held = await a.acquire("k", permits=2)
        store.fail("replace", 1000)
        waiting = world.spawn(b.acquire("k", permits=2, timeout=5))
        await world.live(3)

        assert sorted(key for key, record in world.space.records.items() if record.held) == ["k", "k~dlock/session/0"]
        with pytest.raises(StoreUnavailableError):
            await lived(world, waiting, 5)
        assert held.is_valid


@both_colours
async def test_clients_that_try_once_find_a_dead_member_together(world: World) -> None:
    """What each has seen of its session is kept for the next one, as of a lock."""
    kept: dict[str, Any] = {}
    store = world.another_store()
    async with world.client(store, lease_duration=10) as dead:
        lease = await dead.acquire("k", permits=1)
        with store.outage():
            found = None
            for seconds in (0, 6, 6):
                await world.live(seconds)
                async with world.client(lease_duration=10, observations=kept) as once:
                    found = await once.try_acquire("k", permits=1)
                    if found is not None:
                        await found.release()
            assert found is not None
            assert not lease.is_valid
