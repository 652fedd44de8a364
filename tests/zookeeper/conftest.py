"""A server that the tests share, and stores on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from dlock_conformance.servers import resolve

from dlock_zookeeper import ZooKeeperStore


@pytest.fixture(scope="session")
def address() -> str:
    """Return host and port of the server, with the root of the tests made."""
    address = "{}:{}".format(*resolve("zookeeper").address)
    store = ZooKeeperStore(f"zookeeper://{address}/tests")
    store.provision()
    store.close()
    return address


@pytest.fixture
def url(address: str) -> str:
    """Return the URL of the stores."""
    return f"zookeeper://{address}/tests"


@pytest.fixture
def store(url: str) -> Iterator[ZooKeeperStore]:
    """Return a store."""
    store = ZooKeeperStore(url)
    yield store
    store.close()


@pytest.fixture
def other(url: str) -> Iterator[ZooKeeperStore]:
    """Return a store of another client."""
    store = ZooKeeperStore(url)
    yield store
    store.close()


@pytest.fixture
def key() -> str:
    """Return a key that nobody has used."""
    return f"test-{secrets.token_hex(8)}"
