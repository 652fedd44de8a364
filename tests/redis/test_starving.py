"""Many waiters and few connections: whatever is held stays held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from dlock_core import AcquireTimeoutError, AsyncLockClient, LockClient, StoreUnavailableError, aconnect, connect
from dlock_redis import AsyncRedisStore, RedisStore
from tests.redis.support import Server, granted, renew

HELD, BUSY, THREADS, TASKS = 20, 5, 150, 400
LEASE_S, WAIT_S = 4.0, 7.0


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Server]:
    """Start a server that takes 40 connections."""
    server = Server(tmp_path, "--maxclients", "40")
    yield server
    server.stop()


@asynccontextmanager
async def aclosing(store: AsyncRedisStore) -> AsyncIterator[AsyncRedisStore]:
    """Close *store* at the end."""
    yield store
    await store.close()


@contextmanager
def locking(server: Server) -> Iterator[LockClient]:
    """Open a client, and close all of it."""
    with redis.Redis.from_url(server.url) as client:
        store = RedisStore(client)
        with LockClient(store, lease_duration=LEASE_S) as locks:
            yield locks
        store.close()


@pytest.fixture
def others(narrow: Server) -> Iterator[None]:
    """Hold the keys that are waited for, in another client."""
    with locking(narrow) as holder:
        leases = [holder.acquire(f"busy/{number}") for number in range(BUSY)]
        yield
        assert all(lease.is_valid for lease in leases)


@pytest.mark.usefixtures("others")
def test_threads_that_wait_starve_no_lock_that_is_held(narrow: Server) -> None:
    """Each held lock is renewed and given back; each wait ends in its own time-out."""
    with locking(narrow) as locks:
        leases = [locks.acquire(f"held/{number}") for number in range(HELD)]
        ended: list[str] = []

        def wait(number: int) -> None:
            try:
                locks.acquire(f"busy/{number % BUSY}", timeout=WAIT_S)
            except AcquireTimeoutError:
                ended.append("time-out")

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

        assert [lease.is_valid for lease in leases] == [True] * HELD
        assert ended == ["time-out"] * THREADS
        for lease in leases:
            lease.release()


@pytest.mark.usefixtures("others")
def test_tasks_that_wait_starve_no_lock_that_is_held(narrow: Server) -> None:
    """As threads."""

    async def scene() -> None:
        async with (
            redis.asyncio.Redis.from_url(narrow.url) as client,
            aclosing(AsyncRedisStore(client)) as store,
            AsyncLockClient(store, lease_duration=LEASE_S) as locks,
        ):
            leases = [await locks.acquire(f"held/{number}") for number in range(HELD)]
            waits = [locks.acquire(f"busy/{number % BUSY}", timeout=WAIT_S) for number in range(TASKS)]
            ended = await asyncio.gather(*waits, return_exceptions=True)

            assert [lease.is_valid for lease in leases] == [True] * HELD
            assert {type(each) for each in ended} == {AcquireTimeoutError}
            for lease in leases:
                await lease.release()

    asyncio.run(scene())


def test_waiters_share_a_few_connections(narrow: Server) -> None:
    """Thirty threads wait, each for another lock, four of them in the server; it has hardly more clients than before."""
    with redis.Redis.from_url(narrow.url) as admin, locking(narrow) as locks:
        leases = [locks.acquire(f"busy/{number}") for number in range(30)]
        before = len(admin.client_list())

        def wait(number: int) -> None:
            with suppress(AcquireTimeoutError):
                locks.acquire(f"busy/{number}", timeout=WAIT_S).release()

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(len(leases))]
        for each in threads:
            each.start()
        while not all(admin.hget(f"dlock:busy/{number}", "queue") for number in range(len(leases))):
            threading.Event().wait(0.01)  # they come when they like
        subscribed = admin.client_list(_type="pubsub")
        assert len(subscribed) == 1
        assert len(admin.client_list()) <= before + 1 + 16 + 4
        for lease in leases:
            lease.release()
        for each in threads:
            each.join()


def test_connections_are_counted(store: Any, key: str) -> None:
    """One request at a time needs one of them, also for a renewal."""
    assert store.connections == (0, 0, 0)
    record = granted(store, key)
    assert store.connections == (0, 1, 24)
    renew(store, record)
    assert store.connections == (0, 1, 24)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Server]:
    """Start a server that takes one connection, and use it."""
    server = Server(tmp_path, "--maxclients", "1")
    with redis.Redis.from_url(server.url) as only:
        only.ping()
        yield server
    server.stop()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_whoever_comes_when_a_server_is_full_is_told_so(full: Server, colour: str) -> None:
    """The look with which a client opens asks several things at once, and the server answers none but by that: TLS was blamed."""

    async def enter() -> None:
        async with aconnect(full.url):
            pass

    with pytest.raises(StoreUnavailableError, match="ERR max number of clients reached"):
        connect(full.url) if colour == "sync" else asyncio.run(enter())
