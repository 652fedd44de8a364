"""The Redis store keeps every clause, on a real server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from dlock_conformance import LockClientConformance, LockStoreConformance, Opening, StoreHarness
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import Server

from dlock_core.record import Version
from dlock_core.store import AsyncLockStore, LockStore

redis = pytest.importorskip("redis")


def say(server: Server, *words: str) -> None:
    """Send one command, without a driver."""
    command = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    with socket.create_connection(server.address, 5) as connection:
        connection.sendall(command.encode())
        answer = connection.recv(1024)
    assert not answer.startswith(b"-"), answer


def plant_newer(server: Server, key: str, version: Version) -> None:
    """Put a record of format 2."""
    say(
        server,
        "HSET",
        key,
        "v",
        "2",
        "state",
        "held",
        "rvn",
        version.rvn,
        "token",
        str(version.fencing_token),
        "new",
        "x",
    )


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Server:
    """Find a server."""
    return dlock_server("redis")


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Stand between the store and the server."""
    proxy = FaultProxy(*server.address)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def redis_harness(server: Server, proxy: FaultProxy) -> StoreHarness:
    """Every test has keys of its own, so they share the server."""
    host, port = server.address
    proxied = server.url.replace(f"{host}:{port}", proxy.address)
    shared = redis.Redis.from_url(server.url)

    def on_own_client() -> LockStore:
        from dlock_redis import RedisStore

        return RedisStore(shared)

    async def aon_own_client() -> AsyncLockStore:
        from dlock_redis import AsyncRedisStore

        return AsyncRedisStore(redis.asyncio.Redis.from_url(server.url))

    return StoreHarness(
        proxied,
        found=server.found,
        lease_s=1.0,
        capabilities={"batch_renew", "notify", "server_clock"},
        race_rounds=2000,
        soon_s=2.0,
        several_processes=True,
        token_floor=True,
        restart=server.restart,
        count_requests=proxy.requests,
        faults=proxy,
        plant_foreign=lambda key: say(server, "SET", key, "somebody's"),
        remove=lambda key: say(server, "DEL", key),
        plant_newer=partial(plant_newer, server),
        own_client=Opening(open_store=on_own_client, aopen_store=aon_own_client),
    )


class TestRedisStore(LockStoreConformance):
    """``redis://``, both colours."""

    lacks = ("busy", "unprovisioned")

    @pytest.fixture
    def harness(self, redis_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return redis_harness


class TestRedisClient(LockClientConformance):
    """Both clients over ``redis://``."""

    @pytest.fixture
    def harness(self, redis_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return redis_harness
