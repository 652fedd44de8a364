"""Tokens rise over everything that can happen to a key, and renewals go many in one transaction."""

from __future__ import annotations

import pytest

from dlock_core.record import LockRecord
from dlock_core.store import Expect, Reply
from dlock_etcd import EtcdStore
from tests.etcd.support import TIMEOUT_S, administer, any_claim, coded, held, released, renewed
from tests.scripted import ScriptedServer

RENEWALS = 1000


def granted(store: EtcdStore, key: str, token: int = 1) -> LockRecord:
    """Claim *key*, and return its record."""
    reply = store.claim(any_claim(key, token), timeout_s=TIMEOUT_S)
    assert reply.applied
    assert reply.record is not None
    return reply.record


@pytest.mark.parametrize("asked", [1, 2], ids=["nothing asked", "a low token asked"])
def test_token_after_a_deletion_is_above_the_deleted_one(store: EtcdStore, address: str, key: str, asked: int) -> None:
    """Somebody has cleaned up by hand, and the history of the key was compacted: its next token still rises, from any store."""
    first = granted(store, key)
    administer(address, "kv/deleterange", key=coded(f"tests/lock/{key}"))
    now = administer(address, "kv/range", key=coded("none"))["header"]["revision"]
    administer(address, "kv/compaction", revision=now)

    other = EtcdStore(f"etcd://{address}/tests")

    second = granted(other, key, asked)

    other.close()
    assert second.fencing_token > first.fencing_token


def test_token_that_is_asked_for_above_the_revision_is_given_and_surpassed(
    store: EtcdStore, address: str, key: str
) -> None:
    """The revision is only a floor: what a claim asks for, and what stood there, count too, also for a store that has seen nothing."""
    asked = 10**12
    first = store.claim(any_claim(key, asked, data=b"kept"), timeout_s=TIMEOUT_S).record
    assert first is not None
    assert store.release(released(first)._replace(keep_payload=True), timeout_s=TIMEOUT_S).applied
    other = EtcdStore(f"etcd://{address}/tests")

    second = other.claim(any_claim(key)._replace(keep_payload=True), timeout_s=TIMEOUT_S).record

    other.close()
    assert second is not None
    assert second == store.read(key, timeout_s=TIMEOUT_S)
    assert (first.fencing_token, second.fencing_token, second.data) == (asked, asked + 1, b"kept")


@pytest.mark.parametrize("above", [0, 1, 2])
def test_token_that_is_asked_for_near_the_revision_is_reached(store: EtcdStore, key: str, above: int) -> None:
    """A floor that an operator has set is one, whatever the next revision is."""
    granted(store, f"{key}/before")
    asked = store._verbs.revision + above

    record = granted(store, key, asked)

    assert record.fencing_token >= asked
    assert record == store.read(key, timeout_s=TIMEOUT_S)


def test_takeover_is_surpassed_by_the_claim_after_it(store: EtcdStore, key: str) -> None:
    """A takeover counts by one, a claim by the revision: they never meet."""
    first = granted(store, key)
    taken = store.replace(renewed(first, token=first.fencing_token + 1), timeout_s=TIMEOUT_S).record
    assert taken is not None
    assert store.release(released(taken), timeout_s=TIMEOUT_S).applied

    assert granted(store, key).fencing_token > taken.fencing_token == first.fencing_token + 1


