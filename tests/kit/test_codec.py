"""The codec of the kit: what is written comes back, and every damaged form is a RecordError and no other error."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlock_core.errors import RecordError
from dlock_core.kit import Plain, packed, payload_of, plain_of, record_of, unpacked
from dlock_core.record import (
    LEASE_MAX_MS,
    MEMBERS_MAX,
    NOTES_MAX,
    TOKEN_MAX,
    Beat,
    BeatNote,
    Broken,
    LockRecord,
    Member,
    Members,
    NewerRecord,
    ProcessIdentity,
    SessionRef,
    Stamp,
    State,
    Times,
)

# A busy machine is no fault of the codec.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)
TOKENS = st.integers(1, TOKEN_MAX)
NAMES = st.text(min_size=1, max_size=20)
VALUES = st.one_of(st.text(max_size=20), INTEGERS, st.booleans(), st.binary(max_size=20))
SESSIONS = st.builds(SessionRef, NAMES, st.integers(1, LEASE_MAX_MS), TOKENS)
NOTES = st.builds(BeatNote, NAMES, TOKENS, st.sampled_from(["break", "yield"]), st.text(max_size=9))
MEMBER_IDS = st.text("0123456789abcdef", min_size=16, max_size=16)


@st.composite
def members(draw: st.DrawFn) -> Members:
    """Return members whose sessions are in range."""
    sessions = draw(st.lists(SESSIONS, min_size=1, max_size=3))
    member = st.builds(
        Member,
        MEMBER_IDS,
        st.text(max_size=9),
        st.none() | st.integers(0, 99),
        st.none() | TOKENS,
        st.integers(1, 99),
        st.integers(0, len(sessions) - 1),
    )
    kind = draw(st.sampled_from(["rw", "permits"]))
    return Members(kind, tuple(sessions), tuple(draw(st.lists(member, max_size=4))))


@st.composite
def records(draw: st.DrawFn) -> LockRecord:
    """Return any record."""
    session, shared = draw(st.none() | SESSIONS), draw(st.none() | members())
    lease = draw(st.none() if session or shared else st.none() | st.integers(1, LEASE_MAX_MS))
    delay = st.none() if lease is None or lease == 1 else st.none() | st.integers(1, lease - 1)
    process = st.builds(ProcessIdentity, st.text(max_size=9), INTEGERS, INTEGERS, INTEGERS, st.none() | INTEGERS)
    return LockRecord(
        draw(NAMES),
        draw(st.sampled_from(State)),
        draw(st.text(min_size=1, max_size=64)),
        draw(TOKENS),
        draw(st.text(max_size=20)),
        lease,
        draw(st.none() | st.binary(max_size=99)),
        tuple(sorted(draw(st.dictionaries(NAMES, VALUES, max_size=4)).items())),
        draw(st.none() | st.builds(Stamp, INTEGERS, NAMES)),
        draw(st.none() | process),
        draw(st.none() | st.builds(Broken, st.text(max_size=9), INTEGERS)),
        session,
        draw(st.none() | st.builds(Beat, st.text(min_size=1, max_size=64), st.lists(NOTES, max_size=3).map(tuple))),
        shared,
        draw(delay),
        draw(st.none() | st.builds(Times, INTEGERS, INTEGERS)),
    )


@patient
@given(records())
def test_record_comes_back_exactly(record: LockRecord) -> None:
    """As plain values and as one value; types too."""
    for came in (
        record_of(record.key, plain_of(record)),
        unpacked(packed(record), record.key),
        unpacked(packed(record)),
    ):
        assert came == record
        assert repr(came) == repr(record)


@patient
@given(records())
def test_plain_values_are_of_the_types_that_they_say(record: LockRecord) -> None:
    """An adapter may rely on it: numbers, text, bytes."""
    plain = plain_of(record)

    assert [type(value) for value in plain[:5]] == [int, str, str, int, str]
    assert type(plain.lease_ms) in (int, type(None))
    assert [type(value) for value in plain[6:]] == [str, bytes]


def test_bare_record_has_no_context_and_no_payload() -> None:
    """The usual record is short; empty data is not the absence of data."""
    bare = LockRecord("k", State.HELD, "r", 1, "o", 1000)

    assert plain_of(bare)[6:] == ("", b"")
    assert payload_of(b"", ()) != payload_of(None, ()) == b""


PLAIN: Any = plain_of(
    LockRecord(
        "k", State.HELD, "r", 1, "o", None, b"data", (("a", b"b"),), Stamp(1, "r"), session=SessionRef("s", 1, 1)
    )
)
JUNK: list[Any] = [None, True, 1.5, -1, 2**70, "", "x", b"", b"\xff", "[" * 100_000, [], ["a"], {}, {"a": 1}, object()]
DAMAGED_PARTS: dict[str, list[Any]] = {
    "stamp": [None, {}, [], [1], ["1", "r"], [1, 2], [True, "r"], [1, "r", 2]],
    "process": [None, [], ["b"], ["b", 1, 2, "3", None], ["b", 1, 2, 3, "4"], [1, 1, 2, 3, 4]],
    "broken": [[], [1, 1], ["a"], "ab"],
    "delay": [None, 0, -1, True, "1", [], 1000],
    "times": [None, {}, [], [1], ["1", 2], [1, None], [True, 1], [1, 2, 3]],
    "session": [
        "abc",
        {"a": 1, "b": 2, "c": 3},
        ["s", 1],
        ["", 1, 1],
        ["s", 0, 1],
        ["s", LEASE_MAX_MS + 1, 1],
        ["s", True, 1],
        ["s", 1, 0],
        ["s", 1, TOKEN_MAX + 1],
        ["s", 1, True],
        [1, 1, 1],
    ],
    "beat": [[], ["r"], ["", []], ["r", {}], ["r", [1]], ["r", [["k", 1, "stop", "me"]]], {"r": 1, "": 2}],
    "members": [
        [],
        ["shared", [], []],
        ["rw", {}, []],
        ["rw", [["s", 1, 1]], [["0" * 16, "read", None, None, 1, 1]]],
        ["rw", [["s", 1, 1]], [["0" * 15, "read", None, None, 1, 0]]],
        ["rw", [["s", 1, 1]], [["G" * 16, "read", None, None, 1, 0]]],
        ["rw", [["s", 1, 1]], [["0" * 16, "read", -1, None, 1, 0]]],
        ["rw", [["s", 1, 1]], [["0" * 16, "read", None, 0, 1, 0]]],
        ["rw", [["s", 1, 1]], [["0" * 16, "read", None, None, 0, 0]]],
        ["rw", [["s", 1, 1]], [["0" * 16, "read", None, None, 1, -1]]],
        ["rw", [["s", 1, 1]], [["0" * 16, 7, None, None, 1, 0]]],
    ],
}
CONTEXTS: list[str] = [
    "{",
    "1",
    "null",
    "[]",
    '{"unknown": 1}',
    *(json.dumps({name: value}) for name, values in DAMAGED_PARTS.items() for value in values),
]
PAYLOADS = [
    b"x",
    b"[]",
    b"[]\n",
    b"[]\nx",
    b"[]\n-x",
    b"{\n+",
    b'{"ab": 1}\n+',
    b"[1]\n+",
    b'[["a"]]\n+',
    b'[["a", 1.5]]\n+',
]
PAYLOADS += [b'[["a", null]]\n+', b'[["b", 1], ["a", 1]]\n+', b'[["a", {"hex": "?"}]]\n+', b'[["a", {"hex": 1}]]\n+']
PAYLOADS += [b'[["a", {"base64": "00"}]]\n+', b'[["a", {}]]\n+', b'[["", 1]]\n+', b"\xff\n+", b"[]\n+" + bytes(65537)]


def refused(plain: Plain) -> bool:
    """Whether *plain* is refused as a record; any other error than RecordError comes out."""
    try:
        record_of("k", plain, where="this test")
    except RecordError as error:
        return error.key == "k"
    return False


@pytest.mark.parametrize("context", CONTEXTS)
def test_damaged_context_is_a_record_error(context: str) -> None:
    """Wrong JSON, unknown parts, wrong types and values out of bounds."""
    assert refused(PLAIN._replace(context=context))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_damaged_payload_is_a_record_error(payload: bytes) -> None:
    """Whatever :func:`payload_of` cannot have made."""
    assert refused(PLAIN._replace(payload=payload))


@pytest.mark.parametrize("field", Plain._fields)
def test_junk_in_any_field_is_a_record_error_or_a_record(field: str) -> None:
    """No other error, whatever a row holds."""
    came = [refused(PLAIN._replace(**{field: junk})) for junk in JUNK]

    assert came.count(True) >= len(JUNK) // 2


@patient
@given(st.sampled_from(Plain._fields), st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none()))
def test_random_damage_is_a_record_error_or_a_record(field: str, value: object) -> None:
    """As above, for whatever hypothesis finds."""
    refused(PLAIN._replace(**{field: value}))


@patient
@given(st.binary(), st.integers(0, 400), st.integers(0, 3))
def test_damaged_packed_value_is_a_record_error_or_a_record(junk: bytes, at: int, length: int) -> None:
    """Bytes cut out, put in, or all of it replaced."""
    value = packed(LockRecord("k", State.HELD, "r", 1, "o", 5, b"data", session=None, beat=Beat("r")))

    for damaged in (junk, value[:at] + junk + value[at + length :]):
        with suppress(RecordError):
            unpacked(damaged, "k")


def test_packed_value_under_another_key_is_a_record_error() -> None:
    """A file or a cell that was copied is no record of the key that it lies under."""
    with pytest.raises(RecordError, match="names key 'a'"):
        unpacked(packed(LockRecord("a", State.HELD, "r", 1, "o", 5)), "b")


def test_error_names_the_place_and_the_next_step() -> None:
    """Where it lies, under which key, and what to do."""
    with pytest.raises(RecordError, match=r"table x has under key 'k'.*state 'odd'.*never overwrites"):
        record_of("k", PLAIN._replace(state="odd"), where="table x")


def test_higher_format_is_held_whatever_else_it_says() -> None:
    """Only its version is read: a later program may write the other fields in another way."""
    plain = PLAIN._replace(format=2, state="shared", owner=7, lease_ms="long", context="[", payload=b"?")

    shown = record_of("k", plain)

    assert type(shown) is NewerRecord
    assert (shown.state, shown.version, shown.lease_ms) == (State.HELD, ("r", 1), None)


# ---- what the record itself checks

SESSION = SessionRef("s", 1000, 1)
MEMBER: Any = Member("0123456789abcdef", "read", None, None, 1, 0)
RAW_BEAT: Any = Beat
RW: Any = Members("rw", (SESSION,), (MEMBER,))
BARE = LockRecord("k", State.HELD, "r", 1, "o", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"session": ("s", 1000, 1)},
        {"session": SESSION, "lease_ms": 1000},
        {"members": RW, "lease_ms": 1000},
        {"members": ("rw", (), ())},
        {"members": RW._replace(sessions=[SESSION])},
        {"members": RW._replace(sessions=())},
        {"members": RW._replace(sessions=(("s", 1000, 1),))},
        {"members": RW._replace(members=(tuple(MEMBER),))},
        {"members": RW._replace(members=(MEMBER,) * (MEMBERS_MAX + 1))},
        {"members": RW._replace(members=(MEMBER._replace(member_id="0123456789ABCDEF"),))},
        {"members": RW._replace(members=(MEMBER._replace(slot=True),))},
        {"beat": ("r", ())},
        {"beat": Beat("r" * 65)},
        {"beat": RAW_BEAT("r", [])},
        {"beat": RAW_BEAT("r", (("k", 1, "break", "me"),))},
        {"beat": Beat("r", (BeatNote("k", 0, "break", "me"),))},
        {"beat": Beat("r", (BeatNote("k", 1, "break", "me"),) * (NOTES_MAX + 1))},
    ],
)
def test_record_refuses_fields_of_sessions_that_are_out_of_bounds(fields: dict[str, Any]) -> None:
    """When it is made, and so before it is written; the message names the key."""
    with pytest.raises(RecordError, match="under key 'k'"):
        replace(BARE, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"session": SESSION},
        {"members": RW._replace(members=(MEMBER,) * MEMBERS_MAX)},
        {"beat": Beat("r" * 64, (BeatNote("k", 1, "yield", ""),) * NOTES_MAX), "lease_ms": 1000},
    ],
)
def test_record_takes_fields_of_sessions_up_to_their_bounds(fields: dict[str, Any]) -> None:
    """And they come back."""
    record = replace(BARE, **fields)

    assert unpacked(packed(record)) == record
