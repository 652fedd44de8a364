"""What an attempt at a shared lock asks, says and leaves behind while it has no place yet."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from dlock_core import AcquireTimeoutError, LeaseStateError, State, StoreUnavailableError
from dlock_core.members import Wish, join, session_key
from dlock_core.memory import MemoryStore
from dlock_core.record import LockRecord, SessionRef
from tests.core.test_shared_locks import lived
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
@pytest.mark.parametrize("linearizable", [True, False])
async def test_refusal_that_may_be_old_is_read_again(world: World, linearizable: bool) -> None:
    """The next write is made from what stands; a refusal that is the newest spares the read."""
    passed: list[str] = []

    def change(verb: str, request: Any) -> None:
        """Have the record change between the look and the write."""
        if verb == "replace" and not passed:
            passed.append("k")
            world.space.records["k"] = replace(world.space.records["k"], rvn="a" * 32)

    store = world.hooked_store(change)
    guarantees = replace(MemoryStore(world.space).guarantees(), refusal_linearizable=linearizable)
    store.guarantees = (lambda: guarantees) if world.colour == "sync" else AsyncMock(return_value=guarantees)
    async with world.client(lease_duration=60) as other, world.client(store, lease_duration=60) as client:
        first = await other.acquire("k", mode="read")

        lease = await client.acquire("k", mode="read", timeout=0)

        assert passed
        assert [verb for verb, _ in store.timeouts].count("read") == (1 if linearizable else 2)
        assert lease.is_valid
        await lease.release()
        await first.release()


@both_colours
@pytest.mark.parametrize(
    ("options", "said", "seconds"),
    [
        ({"timeout": 2}, "could not acquire lock 'k' within 2.0 s: held by 1 writer", 2),
        ({"timeout": 0.03}, "could not acquire lock 'k' within 30 ms: held by 1 writer", 0.03),
        ({"timeout": 0}, "could not acquire lock 'k' in one try: held by 1 writer", 0),
        ({"retries": 2}, "could not acquire lock 'k' within ", None),
        ({"retries": 2, "timeout": 30}, "could not acquire lock 'k' within ", None),
    ],
    ids=["timeout", "short timeout", "one try", "retries", "retries before the timeout"],
)
async def test_refusal_says_how_long_it_waited_and_for_whom(
    world: World, options: dict[str, Any], said: str, seconds: float | None
) -> None:
    """The time that was asked for, or the one that passed."""
    world.clock.advance(1000)
    async with world.client() as other, world.client() as client, other.write_lock("k", lease_duration=60):
        waits = world.spawn(client.acquire("k", mode="read", **options))
        with pytest.raises(AcquireTimeoutError) as caught:
            await lived(world, waits, 30)

    assert str(caught.value).startswith(said)
    assert "asked for" not in str(caught.value)
    assert 0 < caught.value.timeout < 30 if seconds is None else caught.value.timeout == seconds
    assert caught.value.holder is not None
    assert (caught.value.key, caught.value.outcome_unknown) == ("k", False)


@both_colours
async def test_refusal_where_others_have_the_sessions_says_that_nobody_holds_the_lock(world: World) -> None:
    """They are about to be members, or have just left."""
    for number in range(16):
        key = session_key("k", number)
        world.space.records[key] = LockRecord(key, State.HELD, "a" * 32, 1, "other", 10_000)
    async with world.client() as client:
        for stands in ({}, {"k": LockRecord("k", State.FREE, "b" * 32, 1, "other", None)}):
            world.space.records.update(stands)
            with pytest.raises(AcquireTimeoutError, match="in one try: nobody holds it, but it could not be had"):
                await client.acquire("k", mode="read", timeout=0)


@both_colours
async def test_reader_whose_claim_is_refused_wakes_nobody(world: World) -> None:
    """Who was faster does."""
    written: list[str] = []

    def come_first(verb: str, request: Any) -> None:
        if verb in ("claim", "replace") and request.record.key == "k":
            if not written:
                theirs = Wish("k", "read", "0" * 16, "other", session=SessionRef(session_key("k", 9), 60_000, 1))
                world.space.records["k"] = join(theirs, world.space.records["k"], (), "joined").record
            written.append(verb)

    async with world.client() as a, world.client(world.hooked_store(come_first)) as b:
        writes = await a.acquire("k", mode="write")
        waits = world.spawn(b.acquire("k", mode="read", timeout=60))
        await world.live(2)
        await writes.release()
        assert (await lived(world, waits, 10)).is_valid
        assert written == ["claim", "replace"]


@both_colours
async def test_writer_whose_session_is_over_waits_on_by_another(world: World) -> None:
    """What it had announced counts no more, and it is no member twice."""
    async with world.client(lease_duration=600) as reader, world.client(lease_duration=10) as writer:
        reads = await reader.acquire("k", mode="read")
        waits = world.spawn(writer.acquire("k", mode="write", timeout=500))
        await world.live(2)
        record = world.space.records["k"]
        announced = record.members
        assert announced is not None
        assert [member.mode for member in announced.members] == ["read", "want"]
        await world.live(4)
        assert world.space.records["k"] is record
        assert sum("~dlock/" in key for key in world.space.records) == 2

        await world.jump(30)
        await world.live(5)
        await reads.release()
        lease = await lived(world, waits, 30)

        members = world.space.records["k"].members
        assert members is not None
        assert [member.mode for member in members.members] == ["write"]
        assert members.members[0].member_id != announced.members[1].member_id
        await world.live(30)
        assert lease.is_valid
        await lease.release()


@both_colours
async def test_writer_that_was_stopped_is_not_let_in_beside_who_has_its_session_now(world: World) -> None:
    """Whoever holds a session is the only one whose member it keeps: that is not who has lost it, and has not noticed."""
    records = world.space.records
    async with world.client(lease_duration=600) as reader, world.client(lease_duration=10) as writer:
        reads = await reader.acquire("k", mode="read")
        waits = world.spawn(writer.acquire("k", mode="write", timeout=500))
        await world.live(2)
        announced = records["k"].members
        assert announced is not None
        lost = announced.sessions[announced.members[1].session]

        world.clock.advance(15)
        session = replace(records[lost.key], rvn="other", owner="other", fencing_token=lost.fencing_token + 1)
        theirs = Wish("k", "write", "0" * 16, "other", session=lost._replace(fencing_token=session.fencing_token))
        over = [member.member_id for member in announced.members]
        records.update({lost.key: session, "k": join(theirs, records["k"], over, "joined").record})
        await world.live(2)

        members = records["k"].members
        assert members is not None
        assert [member.member_id for member in members.members if member.mode == "write"] == ["0" * 16]
        assert not waits.done
        # The other gives no sign of life, and has died.
        assert (await lived(world, waits, 30)).is_valid
        assert reads.fencing_token


@both_colours
async def test_writer_has_its_place_by_the_session_that_it_announced(world: World) -> None:
    """It opens no other while that one lasts."""
    async with world.client() as a, world.client() as b:
        reads = await a.acquire("k", mode="read")
        waits = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(2)
        announced = world.space.records["k"].members
        await reads.release()
        await lived(world, waits, 5)

        granted = world.space.records["k"].members
        assert announced is not None
        assert granted is not None
        assert granted.members[0].member_id == announced.members[1].member_id
        assert granted.sessions == announced.sessions[1:]


@both_colours
async def test_grant_of_a_place_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Under the key of the shared lock, with its token."""
    with caplog.at_level(logging.DEBUG, "dlock.engine"):
        async with world.client(owner="me") as client, client.read_lock("k"):
            pass

    assert sum("lock 'k' acquired by 'me', token 1" in line for line in caplog.messages) == 1


