"""A DynamoDB Local for the tests of the adapter: the one named in the environment, or one of our own on a free port."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import TABLE, Stub, session, stubbed
from tests.scripted import ScriptedServer

VARIABLE = "DLOCK_TEST_DYNAMODB_URL"


@pytest.fixture(scope="session")
def server() -> Iterator[ScriptedServer]:
    """Start a server that the tests may also disturb."""
    started = ScriptedServer("dynamodb-local.sh", f"{VARIABLE}=http://HOST:PORT")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest) -> str:
    """Return the URL of the server."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    started: ScriptedServer = request.getfixturevalue("server")
    return started.told


@pytest.fixture(scope="session")
def table(endpoint: str) -> str:
    """Provision the table once; each test has keys of its own."""
    store = DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint)
    store.provision()
    store.close()
    return TABLE


@pytest.fixture
def open_store(endpoint: str, table: str) -> Iterator[Callable[..., DynamoDBStore]]:
    """Open stores that are closed after the test."""
    opened = []

    def open_one(driver: Any = None, **changes: Any) -> DynamoDBStore:
        store = DynamoDBStore(driver or session(), **({"table": table, "endpoint_url": endpoint} | changes))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., DynamoDBStore]) -> DynamoDBStore:
    """Open a store."""
    return open_store()


@pytest.fixture
def raw(endpoint: str, table: str) -> Iterator[Any]:
    """Return a plain boto3 client, for what the store must not do."""
    client = session().client("dynamodb", endpoint_url=endpoint)
    yield client
    client.close()


@pytest.fixture
def key() -> str:
    """Return a key that nobody else uses."""
    return f"key-{secrets.token_hex(8)}"


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Run a server that says what it is told."""
    with stubbed() as said:
        yield said


@pytest.fixture
def told(stub: Stub) -> Iterator[DynamoDBStore]:
    """Open a store on the stub."""
    store = DynamoDBStore(session("AKIAHUNTER", "hunter2"), table="locks", endpoint_url=stub.endpoint)
    yield store
    store.close()