def test_token_of_a_claim_is_that_of_its_own_answer(
    store: EtcdStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever another thread has heard of the cluster's revision in the meantime."""
    later = property(lambda self: vars(self)["seen"] + 5, lambda self, seen: vars(self).update(seen=seen))
    vars(store._verbs)["seen"] = 0
    monkeypatch.setattr(type(store._verbs), "revision", later, raising=False)

    record = granted(store, key)

    assert store.read(key, timeout_s=TIMEOUT_S) == record
    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied


def test_version_of_a_claim_names_its_token_too(store: EtcdStore, key: str) -> None:
    """The token of a fresh claim is not written in the record, and yet a renewal that expects another one is refused."""
    record = granted(store, key)
    other = renewed(record)._replace(expected=record.version._replace(fencing_token=record.fencing_token + 1))

    assert store.replace(other, timeout_s=TIMEOUT_S) == Reply(applied=False, record=record)
    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied


def test_thousand_renewals_are_eight_transactions(store: EtcdStore, key: str) -> None:
    """Each with a result of its own: one that is refused fails none of the others."""
    records = [granted(store, f"{key}/{number}") for number in range(RENEWALS)]
    stale = records[77]
    standing = store.replace(renewed(stale), timeout_s=TIMEOUT_S).record
    batches = [records[start : start + store.batch_limit] for start in range(0, RENEWALS, store.batch_limit)]

    results = [
        result
        for batch in batches
        for result in store.replace_many([renewed(record) for record in batch], timeout_s=TIMEOUT_S)
    ]

    assert len(batches) == 8
    assert [number for number, reply in enumerate(results) if not (isinstance(reply, Reply) and reply.applied)] == [77]
    assert results[77] == Reply(applied=False, record=standing)


def test_renewals_that_are_too_large_for_one_transaction_go_in_several(store: EtcdStore, key: str) -> None:
    """The server takes 1.5 MiB in one request."""
    records = [granted(store, f"{key}/{number}") for number in range(20)]
    renewals = [
        renewed(record)._replace(record=held(record.key, record.fencing_token, data=b"x" * 65_536), keep_payload=False)
        for record in records
    ]

    results = store.replace_many(renewals, timeout_s=TIMEOUT_S)

    assert all(isinstance(reply, Reply) and reply.applied for reply in results)
    assert store.read(records[-1].key, timeout_s=TIMEOUT_S) == renewals[-1].record


@pytest.mark.parametrize("limit", ["--max-txn-ops=20", "--max-request-bytes=20000"])
def test_renewals_that_a_server_with_lower_limits_refuses_together_are_made_in_parts(limit: str, key: str) -> None:
    """A client with many locks lost them all: each renewal was refused with the others, though the server takes it alone."""
    server = ScriptedServer("etcd.sh", DLOCK_ETCD_ARGS=limit)
    store = EtcdStore(server.told)
    records = [granted(store, f"{key}/{number}") for number in range(store.batch_limit)]
    stale = records[77]
    standing = store.replace(renewed(stale), timeout_s=TIMEOUT_S).record

    results = store.replace_many([renewed(record) for record in records], timeout_s=TIMEOUT_S)
    store.close()
    server.stop()

    assert [number for number, reply in enumerate(results) if not (isinstance(reply, Reply) and reply.applied)] == [77]
    assert results[77] == Reply(applied=False, record=standing)


def test_page_of_large_records_is_read(store: EtcdStore, key: str) -> None:
    """It is larger than the 4 MiB that gRPC takes of itself."""
    keys = [f"{key}/{number:02}" for number in range(70)]
    for each in keys:
        store.claim(any_claim(each, data=bytes(64 * 1024)), timeout_s=TIMEOUT_S)

    assert [record.key for record in store.scan(key, timeout_s=TIMEOUT_S)] == keys


def test_claim_that_expects_absence_or_a_version_refuses_what_is_above_the_revision(store: EtcdStore, key: str) -> None:
    """The way with two requests has the same conditions."""
    first = granted(store, key, 10**12)
    free = store.release(released(first), timeout_s=TIMEOUT_S).record
    assert free is not None

    absent = store.claim(any_claim(key)._replace(expect=Expect.ABSENT), timeout_s=TIMEOUT_S)
    stale = store.claim(any_claim(key)._replace(expect=first.version), timeout_s=TIMEOUT_S)
    fits = store.claim(any_claim(key)._replace(expect=free.version), timeout_s=TIMEOUT_S)

    assert absent == stale == Reply(applied=False, record=free)
    assert fits.applied
