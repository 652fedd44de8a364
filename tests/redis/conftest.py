"""Servers and stores: the server named in the environment, or one of our own; the store in both colours."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from dlock_redis import AsyncRedisStore, RedisStore
from tests.redis.support import URL_VARIABLE, Blocking, Proxy, Server


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the server that most tests share; they have keys of their own and disturb nobody."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield given
        return
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server for one test, which may do to it what it likes."""
    started = Server(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    """Return a client that is not the store's."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """Return a client of the shared server."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Return a way to the server that can be disturbed."""
    way = Proxy(server.port)
    yield way
    way.close()


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Return each colour."""
    return str(request.param)


@pytest.fixture
def open_store(colour: str) -> Iterator[Callable[..., Any]]:
    """Open stores of the colour by URL and options of the client; they are closed after the test."""
    opened: list[Any] = []

    def open_one(url: str, **options: Any) -> Any:
        if colour == "sync":
            opened.append(RedisStore(redis.Redis.from_url(url, **options)))
        else:
            opened.append(Blocking(lambda: AsyncRedisStore(redis.asyncio.Redis.from_url(url, **options))))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
        if isinstance(store, Blocking):
            store.end()


@pytest.fixture
def store(open_store: Callable[..., Any], url: str) -> Any:
    """Return a store on the shared server."""
    return open_store(url)


@pytest.fixture
def key() -> str:
    """Return a key that nobody has used."""
    return f"test/{secrets.token_hex(8)}"
