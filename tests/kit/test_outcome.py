"""The port's conditions, as the kit decides them: each clause from S2 to S8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.kit import payload_of
from dlock_core.kit.outcome import kept, outcome, written
from dlock_core.record import (
    TOKEN_MAX,
    Attributes,
    Beat,
    Broken,
    LockRecord,
    Members,
    ProcessIdentity,
    SessionRef,
    Stamp,
    State,
    Times,
    Version,
    newer_format,
)
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace, Reply

OTHER = Version("other", 5)


def record(state: State = State.HELD, rvn: str = "standing", token: int = 5, **fields: Any) -> LockRecord:
    """Return a record of the one key."""
    return LockRecord("k", state, rvn, token, "owner", None, **fields)


STANDING = {state: record(state, data=b"old", attributes=(("a", 1),)) for state in State}
NEW = record(rvn="new", token=1, data=b"new")


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize(
    "expect", [Expect.ANY, Expect.ABSENT, Version("standing", 5), OTHER, Version("standing", 4), Version("standing", 6)]
)
@pytest.mark.parametrize("state", [None, *State])
def test_claim_is_applied_where_the_port_says_so(state: State | None, expect: ClaimExpect, *, must_exist: bool) -> None:
    """Clause S2, case by case; S8: a refusal carries what stands."""
    standing = None if state is None else STANDING[state]
    if standing is None:
        right = not must_exist and expect in (Expect.ANY, Expect.ABSENT)
    else:
        right = (
            state is not State.HELD
            and (expect is Expect.ANY or expect == standing.version)
            and not (must_exist and state is State.GONE)
        )

    reply = outcome(standing, Claim(NEW, expect, must_exist))

    assert reply.applied is right
    if not right:
        assert reply.record is standing


@pytest.mark.parametrize(
    ("before", "asked", "floor", "minted"),
    [(None, 1, 1, 1), (None, 1, 70, 70), (5, 1, 1, 6), (5, 9, 1, 9), (5, 1, 70, 70)],
)
def test_claim_mints_the_greatest_of_three(before: int | None, asked: int, floor: int, minted: int) -> None:
    """Clause S3."""
    standing = None if before is None else record(State.FREE, token=before)

    reply = outcome(standing, Claim(record(rvn="new", token=asked), Expect.ANY), floor=floor)

    assert reply == Reply(applied=True, record=record(rvn="new", token=minted))


def test_claim_without_a_greater_token_grants_nothing() -> None:
    """Clause S3: the end of the tokens is an error, and names the key."""
    with pytest.raises(StoreUnavailableError, match="'k' has reached its end") as caught:
        outcome(record(State.FREE, token=TOKEN_MAX), Claim(NEW, Expect.ANY))

    assert caught.value.key == "k"


def test_claim_of_a_key_whose_last_token_was_pruned_grants_nothing() -> None:
    """The floor is then above the end, which is the same error as where the record still stands."""
    with pytest.raises(StoreUnavailableError, match="'k' has reached its end"):
        outcome(None, Claim(NEW, Expect.ANY), floor=TOKEN_MAX + 1)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("state", [None, State.FREE, State.GONE])
def test_claim_keeps_the_payload_of_what_is_not_gone(state: State | None, *, keep: bool) -> None:
    """Clause S4; all other fields are the request's."""
    standing = None if state is None else STANDING[state]
    kept = STANDING[State.FREE] if keep and state is State.FREE else NEW

    written = outcome(standing, Claim(NEW, Expect.ANY, keep_payload=keep)).record

    assert written is not None
    assert (written.data, written.attributes) == (kept.data, kept.attributes)
    assert (written.rvn, written.owner, written.state) == ("new", "owner", State.HELD)


@pytest.mark.parametrize("kind", [Replace, Release])
@pytest.mark.parametrize("expected", [Version("standing", 5), Version("standing", 4), Version("standing", 6), OTHER])
@pytest.mark.parametrize("state", [None, *State])
def test_change_is_applied_to_the_held_record_of_the_expected_version_only(
    state: State | None, expected: Version, kind: type[Replace | Release]
) -> None:
    """Clauses S5 and S6: state, RVN and token; an absent key is not created."""
    standing = None if state is None else STANDING[state]

    reply = outcome(standing, kind(NEW, expected))

    assert reply.applied is (state is State.HELD and expected == ("standing", 5))
    assert reply.record == (NEW if reply.applied else standing)


