"""A server that the tests share, and stores on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dlock_conformance.servers import resolve

from dlock_core.record import LockRecord
from dlock_zookeeper import ZooKeeperStore
from tests.zookeeper.support import Waiter, granted, session, until


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


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    """Return a session of ZooKeeper's own."""
    with session(address) as client:
        yield client


@pytest.fixture
def places(client: Any, key: str) -> Callable[[], list[str]]:
    """Return what lists the places of those who wait, in their order."""

    def places() -> list[str]:
        return sorted(client.get_children(queue)) if client.exists(queue) else []

    queue = f"/tests/+/{key}"
    return places


@pytest.fixture
def standing(store: ZooKeeperStore, key: str) -> LockRecord:
    """Hold the key."""
    return granted(store, key)


@pytest.fixture
def waiter(url: str, standing: LockRecord, places: Callable[[], list[str]]) -> Iterator[Callable[[], Waiter]]:
    """Return what makes one more waiter, once it has its place."""
    made: list[Waiter] = []

    def wait() -> Waiter:
        before = len(places())
        made.append(Waiter(ZooKeeperStore(url), standing.key))
        until(lambda: len(places()) > before)
        return made[-1]

    yield wait
    for each in made:
        each.store.close()
