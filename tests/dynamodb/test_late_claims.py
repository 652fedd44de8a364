"""Claims that arrive late in rows that a release deletes, as those of the Node client's ``FailClosed``: none holds a lock for ever."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlock_core import AcquireTimeoutError, ClientOptions, LockClient
from dlock_core.errors import OutcomeUnknownError
from dlock_core.testing import FaultyStore
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import comes_true, session

TABLE = "dlock-tests-late-claims"
# Request time-outs follow from the lease that the lock would have.
OPTIONS = ClientOptions(fail_closed=True, lease_duration=6, poll_period=0.1)


@pytest.fixture(scope="module")
def store(endpoint: str) -> Iterator[DynamoDBStore]:
    """Make the table."""
    opened = DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint, dialect="node-fail-closed")
    opened.provision()
    yield opened
    opened.close()


@pytest.fixture
def late(store: DynamoDBStore) -> FaultyStore:
    """Return the store as one whose claims can be told to come late."""
    return FaultyStore(store)


def test_a_late_claim_of_a_waiter_is_its_grant(store: DynamoDBStore, late: FaultyStore) -> None:
    """Its claim lands after another's release: the waiter knows it for its own, and does not wait for itself."""
    with LockClient(store, OPTIONS) as other, LockClient(late, OPTIONS) as waiter, ThreadPoolExecutor(1) as pool:
        held = other.acquire("waiter")
        late.delay("claim")

        waiting = pool.submit(waiter.acquire, "waiter", timeout=60)
        comes_true(lambda: late.requests["read"] > 1, "that the waiter has seen the other's record")
        held.release()
        late.deliver()
        waiting.result().release()

        assert other.get("waiter") is None


def test_a_late_claim_that_was_given_up_is_given_back(store: DynamoDBStore, late: FaultyStore) -> None:
    """Although another held the lock in between, and its row is gone: what lands then is removed again."""
    with LockClient(store, OPTIONS) as other, LockClient(late, OPTIONS) as gone:
        held = other.acquire("given-up")
        late.delay("claim")
        with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)):
            gone.acquire("given-up", timeout=0)
        held.release()

        late.deliver()

        comes_true(lambda: other.get("given-up") is None, "that the late claim is removed")
        other.acquire("given-up", timeout=0).release()


def test_a_late_claim_beside_a_grant_is_taken_back_at_the_next_acquire(store: DynamoDBStore, late: FaultyStore) -> None:
    """It lands after the release of the very lease that came of a second claim; this client knows it by its number."""
    with LockClient(late, OPTIONS) as client:
        late.delay("claim")
        client.acquire("beside", timeout=60).release()

        late.deliver()

        assert client.get("beside") is not None
        client.acquire("beside", timeout=60).release()
        assert client.get("beside") is None
