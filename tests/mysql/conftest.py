"""A MariaDB of the tests' own, which they may disturb, and stores on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from dlock_mysql import MySQLStore
from tests.mysql.support import opened
from tests.scripted import ScriptedServer


@pytest.fixture(scope="session")
def server() -> Iterator[ScriptedServer]:
    """Start a server."""
    started = ScriptedServer("mariadb.sh", words=("--skip-ssl",))  # which MariaDB, from 11.4 on, else has by itself
    yield started
    started.stop()


@pytest.fixture(scope="session")
def url(server: ScriptedServer) -> str:
    """Return its URL, with the table made."""
    url = f"mysql://root@127.0.0.1:{server.port}/locks"
    store = opened(url)
    store.provision()
    store.close()
    return url


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    """Open a store for threads."""
    opened_store = opened(url)
    yield opened_store
    opened_store.close()


@pytest.fixture(params=["RETURNING", "transaction"])
def each_store(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MySQLStore]:
    """Open a store that uses MariaDB's statements, and one that uses those for MySQL."""
    if request.param == "transaction":
        monkeypatch.setattr("dlock_mysql._link._RETURNING", "no server says this")
    opened_store = opened(url)
    yield opened_store
    opened_store.close()


@pytest.fixture
def key() -> str:
    """Return a key that no other test has."""
    return f"tests/{secrets.token_hex(8)}"
