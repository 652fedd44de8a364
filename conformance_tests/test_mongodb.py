"""The MongoDB store keeps every clause: on MongoDB, or on the stand-in that the report names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from dlock_conformance import (
    WAYS,
    LockClientConformance,
    LockStoreConformance,
    Opening,
    StoreHarness,
)
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import Server

from dlock_core.backend import backend_for
from dlock_core.record import Version

pymongo = pytest.importorskip("pymongo")

DATABASE, COLLECTION = "dlock_conformance", "locks"
# What the driver says in the background: monitoring, sessions, change streams.
COMMANDS = (b"findAndModify\0", b"find\0", b"update\0", b"aggregate\0")
BACKGROUND = (b"$changeStream",)


def url_of(server: Server, address: str, collection: str = COLLECTION) -> str:
    """Return the URL of *collection* through *address*; a direct connection, so that the driver stays on it."""
    user = urlsplit(server.url).netloc.rpartition("@")[0]
    return f"mongodb://{user and user + '@'}{address}/{DATABASE}?directConnection=true&collection={collection}"


def is_ours(said: bytes) -> bool:
    """Whether what the driver says is a verb of ours."""
    return any(command in said[:200] for command in COMMANDS) and not any(other in said for other in BACKGROUND)


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Server:
    """Find a server."""
    return dlock_server("mongodb")


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Stand between the store and the server."""
    # An older driver drops all connections when one comes too late.
    proxy = FaultProxy(*server.address, is_request=is_ours, greeted=pymongo.version_tuple >= (4, 18))
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def collection(server: Server) -> Iterator[Any]:
    """Provision the collection, and return a plain client's, to plant things with."""
    url = url_of(server, "{}:{}".format(*server.address))
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    store.close()
    client: Any = pymongo.MongoClient(server.url)
    yield client[DATABASE][COLLECTION]
    client.close()


@pytest.fixture(scope="module")
def mongodb_harness(server: Server, proxy: FaultProxy, collection: Any) -> StoreHarness:
    """Open stores through the proxy."""

    def empty() -> None:
        """The stand-in looks at every document for each request, so it keeps those of one test only."""
        collection.delete_many({})

    def plant_newer(key: str, version: Version) -> None:
        collection.insert_one({"_id": key, "v": 2, "state": "held", "rvn": version.rvn, "token": version.fencing_token})

    return StoreHarness(
        url_of(server, proxy.address),
        found=server.found,
        lease_s=4.0,
        capabilities={"batch_renew", "notify", "server_clock"},
        race_rounds=50 if server.stand_in else 300,
        several_processes=True,
        page=100,
        reset=empty if server.stand_in else None,
        restart=server.restart,
        count_requests=proxy.requests,
        faults=proxy,
        expires=lambda _: any("expireAfterSeconds" in index for index in collection.list_indexes()),
        plant_foreign=lambda key: collection.insert_one({"_id": key, "name": "somebody's"}),
        remove=lambda key: collection.delete_one({"_id": key}),
        plant_newer=plant_newer,
        unprovisioned=Opening(url_of(server, proxy.address, "no_such_collection")),
    )


class TestMongoDBStore(LockStoreConformance):
    """``mongodb://``, both colours."""

    lacks = ("busy", "own_client", "prune", "claim_wait", "atomic_multi")

    @pytest.fixture
    def harness(self, mongodb_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the collection."""
        return mongodb_harness


class TestMongoDBClient(LockClientConformance):
    """Both clients over ``mongodb://``."""

    ways = WAYS

    @pytest.fixture
    def harness(self, mongodb_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return mongodb_harness
