"""A verb ends in its time, however long the search for the server's name takes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dlock_core.errors import StoreUnavailableError
from dlock_postgres import AsyncPostgresStore, PostgresStore
from dlock_postgres._addresses import with_addresses
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, renewed

# What a busy machine may add.
SLACK_S = 2.0
FAR = "postgresql://postgres@db.example/postgres"


@pytest.fixture
def _search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every search for a name take long."""
    end = threading.Event()

    def search(*_: object, **__: object) -> list[object]:
        end.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", search)
    yield
    end.set()


@pytest.mark.usefixtures("_search")
def test_a_name_that_is_searched_for_long_is_given_up(key: str) -> None:
    """The search goes on, on its own thread, and holds nobody."""
    store = PostgresStore(FAR)
    began = time.monotonic()

    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.claim(any_claim(key), timeout_s=0.3)

    assert time.monotonic() - began < 0.3 + SLACK_S
    store.close()


@pytest.mark.usefixtures("_search")
def test_a_task_gives_it_up_as_well(key: str) -> None:
    """Nor does the end of the event loop wait for the search."""

    async def claim() -> None:
        store = AsyncPostgresStore(FAR)
        with pytest.raises(StoreUnavailableError, match="nothing was written"):
            await store.claim(any_claim(key), timeout_s=0.3)
        await store.close()

    began = time.monotonic()

    asyncio.run(claim())

    assert time.monotonic() - began < 0.3 + SLACK_S


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let connections be made only once the event is set."""
    event = threading.Event()

    def wait(conninfo: str) -> str:
        event.wait(30)
        return with_addresses(conninfo)

    monkeypatch.setattr("dlock_postgres._addresses.with_addresses", wait)
    yield event
    event.set()


def test_a_connection_that_comes_too_late_serves_the_next_request(url: str, gate: threading.Event, key: str) -> None:
    """A server that takes longer for a connection than a request may take would else serve none, however often it is asked."""
    store = PostgresStore(url.partition("?")[0], table=TABLE)
    shelf = store._link.pools[False].shelf
    with pytest.raises(StoreUnavailableError, match="no connection in time"):
        store.claim(any_claim(key), timeout_s=0.2)

    gate.set()
    until = time.monotonic() + 20
    while not shelf and time.monotonic() < until:
        time.sleep(0.01)  # until the opener has put it there
    gate.clear()

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    store.close()


def test_connections_are_counted(store: PostgresStore, key: str) -> None:
    """Those that are open, and those that there may be."""
    store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    connections = store.connections

    assert connections is not None
    assert (connections.busy, connections.idle) == (0, 1)
    assert connections.limit > 1


@pytest.mark.parametrize("opened", [PostgresStore, AsyncPostgresStore])
def test_a_connection_on_which_a_statement_was_cancelled_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, admin: psycopg.Connection[Any], opened: type[Any]
) -> None:
    """The statement's answer may come first; the server would then cancel the next statement on that connection."""
    inspect = PostgresStore(url.partition("?")[0], table=TABLE)
    record = inspect.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    asked = []

    def let_it_end(_: object) -> None:
        asked.append(key)
        admin.execute("COMMIT")

    monkeypatch.setattr("dlock_postgres._connections.cancel", let_it_end)
    admin.execute("BEGIN")
    admin.execute(f"SELECT FROM {TABLE} WHERE key = %s FOR UPDATE", [key])

    async def renew() -> tuple[Any, int]:
        store = opened(url.partition("?")[0], table=TABLE)
        answers = [store.guarantees(), store.replace(renewed(record), timeout_s=4.0)]
        if isinstance(store, AsyncPostgresStore):
            answers = [await answer for answer in answers]
        kept = len(store._link.pools[True].shelf)
        closing = store.close()
        if closing is not None:
            await closing
        return answers[1], kept

    reply, kept = asyncio.run(renew())

    assert asked == [key]
    assert reply.applied
    assert kept == 0
    inspect.close()


ADDRESSES = {"a": ["10.0.0.1", "::1"], "b": ["10.0.0.2"]}


@pytest.mark.parametrize(
    ("conninfo", "host", "hostaddr", "port"),
    [
        ("host=a", "a,a", "10.0.0.1,::1", ","),
        ("host=a,b port=1,2 sslmode=verify-full", "a,a,b", "10.0.0.1,::1,10.0.0.2", "1,1,2"),
        ("host=b,lost port=7", "b", "10.0.0.2", "7"),
        ("host=b,/run,10.9.9.9", "b,/run,10.9.9.9", "10.0.0.2,,10.9.9.9", ",,"),
        ("host=10.9.9.9", "10.9.9.9", None, None),
        ("host=/run", "/run", None, None),
        ("host=a hostaddr=10.9.9.9", "a", "10.9.9.9", None),
        ("service=mine", None, None, None),
        ("dbname=d", None, None, None),
    ],
)
def test_libpq_is_given_the_addresses(
    monkeypatch: pytest.MonkeyPatch, conninfo: str, host: str | None, hostaddr: str | None, port: str | None
) -> None:
    """All of each name, in their order; a name without one is left out. What needs no search stays as it is."""

    def search(name: str, *_: object, **__: object) -> list[object]:
        if name not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ADDRESSES[name]]

    monkeypatch.setattr(socket, "getaddrinfo", search)
    monkeypatch.delenv("PGSERVICE", raising=False)

    found = conninfo_to_dict(with_addresses(conninfo))

    assert (found.get("host"), found.get("hostaddr"), found.get("port")) == (host, hostaddr, port)
    assert found.get("sslmode") == conninfo_to_dict(conninfo).get("sslmode")


def test_a_name_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what has not been asked."""

    def search(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", search)

    with pytest.raises(StoreUnavailableError, match="could not translate host name 'lost'"):
        with_addresses("host=lost")
