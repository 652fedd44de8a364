"""Redis: a cycle on the store's own connections beside the same on redis-py's pool, connections and parser."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ResponseError
from redis.utils import HIREDIS_AVAILABLE

from benchmarks._figures import Part, atimed, compared, in_turn, timed
from dlock_core import AsyncLockClient, LockClient
from dlock_redis import AsyncRedisStore, RedisStore
from dlock_redis._servers import Locate, Request

__all__ = ["driver"]

CYCLES = 300
OWN, DRIVER = "own connections", "redis-py's connections"


class DriverLink:
    """A link on the public API of redis-py. It has neither the time-out of a call nor connections that waiters cannot take."""

    def __init__(self, client: redis.Redis, own: Any) -> None:
        self._pool, self._own = client.connection_pool, own
        self.close = own.close

    def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """Send a request."""
        if isinstance(request, Locate):
            return self._own.send(request, timeout_s)
        connection: Any = self._pool.get_connection()
        answers: list[Any] = []
        try:
            connection.send_packed_command([request.commands], check_health=False)
            for _ in range(request.answers):
                try:
                    answers.append(connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    answers.append(error)
        finally:
            self._pool.release(connection)
        return answers


class AsyncDriverLink:
    """As :class:`DriverLink`."""

    def __init__(self, client: redis.asyncio.Redis, own: Any) -> None:
        self._pool, self._own = client.connection_pool, own
        self.close = own.close

    async def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """Send a request."""
        if isinstance(request, Locate):
            return await self._own.send(request, timeout_s)
        connection: Any = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        answers: list[Any] = []
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send_packed_command([request.commands], check_health=False)
                for _ in range(request.answers):
                    try:
                        answers.append(await connection.read_response(disable_decoding=True))
                    except ResponseError as error:
                        answers.append(error)
        finally:
            await self._pool.release(connection)
        return answers


def driver(port: int, pid: int, rounds: int) -> Part:
    """Acquire and release through the client, in both colours, on one core with the server."""
    os.sched_setaffinity(0, {0})
    os.sched_setaffinity(pid, {0})
    how = f"`acquire` and `release` through the client; hiredis is {'there' if HIREDIS_AVAILABLE else 'not there'}."
    client = redis.Redis(port=port, protocol=2)
    stores: dict[str, Any] = {OWN: RedisStore(client), DRIVER: RedisStore(client)}
    stores[DRIVER]._link = DriverLink(client, stores[DRIVER]._link)
    clients = {name: LockClient(store) for name, store in stores.items()}
    sides = {
        name: timed(lambda locks=locks, name=name: locks.acquire(f"bench/{name}").release())  # type: ignore[misc]
        for name, locks in clients.items()
    }
    sync = compared("Redis, whose connections", how, in_turn(sides, rounds=rounds, cycles=CYCLES), aims={})
    for locks in clients.values():
        locks.close()
    for store in stores.values():
        store.close()
    client.close()
    tasks = compared("Redis, whose connections, with asyncio", how, _atake(port, rounds), aims={})
    return Part(sync.sections + tasks.sections, ())


def _atake(port: int, rounds: int) -> dict[str, list[float]]:
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis(port=port, protocol=2)
        stores: dict[str, Any] = {OWN: AsyncRedisStore(client), DRIVER: AsyncRedisStore(client)}
        stores[DRIVER]._link = AsyncDriverLink(client, stores[DRIVER]._link)
        clients = {name: AsyncLockClient(store) for name, store in stores.items()}

        async def cycle(name: str) -> None:
            lease = await clients[name].acquire(f"bench/{name}")
            await lease.release()

        for locks in clients.values():
            runner.run(locks.__aenter__())
        sides = {name: atimed(runner, lambda name=name: cycle(name)) for name in clients}  # type: ignore[misc]
        taken = in_turn(sides, rounds=rounds, cycles=CYCLES)
        for locks in clients.values():
            runner.run(locks.close())
        for store in stores.values():
            runner.run(store.close())
        runner.run(client.aclose())
    return taken
