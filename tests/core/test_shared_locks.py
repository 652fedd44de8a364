"""Semaphores and read/write locks as users have them, in both colours from one text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    EventKind,
    LeaseStateError,
    LockLostError,
    LossReason,
    OutcomeUnknownError,
    RecordError,
    State,
    StoreUnavailableError,
)
from dlock_core.record import LockRecord
from dlock_core.store import Guarantees, TokenOrder
from tests.core.test_events import told
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from dlock_core.events import LockEvent
    from tests.core.worlds import Spawned, World


_TOLD = (EventKind.REQUESTED, EventKind.WAITING, EventKind.GRANTED, EventKind.RENEWED, EventKind.RELEASED)


async def lived(world: World, waiting: Spawned, seconds: float) -> Any:
    """Let time pass until *waiting* is done, at most *seconds*; return what came of it."""
    for _ in range(int(seconds * 4)):
        if waiting.done:
            break
        await world.live(0.25)
    assert waiting.done, f"still waiting after {seconds} s"
    return await waiting.result()


@both_colours
async def test_place_costs_three_requests_and_two_to_leave(world: World) -> None:
    """A look, the session, the place; then the place and the session. Sessions are neither listed nor left behind to be seen."""
    async with world.client(prefix="p/") as client:
        async with client.semaphore("k", 2) as lease:
            assert world.store.requests == {"read": 1, "claim": 2}
            assert (lease.key, lease.slot, lease.fencing_token) == ("k", 0, 1)
            assert client.holds("k")
            assert [record.key async for record in client.scan()] == ["k"]
        assert world.store.requests == {"read": 1, "claim": 2, "release": 2}

        assert not client.holds("k")
        assert world.space.records["p/k"].state is State.FREE
        assert world.space.records["p/k~dlock/session/0"].state is State.GONE


@both_colours
async def test_permits_go_to_so_many_and_the_next_waits(world: World) -> None:
    """Each has a slot; the one that comes free goes to who waits."""
    async with world.client() as a, world.client() as b, world.client() as c:
        first, second = await a.acquire("k", permits=2), await b.acquire("k", permits=2)
        assert {first.slot, second.slot} == {0, 1}
        assert await c.try_acquire("k", permits=2) is None
        waiting = world.spawn(c.acquire("k", permits=2, timeout=60))
        await world.live(3)
        assert not waiting.done

        await first.release()
        third = await lived(world, waiting, 2)

        assert (third.slot, third.fencing_token) == (first.slot, 3)
        assert second.is_valid


@both_colours
async def test_weights_are_taken_whole(world: World) -> None:
    """Three of four permits are not had while two are taken."""
    async with world.client() as a, world.client() as b:
        light = await a.acquire("k", permits=4, weight=2)

        assert await b.try_acquire("k", permits=4, weight=3) is None
        heavy = await b.acquire("k", permits=4, weight=2, timeout=0)

        assert {light.slot, heavy.slot} == {0, 1}


@both_colours
async def test_shared_lock_is_renewed_by_its_session_alone(world: World) -> None:
    """The record itself is written only when somebody joins or leaves; it is looked at with each renewal."""
    async with world.client(lease_duration=20) as client:
        async with client.read_lock("k") as lease:
            before = world.space.records["k"]
            await world.live(60)

            assert lease.is_valid
            assert world.space.records["k"] is before
            assert lease.remaining > 10
            assert await lease.ensure(10) == lease.fencing_token == 1
            await lease.renew(lease_duration=40)
            assert lease.lease_duration == 40
        assert world.store.requests["replace"] >= 12


@both_colours
async def test_writer_waits_for_readers_and_new_readers_behind_it(world: World) -> None:
    """It comes before whoever asked later."""
    async with world.client() as a, world.client() as b, world.client() as c:
        reader = await a.acquire("k", mode="read")
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)
        reading = world.spawn(c.acquire("k", mode="read", timeout=60))
        await world.live(2)
        assert not writing.done
        assert not reading.done

        await reader.release()
        writer = await lived(world, writing, 3)
        assert not reading.done
        await writer.release()
        later = await lived(world, reading, 3)

        assert (reader.fencing_token, writer.fencing_token, later.fencing_token) == (1, 2, 3)


@both_colours
@pytest.mark.parametrize("end", ["times out", "dies"])
async def test_writer_that_gives_up_or_dies_keeps_no_reader_out(world: World, end: str) -> None:
    """What it has announced goes with it."""
    store = world.another_store()
    async with world.client() as a, world.client(store, lease_duration=10) as b, world.client(lease_duration=10) as c:
        reader = await a.acquire("k", mode="read")
        writing = world.spawn(b.acquire("k", mode="write", timeout=3 if end == "times out" else 60))
        await world.live(1)
        assert await c.try_acquire("k", mode="read") is None

        if end == "times out":
            with pytest.raises(AcquireTimeoutError, match=r"within 3\.0 s: held by 1 reader"):
                await lived(world, writing, 5)
            left = world.space.records["k"].members
            assert left is not None
            assert [member.mode for member in left.members] == ["read"]
            other = await c.acquire("k", mode="read", timeout=0)
            assert other.fencing_token == reader.fencing_token
            return
        with store.outage():
            reading = world.spawn(c.acquire("k", mode="read", timeout=60))
            assert (await lived(world, reading, 15)).is_valid
            with pytest.raises(StoreUnavailableError):
                await lived(world, writing, 60)


@both_colours
async def test_who_reads_already_reads_again_beside_a_writer_that_waits(world: World) -> None:
    """The writer waits for that very thread or task."""
    async with world.client() as a, world.client() as b:

        async def read_twice() -> None:
            async with a.read_lock("k"):
                writing.append(world.spawn(b.acquire("k", mode="write", timeout=60)))
                await world.live(1)
                async with a.read_lock("k", timeout=0):
                    pass

        writing: list[Spawned] = []
        await read_twice()

        await lived(world, writing[0], 3)


@both_colours
async def test_writer_goes_on_as_a_reader_and_no_writer_comes_between(world: World) -> None:
    """Readers that waited come in beside it, with its token; the writer that waits has its turn after them."""
    async with world.client() as a, world.client() as b, world.client() as c:
        writer = await a.acquire("k", mode="write")
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        reader = await writer.downgrade()

        assert (writer.is_valid, reader.is_valid, reader.key) == (False, True, "k")
        assert (writer.fencing_token, reader.fencing_token) == (1, 2)
        beside = await c.try_acquire("k", mode="read")
        assert beside is not None
        assert beside.fencing_token == 2
        await writer.release()  # it has ended, so that does nothing
        await world.live(1)
        assert not writing.done
        await reader.release()
        await beside.release()
        last = await lived(world, writing, 3)
        assert last.fencing_token == 3


@both_colours
async def test_sole_reader_goes_on_as_the_writer(world: World) -> None:
    """With another reader it does not, and goes on reading; it comes before a writer that waits, which waits for it."""
    async with world.client() as a, world.client() as b:
        reader, other = await a.acquire("k", mode="read"), await b.acquire("k", mode="read")
        assert await reader.try_upgrade() is None
        assert reader.is_valid
        await other.release()
        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        writer = await reader.try_upgrade()
        assert writer is not None

        assert (reader.is_valid, writer.is_valid) == (False, True)
        assert (reader.fencing_token, writer.fencing_token) == (1, 2)
        await world.live(5)
        assert not writing.done
        await writer.release()
        assert (await lived(world, writing, 3)).fencing_token == 3


@both_colours
@pytest.mark.parametrize("write", ["claim", "replace"])
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_whose_answer_is_lost_is_found(
    world: World, mode: Literal["read", "write"], write: str
) -> None:
    """By a look at the record; nobody else has had the lock."""
    store = world.another_store()
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client() as b:
        old = await a.acquire("k", mode=mode)
        store.lose_reply(write)

        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        new = await lived(world, changing, 3)

        assert (old.is_valid, new.is_valid) == (False, True)
        assert (old.fencing_token, new.fencing_token) == (1, 2)
        beside = await b.try_acquire("k", mode="read")
        assert (beside is None) == (mode == "read")


@both_colours
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_during_an_outage_is_told(world: World, mode: Literal["read", "write"]) -> None:
    """No write went out, so the lock is held as before."""
    store = world.another_store()
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client() as b:
        old = await a.acquire("k", mode=mode)
        store.fail("read", times=99)

        with pytest.raises(StoreUnavailableError):
            await lived(world, world.spawn(old.try_upgrade() if mode == "read" else old.downgrade()), 12)

        assert old.is_valid
        assert await b.try_acquire("k", mode="write") is None


@both_colours
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_that_may_come_late(world: World, mode: Literal["read", "write"]) -> None:
    """A reader whose write as the writer may be under way still is none any more; a writer goes on, for it excludes others."""

    def lose(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k":
            raise OutcomeUnknownError("it may arrive yet", key="k")

    store = world.hooked_store(lose)
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode=mode)
        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        with pytest.raises(OutcomeUnknownError):
            await lived(world, changing, 12)

        assert old.is_valid == (mode == "write")
        other = await b.try_acquire("k", mode="write")
        assert (other is None) == (mode == "write")


@both_colours
@pytest.mark.parametrize("mode", ["read", "write"])
async def test_change_of_mode_that_was_applied_unseen(world: World, mode: Literal["read", "write"]) -> None:
    """The reader whose place the writer has taken is none any more; the writer beside which a reader stands excludes others still."""
    sent: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "read" and sent:
            raise StoreUnavailableError("it cannot be reached")
        sent.extend(["k"] if verb == "replace" and request.record.key == "k" else [])

    def after(verb: str) -> None:
        if sent == ["k"]:
            sent.append("applied")
            raise OutcomeUnknownError("no answer", key="k")

    store = world.hooked_store(before, after)
    async with world.client(store, lease_duration=10, request_timeout=1) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode=mode)
        changing = world.spawn(old.try_upgrade() if mode == "read" else old.downgrade())
        with pytest.raises(StoreUnavailableError):
            await lived(world, changing, 12)

        assert old.is_valid == (mode == "write")
        other = await b.try_acquire("k", mode="read")
        assert (other is None) == (mode == "write")


@both_colours
async def test_change_of_mode_costs_a_place_and_the_end_of_the_other(world: World) -> None:
    """A look, the session, the place; then the end of the old session, and of the old place where that still stands."""
    async with world.client() as client:
        reader = await client.acquire("k", mode="read")
        world.store.requests.clear()

        writer = await reader.try_upgrade()
        assert writer is not None
        assert world.store.requests == {"read": 1, "claim": 1, "replace": 1, "release": 1}
        world.store.requests.clear()
        reader = await writer.downgrade()
        assert world.store.requests == {"read": 1, "claim": 1, "replace": 2, "release": 1}
        await reader.release()


@both_colours
@pytest.mark.parametrize("trouble", ["not sent", "without an answer"])
async def test_upgrade_that_is_refused_after_trouble_leaves_the_reader(world: World, trouble: str) -> None:
    """What was not sent, or expects a version that is gone, will never be applied."""
    sent: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k" and not (sent and trouble == "without an answer"):
            sent.append("k")
            raise (
                OutcomeUnknownError("no answer", key="k")
                if trouble == "without an answer"
                else StoreUnavailableError("")
            )

    async with world.client(world.hooked_store(before), lease_duration=10) as a, world.client(lease_duration=10) as b:
        old = await a.acquire("k", mode="read")
        changing = world.spawn(old.try_upgrade())
        await world.until(lambda: bool(sent))
        if trouble == "not sent":
            with pytest.raises(StoreUnavailableError):
                await lived(world, changing, 12)
            other = await b.acquire("k", mode="read")
        else:
            other = await b.acquire("k", mode="read")
            assert await lived(world, changing, 12) is None

        assert old.is_valid
        assert other.is_valid


@both_colours
async def test_reader_twice_over_is_not_the_sole_one(world: World) -> None:
    """Not even where both leases are of one thread or task."""
    async with world.client() as client:
        first, second = await client.acquire("k", mode="read"), await client.acquire("k", mode="read")

        assert await first.try_upgrade() is None

        assert first.is_valid
        assert second.is_valid


@both_colours
async def test_lock_that_others_had_meanwhile_is_not_changed(world: World) -> None:
    """Somebody removed the record and wrote there; who goes on from the old lease would not know of it."""
    async with world.client() as a, world.client() as b:
        reader = await a.acquire("k", mode="read")
        del world.space.records["k"]
        await (await b.acquire("k", mode="write")).release()

        with pytest.raises(LockLostError, match="an operator broke it"):
            await reader.try_upgrade()

        assert not reader.is_valid


@both_colours
async def test_only_a_writer_is_downgraded_and_only_a_reader_upgraded(world: World) -> None:
    """All else is refused by name, and goes on; a lease that is lost, or released, says so."""
    async with world.client() as client:
        lock, permit = await client.acquire("a"), await client.acquire("b", permits=1)
        reader, writer = await client.acquire("c", mode="read"), await client.acquire("d", mode="write")
        for lease in (lock, permit, reader):
            with pytest.raises(LeaseStateError, match=r"not obtained by write_lock\(\), so downgrade\(\)"):
                await lease.downgrade()
        for lease in (lock, permit, writer):
            with pytest.raises(LeaseStateError, match=r"not obtained by read_lock\(\), so try_upgrade\(\)"):
                await lease.try_upgrade()
        assert all(lease.is_valid for lease in (lock, permit, reader, writer))

        await reader.release()
        with pytest.raises(LeaseStateError, match="was released"):
            await reader.try_upgrade()
        await client.break_lock("d", fencing_token=writer.fencing_token)
        await world.live(10)
        with pytest.raises(LockLostError):
            await writer.downgrade()


@both_colours
async def test_who_would_wait_for_itself_is_told(world: World) -> None:
    """At once, and not for a permit that another may give back."""
    async with world.client() as client, world.client() as other:
        async with client.read_lock("rw"):
            with pytest.raises(LeaseStateError, match=r"holds lock 'rw' since .* would wait for itself for ever"):
                await client.acquire("rw", mode="write", timeout=5)
            assert await client.try_acquire("rw", mode="write") is None
        async with client.semaphore("all", 2), client.semaphore("all", 2):
            with pytest.raises(LeaseStateError, match="would wait for itself"):
                await client.acquire("all", permits=2)
        async with client.semaphore("one", 2), other.semaphore("one", 2):
            with pytest.raises(AcquireTimeoutError, match=r"held by 2 holders of 2 permits; asked for 1 of 2"):
                await client.acquire("one", permits=2, retries=0)
        async with client.read_lock("handed", handover=True):
            with pytest.raises(AcquireTimeoutError):
                await client.acquire("handed", mode="write", retries=0)


@both_colours
async def test_longest_hold_counts_from_the_grant(world: World) -> None:
    """However long it was waited for; then the place is lost, and free after a lease."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        first = await a.acquire("k", mode="read")
        waiting = world.spawn(b.acquire("k", mode="write", max_hold=4, timeout=60))
        await world.live(3)
        await first.release()
        lease = await lived(world, waiting, 2)

        assert lease.remaining > 3
        await world.live(4.5)
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.OVERRUN


