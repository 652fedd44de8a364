"""A server for the tests of the adapter: the one named in the environment, or the stand-in on a free port."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from dlock_mongodb import MongoDBStore
from tests.mongodb.proxy import Proxy
from tests.mongodb.support import COLLECTION, DATABASE, Face, Opener, url_of
from tests.scripted import ScriptedServer

VARIABLE = "DLOCK_TEST_MONGODB_URL"
_RAN_ON = pytest.StashKey[str]()
_STAND_IN = "STAND-IN"


@pytest.fixture(scope="session")
def server() -> Iterator[ScriptedServer]:
    """Start a server that the tests may also disturb."""
    started = ScriptedServer("mongo-wire.sh", f"{VARIABLE}=mongodb://HOST:PORT/?replicaSet=NAME")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of the server."""
    found = "named in the environment"
    if not (given := os.environ.get(VARIABLE)):
        started: ScriptedServer = request.getfixturevalue("server")
        given, found = url_of(started), "started by tools/servers/mongo-wire.sh"
    with MongoClient[dict[str, Any]](given) as client:
        build = client.admin.command("buildInfo")
    other = build.get("secantusVersion")
    name = f"{_STAND_IN} SecantusDB {other}, not MongoDB" if other else f"MongoDB {build['version']}"
    request.config.stash[_RAN_ON] = f"{name} ({found})"
    return given


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the tests of the adapter ran on."""
    if ran_on := config.stash.get(_RAN_ON, None):
        terminalreporter.write_line(f"mongodb: {ran_on}")


@pytest.fixture(scope="session")
def raw(url: str) -> Iterator[Any]:
    """Return the collection by plain pymongo, for what the store must not do; it is provisioned."""
    with MongoClient[dict[str, Any]](url) as client:
        store = MongoDBStore(client, database=DATABASE, collection=COLLECTION)
        store.provision()
        store.close()
        yield client[DATABASE][COLLECTION]


@pytest.fixture(params=["sync", "async"])
def opener(url: str, raw: Any, request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open stores of either colour; the stand-in looks at every document for each request, so it keeps those of one test only."""
    if request.config.stash[_RAN_ON].startswith(_STAND_IN):
        raw.delete_many({})
    made = Opener(url, asynchronous=request.param == "async")
    yield made
    made.close()


@pytest.fixture
def store(opener: Opener) -> Face:
    """Open a store."""
    return opener.store()


@pytest.fixture
def proxy(server: ScriptedServer) -> Iterator[Proxy]:
    """Return a way to our own server that can be disturbed."""
    way = Proxy(server.port)
    yield way
    way.close()


@pytest.fixture
def key() -> str:
    """Return a key that nobody else uses."""
    return f"tests/{secrets.token_hex(8)}"


@pytest.fixture
def beside(server: ScriptedServer) -> Iterator[MongoDBStore]:
    """A store on a way that nobody disturbs."""
    with MongoClient[Any](url_of(server)) as client:
        store = MongoDBStore(client, database=DATABASE, collection=COLLECTION)
        yield store
        store.close()
