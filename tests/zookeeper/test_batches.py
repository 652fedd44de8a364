"""Renewals in a batch: one transaction while nobody interferes, and a result for each where somebody does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotReadOnlyCallError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_acl

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.store import Replace, Reply
from dlock_zookeeper._verbs import _zxid
from tests.zookeeper.support import TIMEOUT_S, granted, held, renewed, session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.record import LockRecord
    from dlock_zookeeper import ZooKeeperStore

RENEWALS = 1_000


def taken(store: ZooKeeperStore, key: str, count: int) -> list[LockRecord]:
    """Claim so many keys; what is counted begins after it."""
    records = [granted(store, f"{key}/{number}") for number in range(count)]
    store.requests.clear()
    return records


def replaced(store: ZooKeeperStore, requests: Sequence[Replace]) -> list[object]:
    """Return the results of *requests* in batches as large as may be."""
    return [
        result
        for start in range(0, len(requests), store.batch_limit)
        for result in store.replace_many(requests[start : start + store.batch_limit], timeout_s=TIMEOUT_S)
    ]


def test_thousand_renewals_are_eight_transactions(store: ZooKeeperStore, key: str) -> None:
    """The store remembers what it saw of each."""
    records = taken(store, key, RENEWALS)

    results = replaced(store, requests := [renewed(record) for record in records])

    assert store.requests["replace"] == 8
    assert results == [Reply(applied=True, record=request.record) for request in requests]
    assert store.read(records[-1].key, timeout_s=TIMEOUT_S) == requests[-1].record


def test_one_that_another_client_has_renewed_fails_none_of_the_others(
    store: ZooKeeperStore, other: ZooKeeperStore, key: str
) -> None:
    """The transaction is refused as a whole; then each has its own, all at once, and the refused one is read."""
    records = taken(store, key, 5)
    newer = other.replace(renewed(records[2]), timeout_s=TIMEOUT_S).record

    results = replaced(store, requests := [renewed(record) for record in records])

    assert results[2] == Reply(applied=False, record=newer)
    del results[2], requests[2]
    assert results == [Reply(applied=True, record=request.record) for request in requests]
    assert store.requests["replace"] == 3


def test_a_store_that_has_not_seen_the_records_looks_once(
    store: ZooKeeperStore, other: ZooKeeperStore, key: str
) -> None:
    """At all of them, also at one that is gone and one that has another token."""
    records = taken(store, key, 4)
    absent = held(f"{key}/absent", records[0].fencing_token)
    requests = [renewed(record) for record in [*records, absent]]
    requests[1] = requests[1]._replace(expected=records[1].version._replace(fencing_token=records[1].fencing_token + 1))

    results = replaced(other, requests)

    assert [getattr(result, "applied", None) for result in results] == [True, False, True, True, False]
    assert results[1] == Reply(applied=False, record=records[1])
    assert results[4] == Reply(applied=False, record=None)
    assert other.requests["replace"] == 2


@pytest.mark.parametrize(("long", "count", "data"), [("", 20, b"x" * 65_536), ("é" * 480, 128, None)])
def test_renewals_that_are_too_large_for_one_transaction_go_in_several(
    store: ZooKeeperStore, key: str, long: str, count: int, data: bytes | None
) -> None:
    """The server takes 1 MiB in one request, and ends the connection at more: of payloads, or of keys, sent three times each."""
    records = taken(store, key + long, count)
    renewals = [
        renewed(record)._replace(record=held(record.key, record.fencing_token, data=data), keep_payload=False)
        for record in records
    ]

    results = replaced(store, renewals)

    assert results == [Reply(applied=True, record=renewal.record) for renewal in renewals]
    assert store.requests["replace"] == 2


def test_what_another_thread_sees_meanwhile_takes_no_result_away(
    store: ZooKeeperStore, other: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the batch looks at what it has not seen, another thread renews what it has: that one is refused, and its record is shown."""
    seen, unseen = taken(store, key, 2)
    verbs: Any = store._verbs
    verbs._hints.pop(unseen.key)
    send = store._link.send
    newer: list[LockRecord | None] = []

    def send_after_another(request: Any, timeout_s: float) -> Any:
        if not newer:
            newer.append(None)  # what is sent for it passes here, too
            newer[0] = store.replace(renewed(seen), timeout_s=TIMEOUT_S).record
        return send(request, timeout_s)

    monkeypatch.setattr(store._link, "send", send_after_another)

    results = replaced(store, requests := [renewed(seen), renewed(unseen)])

    assert results == [Reply(applied=False, record=newer[0]), Reply(applied=True, record=requests[1].record)]


