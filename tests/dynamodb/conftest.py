"""A DynamoDB Local for the tests of the adapter: the one named in the environment, or one of our own on a free port."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import TABLE, free_port, session

VARIABLE = "DLOCK_TEST_DYNAMODB_URL"
SCRIPT = Path(__file__).parents[2] / "tools" / "servers" / "dynamodb-local.sh"


class Server:
    """A DynamoDB Local of our own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = self._run("start")

    @property
    def pid(self) -> int:
        """The process to be stopped and continued."""
        return int(self._run("pid"))

    def stop(self) -> None:
        """End it."""
        self._run("stop")

    def _run(self, verb: str) -> str:
        done = subprocess.run([SCRIPT, verb, str(self.port)], capture_output=True, text=True, timeout=280, check=False)
        if done.returncode:
            pytest.fail(
                f"DynamoDB Local is required and could not be had: {done.stderr.strip()[-400:]}; "
                f"run {SCRIPT.relative_to(SCRIPT.parents[2])} install, or set {VARIABLE}=http://HOST:PORT"
            )
        return done.stdout.strip()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start a server that the tests may also disturb."""
    started = Server()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest) -> str:
    """Return the URL of the server."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    started: Server = request.getfixturevalue("server")
    return started.endpoint


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
