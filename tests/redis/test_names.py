"""A server that is named, not numbered: who looks the name up, and what comes of a wrong one."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from dlock_conformance.servers import free_port

from dlock_core import StoreUnavailableError, aconnect, connect
from dlock_redis import AsyncRedisStore, RedisStore
from tests.core.worlds import eventually
from tests.deaf import deaf_place, found_at
from tests.redis.support import Blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

UNKNOWN = "a..b"
# What a busy machine may add.
SLACK_S = 2.0


def with_busy_executor(work: Coroutine[Any, Any, str]) -> str:
    """Return what *work* gives in a loop whose executor has no thread free until it is over."""

    async def scene() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        over = threading.Event()
        busy = asyncio.create_task(asyncio.to_thread(over.wait))
        await asyncio.sleep(0)
        try:
            return await work
        finally:
            over.set()
            await busy

    return asyncio.run(scene())


def test_name_is_looked_up_without_a_thread_of_the_loop(url: str, key: str) -> None:
    """Those are the user's, whose work may have all of them for longer than a lease."""
    named = f"redis://localhost:{urlsplit(url).port}"

    async def work() -> str:
        async with aconnect(named, request_timeout=5) as client, client.lock(key, timeout=0) as lease:
            return lease.key

    assert with_busy_executor(work()) == key


def test_name_under_which_nothing_listens_is_told() -> None:
    """The message has the name and the port."""
    unused_port = free_port()

    async def work() -> str:
        async with aconnect(f"redis://localhost:{unused_port}", request_timeout=5):
            return ""

    with pytest.raises(StoreUnavailableError, match=f"connecting to localhost:{unused_port} failed: .*refused"):
        with_busy_executor(work())


def test_socket_of_a_server_that_refuses_the_password_is_closed(url: str) -> None:
    """A warning of Python's would tell of one that is not."""

    async def work() -> str:
        async with aconnect(f"redis://:wrong@localhost:{urlsplit(url).port}", request_timeout=5):
            return ""

    with pytest.raises(Exception, match="password"):
        with_busy_executor(work())
    gc.collect()


def test_name_that_nobody_can_be_asked_about_is_an_error_of_the_library() -> None:
    """Python raises UnicodeError for it, which redis-py lets through; a client of one's own is not checked before."""
    with (
        redis.Redis(host=UNKNOWN) as client,
        closing(RedisStore(client)) as store,
        pytest.raises(StoreUnavailableError, match="cannot be looked up"),
    ):
        store.read("k", timeout_s=5)

    async def work() -> str:
        async with redis.asyncio.Redis(host=UNKNOWN) as client:
            store = AsyncRedisStore(client)
            try:
                await store.read("k", timeout_s=5)
            finally:
                await store.close()
            return ""

    with pytest.raises(StoreUnavailableError, match=f"connecting to {UNKNOWN}:6379 failed"):
        with_busy_executor(work())


def test_name_that_is_searched_for_long_holds_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal ends in its time, so that a loss is told in time; nobody has the connection that comes later."""
    found, ended = threading.Event(), threading.Event()

    def search(*_: object, **__: object) -> list[object]:
        found.wait(30)
        ended.set()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", search)
    with redis.Redis.from_url("redis://db.example") as client, closing(RedisStore(client)) as store:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"no connection to db\.example:6379 in time"):
            store.read("k", timeout_s=0.2)
        took_s = time.monotonic() - began
        found.set()
        assert ended.wait(30)

    assert took_s < SLACK_S


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_address_that_is_dead_leaves_time_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, colour: str
) -> None:
    """A name with a way over IPv6 that leads nowhere took all of the time of each connection."""

    async def held() -> int:
        async with aconnect("redis://db.example", request_timeout=2) as client, client.lock(key, timeout=0) as lease:
            return lease.fencing_token

    with deaf_place() as deaf:
        places = found_at(deaf, ("127.0.0.1", urlsplit(url).port or 6379))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)

        if colour == "async":
            assert asyncio.run(held())
        else:
            with connect("redis://db.example", request_timeout=2) as client, client.lock(key, timeout=0) as lease:
                assert lease.fencing_token


def test_a_connection_that_comes_too_late_is_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, open_store: Callable[..., Any]
) -> None:
    """Where connecting takes longer than a request of a short lease may, no request ever had a connection."""
    found, searched = threading.Event(), threading.Event()
    place = found_at(("127.0.0.1", urlsplit(url).port or 6379))

    def search(*_: object, **__: object) -> list[tuple[Any, ...]]:
        searched.set()
        assert found.wait(10)
        return place

    monkeypatch.setattr(socket, "getaddrinfo", search)
    store = open_store("redis://db.example")
    with pytest.raises(StoreUnavailableError, match=r"no connection to db\.example:6379 in time"):
        store.read(key, timeout_s=0.1)
    assert searched.wait(10)
    found.set()
    eventually(lambda: _idle(store) == 1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("there is a connection"))

    assert store.read(key, timeout_s=10) is None


def _idle(store: Any) -> int:
    """Return how many connections no request uses, after a turn of the store's event loop, if it has one."""
    if isinstance(store, Blocking):
        store.run(asyncio.sleep(0))
    idle: int = store.connections.idle
    return idle
