"""The etcd store keeps every clause, on a real etcd."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest
from dlock_conformance import (
    WAYS,
    LockClientConformance,
    LockStoreConformance,
    Opening,
    StoreHarness,
)
from dlock_conformance.proxy import FaultProxy, has_headers
from dlock_conformance.servers import Server
from thorough import rounds

from dlock_core.record import Version

grpc = pytest.importorskip("grpc")

ROOT = "conformance"
_COUNTED = re.compile(r'^grpc_server_started_total\{grpc_method="(?:Txn|Range|Put)".*\} (\d+)$', re.MULTILINE)


def transacted(server: Server, **operations: Any) -> None:
    """Do what is not the store's, in one transaction."""
    from dlock_etcd import _schema

    method = _schema.TXN
    with grpc.insecure_channel("{}:{}".format(*server.address)) as channel:
        ask = channel.unary_unary(method.path, request_serializer=method.write, response_deserializer=method.read)
        ask(_schema.Txn(success=[_schema.Op(**operations)]), timeout=10)


def plant(server: Server, key: str, value: bytes) -> None:
    """Put a value that no dlock of today wrote."""
    from dlock_etcd._schema import Put

    transacted(server, put=Put(key=f"{ROOT}/lock/{key}".encode(), value=value))


def remove(server: Server, key: str) -> None:
    """Clear a value away."""
    from dlock_etcd._schema import DeleteRange

    transacted(server, delete=DeleteRange(key=f"{ROOT}/lock/{key}".encode()))


def expires(server: Server, key: str) -> bool:
    """Whether a lease of etcd's is bound to the record, which would remove it at its end."""
    asked = {"key": base64.b64encode(f"{ROOT}/lock/{key}".encode()).decode()}
    url = "http://{}:{}/v3/kv/range".format(*server.address)
    with urlopen(url, json.dumps(asked).encode(), timeout=10) as answer:  # noqa: S310  # on this machine
        [found] = json.load(answer)["kvs"]
    return "lease" in found


def requests(server: Server) -> int:
    """Return how many requests etcd itself has counted: a proxy can't tell them apart on one connection."""
    with urlopen("http://{}:{}/metrics".format(*server.address), timeout=10) as page:  # noqa: S310  # on this machine
        return sum(map(int, _COUNTED.findall(page.read().decode())))


def harness_on(server: Server, proxy: FaultProxy) -> StoreHarness:
    """Open stores through *proxy*."""

    def plant_newer(key: str, version: Version) -> None:
        plant(server, key, f'2 held "{version.rvn}" {version.fencing_token}\n{{"new": 1}}'.encode())

    def own_store() -> Any:
        from dlock_etcd import EtcdStore

        return EtcdStore(channel, root=ROOT)

    async def own_async_store() -> Any:
        from dlock_etcd import AsyncEtcdStore

        loop = asyncio.get_running_loop()
        if loop not in channels:
            channels[loop] = grpc.aio.insecure_channel(address)
        return AsyncEtcdStore(channels[loop], root=ROOT)

    address = "{}:{}".format(*server.address)
    channel, channels = grpc.insecure_channel(address), dict[asyncio.AbstractEventLoop, Any]()
    return StoreHarness(
        f"etcd://{proxy.address}/{ROOT}",
        found=server.found,
        lease_s=3.0,
        capabilities={"batch_renew", "notify"},
        race_rounds=rounds(300),
        several_processes=True,
        token_floor=True,
        tells_wanted=True,
        page=500,
        restart=server.restart,
        count_requests=partial(requests, server),
        faults=proxy,
        plant_foreign=lambda key: plant(server, key, b"somebody's"),
        remove=partial(remove, server),
        plant_newer=plant_newer,
        expires=partial(expires, server),
        own_client=Opening(open_store=own_store, aopen_store=own_async_store),
    )


@pytest.fixture(scope="module")
def etcd_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server, and stand between."""
    server = dlock_server("etcd")
    with closing(FaultProxy(*server.address, is_request=has_headers, is_answered=has_headers, greeted=True)) as proxy:
        yield harness_on(server, proxy)


class TestEtcdStore(LockStoreConformance):
    """``etcd://``, both colours."""

    lacks = ("busy", "server_clock", "prune", "claim_wait", "atomic_multi", "unprovisioned")

    @pytest.fixture
    def harness(self, etcd_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the root."""
        return etcd_harness


class TestEtcdClient(LockClientConformance):
    """Both clients over ``etcd://``."""

    lacks = ("server_clock", "prune", "claim_wait", "atomic_multi")
    ways = WAYS

    @pytest.fixture
    def harness(self, etcd_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the root."""
        return etcd_harness
