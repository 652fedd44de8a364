"""Commands, documents and answers, without a server."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from dlock_core.errors import RecordError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_mongodb import _wire
from tests.mongodb.support import freed, held

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

    came = _wire.read_document(stored(record))

    assert came == record
    assert came is not None
    assert [type(value) for _, value in came.attributes] == [int, bytes, bool, int, str]
    assert came.process is not None
    assert type(came.process.started_at) is int
    never_lapses = held("k", lease_ms=None)
    assert _wire.read_document(stored(never_lapses)) == never_lapses


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": True},
        {"v": 1.0},
        {"v": 0},
        {"v": None},
        {"state": 1},
        {"v": Int64(1)},
        {"payload": None},
        {"payload": b"x"},
        {"payload": b'[["b", 1], ["a", 1]]\n-'},
        {"payload": bson.Binary(b"x", 4)},
        {"context": {"at": 1}},
        {"context": '{"process": [1]}'},
        {"token": Int64(2**53)},
        {"token": 7},
        {"lease_ms": None},
        {"lease_ms": Int64(1)},
        {"lease_ms": 86_400_001},
    ],
)
def test_a_damaged_document_is_an_error(wrong: dict[str, Any]) -> None:
    """It names the key and the remedy."""
    with pytest.raises(RecordError, match="'k'"):
        _wire.read_document({**stored(held("k")), **wrong})


def test_a_document_of_nothing_but_its_id_is_absent() -> None:
    """A claim can't tell it from an absent key, so nothing else may."""
    assert _wire.read_document({"_id": "k"}) is None
    assert _wire.read_document(None) is None


def test_nothing_of_the_users_is_outside_a_literal() -> None:
    """Only our own field paths are expressions; the key stands in the filter, as a string."""
    nasty = held(NASTY, rvn=NASTY, owner=NASTY, data=b"$", attributes=(("$$NOW", NASTY),))
    version = Version(NASTY, 7)
    requests = [Claim(nasty, Expect.ANY), Claim(nasty, Expect.ABSENT), Claim(nasty, version, keep_payload=True)]
    commands = [_wire.claim("c", request) for request in requests]
    commands += [_wire.change("c", Replace(nasty, version, keep_payload=keep)) for keep in (False, True)]
    commands += [_wire.change("c", Release(freed(nasty), version))]

    for command in commands:
        assert command["query"] == {"_id": NASTY}
        ours = set(literals(command["update"]))
        fields = {f"${name}" for name in _wire.document_of(nasty)}
        assert ours <= fields | {"$$ROOT", "$$NOW"}
    [statement] = _wire.changes("c", [Replace(nasty, version)])["updates"]
    assert statement == {"q": {"_id": NASTY}, "u": commands[3]["update"]}


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
    command = _wire.claim("c", claim)

    assert command["upsert"] is creates
    sent = _wire.Command("db", command).within(1.5)
    assert sent["writeConcern"] == {"w": "majority", "j": True, "wtimeout": 1500}
    assert _wire.change("c", Release(freed(held("k")), Version("r", 1)))["upsert"] is False


def test_a_payload_that_is_kept_is_not_sent() -> None:
    """A renewal of a lock with 64 KiB of data is small."""
    record = held("k", data=bytes(65_536))

    renewal = _wire.change("c", Replace(record, Version("r", 1), keep_payload=True))
    batch = _wire.changes("c", [Replace(record, Version("r", 1), keep_payload=True)])

    assert len(bson.encode(renewal)) < 2000
    assert len(bson.encode(batch)) < 2000


def test_the_rvn_tells_a_grant_from_a_refusal() -> None:
    """And the state and token with it: a claim applied twice puts one RVN under a second token."""
    record = held("k", fencing_token=3)
    request = Replace(record, Version("r", 2))

    def applied(stands: LockRecord) -> bool:
        return _wire.judged(request, stored(stands)).applied

    assert applied(record)
    assert not applied(held("k", fencing_token=3))
    assert not applied(held("k", rvn=record.rvn, fencing_token=2))
    assert not applied(freed(record, rvn=record.rvn))


def test_only_a_claim_that_fits_hears_of_the_last_token() -> None:
    """Any other is refused as ever."""
    last = held("k", fencing_token=TOKEN_MAX)
    free = freed(last)
    claim = Claim(held("k"), Expect.ANY)
    absent, renewal = claim._replace(expect=Expect.ABSENT), Replace(held("k"), Version("r", 1))

    for request, stands in (claim, last), (absent, free), (renewal, free), (claim, freed(held("k"))):
        assert _wire.judged(request, stored(stands)) == Reply(applied=False, record=stands)
    for expect in Expect.ANY, free.version:
        with pytest.raises(StoreUnavailableError, match="has reached its end"):
            _wire.judged(claim._replace(expect=expect), stored(free))


def test_a_page_goes_on_where_there_may_be_more() -> None:
    """After a full page, and after one that was cut; not after one that reached other keys."""
    full = [stored(held(f"a{number:03}")) for number in range(_wire.PAGE_SIZE)]

    assert _wire.paged(cursor(*full), "a")[1] == "a099"
    assert _wire.paged(cursor(*full[:7], number=17), "a")[1] == "a006"
    assert _wire.paged(cursor(*full[:7]), "a")[1] is None
    assert _wire.paged(cursor(*full[:-1], stored(held("b"))), "a")[1] is None
    assert _wire.paged(cursor(), "a") == ([], None)
    page = _wire.page("c", "a", "a099")
    assert page["filter"] == {"_id": {"$gt": "a099"}}
    assert page["sort"] == {"_id": 1}


def test_every_key_that_is_looked_for_is_asked_for_at_once() -> None:
    """One that is left out would look absent, and its lock lost. The cursor is closed with the answer."""
    command = _wire.find("c", ["a", "b"], "local")

    assert command["filter"] == {"_id": {"$in": ["a", "b"]}}
    assert command["batchSize"] > command["limit"] == 2


def test_an_age_is_never_more_than_the_time_since_the_write() -> None:
    """Both instants were rounded to a millisecond."""
    record, now = held("k"), DatetimeMS(1_000_005)
    document = stored(record) | {"written": DatetimeMS(1_000_000)}

    assert _wire.found_aged(cursor({"now": now, "document": document})) == (record, 4)
    assert _wire.found_aged(cursor({"now": document["written"], "document": document})) == (record, 0)
    assert _wire.found_aged(cursor({"now": now, "document": stored(record)})) == (record, 0)
    assert _wire.found_aged(cursor({"now": None, "document": document})) == (record, 0)


def test_only_the_record_that_was_seen_is_marked() -> None:
    """The mark of another one would be for nobody."""
    seen = held("k")

    mark = _wire.mark("c", seen)

    assert mark["query"] == {"_id": "k", "v": 1, "state": "held", "rvn": seen.rvn}
    assert mark["writeConcern"] == {"w": 1}  # a mark that is lost costs time alone


def test_no_renewal_of_a_batch_waits_for_another() -> None:
    """One that fails would end a batch in order, and cost the locks behind it."""
    assert _wire.changes("c", [Replace(held("k"), Version("r", 1))])["ordered"] is False