@both_colours
async def test_client_that_closes_leaves_its_places(world: World) -> None:
    """All of them, and nothing of a wait."""
    client = world.client()
    async with world.client() as other:
        async with client:
            leases = [await client.acquire("k", permits=2), await client.acquire("rw", mode="read")]
            kept = await other.acquire("rw", mode="read")
            assert all(lease.is_valid for lease in leases)

        assert world.space.records["k"].state is State.FREE
        assert world.space.records["rw"].members is not None
        assert len(world.space.records["rw"].members.members) == 1
        assert kept.is_valid


@both_colours
async def test_wait_ends_when_its_client_is_closed(world: World) -> None:
    """And leaves nothing."""
    client = world.client()
    async with world.client() as other:
        held = await other.acquire("k", permits=1)
        async with client:
            waiting = world.spawn(client.acquire("k", permits=1))
            await world.live(1)
        with pytest.raises(LeaseStateError, match="the client was closed"):
            await lived(world, waiting, 5)
        with pytest.raises(LeaseStateError, match="the client was closed"):
            await client.acquire("k", permits=1)
        assert held.is_valid


@both_colours
async def test_events_tell_of_the_shared_lock(world: World) -> None:
    """Under its key, with one number for the attempt; of the session nothing."""
    events: list[LockEvent] = []
    async with (
        world.client(prefix="p/", owner="other") as other,
        world.client(prefix="p/", on_event=events.append) as client,
    ):
        held = await other.acquire("k", permits=1)
        waiting = world.spawn(client.acquire("k", permits=1, timeout=60))
        await world.live(1)
        await held.release()
        lease = await lived(world, waiting, 3)
        await world.live(6)
        await lease.release()

        kinds = await told(world, events, *_TOLD)

    assert {event.key for event in events} == {"p/k"}
    assert len({event.attempt for event in events}) == 1
    assert [event.fencing_token for event in kinds] == [0, 0, 2, 2, 2]
    assert kinds[1].holder == "other"
    assert kinds[2].duration >= 1


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
        assert all(lease.is_valid for lease in held)


