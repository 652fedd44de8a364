"""Documents that dlock cannot read: no verb writes over them, and each says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson.int64 import Int64

from dlock_core.errors import OutcomeUnknownError, RecordError
from dlock_core.record import LockRecord, Version, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from tests.mongodb.support import Face, any_claim, freed, held

FOREIGN: dict[str, dict[str, Any]] = {
    "another program's": {"x": 1, "when": {"$date": 1}},
    "no format": {"state": "free", "rvn": "r", "token": 1},
    "a format that is no number": {"v": "1", "state": "free", "rvn": "r", "token": 1},
    "a token that is text": {"token": "7"},
    "a token that is a double": {"token": 7.0},
    "a negative token": {"token": Int64(-1)},
    "an rvn that is a number": {"rvn": 7},
    "an unknown state": {"state": "gone fishing"},
    "an owner that is none": {"owner": None},
    "data and attributes that are text": {"payload": "text"},
    "a context that is a document": {"context": {"a": 1}},
    "a lease that is text": {"lease_ms": "1"},
    "a lease that is a long": {"lease_ms": Int64(1)},
    "a token that is an int": {"token": 7},
}


@pytest.mark.parametrize("state", ["held", "free"])
@pytest.mark.parametrize("case", FOREIGN)
def test_what_cannot_be_read_is_left_alone(store: Face, raw: Any, key: str, case: str, state: str) -> None:
    """A foreign or damaged document raises from every verb, and is after that what it was before."""
    sound = {
        "v": 1,
        "state": state,
        "rvn": "r",
        "token": Int64(7),
        "owner": "",
        "lease_ms": 0,
        "context": "",
        "payload": b"",
    }
    wrong = FOREIGN[case]
    # What names its own RVN is whole; the others are sound but for one field.
    document = {"_id": key, **({} if "x" in wrong or wrong.get("rvn") == "r" else sound), **wrong}
    raw.insert_one(document)
    mine, version = held(key), Version("r", 7)
    calls: list[Callable[[], Any]] = [
        lambda: store.read(key),
        lambda: store.scan(key),
        lambda: store.claim(Claim(mine, Expect.ANY)),
        lambda: store.claim(Claim(mine, Expect.ABSENT)),
        lambda: store.claim(Claim(mine, version)),
        lambda: store.claim(Claim(mine, Expect.ANY, must_exist=True, keep_payload=True)),
        lambda: store.replace(Replace(mine, version)),
        lambda: store.release(Release(freed(mine), version, keep_payload=True)),
    ]

    for call in calls:
        with pytest.raises(RecordError) as caught:
            call()
        assert caught.value.key == key
    [result] = store.replace_many([Replace(mine, version)])
    assert isinstance(result, RecordError)

    assert raw.find_one({"_id": key}) == document


def test_a_grant_that_keeps_what_cannot_be_read_is_an_unknown_outcome(store: Face, raw: Any, key: str) -> None:
    """It was applied, so it is not refused (clause S15): told otherwise, nobody would free a lock without a lease again."""
    record = store.claim(any_claim(key)).record
    store.release(Release(freed(record), record.version))
    raw.update_one({"_id": key}, {"$set": {"payload": b"x"}})

    with pytest.raises(OutcomeUnknownError) as caught:
        store.claim(any_claim(key, lease_ms=None)._replace(keep_payload=True))

    assert caught.value.key == key
    assert raw.find_one({"_id": key})["state"] == "held"


def test_one_unreadable_document_does_not_hide_the_others_from_a_scan(store: Face, raw: Any, key: str) -> None:
    """It is raised after them."""
    records = [store.claim(any_claim(f"{key}/{name}")).record for name in "ac"]
    raw.insert_one({"_id": f"{key}/b", "x": 1})
    seen: list[LockRecord] = []

    def look() -> None:
        if store.loop is None:
            seen.extend(store.raw.scan(key, timeout_s=5))  # type: ignore[arg-type]
        else:
            store.loop.run(_extend(seen, store.raw.scan(key, timeout_s=5)))

    with pytest.raises(RecordError):
        look()

    assert seen == records


def test_a_newer_format_is_held_and_left_alone(store: Face, raw: Any, key: str) -> None:
    """An older program waits for its end."""
    document = {"_id": key, "v": 2, "state": "resting", "rvn": "r", "token": 7, "new": [1]}
    raw.insert_one(document)
    shown = newer_format(key, 2, "r", 7)
    mine = held(key, fencing_token=8)

    replies = [
        store.claim(Claim(mine, Expect.ANY)),
        store.replace(Replace(mine, shown.version)),
        store.release(Release(freed(mine), shown.version)),
        *store.replace_many([Replace(mine, shown.version)]),
    ]

    assert replies == [Reply(False, shown)] * 4
    assert raw.find_one({"_id": key}) == document


async def _extend(seen: list[LockRecord], records: Any) -> None:
    async for record in records:
        seen.append(record)  # noqa: PERF401  # one by one: what came before the error counts
