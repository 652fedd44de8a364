"""The whole of it: from a URL to a lease, in both colours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import closing

import pytest

from dlock_core import UnsafeStoreError, aconnect, connect
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import TABLE, session, stubbed


@pytest.fixture
def url(endpoint: str, table: str) -> str:
    """Return the URL of the provisioned table."""
    return f"dynamodb://eu-west-1/{table}?endpoint_url={endpoint}"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give boto3 what a local server takes."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def test_a_lock_is_taken_refused_and_handed_on(url: str, key: str) -> None:
    """Two clients, one key: the tokens count on."""
    with connect(url, lease_duration=5) as one, connect(url, lease_duration=5) as other:
        with one.lock(key, data=b"x") as lease:
            assert lease.fencing_token == 1
            assert other.try_acquire(key) is None
            seen = other.get(key)
            assert seen is not None
            assert (seen.data, seen.owner) == (b"x", lease.owner)
        with other.lock(key) as lease:
            assert lease.fencing_token == 2


def test_cost_counts_requests_and_the_units_that_are_billed(url: str, key: str) -> None:
    """A refused write is billed as one that was done; a batch of renewals by the row."""
    with connect(url, lease_duration=60) as one, connect(url, lease_duration=60) as other, one.lock(key) as lease:
        assert other.try_acquire(key) is None
        other.get(key)
        before = one.cost().units["write"]
        lease.renew()

        assert (before, one.cost().units["write"]) == (1, 2)
        assert one.cost().requests["replace"] == 1
        assert other.cost().units == {"read": 1, "write": 1}


def test_cost_names_the_verb_that_each_unit_was_billed_for(url: str, key: str) -> None:
    """A claim, a renewal and a read stand apart, and the sums by kind are theirs together."""
    with connect(url, lease_duration=60) as client:
        with client.lock(key) as lease:
            lease.renew()
            client.get(key)
        cost = client.cost()

    assert cost.units_by_verb == {
        "claim": {"read": 0, "write": 1},
        "read": {"read": 1, "write": 0},
        "release": {"read": 0, "write": 1},
        "replace": {"read": 0, "write": 1},
    }
    assert cost.units == {"read": 1, "write": 3}


@pytest.mark.parametrize(
    ("standing", "sent", "billed"), [(b"x" * 3000, None, 4), (None, b"x" * 5000, 6), (None, None, 1)]
)
def test_a_refused_claim_is_billed_by_the_larger_item(
    url: str, key: str, standing: bytes | None, sent: bytes | None, billed: int
) -> None:
    """DynamoDB bills a refused write by the item that stands or the one that was sent, a unit for each KiB begun."""
    with (
        connect(url, lease_duration=60) as one,
        connect(url, lease_duration=60) as other,
        one.lock(key, data=standing),
    ):
        assert other.try_acquire(key, data=sent) is None

        assert other.cost().units_by_verb["claim"]["write"] == billed


def test_cost_of_tasks_is_that_of_their_threads(url: str, key: str) -> None:
    """The async client counts what its store for threads sends."""

    async def main() -> float:
        async with aconnect(url, lease_duration=60) as client:
            async with client.lock(key):
                pass
            return client.cost().units["write"]

    assert asyncio.run(main()) == 2


def test_tasks_take_it_in_turn(url: str, key: str) -> None:
    """The async client runs the same store on threads."""

    async def main() -> list[int]:
        async with aconnect(url, lease_duration=5) as client:

            async def take() -> int:
                async with client.lock(key, timeout=30) as lease:
                    return lease.fencing_token

            return sorted(await asyncio.gather(*(take() for _ in range(4))))

    assert asyncio.run(main()) == [1, 2, 3, 4]


def test_a_crashed_holder_is_taken_over(url: str, key: str) -> None:
    """Its lease ends, and the next token is greater."""
    program = (
        "import os, sys; from dlock_core import connect; client = connect(sys.argv[1], lease_duration=1.2); "
        "print(client.acquire(sys.argv[2]).fencing_token, flush=True); os._exit(9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url, key], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1\n", done.stderr

    with connect(url, lease_duration=5) as client, client.lock(key, timeout=10) as lease:
        assert lease.fencing_token == 2


def test_a_global_table_is_refused_unless_named() -> None:
    """Before any lock is taken."""
    table = {
        "TableStatus": "ACTIVE",
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "Replicas": [{"RegionName": "us-east-1"}],
    }
    with stubbed() as stub:
        stub.says((200, {"Table": table}), (200, {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}))

        with pytest.raises(UnsafeStoreError, match="dynamodb-global-table"):
            connect(f"dynamodb://eu-west-1/locks?endpoint_url={stub.endpoint}")

        assert [name for name, _ in stub.requests] == ["DescribeTable", "DescribeTimeToLive"]


def test_the_command_prints_the_policy(url: str) -> None:
    """As JSON that IAM takes."""
    done = subprocess.run(
        [sys.executable, "-m", "dlock_core", "doctor", "--policy", "--url", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["Statement"][0]["Resource"].endswith(f":table/{TABLE}")


def test_a_given_session_serves_a_client(endpoint: str, table: str, key: str) -> None:
    """Without a URL."""
    from dlock_core import LockClient

    with (
        closing(DynamoDBStore(session(), table=table, endpoint_url=endpoint)) as store,
        LockClient(store) as client,
        client.lock(key) as lease,
    ):
        assert lease.fencing_token == 1
