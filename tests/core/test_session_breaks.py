"""What operators, failovers and notes do to locks that a session keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ConfigurationError, LockLostError, LossReason, OutcomeUnknownError, State
from dlock_core import lease as lease_machine
from dlock_core.engine.keeper import Keeper
from dlock_core.record import NOTES_MAX, Beat, BeatNote, Broken, LockRecord, NewerRecord
from tests.core.test_sessions import KEEPS, moved, sessions_of
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_break_of_a_kept_lock_takes_that_lock_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A note for its holder first, then the record, closed for a lease (Q6); the holder hears it at the next beat (Q7)."""
    async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
        lease, neighbour = await moved(world, a, "k", "n")
        written: list[str] = []

        def note_write(verb: str, request: Any) -> None:
            if verb == "replace":
                written.append(request.record.key)

        async with world.client(world.hooked_store(note_write), owner="operator") as operator:
            assert await operator.break_lock("k", fencing_token=1)

        assert [key in sessions_of(world) for key in written] == [True, False]
        assert world.space.records["k"].broken is not None
        assert world.space.records["k"].lease_ms == 10_000
        await world.live(3)
        assert lease.loss.reason is LossReason.BROKEN
        assert [text for text in caplog.messages if "is lost" in text] == ["lock 'k' is lost (broken), token 1"]
        assert neighbour.is_valid
        assert all(record.beat is None for record in sessions_of(world).values())
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.live(6)
        assert not waiting.done
        await world.live(6)
        assert (await waiting.result()).fencing_token == 3
        assert neighbour.is_valid


@both_colours
async def test_note_whose_writer_died_frees_the_lock_all_the_same(world: World) -> None:
    """The operator's second write never came: the holder gives the lock back, a lease after it heard (Q6)."""
    async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
        lease, neighbour = await moved(world, a, "k", "n")
        (key, session), *_ = sessions_of(world).items()
        note = lease_machine.note_request(session, BeatNote("k", 1, "break", "gone"), session.fencing_token, "#note")
        assert not isinstance(note, bool)
        world.space.records[key] = note.record
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.live(9)
        assert lease.loss.reason is LossReason.BROKEN
        assert not waiting.done

        await world.live(6)

        assert (await waiting.result()).fencing_token == 2
        assert neighbour.is_valid


@both_colours
async def test_lease_counts_from_the_own_write_below_a_note(world: World) -> None:
    """A note is no beat (Q7), and no sign of life for those who wait (Q7)."""
    store = world.another_store()
    async with world.client(store, **KEEPS) as a, world.client(lease_duration=10) as b:
        (lease,) = await moved(world, a, "k")
        with store.outage():
            waiting = world.spawn(b.acquire("k", timeout=60))
            for number in range(10):
                (key, session), *_ = sessions_of(world).items()
                note = lease_machine.note_request(
                    session, BeatNote(f"x{number}", 1, "break", "op"), session.fencing_token, f"#{number}"
                )
                assert not isinstance(note, bool)
                world.space.records[key] = note.record
                await world.live(1)
            await world.live(5)

            assert (await waiting.result()).fencing_token == 2
            assert not lease.is_valid
        with pytest.raises(LockLostError):
            await lease.release()