@pytest.mark.parametrize("other", [False, True])
def test_a_record_without_its_marker_is_an_error_of_its_own(
    store: ZooKeeperStore, address: str, key: str, *, other: bool
) -> None:
    """Somebody has cleaned up by hand, or has made a node beside it."""
    records = taken(store, key, 3)
    with session(address) as client:
        path = f"/tests/{key}%2F1"
        client.delete(f"{path}/{client.get_children(path)[0]}")
        if other:
            client.create(f"{path}/another")

    first, damaged, last = replaced(store, [renewed(record) for record in records])

    assert isinstance(damaged, RecordError)
    assert [getattr(result, "applied", None) for result in (first, last)] == [True, True]


@pytest.mark.parametrize("batch", [False, True], ids=["by_a_read", "by_a_batch"])
def test_a_record_that_was_seen_damaged_is_not_written_over(
    store: ZooKeeperStore, address: str, key: str, *, batch: bool
) -> None:
    """Its marker stands, so a step that trusts what was seen before would be applied."""
    record = granted(store, key)
    with session(address) as client:
        client.set(f"/tests/{key}", b"damaged")
        if batch:
            [result] = replaced(store, [renewed(held(key))])
            assert isinstance(result, RecordError)
        else:
            with pytest.raises(RecordError):
                store.read(key, timeout_s=TIMEOUT_S)

        with pytest.raises(RecordError):
            store.replace(renewed(record), timeout_s=TIMEOUT_S)

        assert client.get(f"/tests/{key}")[0] == b"damaged"


def test_one_without_a_right_fails_none_of_the_others(store: ZooKeeperStore, address: str, key: str) -> None:
    """Its node belongs to somebody else."""
    records = taken(store, key, 3)
    with session(address) as client:
        client.set_acls(f"/tests/{key}%2F1", [make_acl("world", "anyone", read=True)])

    first, forbidden, last = replaced(store, [renewed(record) for record in records])

    assert isinstance(forbidden, StoreSetupError)
    assert [getattr(result, "applied", None) for result in (first, last)] == [True, True]


def test_one_that_is_too_large_fails_none_of_the_others(
    store: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not sent."""
    records = taken(store, key, 3)
    requests = [renewed(record) for record in records]
    large_one = held(records[1].key, records[1].fencing_token, data=b"x" * 10_000)
    requests[1] = Replace(large_one, records[1].version)
    monkeypatch.setattr("dlock_zookeeper._wire._VALUE_BYTES", 10_000)

    first, large, last = replaced(store, requests)

    assert isinstance(large, RecordError)
    assert [getattr(result, "applied", None) for result in (first, last)] == [True, True]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailableError("ZooKeeper was not asked"), StoreUnavailableError),
        (NotReadOnlyCallError(), StoreUnavailableError),
        (ConnectionLoss(), OutcomeUnknownError),
    ],
)
def test_batch_that_fails_as_a_whole_says_of_each_what_is_known(
    store: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[StoreError]
) -> None:
    """What was certainly not written is no unknown outcome."""
    records = taken(store, key, 2)

    def fails(_: Any, __: float) -> Any:
        raise error

    monkeypatch.setattr(store._link, "send", fails)
    results = replaced(store, [renewed(record) for record in records])

    assert [type(result) for result in results] == [kind, kind]
    assert all(
        result is error or f"lock {record.key!r}" in str(result)
        for result, record in zip(results, records, strict=True)
    )


@pytest.mark.parametrize(
    ("answers", "zxid"),
    [
        ([True, "/path", SimpleNamespace(mzxid=7)], 7),
        ([NoNodeError(), RuntimeInconsistency(), RuntimeInconsistency()], 0),
        ([RolledBackError(), NodeExistsError(), RuntimeInconsistency()], 0),
        ([RolledBackError(), RolledBackError(), NoAuthError()], NoAuthError),
    ],
)
def test_operation_that_failed_says_why_a_transaction_was_refused(answers: list[Any], zxid: Any) -> None:
    """The others of the transaction tell only that it was; a right that lacks is no refusal by a record."""
    if isinstance(zxid, int):
        assert _zxid(answers) == zxid
    else:
        with pytest.raises(zxid):
            _zxid(answers)
