"""The members of a record: who may join, with which token, and what is written. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlock_core.kit import outcome
from dlock_core.members import (
    PERMIT,
    READ,
    WANT,
    WRITE,
    Wish,
    in_the_way,
    join,
    keeping_sessions,
    kind_error,
    leave,
    member_of,
    session_key,
    shared_key,
    token_of,
)
from dlock_core.record import MEMBERS_MAX, Broken, LockRecord, Member, Members, SessionRef, State, newer_format
from dlock_core.store import Claim, Expect, Release, Replace
from proof.explore.members import SCENARIOS, explore


def wish(number: int, mode: str = PERMIT, **more: Any) -> Wish:
    """Return what the attempt *number* wants, under the session of that number."""
    return Wish(
        "k",
        mode,
        f"{number:016x}",
        f"owner-{number}",
        **({"permits": 2} | more),
        session=SessionRef(session_key("k", number), 1000, 1),
    )


def joined(record: LockRecord | None, *wishes: Wish, over: frozenset[str] = frozenset()) -> LockRecord:
    """Return the record after each of *wishes* has joined."""
    for number, each in enumerate(wishes):
        assert in_the_way(each, record, over) is None
        reply = outcome(record, join(each, record, over, f"rvn-{each.member_id}-{number}"))
        assert reply.applied
        record = reply.record
    assert record is not None
    return record


def tokens(record: LockRecord) -> list[int]:
    """Return the token of each member."""
    assert record.members is not None
    return [token_of(record, member) for member in record.members.members]


def slots(record: LockRecord) -> list[int | None]:
    """Return the slot of each member."""
    assert record.members is not None
    return [member.slot for member in record.members.members]


def left(record: LockRecord, number: int, **more: Any) -> LockRecord:
    """Return the record after the member *number* has left."""
    request = leave(record, f"{number:016x}", "left", hides=more.get("hides", False))
    assert request is not None
    reply = outcome(record, request)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def test_first_claim_is_conditional_on_what_was_seen() -> None:
    """A late duplicate of it would add a member that has left (B3)."""
    first = join(wish(1), None, (), "a")
    assert isinstance(first, Claim)
    assert first.expect is Expect.ABSENT

    tombstone = left(joined(None, wish(1)), 1)
    again = join(wish(2), tombstone, (), "b")

    assert tombstone.state is State.FREE
    assert isinstance(again, Claim)
    assert again.expect == tombstone.version
    assert again.record.fencing_token == 1


def test_first_claim_asks_for_the_token_floor() -> None:
    """As an exclusive lock does."""
    claim = join(wish(1, token_floor=70), None, (), "a")

    assert claim.record.fencing_token == 70


def test_who_joins_a_key_that_is_held_has_the_token_floor_at_least() -> None:
    """Those who hold it may be of programs that were started before the floor was raised."""
    assert tokens(joined(None, wish(1), wish(2, token_floor=70))) == [1, 70]


def test_each_permit_has_a_slot_and_a_greater_token() -> None:
    """The token of the one that the store has minted is written out by the next."""
    record = joined(None, wish(1, permits=3), wish(2, permits=3), wish(3, permits=3))

    assert (tokens(record), slots(record)) == ([1, 2, 3], [0, 1, 2])
    assert record.owner == "owner-3"
    record = joined(left(record, 2), wish(4, permits=3))
    assert (tokens(record), slots(record)) == ([1, 3, 4], [0, 2, 1])


def test_permits_and_weights_are_counted() -> None:
    """All or nothing; what is in the way are the sessions of all who hold some."""
    record = joined(None, wish(1, permits=5, weight=2), wish(2, permits=5, weight=1))

    assert in_the_way(wish(3, permits=5, weight=2), record, ()) is None
    refs = in_the_way(wish(3, permits=5, weight=3), record, ())
    assert refs == (SessionRef("k~dlock/session/1", 1000, 1), SessionRef("k~dlock/session/2", 1000, 1))
    assert in_the_way(wish(3, permits=5, weight=3), record, (f"{1:016x}",)) is None


def test_a_member_that_is_over_is_left_out_by_who_joins() -> None:
    """So is whoever had the session that the joining one has now, and nobody else."""
    record = joined(None, wish(1), wish(2))
    after = joined(record, wish(3), over=frozenset({f"{1:016x}"}))
    assert after.members is not None
    assert [member.member_id for member in after.members.members] == [f"{2:016x}", f"{3:016x}"]
    assert slots(after) == [1, 0]

    heir = wish(9)._replace(session=SessionRef(session_key("k", 2), 1000, 1))
    assert in_the_way(heir, record, ()) is None
    assert in_the_way(heir._replace(session=None), record, ()) is not None
    again = joined(record, heir)
    assert again.members is not None
    assert [member.member_id for member in again.members.members] == [f"{1:016x}", f"{9:016x}"]


def test_readers_share_a_token_and_each_phase_has_a_greater_one() -> None:
    """B4, B5."""
    record = joined(None, wish(1, READ), wish(2, READ))
    assert tokens(record) == [1, 1]
    record = left(left(record, 1), 2)
    record = joined(record, wish(3, WRITE))
    assert tokens(record) == [2]

    dead_writer = joined(record, wish(4, READ), over=frozenset({f"{3:016x}"}))

    assert tokens(dead_writer) == [3]
    assert tokens(joined(dead_writer, wish(5, READ))) == [3, 3]


def test_writer_is_alone() -> None:
    """It waits for readers and writers, and both wait for it."""
    readers, writer = joined(None, wish(1, READ), wish(2, READ)), joined(None, wish(3, WRITE))

    assert in_the_way(wish(4, WRITE), readers, ()) == (
        SessionRef("k~dlock/session/1", 1000, 1),
        SessionRef("k~dlock/session/2", 1000, 1),
    )
    assert in_the_way(wish(4, WRITE), writer, ()) == (SessionRef("k~dlock/session/3", 1000, 1),)
    assert in_the_way(wish(4, READ), writer, ()) == (SessionRef("k~dlock/session/3", 1000, 1),)
    assert in_the_way(wish(4, READ), readers, ()) is None


def test_new_readers_wait_behind_a_writer_that_waits() -> None:
    """But not one whose own thread reads already: the writer waits for that. Other writers don't wait behind it."""
    reader = joined(None, wish(1, READ))
    waiting = outcome(reader, join(wish(2, WANT), reader, (), "want")).record
    assert waiting is not None
    assert waiting.fencing_token == reader.fencing_token

    assert in_the_way(wish(3, READ), waiting, ()) == (SessionRef("k~dlock/session/2", 1000, 1),)
    assert in_the_way(wish(3, READ, reads_already=True), waiting, ()) is None
    assert in_the_way(wish(3, READ), waiting, (f"{2:016x}",)) is None
    alone = left(waiting, 1)
    assert alone.held
    assert in_the_way(wish(4, WRITE), alone, ()) is None
    writer = joined(alone, wish(2, WRITE))
    assert writer.members is not None
    assert [member.mode for member in writer.members.members] == [WRITE]
    assert tokens(writer) == [2]


