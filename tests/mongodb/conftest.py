"""A server for the tests of the adapter: the one named in the environment, or the stand-in on a free port."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from dlock_mongodb import MongoDBStore
from tests.mongodb.proxy import Proxy
from tests.mongodb.support import COLLECTION, DATABASE, Face, Opener, free_port

VARIABLE = "DLOCK_TEST_MONGODB_URL"
SCRIPT = Path(__file__).parents[2] / "tools" / "servers" / "mongo-wire.sh"
_RAN_ON = pytest.StashKey[str]()


class Server:
    """A stand-in of our own, which tests may disturb."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()
        # Tests find it where the proxy is, so its own idea of its address must not be asked for.
        self.url = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def pid(self) -> int:
        """The process to be stopped and continued."""
        return int(self._run("pid"))

    def start(self) -> None:
        """Start it, or start it again."""
        self._run("start")

    def crash(self) -> None:
        """End it as hard as may be."""
        self._run("crash")

    def stop(self) -> None:
        """End it."""
        self._run("stop")

    def _run(self, verb: str) -> str:
        done = subprocess.run([SCRIPT, verb, str(self.port)], capture_output=True, text=True, timeout=280, check=False)
        if done.returncode:
            pytest.fail(
                f"a server is required and could not be had: {done.stderr.strip()[-400:]}; "
                f"run tools/servers/mongo-wire.sh install, or set {VARIABLE}=mongodb://HOST:PORT/?replicaSet=NAME"
            )
        return done.stdout.strip()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start a server that the tests may also disturb."""
    started = Server()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of the server."""
    found = "named in the environment"
    if not (given := os.environ.get(VARIABLE)):
        started: Server = request.getfixturevalue("server")
        given, found = started.url, "started by tools/servers/mongo-wire.sh"
    with MongoClient[dict[str, Any]](given) as client:
        build = client.admin.command("buildInfo")
    other = build.get("secantusVersion")
    name = f"STAND-IN SecantusDB {other}, not MongoDB" if other else f"MongoDB {build['version']}"
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
    """Open stores of either colour."""
    made = Opener(url, asynchronous=request.param == "async")
    yield made
    made.close()


@pytest.fixture
def store(opener: Opener) -> Face:
    """Open a store."""
    return opener.store()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Return a way to our own server that can be disturbed."""
    way = Proxy(server.port)
    yield way
    way.close()


@pytest.fixture
def key() -> str:
    """Return a key that nobody else uses."""
    return f"tests/{secrets.token_hex(8)}"
