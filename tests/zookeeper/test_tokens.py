"""Tokens rise, steps expect a record and not a number, and what steps cost where another client was there before."""

from __future__ import annotations

import pytest

from dlock_core.store import Reply
from dlock_zookeeper import ZooKeeperStore
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, released, renewed, session


@pytest.mark.parametrize("asked", [1, 2], ids=["nothing asked", "a low token asked"])
def test_token_after_a_deletion_is_above_the_deleted_one(
    store: ZooKeeperStore, other: ZooKeeperStore, address: str, key: str, asked: int
) -> None:
    """Somebody has cleaned up by hand: the next token still rises, also from a store that has seen nothing."""
    first = granted(store, key)
    with session(address) as client:
        client.delete(f"/tests/{key}", recursive=True)

    assert granted(other, key, asked).fencing_token > first.fencing_token


def test_token_of_a_claim_is_the_zxid_of_its_transaction(store: ZooKeeperStore, address: str, key: str) -> None:
    """Of a claim of nothing, and of one of a record that was free."""
    first = granted(store, key)
    assert store.release(released(first), timeout_s=TIMEOUT_S).applied
    second = granted(store, key)

    with session(address) as client:
        assert client.exists(f"/tests/{key}").mzxid == second.fencing_token > first.fencing_token


def test_token_that_is_asked_for_above_the_zxid_is_given_and_surpassed(
    store: ZooKeeperStore, other: ZooKeeperStore, key: str
) -> None:
    """The zxid is only a floor: what a claim asks for, and what stood there, count too, also for a store that has seen nothing."""
    asked = 2**52
    first = granted(store, key, asked)
    assert store.release(released(first), timeout_s=TIMEOUT_S).applied

    second = granted(other, key)

    assert (first.fencing_token, second.fencing_token) == (asked, asked + 1)


@pytest.mark.parametrize("above", [0, 1, 2])
def test_token_that_is_asked_for_near_the_zxid_is_reached(store: ZooKeeperStore, key: str, above: int) -> None:
    """A floor that an operator has set is one, whatever the next zxid is."""
    granted(store, f"{key}-before")
    asked = store._link.zxid + above  # type: ignore[attr-defined]

    record = granted(store, key, asked)

    assert record.fencing_token >= asked
    assert record == store.read(key, timeout_s=TIMEOUT_S)


def test_takeover_is_surpassed_by_the_claim_after_it(store: ZooKeeperStore, address: str, key: str) -> None:
    """A takeover counts by one, whatever else is written, a claim by the zxid: they never meet."""
    first = granted(store, key)
    with session(address):
        pass
    taken = store.replace(renewed(first, token=first.fencing_token + 1), timeout_s=TIMEOUT_S).record
    assert taken is not None
    assert store.release(released(taken), timeout_s=TIMEOUT_S).applied

    assert granted(store, key).fencing_token > taken.fencing_token == first.fencing_token + 1


def test_version_of_a_claim_names_its_token_too(store: ZooKeeperStore, other: ZooKeeperStore, key: str) -> None:
    """The token of a fresh claim is not written in the record, and yet a renewal that expects another one is refused."""
    record = granted(store, key)
    stale = renewed(record)._replace(expected=record.version._replace(fencing_token=record.fencing_token + 1))

    assert store.replace(stale, timeout_s=TIMEOUT_S) == Reply(applied=False, record=record)
    assert other.replace(stale, timeout_s=TIMEOUT_S) == Reply(applied=False, record=record)
    assert other.replace(renewed(record), timeout_s=TIMEOUT_S).applied


def test_node_that_was_made_anew_is_not_taken_for_the_old_one(
    store: ZooKeeperStore, other: ZooKeeperStore, address: str, key: str
) -> None:
    """Its versions count from 0 again: the record of another client stands behind the number that the first one saw."""
    old = granted(store, key)
    with session(address) as client:
        before = client.exists(f"/tests/{key}").version
        client.delete(f"/tests/{key}", recursive=True)
        new = granted(other, key)
        assert client.exists(f"/tests/{key}").version == before

    assert store.replace(renewed(old), timeout_s=TIMEOUT_S) == Reply(applied=False, record=new)
    assert store.release(released(old), timeout_s=TIMEOUT_S) == Reply(applied=False, record=new)


def test_claim_of_a_free_record_that_was_made_anew_is_refused(
    store: ZooKeeperStore, other: ZooKeeperStore, address: str, key: str
) -> None:
    """A client that has slept since it saw the record free doesn't take the lock of the next one, whose node counts as far."""
    free = store.release(released(granted(store, key)), timeout_s=TIMEOUT_S)
    assert free.applied
    with session(address) as client:
        before = client.exists(f"/tests/{key}").version
        client.delete(f"/tests/{key}", recursive=True)
        held = granted(other, key)
        while client.exists(f"/tests/{key}").version < before:
            renewal = other.replace(renewed(held), timeout_s=TIMEOUT_S).record
            assert renewal is not None
            held = renewal

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S) == Reply(applied=False, record=held)


def test_steps_cost_more_where_the_store_saw_something_else_last(
    store: ZooKeeperStore, other: ZooKeeperStore, key: str
) -> None:
    """One request where nobody was there in between; a refusal or an absence that was none cost one more, a free record two."""

    def cost(verb: str) -> int:
        return store.requests.pop(verb, 0)

    record = granted(store, key)
    assert cost("claim") == 1
    newer = other.replace(renewed(record), timeout_s=TIMEOUT_S).record
    assert newer is not None
    assert other.requests["replace"] == 2  # it had to look what stands
    assert store.replace(renewed(record), timeout_s=TIMEOUT_S) == Reply(applied=False, record=newer)
    assert cost("replace") == 2
    assert other.release(released(newer), timeout_s=TIMEOUT_S).applied
    assert other.requests["release"] == 1
    store._verbs._hints.clear()  # type: ignore[attr-defined]  # as a store that has never seen the key
    granted(store, key)
    assert cost("claim") == 3