@both_colours
async def test_options_that_do_not_fit_are_refused_by_name(world: World) -> None:
    """Before anything is sent."""
    async with world.client() as client:
        for options, message in (
            ({"permits": 0}, "0 is not a number of permits"),
            ({"permits": True}, "True is not a number of permits"),
            ({"permits": 2, "mode": "read"}, "permits=2 makes a semaphore, and mode='read' a read/write lock"),
            ({"weight": 2}, "weight=2 is a number of permits; say with permits"),
            ({"permits": 2, "weight": 3}, "weight=3 can never be had of permits=2"),
            ({"permits": 2, "fail_closed": True}, "fail_closed=True does not go with permits=2"),
            ({"mode": "write", "auto_renew": False}, "auto_renew=False does not go with mode='write'"),
            ({"mode": "write", "reentrant": True}, "reentrant=True does not go with"),
            ({"mode": "write", "data": b"x"}, "data=b'x' does not go with"),
            ({"mode": "write", "attributes": {"a": 1}}, "attributes="),
            ({"mode": "write", "only_if_exists": True}, "only_if_exists=True"),
            ({"mode": "write", "timeout_after_lease": True}, "timeout_after_lease=True"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                await client.acquire("k", **options)
            assert message in str(caught.value)
        read: Any = {"mode": "read"}
        two: Any = {"permits": 2}
        with pytest.raises(ConfigurationError, match="lock_all takes exclusive locks, and mode='read'"):
            async with client.lock_all(["a", "b"], **read):
                pass
        with pytest.raises(ConfigurationError, match="permits is not an option of election 'k'"):
            client.election("k", **two)
        with pytest.raises(ConfigurationError, match="takes no permits"):
            client.once("k", slot=1, **two)
        with pytest.raises(ConfigurationError, match="is too long for a shared lock"):
            await client.acquire("k" * 1010, permits=2)
        with pytest.raises(ConfigurationError, match="'~dlock/', which is reserved"):
            await client.acquire("a~dlock/b")
        async with client.read_lock("k") as lease:
            with pytest.raises(ConfigurationError, match="has no place for data"):
                await lease.renew(data=b"x")
        assert world.store.requests["replace"] == 0


@both_colours
async def test_store_without_ordered_tokens_is_refused(world: World) -> None:
    """Nothing there tells two members apart in time."""
    store: Any = world.another_store()
    promised = store.guarantees()
    if not isinstance(promised, Guarantees):
        promised = await promised
    weak = _weaker(promised)
    if world.colour == "sync":
        store.guarantees = lambda: weak
    else:

        async def guarantees() -> Guarantees:
            return weak

        store.guarantees = guarantees
    async with world.client(store) as client:
        with pytest.raises(
            ConfigurationError, match="permits cannot be had from this store: its records have timed tokens"
        ):
            await client.acquire("k", permits=2)


def _weaker(promised: Guarantees) -> Guarantees:
    return replace(promised, token=TokenOrder.TIMED)


@both_colours
async def test_lease_of_a_shared_lock_says_what_it_is(world: World) -> None:
    """By the key and the token of the lock; an exclusive one has no slot."""
    async with world.client() as client:
        async with client.semaphore("k", 3) as lease:
            assert repr(raw(lease)).endswith("'k' token 1 held>")
        async with client.lock("plain") as plain:
            assert plain.slot is None
        async with client.write_lock("rw", delete_on_release=True) as writer:
            assert writer.slot is None
        assert await client.get("rw") is None
        assert isinstance(await client.get("k"), LockRecord)
