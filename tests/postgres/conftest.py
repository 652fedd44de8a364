"""A server that the tests share, and stores of both colours on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest
from dlock_conformance.servers import resolve

from dlock_postgres import PostgresStore, PostgresStoreOptions, backend

TABLE = "dlock_tests.locks"


@pytest.fixture(scope="session")
def server_url() -> str:
    """Return the URL of the server."""
    return resolve("postgres").url


@pytest.fixture(scope="session")
def url(server_url: str) -> str:
    """Return the URL of a store that is provisioned."""
    made = f"{server_url}?table={TABLE}"
    store = backend.open(PostgresStoreOptions.from_url(made))
    store.provision()
    store.close()
    return made


@pytest.fixture
def admin(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection that is not the store's."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def open_store() -> Iterator[Callable[[str], PostgresStore]]:
    """Open stores by URL; they are closed after the test."""
    opened: list[PostgresStore] = []

    def open_one(url: str) -> PostgresStore:
        opened.append(cast("PostgresStore", backend.open(PostgresStoreOptions.from_url(url))))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[str], PostgresStore], url: str) -> PostgresStore:
    """Return a store for threads."""
    return open_store(url)


@pytest.fixture
def key() -> str:
    """Return a key that nobody has used."""
    return f"test/{secrets.token_hex(8)}"