@pytest.mark.parametrize("keep", [False, True])
def test_change_writes_the_token_that_it_carries(*, keep: bool) -> None:
    """Clause S5, and S4 for the payload."""
    session = SessionRef("s", 1000, 1)
    asked = record(rvn="new", token=9, data=b"new", session=session)

    written = outcome(STANDING[State.HELD], Replace(asked, Version("standing", 5), keep_payload=keep)).record

    assert written is not None
    assert (written.fencing_token, written.session) == (9, session)
    assert (written.data, written.attributes) == ((b"old", (("a", 1),)) if keep else (b"new", ()))


BY_SESSION = LockRecord(
    "k",
    State.HELD,
    "new",
    5,
    "owner",
    None,
    b"new",
    (("a", 1),),
    broken=Broken("operator", 4),
    session=SessionRef("s", 1000, 1),
    times=Times(1, 2),
)
FULL = {
    "lock": replace(
        BY_SESSION,
        lease_ms=1000,
        session=None,
        stamp=Stamp(1, "new"),
        process=ProcessIdentity("boot", 1, 2, 3),
        delay_ms=500,
    ),
    "lock of a session": BY_SESSION,
    "session": replace(BY_SESSION, lease_ms=1000, session=None, beat=Beat("own")),
    "permits": replace(BY_SESSION, session=None, members=Members("permits", (SessionRef("s", 1000, 1),), ())),
}


def test_record_that_changes_nothing_on_its_way_is_not_copied() -> None:
    """The usual case: a renewal writes the token that stands, and a payload that is the same."""
    assert written(BY_SESSION, 5, None) is BY_SESSION
    assert written(BY_SESSION, 5, replace(BY_SESSION, rvn="standing")) is BY_SESSION


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize(
    ("token", "data", "attributes"), [(6, b"new", (("a", 1),)), (5, b"old", (("a", 1),)), (5, b"new", ())]
)
def test_record_is_written_with_its_fields_and_the_payload_that_stands(
    token: int, data: bytes, attributes: Attributes, full: str
) -> None:
    """Clause S4: of what stands, nothing else."""
    standing = LockRecord("k", State.HELD, "standing", 5, "other", 1000, data, attributes)

    came = written(FULL[full], token, standing)

    assert came == replace(FULL[full], fencing_token=token, data=data, attributes=attributes)


def test_last_token_is_granted() -> None:
    """Clause S3: only what is beyond it is refused."""
    reply = outcome(record(State.FREE, token=TOKEN_MAX - 1), Claim(NEW, Expect.ANY))

    assert reply.record is not None
    assert reply.record.fencing_token == TOKEN_MAX


def test_record_of_a_higher_format_refuses_everything() -> None:
    """Clause S16: shown as held, and never written over, even by who names its version."""
    newer = newer_format("k", 2, "standing", 5)
    requests: list[Claim | Replace | Release] = [
        Claim(NEW, Expect.ANY),
        Claim(NEW, newer.version),
        Replace(NEW, newer.version),
        Release(record(State.FREE, rvn="new"), newer.version),
    ]

    assert [outcome(newer, request) for request in requests] == [Reply(applied=False, record=newer)] * 4


def test_a_payload_that_was_kept_is_in_what_was_written() -> None:
    """With the token that was given; where nothing is kept and nothing was sent, the record is as it was sent."""
    payload = payload_of(b"old", (("a", 1),))

    stands = kept(NEW, 7, payload)

    assert stands == replace(NEW, fencing_token=7, data=b"old", attributes=(("a", 1),))
    assert kept(stands, 7, payload) == stands
    assert kept(NEW, 1, b"") == replace(NEW, data=None)


@pytest.mark.parametrize("payload", [b"x", b"[]\n*", b'[["a", {"hex": 1}]]\n-', b"[[1, 2]]\n-"])
def test_a_damaged_payload_that_was_kept_does_not_hide_the_write(payload: bytes) -> None:
    """An error that says that nothing was written would leave a held record behind."""
    with pytest.raises(OutcomeUnknownError, match="lock 'k' was written, but its payload is damaged") as caught:
        kept(NEW, 1, payload)
    assert caught.value.key == "k"
