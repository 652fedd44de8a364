"""What is sent and how answers are read, without a server."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.int64 import Int64

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_mongodb import _wire
from tests.mongodb.support import any_claim, freed, held

NASTY = "$$ROOT"


def stored(record: LockRecord) -> dict[str, Any]:
    """Return the document of *record* as the server gives it back."""
    return bson.decode(bson.encode(_wire.document_of(record)), _wire.CODEC)


def cursor(*documents: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """Return an answer to a find."""
    return {"ok": 1, "cursor": {"id": number, "firstBatch": list(documents)}}


def literals(value: Any, *, inside: bool = False) -> list[Any]:
    """Return every string of *value* that begins with a dollar and is not inside a ``$literal``."""
    if isinstance(value, dict):
        return [found for name, each in value.items() for found in literals(each, inside=inside or name == "$literal")]
    if isinstance(value, list):
        return [found for each in value for found in literals(each, inside=inside)]
    return [value] if isinstance(value, str) and value.startswith("$") and not inside else []


def test_a_record_survives_bson_exactly() -> None:
    """Types included: BSON's 64-bit integers come back as a class of their own."""
    record = LockRecord(
        "k",
        State.HELD,
        "r",
        TOKEN_MAX,
        "o",
        1,
        b"",
        (("a", 2**63 - 1), ("b", b""), ("c", True), ("d", 1), ("e", "")),
        Stamp(2**41, "r"),
        ProcessIdentity("b", 2**32, 2, 2**50, None),
        Broken("x", 2**41),
    )

    came = _wire.record_of(stored(record))

    assert came == record
    assert came is not None
    assert [type(value) for _, value in came.attributes] == [int, bytes, bool, int, str]
    assert came.process is not None
    assert type(came.process.started_at) is int


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": True},
        {"v": 1.0},
        {"v": 0},
        {"v": None},
        {"state": 1},
        {"attrs": None},
        {"attrs": [["a"]]},
        {"attrs": [["b", 1], ["a", 1]]},
        {"stamp": {"at": 1}},
        {"process": [1]},
        {"data": bson.Binary(b"x", 4)},
        {"token": Int64(2**53)},
        {"lease_ms": 86_400_001},
    ],
)
def test_a_damaged_document_is_an_error(wrong: dict[str, Any]) -> None:
    """It names the key and the remedy."""
    with pytest.raises(RecordError, match="'k'"):
        _wire.record_of({**stored(held("k")), **wrong})


def test_a_document_of_nothing_but_its_id_is_absent() -> None:
    """A claim can't tell it from an absent key, so nothing else may."""
    assert _wire.record_of({"_id": "k"}) is None
    assert _wire.record_of(None) is None


def test_nothing_of_the_users_is_outside_a_literal() -> None:
    """Only our own field paths are expressions; the key stands in the filter, as a string."""
    nasty = held(NASTY, rvn=NASTY, owner=NASTY, data=b"$", attributes=(("$$NOW", NASTY),))
    version = Version(NASTY, 7)
    requests = [Claim(nasty, Expect.ANY), Claim(nasty, Expect.ABSENT), Claim(nasty, version, keep_payload=True)]
    commands = [_wire.claim("c", request, 1.0) for request in requests]
    commands += [_wire.change("c", Replace(nasty, version, keep_payload=keep), 1.0) for keep in (False, True)]
    commands += [_wire.change("c", Release(freed(nasty), version), 1.0)]

    for command in commands:
        assert command["query"] == {"_id": NASTY}
        ours = set(literals(command["update"]))
        fields = {"$v", "$state", "$rvn", "$token", "$owner", "$lease_ms", "$data", "$attrs", "$_id", "$$ROOT", "$$NOW"}
        assert ours <= fields
    [statement] = _wire.changes("c", [Replace(nasty, version)], 1.0)["updates"]
    assert set(literals(statement["u"])) <= {"$data", "$attrs", "$$NOW"}
    assert statement["q"]["rvn"] == NASTY  # a value in a filter is no expression


@pytest.mark.parametrize(
    ("claim", "creates"),
    [
        (Claim(held("k"), Expect.ANY), True),
        (Claim(held("k"), Expect.ABSENT), True),
        (Claim(held("k"), Version("r", 1)), False),
        (Claim(held("k"), Expect.ANY, must_exist=True), False),
        (Claim(held("k"), Expect.ABSENT, must_exist=True), False),
    ],
)
def test_only_a_claim_that_may_create_is_an_upsert(claim: Claim, creates: bool) -> None:
    """Any other would leave an empty document behind where the key is absent."""
    command = _wire.claim("c", claim, 1.5)

    assert command["upsert"] is creates
    assert command["writeConcern"] == {"w": "majority", "j": True, "wtimeout": 1500}
    assert _wire.change("c", Release(freed(held("k")), Version("r", 1)), 1.0)["upsert"] is False