@both_colours
async def test_writer_that_was_told_to_stop_while_it_waited_is_not_told_so_from_the_beginning(world: World) -> None:
    """Its session was about to end in an outage, and did not: it holds the lock by another, and is told of the next end."""
    async with (
        world.client(lease_duration=8, stop_grace=2) as client,
        world.client(world.another_store()) as other,
    ):
        held = await other.acquire("k", mode="write")
        waiting = world.spawn(client.acquire("k", mode="write"))
        await world.live(3.75)
        with world.store.outage():
            await world.live(4.5)
        await world.live(3)
        await held.release()

        lease = await lived(world, waiting, 10)
        assert lease.is_valid
        assert not lease.stopping.is_set()
        await lease.release()


@both_colours
async def test_writer_that_cannot_say_that_it_waits_holds_no_session(world: World) -> None:
    """Somebody who died may stand in the record under that, and would be waited for."""

    def before(verb: str, request: Any) -> None:
        if (verb, getattr(getattr(request, "record", None), "key", "")) == ("replace", "k"):
            raise StoreUnavailableError("not sent (injected)")

    async with world.client() as a, world.client(world.hooked_store(before)) as b:
        reads = await a.acquire("k", mode="read")
        waits = world.spawn(b.acquire("k", mode="write", timeout=60))
        await world.live(2)
        assert sum("~dlock/" in key and record.held for key, record in world.space.records.items()) == 1
        await reads.release()
        assert (await lived(world, waits, 5)).is_valid


@both_colours
async def test_wait_goes_on_over_failures_between_which_the_store_answers(world: World) -> None:
    """Only one that answers nothing for the time of a lease ends it."""
    store = world.another_store()
    async with world.client(lease_duration=600) as a, world.client(store, lease_duration=10) as b:
        reads = await a.acquire("k", mode="read")
        waits = world.spawn(b.acquire("k", mode="write", timeout=600))
        for _ in range(2):
            with store.outage():
                await world.live(2)
            await world.live(11)
        await reads.release()
        assert (await lived(world, waits, 5)).is_valid


@both_colours
async def test_writer_that_reads_itself_is_refused_though_others_read_as_well(world: World) -> None:
    """It would wait for its own thread or task, whenever the others leave."""
    async with world.client() as a, world.client() as b:
        other = await b.acquire("k", mode="read")

        async def nested() -> None:
            async with a.read_lock("k"):
                await a.acquire("k", mode="write", timeout=60)

        with pytest.raises(LeaseStateError, match="would wait for itself for ever"):
            await lived(world, world.spawn(nested()), 5)
        assert other.is_valid
