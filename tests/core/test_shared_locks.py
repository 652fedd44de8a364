"""Semaphores and read/write locks as users have them, in both colours from one text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    LossReason,
    State,
    StoreUnavailableError,
)
from dlock_core.record import LockRecord
from dlock_core.store import Guarantees, TokenOrder
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from dlock_core import AsyncLease
    from tests.core.worlds import Spawned, World


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
            assert (client.holds("k"), client.holds("other")) == (True, False)
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
@pytest.mark.parametrize("holds", ["another key", "an exclusive lock", "nothing"])
async def test_who_does_not_read_yet_waits_behind_a_writer(world: World, holds: str) -> None:
    """Though it reads something else, or another task of its client reads."""
    async with world.client() as a, world.client() as b:
        reader = await (a if holds == "nothing" else b).acquire("k", mode="read", handover=True)

        async def read() -> AsyncLease | None:
            if holds == "another key":
                async with a.read_lock("other"):
                    return await a.try_acquire("k", mode="read")
            if holds == "an exclusive lock":
                async with a.lock("other"):
                    return await a.try_acquire("k", mode="read")
            return await a.try_acquire("k", mode="read")

        writing = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(1)

        assert await world.spawn(read(), parks=False).result() is None
        await reader.release()
        await (await lived(world, writing, 3)).release()


@both_colours
async def test_who_would_wait_for_itself_is_told(world: World) -> None:
    """At once, and not for a permit that another may give back."""
    async with world.client() as client, world.client() as other:
        async with client.read_lock("rw"):
            with pytest.raises(
                LeaseStateError,
                match=r"lock 'rw' is held by this .* since .* would wait for itself for ever; release it first, "
                r"or have its lease changed by try_upgrade\(\); if",
            ):
                await client.acquire("rw", mode="write", timeout=5)
            assert await client.try_acquire("rw", mode="write") is None
        async with client.write_lock("rw"):
            with pytest.raises(
                LeaseStateError, match=r"release it first, or have its lease changed by downgrade\(\); if"
            ):
                await client.acquire("rw", mode="read", timeout=5)
            with pytest.raises(LeaseStateError, match="release it first; if"):
                await client.acquire("rw", mode="write", timeout=5)
        async with client.semaphore("all", 2), client.semaphore("all", 2):
            with pytest.raises(LeaseStateError, match="would wait for itself"):
                await client.acquire("all", permits=2)
        async with client.semaphore("one", 2), other.semaphore("one", 2):
            with pytest.raises(AcquireTimeoutError, match=r"held by 2 holders with 2 permits; asked for 1 of 2"):
                await client.acquire("one", permits=2, retries=0)
        async with client.read_lock("handed", handover=True):
            with pytest.raises(AcquireTimeoutError):
                await client.acquire("handed", mode="write", retries=0)


@both_colours
async def test_who_has_slept_through_the_lock_gets_it_anew(world: World) -> None:
    """The lease that has run out is no reason to refuse its holder, who has asked nothing of it since."""

    async def twice() -> list[AsyncLease]:
        lost = await client.acquire("rw", mode="write")
        world.clock.advance(30)
        return [lost, await client.acquire("rw", mode="write", timeout=60)]

    async with world.client(lease_duration=10) as client:
        lost, anew = await lived(world, world.spawn(twice()), 30)

        assert await anew.ensure() > lost.fencing_token


@both_colours
@pytest.mark.parametrize(
    ("bound", "reason"), [({"max_hold": 4}, LossReason.OVERRUN), ({"stall_timeout": 4}, LossReason.STALLED)]
)
async def test_bound_of_a_hold_counts_from_the_grant(world: World, bound: Any, reason: LossReason) -> None:
    """However long it was waited for; then the place is lost, and free after a lease."""
    async with world.client(lease_duration=10) as a, world.client(lease_duration=10) as b:
        first = await a.acquire("k", mode="read")
        waiting = world.spawn(b.acquire("k", mode="write", timeout=60, **bound))
        await world.live(3)
        await first.release()
        lease = await lived(world, waiting, 2)

        assert lease.remaining > 3
        await world.live(4.5)
        assert lease.loss is not None
        assert lease.loss.reason is reason


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
        with pytest.raises(ConfigurationError, match="is too long for a shared lock; 1006 bytes are possible"):
            await client.acquire("k" * 1007, permits=2)
        await (await client.acquire("k" * 1006, permits=2)).release()
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


@both_colours
@pytest.mark.parametrize("defaults", [{"mode": "read"}, {"mode": "write"}, {"permits": 3}])
async def test_verbs_of_shared_locks_mean_what_they_say_whatever_the_client_holds_by_default(
    world: World, defaults: dict[str, Any]
) -> None:
    """A semaphore is neither read nor written, and a reader's or a writer's lock has no permits."""
    async with world.client(prefix="p/", **defaults) as client:
        async with client.semaphore("s", 2) as first, client.semaphore("s", 2) as second:
            assert (first.slot, second.slot) == (0, 1)
        async with client.read_lock("k") as first, client.read_lock("k") as second:
            assert (first.slot, second.slot) == (None, None)
            assert await client.try_acquire("k", mode="write", permits=None) is None
        async with client.write_lock("k"):
            assert await client.try_acquire("k", mode="read", permits=None) is None
        lease = await client.try_acquire("k", mode="read", permits=None)
        assert lease is not None
        assert lease.key == "k"
        await lease.release()
        assert {key for key in world.space.records if "~dlock" not in key} == {"p/s", "p/k"}