def test_a_payload_that_is_kept_is_not_sent() -> None:
    """A renewal of a lock with 64 KiB of data is small."""
    record = held("k", data=bytes(65_536))

    renewal = _wire.change("c", Replace(record, Version("r", 1), keep_payload=True), 1.0)
    batch = _wire.changes("c", [Replace(record, Version("r", 1), keep_payload=True)], 1.0)

    assert len(bson.encode(renewal)) < 2000
    assert len(bson.encode(batch)) < 1000


def test_an_answer_without_a_document() -> None:
    """It is a refusal by an absent key, but for a claim that should have made it: that one looks."""
    nothing = {"ok": 1, "value": None, "lastErrorObject": {"n": 0, "updatedExisting": False}}
    claim = any_claim("k")

    assert _wire.reply(Replace(held("k"), Version("r", 1)), nothing) == Reply(False, None)
    assert _wire.reply(Claim(held("k"), Version("r", 1)), nothing) == Reply(False, None)
    assert _wire.reply(claim, nothing) is None
    assert _wire.reply(claim, {"ok": 0, "code": 11000}) is None
    assert _wire.looked(claim, cursor(stored(claim.record))) == Reply(True, claim.record)
    other = held("k")
    assert _wire.looked(claim, cursor(stored(other))) == Reply(False, other)
    with pytest.raises(OutcomeUnknownError):
        _wire.looked(claim, cursor())


def test_an_unconfirmed_write_is_never_adopted() -> None:
    """Also where the answer shows our own record."""
    claim = any_claim("k")
    concern = {"code": 64, "codeName": "WriteConcernTimeout"}

    with pytest.raises(OutcomeUnknownError):
        _wire.reply(claim, {"ok": 1, "value": stored(claim.record), "writeConcernError": concern})
    with pytest.raises(OutcomeUnknownError):
        _wire.replies([Replace(held("k"), Version("r", 1))], {"ok": 1, "n": 1, "writeConcernError": concern})


def test_the_rvn_tells_a_grant_from_a_refusal() -> None:
    """And the state and token with it: a claim applied twice puts one RVN under a second token."""
    record = held("k", fencing_token=3)
    request = Replace(record, Version("r", 2))

    def reply(stands: LockRecord) -> bool:
        came = _wire.reply(request, {"ok": 1, "value": stored(stands)})
        assert came is not None
        return came.applied

    assert reply(record)
    assert not reply(held("k", fencing_token=3))
    assert not reply(held("k", rvn=record.rvn, fencing_token=2))
    assert not reply(freed(record, rvn=record.rvn))


def test_a_batch_is_sorted_out_by_what_stands() -> None:
    """Applied, refused, absent, damaged, failed by itself, and without room in the answer: each its own result."""
    version = Version("r", 1)
    names = ["applied", "refused", "absent", "damaged", "conflict", "unclear"]
    requests = [Replace(held(name), version) for name in names]
    other, old = held("refused"), {**stored(held("x")), "rvn": "r"}
    failed = [{"index": 4, "code": 112}, {"index": 5, "code": 50}]
    documents = [
        stored(requests[0].record),
        stored(other),
        {"_id": "damaged", "x": 1},
        {**old, "_id": "conflict"},
        {**old, "_id": "unclear"},
    ]

    came = _wire.sorted_out(requests, {"ok": 1, "n": 1, "writeErrors": failed}, cursor(*documents))
    cut = _wire.sorted_out(requests[:3], {"ok": 1, "n": 1}, cursor(*documents[:2], number=17))

    assert came[:3] == [Reply(True, requests[0].record), Reply(False, other), Reply(False, None)]
    assert [type(each) for each in came[3:]] == [RecordError, StoreUnavailableError, OutcomeUnknownError]
    assert cut[:2] == came[:2]
    assert type(cut[2]) is OutcomeUnknownError


def test_a_page_goes_on_where_there_may_be_more() -> None:
    """After a full page, and after one that was cut; not after one that reached other keys."""
    full = [stored(held(f"a{number:03}")) for number in range(_wire.PAGE_SIZE)]

    assert _wire.paged(cursor(*full), "a", [])[1] == "a099"
    assert _wire.paged(cursor(*full[:7], number=17), "a", [])[1] == "a006"
    assert _wire.paged(cursor(*full[:7]), "a", [])[1] is None
    assert _wire.paged(cursor(*full[:-1], stored(held("b"))), "a", [])[1] is None
    assert _wire.paged(cursor(), "a", []) == ([], None)
    assert _wire.page("c", "a", "a099")["filter"] == {"_id": {"$gt": "a099"}}


def test_text_without_a_form_in_bson_is_an_error_of_the_record() -> None:
    """A lone surrogate is found before anything is sent."""
    with pytest.raises((UnicodeError, bson.errors.BSONError)):
        bson.encode(_wire.document_of(held("k", owner="\ud800")))