def test_readers_have_their_turn_after_a_writer() -> None:
    """Who leaves after writing takes out all writers that wait, and they say so anew (neither side starves)."""
    writer = joined(None, wish(1, WRITE))
    waiting = outcome(writer, join(wish(2, WANT), writer, (), "want")).record
    assert waiting is not None

    after = left(waiting, 1)

    assert not after.held
    assert in_the_way(wish(3, READ), after, ()) is None


def test_last_one_leaves_a_tombstone_and_others_a_record() -> None:
    """Both on the version that stands; who isn't there writes nothing."""
    record = joined(None, wish(1), wish(2))
    request = leave(record, f"{1:016x}", "new", hides=True)
    assert isinstance(request, Replace)
    assert (request.expected, request.record.fencing_token, request.record.held) == (record.version, 2, True)
    one = left(record, 1)

    last = leave(one, f"{2:016x}", "new", hides=True)

    assert isinstance(last, Release)
    assert (last.expected, last.record.state, last.record.members) == (one.version, State.GONE, None)
    assert leave(one, f"{1:016x}", "new", hides=False) is None
    assert leave(None, f"{1:016x}", "new", hides=False) is None
    assert leave(left(one, 2), f"{2:016x}", "new", hides=False) is None


def test_key_is_used_in_one_way() -> None:
    """Whoever asks for it in another way is told both, and has no room before nobody is left."""
    semaphore = joined(joined(None, wish(1)), wish(2))
    exclusive = LockRecord("k", State.HELD, "a", 1, "o", 1000)
    moved = replace(exclusive, lease_ms=None, session=SessionRef("s", 1000, 7))
    newer = newer_format("k", 9, "a", 3)

    assert "held as a semaphore, and was asked for as a read/write lock" in str(kind_error(semaphore, "rw"))
    assert "held as an exclusive lock, and was asked for as a semaphore" in str(kind_error(exclusive, "permits"))
    assert [kind_error(exclusive, ""), kind_error(semaphore, "permits"), kind_error(newer, "rw")] == [None] * 3

    assert in_the_way(wish(3, READ), semaphore, ()) == keeping_sessions(semaphore)
    assert in_the_way(wish(3, READ), semaphore, (f"{1:016x}",)) == keeping_sessions(semaphore)[1:]
    assert in_the_way(wish(3, READ), semaphore, (f"{1:016x}", f"{2:016x}")) is None
    reader = joined(None, wish(1, READ))
    assert in_the_way(wish(3, permits=5), reader, ()) == keeping_sessions(reader)
    assert in_the_way(wish(3), exclusive, ()) == ()
    assert in_the_way(wish(3), exclusive, ("a",)) is None
    assert in_the_way(wish(3), moved, ()) == (moved.session,)


