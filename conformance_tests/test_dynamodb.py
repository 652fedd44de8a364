"""The DynamoDB store keeps every clause, on DynamoDB Local."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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

from dlock_core.backend import backend_for
from dlock_core.record import Version

boto3 = pytest.importorskip("boto3")

REGION, TABLE = "eu-west-1", "dlock-conformance"


def url_of(address: str, table: str = TABLE) -> str:
    """Return the URL of *table* on the server at *address*."""
    return f"dynamodb://{REGION}/{table}?endpoint_url={quote(f'http://{address}', safe='')}"


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Iterator[Server]:
    """Find a server, and credentials that it takes."""
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in os.environ:
            patch.setenv(name, "testing")
    yield dlock_server("dynamodb")
    patch.undo()


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Stand between the store and the server."""
    proxy = FaultProxy(*server.address)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[Any]:
    """Provision the table, and return a plain client to plant things with."""
    url = url_of("{}:{}".format(*server.address))
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    store.close()
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=server.url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def dynamodb_harness(server: Server, proxy: FaultProxy, table: Any) -> StoreHarness:
    """Open stores through the proxy."""

    def plant(key: str, **attributes: dict[str, str]) -> None:
        table.put_item(TableName=TABLE, Item={"key": {"S": key}, **attributes})

    def plant_newer(key: str, version: Version) -> None:
        token = {"N": str(version.fencing_token)}
        plant(key, v={"N": "2"}, state={"S": "held"}, rvn={"S": version.rvn}, token=token, new={"S": "x"})

    def expires(_: str) -> bool:
        told = table.describe_time_to_live(TableName=TABLE)["TimeToLiveDescription"]
        return bool(told["TimeToLiveStatus"] != "DISABLED")

    return StoreHarness(
        url_of(proxy.address),
        found=server.found,
        lease_s=4.0,
        capabilities={"batch_renew"},
        race_rounds=rounds(100),
        several_processes=True,
        page=250,
        count_requests=proxy.requests,
        faults=proxy,
        expires=expires,
        plant_foreign=lambda key: plant(key, name={"S": "somebody's"}),
        remove=lambda key: table.delete_item(TableName=TABLE, Key={"key": {"S": key}}),
        plant_newer=plant_newer,
        unprovisioned=Opening(url_of(proxy.address, "no-such-table")),
    )


class TestDynamoDBStore(LockStoreConformance):
    """``dynamodb://``, for threads; tasks use it through threads."""

    colours = ("sync",)
    lacks = (
        "busy",
        "notify",
        "server_clock",
        "prune",
        "claim_wait",
        "atomic_multi",
        "restart",
        "own_client",
        "slow_connect",
    )

    @pytest.fixture
    def harness(self, dynamodb_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return dynamodb_harness


class TestDynamoDBClient(LockClientConformance):
    """Both clients over ``dynamodb://``."""

    ways = WAYS

    @pytest.fixture
    def harness(self, dynamodb_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return dynamodb_harness
