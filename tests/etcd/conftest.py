"""A server that the tests share, and stores on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from dlock_conformance.servers import Server, resolve

from dlock_etcd import EtcdStore


@pytest.fixture(scope="session")
def server() -> Server:
    """Return the server."""
    return resolve("etcd")


@pytest.fixture(scope="session")
def address(server: Server) -> str:
    """Return its host and port."""
    return "{}:{}".format(*server.address)


@pytest.fixture
def store(address: str) -> Iterator[EtcdStore]:
    """Return a store for threads."""
    store = EtcdStore(f"etcd://{address}/tests")
    yield store
    store.close()


@pytest.fixture
def key() -> str:
    """Return a key that nobody has used."""
    return f"test/{secrets.token_hex(8)}"