def test_quarantine_is_waited_for_and_a_newer_record_for_ever() -> None:
    """A key that was broken is free one lease later; what a newer version means, nobody knows."""
    broken = LockRecord("k", State.HELD, "a", 3, "o", 700, broken=Broken("who", 1))

    assert in_the_way(wish(1), broken, ()) == ()
    assert in_the_way(wish(1), broken, ("a",)) is None
    again = outcome(broken, join(wish(1), broken, ("a",), "joined")).record
    assert again is not None
    assert tokens(again) == [4]
    assert in_the_way(wish(2, permits=1), again, ("a",)) == (SessionRef(session_key("k", 1), 1000, 1),)
    assert in_the_way(wish(1), newer_format("k", 9, "a", 3), ()) == ()


def test_record_holds_so_many_members() -> None:
    """The next one waits for any of them."""
    listed = tuple(Member(f"{number:016x}", READ, None, 1, 1, number) for number in range(MEMBERS_MAX))
    refs = tuple(SessionRef(session_key("k", number), 1000, 1) for number in range(MEMBERS_MAX))
    full = LockRecord("k", State.HELD, "a", 1, "o", None, members=Members("rw", refs, listed))

    assert in_the_way(wish(500, READ), full, ()) == refs


def test_session_has_a_key_beside_that_of_its_lock() -> None:
    """Any other key is its own."""
    assert shared_key(session_key("a/b", 7)) == "a/b"
    assert shared_key("a/b") == "a/b"


def test_member_is_found_by_its_id() -> None:
    """Not in a record that is not held."""
    record = joined(None, wish(1))

    assert member_of(record, f"{1:016x}") is not None
    assert member_of(record, f"{2:016x}") is None
    assert member_of(left(record, 1), f"{1:016x}") is None


# How many worlds there are: a model that forgets a part reaches others than these, and need break no rule.
WORLDS = {
    "one permit": 5866,
    "two permits": 10653,
    "weights": 21146,
    "a writer that reads later": 12361,
    "a store with a floor": 11231,
}


@pytest.mark.parametrize("scenario", WORLDS)
def test_no_world_has_a_holder_too_many(scenario: str) -> None:
    """Whatever is lost, late or dead; and nobody waits where nothing can happen."""
    found = explore(SCENARIOS[scenario])

    assert (found.violation, found.worlds) == (None, WORLDS[scenario]), found
    assert found.seen == {wish.mode for client in SCENARIOS[scenario].clients for wish in client}
