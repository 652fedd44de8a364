"""What the adapter assumes of MongoDB, and no stand-in can prove: ``make real URL=mongodb://…`` runs this file on a server of yours.

The page ``docs/assumptions.md`` says for each what follows if it is wrong.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import PyMongoError

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Replace, Reply
from dlock_mongodb import _wire
from tests.mongodb.support import COLLECTION, any_claim, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.mongodb.support import Face, Opener

THREADS, ROUNDS, LOCKS, BATCHES = 8, 40, 40, 12
PATIENCE_S = 60.0
_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions()


@pytest.fixture
def stand_in(raw: Any) -> bool:
    """Tell whether the server only speaks MongoDB's language."""
    return "secantusVersion" in raw.database.client.admin.command("buildInfo")


def test_racing_first_claims_are_all_answered(raw: Any, key: str, stand_in: bool) -> None:
    """An upsert by ``_id`` alone is tried again by the server: no duplicate key comes out (E11000), and no empty answer."""
    gate = threading.Barrier(THREADS)
    winners: list[list[bool]] = [[False] * THREADS for _ in range(ROUNDS)]
    unanswered: list[str] = []

    def contend(place: int) -> None:
        for number, row in enumerate(winners):
            request = any_claim(f"{key}/{number}")
            gate.wait()
            answer = raw.database.command(_wire.claim(COLLECTION, request), check=False, codec_options=_PLAIN)
            if answer.get("value") is None:
                unanswered.append(f"code {answer.get('code')}")
            row[place] = (answer.get("value") or {}).get("rvn") == request.record.rvn

    threads = [threading.Thread(target=contend, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [sum(row) for row in winners] == [1] * ROUNDS
    # The stand-in is known to leave some out; the store then looks.
    assert stand_in or not unanswered


def test_a_refused_step_writes_nothing(store: Face, raw: Any, key: str) -> None:
    """A findAndModify that puts the document back as it stands is no event for a change stream, so it is no entry of the log."""
    record = store.claim(any_claim(key)).record
    other = held(key, fencing_token=record.fencing_token)
    with raw.watch([{"$match": {"documentKey._id": key}}]) as stream:
        for _ in range(20):
            assert not store.claim(any_claim(key)).applied
            assert not store.replace(Replace(other, held(key).version)).applied
        renewed = store.replace(Replace(other, record.version)).record
        change = stream.next()

    assert change["operationType"] in ("update", "replace")
    shown = change.get("fullDocument") or change["updateDescription"]["updatedFields"]
    assert shown["rvn"] == renewed.rvn


def test_a_dropped_mark_is_told_by_the_change_stream(store: Face, raw: Any, key: str) -> None:
    """A pipeline update that leaves a field out is told as a replacement without it, or names it in ``removedFields``."""
    record = store.claim(any_claim(key)).record
    raw.update_one({"_id": key}, {"$set": {_wire.SOUGHT: True}})
    with raw.watch([{"$match": {"documentKey._id": key}}]) as stream:
        store.replace(Replace(held(key, fencing_token=record.fencing_token), record.version, keep_payload=True))
        change = stream.next()

    removed = change.get("updateDescription", {}).get("removedFields", [])
    assert _wire.SOUGHT in removed or _wire.SOUGHT not in change.get("fullDocument", {_wire.SOUGHT: True})


def test_what_is_certainly_not_applied_was_not_applied(opener: Opener, raw: Any, key: str) -> None:
    """Batches run on while the primary steps down: where a result says *not applied*, the old record stands (10107, 189, 11602)."""
    store = opener.store(retryReads=True)
    records = [store.claim(any_claim(f"{key}/{number}")).record for number in range(LOCKS)]
    denied = list[Replace]()
    stepping = threading.Thread(target=_step_down, args=(raw,))
    for number in range(BATCHES):
        if number == BATCHES // 3:
            stepping.start()
        requests = [Replace(held(each.key, fencing_token=each.fencing_token), each.version) for each in records]
        results = _renewed(store, requests)
        denied += [
            each for each, result in zip(requests, results, strict=True) if isinstance(result, StoreUnavailableError)
        ]
        records = [_standing(store, request, result) for request, result in zip(requests, results, strict=True)]
    stepping.join()
    _await_primary(raw)

    stands = {record.key: record.rvn for record in records}
    assert [request.record.key for request in denied if stands[request.record.key] == request.record.rvn] == []


def _step_down(raw: Any) -> None:
    try:
        command = {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 0, "force": True}
        raw.database.client.admin.command(command)
    except PyMongoError:
        return  # an old server closes the connection, a single one cannot step down


def _renewed(store: Face, requests: Sequence[Replace]) -> Sequence[Reply | StoreError]:
    try:
        results: Sequence[Reply | StoreError] = store.replace_many(requests)
    except StoreError as error:
        return [error] * len(requests)
    return results


def _standing(store: Face, request: Replace, result: Reply | StoreError) -> LockRecord:
    if isinstance(result, Reply) and result.record is not None:
        return result.record
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            record: LockRecord = store.read(request.record.key)
        except StoreUnavailableError:
            assert time.monotonic() < until
            time.sleep(0.1)  # until there is a primary again
        else:
            return record


def _await_primary(raw: Any) -> None:
    """Return when the server takes writes again: other tests follow."""
    until = time.monotonic() + PATIENCE_S
    while not raw.database.client.admin.command("hello")["isWritablePrimary"]:
        assert time.monotonic() < until
        time.sleep(0.1)  # an election takes its time
