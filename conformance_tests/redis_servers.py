"""Real servers that speak the protocol of Redis, for the suites."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest
from dlock_conformance import Opening, StoreHarness
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import Server
from thorough import rounds

from dlock_core.record import Version
from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["NUDGE", "is_command", "redis_harness_on"]

redis = pytest.importorskip("redis")


NO_TTL = b":-1\r\n"
NUDGE = b"*1\r\n$4\r\nTIME\r\n"
NAMED = b"SETNAME"


def say(server: Server, *words: str) -> bytes:
    """Send one command, without a driver; return the answer."""
    command = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    with socket.create_connection(server.address, 5) as connection:
        connection.sendall(command.encode())
        answer = connection.recv(1024)
    assert not answer.startswith(b"-"), answer
    return answer


def plant_foreign(server: Server, key: str) -> None:
    """Put something of another program."""
    say(server, "SET", key, "somebody's")


def remove(server: Server, key: str) -> None:
    """Clear away what was put."""
    say(server, "DEL", key)


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


def is_command(said: bytes) -> bool:
    """Whether a client *said* more than its name, or than what makes a quiet server look whether a wait is over, perhaps several times."""
    return NAMED not in said and bool(said.replace(NUDGE, b""))


@contextmanager
def redis_harness_on(server: Server, *, name: str = "") -> Iterator[StoreHarness]:
    """Open stores on *server* through a proxy; every test has keys of its own, so they share both. *name* is for the report."""
    proxy = FaultProxy(*server.address, is_request=is_command, greeted=True)
    host, port = server.address
    # With a name to tell, a connection begins with words of its own.
    proxied = f"{server.url.replace(f'{host}:{port}', proxy.address)}?client_name=conformance"
    shared = redis.Redis.from_url(server.url)

    def on_own_client() -> LockStore:
        from dlock_redis import RedisStore

        return RedisStore(shared)

    async def aon_own_client() -> AsyncLockStore:
        from dlock_redis import AsyncRedisStore

        return AsyncRedisStore(redis.asyncio.Redis.from_url(server.url))

    with closing(proxy), closing(shared):
        yield StoreHarness(
            proxied,
            name=name,
            found=server.found,
            lease_s=1.0,
            capabilities={"batch_renew", "notify", "server_clock", "prune", "claim_wait", "atomic_multi"},
            race_rounds=rounds(300),
            soon_s=2.0,
            several_processes=True,
            token_floor=True,
            page=500,
            restart=server.restart,
            count_requests=proxy.requests,
            faults=proxy,
            expires=lambda key: say(server, "PTTL", key) != NO_TTL,
            plant_foreign=partial(plant_foreign, server),
            remove=partial(remove, server),
            plant_newer=partial(plant_newer, server),
            own_client=Opening(open_store=on_own_client, aopen_store=aon_own_client),
        )
