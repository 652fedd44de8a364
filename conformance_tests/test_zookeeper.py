"""The ZooKeeper store keeps every clause, on a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

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
from thorough import rounds

from dlock_core.errors import StoreError
from dlock_core.record import Version
from dlock_core.store import Release, Replace, Reply

kazoo_client = pytest.importorskip("kazoo.client")

ROOT = "conformance"
# What stands after the length of a request: its number, and what it asks for. A read is sent in one breath behind a sync, which counts
# for both.
_HEADER = 12
_GET_CHILDREN, _SYNC, _MULTI = 8, 9, 14


def requests_in(said: bytes) -> Iterator[int]:
    """Yield what each request in *said* asks for."""
    while len(said) >= _HEADER:
        yield int.from_bytes(said[8:12], "big")
        said = said[4 + int.from_bytes(said[:4], "big") :]


def is_verb(said: bytes) -> bool:
    """Whether a step, a read or a scan begins in *said*: all else are sessions and pings."""
    return any(each in {_GET_CHILDREN, _SYNC, _MULTI} for each in requests_in(said))


@contextmanager
def session(server: Server) -> Iterator[Any]:
    """Do what is not the store's."""
    client = kazoo_client.KazooClient("{}:{}".format(*server.address))
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def path_of(key: str) -> str:
    """Return the path of the node of *key*."""
    return f"/{ROOT}/{quote(key, safe='').replace('.', '%2E')}"


def plant(server: Server, key: str, value: bytes) -> None:
    """Put a value that no dlock of today wrote."""
    with session(server) as client:
        client.create(path_of(key), value, makepath=True)


def remove(server: Server, key: str) -> None:
    """Clear a node away."""
    with session(server) as client:
        client.delete(path_of(key), recursive=True)


def expires(server: Server, key: str) -> bool:
    """Whether the record is bound to a session, which would remove it at its end."""
    with session(server) as client:
        return bool(client.exists(path_of(key)).ephemeralOwner)


def knowing(server: Server, proxy: FaultProxy) -> Any:
    """Open a store that sees what stands before it replaces it, as every client does: so the step itself meets the fault."""
    from dlock_zookeeper import ZooKeeperStore

    class Knowing(ZooKeeperStore):
        def replace(self, request: Replace, *, timeout_s: float) -> Reply:
            self._look(request.record.key)
            return super().replace(request, timeout_s=timeout_s)

        def release(self, request: Release, *, timeout_s: float) -> Reply:
            self._look(request.record.key)
            return super().release(request, timeout_s=timeout_s)

        def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
            for request in requests:
                self._look(request.record.key)
            results: Sequence[Reply | StoreError] = super().replace_many(requests, timeout_s=timeout_s)
            return results

        def _look(self, key: str) -> None:
            with closing(ZooKeeperStore("zookeeper://{}:{}/{}".format(*server.address, ROOT))) as store:
                store.read(key, timeout_s=60)
                vars(self._verbs)["_hints"].update(vars(store._verbs)["_hints"])

    return Knowing(f"zookeeper://{proxy.address}/{ROOT}")


def harness_on(server: Server, proxy: FaultProxy, client: Any) -> StoreHarness:
    """Open stores through *proxy*."""

    def plant_newer(key: str, version: Version) -> None:
        value = [2, "held", version.rvn, version.fencing_token, {"new": 1}]
        plant(server, key, json.dumps(value).encode() + b"\n")

    def own_store() -> Any:
        from dlock_zookeeper import ZooKeeperStore

        return ZooKeeperStore(client, root=ROOT)

    return StoreHarness(
        f"zookeeper://{proxy.address}/{ROOT}",
        found=server.found,
        lease_s=3.0,
        capabilities={"notify", "batch_renew"},
        race_rounds=rounds(100),
        several_processes=True,
        token_floor=True,
        page=500,
        restart=server.restart,
        count_requests=proxy.requests,
        faults=proxy,
        through_faults=Opening(open_store=lambda: knowing(server, proxy)),
        plant_foreign=lambda key: plant(server, key, b"somebody's"),
        remove=lambda key: remove(server, key),
        plant_newer=plant_newer,
        expires=lambda key: expires(server, key),
        unprovisioned=Opening(f"zookeeper://{proxy.address}/no/such/root"),
        own_client=Opening(open_store=own_store),
    )


@pytest.fixture(scope="module")
def zookeeper_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server, make the root, and stand between."""
    from dlock_zookeeper import ZooKeeperStore

    server = dlock_server("zookeeper")
    with closing(ZooKeeperStore("zookeeper://{}:{}/{}".format(*server.address, ROOT))) as store:
        store.provision()
    with session(server) as client, closing(FaultProxy(*server.address, is_request=is_verb, greeted=True)) as proxy:
        yield harness_on(server, proxy, client)


class TestZooKeeperStore(LockStoreConformance):
    """``zookeeper://``, for threads; tasks use it through threads."""

    colours = ("sync",)
    lacks = ("busy", "server_clock", "prune", "claim_wait", "atomic_multi")

    @pytest.fixture
    def harness(self, zookeeper_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the root."""
        return zookeeper_harness


class TestZooKeeperClient(LockClientConformance):
    """Both clients over ``zookeeper://``."""

    lacks = ("server_clock", "prune", "claim_wait", "atomic_multi")
    ways = WAYS

    @pytest.fixture
    def harness(self, zookeeper_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the root."""
        return zookeeper_harness