@both_colours
async def test_broken_session_loses_all_its_locks_and_is_closed_for_a_lease(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """By then its owner has heard of it, or its lease is over."""
    store = world.another_store()
    async with world.client(store, **KEEPS) as a, world.client(lease_duration=10) as b:
        leases = await moved(world, a, "k", "n")
        (key, _), *_ = sessions_of(world).items()
        with store.outage():
            assert await b.break_session(key)
            broken = world.space.records[key]
            assert not await b.break_session(key)
            assert world.space.records[key] == broken
            waiting = world.spawn(b.acquire("k", timeout=60))
            await world.live(6)
            assert not waiting.done
            await world.live(8)
            assert (await waiting.result()).fencing_token == 2
            assert not any(lease.is_valid for lease in leases)

        await world.live(1)
        assert f"2 locks are lost with their session {key!r} (" in caplog.text
        assert "is lost (" not in caplog.text
        for lease in leases:
            with pytest.raises(LockLostError):
                await lease.release()


@both_colours
async def test_renewal_that_finds_the_session_broken_names_the_lock(world: World) -> None:
    """Its holder knows of no session."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        (key, _), *_ = sessions_of(world).items()
        assert await client.break_session(key)

        with pytest.raises(LockLostError) as raised:
            await lease.renew()

        assert (raised.value.loss.key, raised.value.loss.fencing_token) == ("k", lease.fencing_token)


@both_colours
async def test_session_that_is_over_or_none_is_not_broken(world: World) -> None:
    """It was given back, it never was, or the key is that of a lock."""
    async with world.client() as operator:
        async with world.client(**KEEPS) as a:
            (lease,) = await moved(world, a, "k")
            (key, _), *_ = sessions_of(world).items()
            await lease.release()
        assert not await operator.break_session(key)
        assert not await operator.break_session(f"{key} of nobody")
        for no_session in ("k", 7):
            with pytest.raises(ConfigurationError, match="is not the key of a session"):
                await operator.break_session(no_session)  # type: ignore[arg-type]  # what the test is about


@both_colours
@pytest.mark.parametrize("verb", ["break_lock", "break_session"])
async def test_break_whose_request_is_lost_is_made_again(world: World, verb: str) -> None:
    """The next read shows that it was not applied."""
    store = world.another_store()
    async with world.client(**KEEPS) as a, world.client(store) as operator:
        (lease,) = await moved(world, a, "k")
        (key, _), *_ = sessions_of(world).items()
        store.lose_request("replace")
        if verb == "break_lock":
            assert await operator.break_lock("k", fencing_token=1)
            broken, beat = world.space.records["k"], world.space.records[key].beat
            assert beat is not None
            assert [note.key for note in beat.notes] == ["k"]
        else:
            assert await operator.break_session(key)
            broken = world.space.records[key]

        assert broken.broken is not None
        await world.live(3)
        assert lease.loss is not None


@both_colours
async def test_note_that_a_session_never_has_room_for_breaks_nothing(world: World) -> None:
    """It is renewed between each read and write: the operator may try again, and the holder has heard of nothing."""
    async with world.client(**KEEPS) as a:
        (lease,) = await moved(world, a, "k")
        (key, _), *_ = sessions_of(world).items()

        def renew(verb: str, request: Any) -> None:
            if verb == "replace" and request.record.key == key:
                world.space.records[key] = replace(world.space.records[key], rvn=f"#{request.record.rvn}")

        async with world.client(world.hooked_store(renew)) as operator:
            with pytest.raises(OutcomeUnknownError, match=r"the session of lock 'k' was renewed .* times") as raised:
                await operator.break_lock("k", fencing_token=1)

        assert raised.value.key == "k"
        assert world.space.records["k"].broken is None
        await lease.release()


@both_colours
async def test_lock_of_an_earlier_session_of_the_same_key_is_free(world: World) -> None:
    """Its session is over, though somebody holds that key again (Q5)."""
    store = world.another_store()
    async with world.client(store, **KEEPS) as a, world.client(lease_duration=10) as b:
        (lease,) = await moved(world, a, "k")
        (key, session), *_ = sessions_of(world).items()
        with store.outage():
            world.space.records[key] = replace(session, rvn="#next", fencing_token=session.fencing_token + 1)

            taken = await b.acquire("k", timeout=0)

        assert taken.fencing_token == 2
        await world.live(6)
        assert lease.loss is not None


@both_colours
async def test_note_is_followed_by_the_end_of_the_session(world: World) -> None:
    """A release that meets a note frees the session all the same."""
    async with world.client(**KEEPS) as client:
        leases = await moved(world, client, "k")
        (key, session), *_ = sessions_of(world).items()
        note = lease_machine.note_request(session, NOTE._replace(key="another"), session.fencing_token, "#note")
        assert not isinstance(note, bool)
        world.space.records[key] = note.record
        await leases[0].release()

    assert [record.state for record in sessions_of(world).values()] == [State.GONE]


@both_colours
async def test_record_that_was_rolled_back_is_found_by_the_audit(world: World) -> None:
    """Its renewals don't touch it, so nothing else would tell (Q8)."""
    async with world.client(**KEEPS, audit_period=10) as client:
        lease = await client.acquire("k")
        before = world.space.records["k"]
        neighbour = await client.acquire("n")
        await world.live(6)
        world.space.records["k"] = before

        await world.live(12)

        assert lease.loss is not None
        assert lease.loss.reason is LossReason.STOLEN
        assert neighbour.is_valid
        with pytest.raises(LockLostError):
            await lease.release()


@both_colours
async def test_audit_says_what_the_record_shows(world: World) -> None:
    """It was broken by somebody who left no note; of a newer format nobody can tell."""
    async with world.client(**KEEPS, audit_period=10) as client:
        broken, newer = await moved(world, client, "broken", "newer")
        records = world.space.records
        record, kept = records["broken"], records["newer"]
        records["broken"] = replace(record, rvn="#broken", broken=Broken("by hand", 1))
        records["newer"] = NewerRecord("newer", kept.state, "#newer", kept.fencing_token, "", None)

        await world.live(12)

        assert broken.loss is not None
        assert broken.loss.reason is LossReason.BROKEN
        assert newer.is_valid
        records["newer"] = kept


@async_only
async def test_lock_that_is_written_while_it_is_audited_is_not_lost(world: World) -> None:
    """What stands by then was never compared."""
    read: list[str] = []

    async def before(verb: str, key: Any) -> None:
        if (verb, key) == ("read", "k"):
            read.append(key)
            await lease.renew(data=b"x")

    async with world.client(world.hooked_store(before), **KEEPS, audit_period=10) as client:
        (lease,) = await moved(world, client, "k")
        await world.live(12)
        assert read
        assert lease.is_valid


@both_colours
async def test_note_of_another_grant_or_in_another_session_breaks_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a note came too late: the lock was given back, or taken out of that session, before it was read."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        keepers, keeper = raw(client)._engine.keepers, raw(lease)._handle.keeper
        keepers.hear(keeper, [BeatNote("k", lease.fencing_token + 1, "break", "somebody")])
        keepers.hear(keeper, [BeatNote("released", lease.fencing_token, "break", "somebody")])
        keepers.hear(Keeper(keeper.timings), [BeatNote("k", lease.fencing_token, "break", "somebody")])
        assert lease.is_valid
        keepers.hear(keeper, [BeatNote("k", lease.fencing_token, "break", "somebody")])
        assert not lease.is_valid
    assert "lock 'k' was broken by 'somebody'" in caplog.text


@both_colours
async def test_whoever_cannot_reach_the_session_waits(world: World) -> None:
    """That its record cannot be read proves nothing."""
    store = world.another_store()
    async with world.client(**KEEPS) as a, world.client(store, lease_duration=10) as b:
        (lease,) = await moved(world, a, "k")
        store.fail("read", 3)

        assert await b.try_acquire("k") is None
        assert lease.is_valid
        assert store.requests["read"] == 1


SESSION = LockRecord("s", State.HELD, "#1", 3, "o", 1000)
NOTE = BeatNote("k", 1, "break", "op")


def test_note_leaves_the_owners_lease_token_and_write_as_they_are() -> None:
    """It names the write below it; a second one names the same."""
    first = lease_machine.note_request(SESSION, NOTE, 3, "#2")
    assert not isinstance(first, bool)
    assert (first.expected, first.keep_payload) == (SESSION.version, True)
    assert first.record == LockRecord("s", State.HELD, "#2", 3, "o", 1000, beat=Beat("#1", (NOTE,)))

    other = NOTE._replace(key="l")
    second = lease_machine.note_request(first.record, other, 3, "#3")

    assert not isinstance(second, bool)
    assert second.record.beat == Beat("#1", (NOTE, other))
    assert lease_machine.note_request(second.record, NOTE, 3, "#4") is True


def test_note_waits_for_the_owner_where_64_are_unread() -> None:
    """Nothing is written in the place of another's."""
    notes = tuple(NOTE._replace(key=str(number)) for number in range(NOTES_MAX))
    full = replace(SESSION, beat=Beat("#1", notes))

    with pytest.raises(OutcomeUnknownError, match="has 64 notes that its owner has not read; try again") as caught:
        lease_machine.note_request(full, NOTE, 3, "#2")
    assert caught.value.key == "k"
    assert lease_machine.note_request(full, notes[0], 3, "#2") is True


@pytest.mark.parametrize(
    "session",
    [None, LockRecord("s", State.GONE, "#1", 3, "o", None), LockRecord("s", State.HELD, "#1", 4, "o", 1000)],
)
def test_no_note_is_left_where_the_session_is_over(session: LockRecord | None) -> None:
    """Nobody would read it."""
    assert lease_machine.note_request(session, NOTE, 3, "#2") is False
