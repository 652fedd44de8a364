"""The PostgreSQL store keeps every clause, on the PostgreSQL of the system and on the newest."""

# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

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

psycopg = pytest.importorskip("psycopg")

TABLE = "dlock_conformance.locks"


def url_of(server: Server, address: str, table: str = TABLE) -> str:
    """Return the URL of *table* through *address*."""
    return urlsplit(server.url)._replace(netloc=f"postgres@{address}", query=f"table={table}&sslmode=disable").geturl()


def is_statement(said: bytes) -> bool:
    """Whether what the driver says is a statement, and not the beginning of a session."""
    return said[:1] in (b"B", b"P", b"Q")


def plant(server: Server, key: str, *, v: int, state: str, rvn: str = "rvn", token: int = 1) -> None:
    """Put a row that no dlock of today wrote."""
    columns = "key, v, state, rvn, token, owner, context, payload, written"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {TABLE} ({columns}) VALUES (%s, %s, %s, %s, %s, '', '', '', now())",
            (key, v, state, rvn, token),
        )


def remove(server: Server, key: str) -> None:
    """Clear a row away."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {TABLE} WHERE key = %s", (key,))


def harness_on(server: Server, proxy: FaultProxy, *, name: str = "") -> StoreHarness:
    """Open stores through *proxy*, on a table that is made now."""
    url = url_of(server, "{}:{}".format(*server.address))
    backend = backend_for(url)
    with closing(backend.open(backend.options.from_url(url))) as store:
        store.provision()

    def plant_newer(key: str, version: Version) -> None:
        plant(server, key, v=2, state="held", rvn=version.rvn, token=version.fencing_token)

    return StoreHarness(
        url_of(server, proxy.address),
        name=name,
        found=server.found,
        lease_s=1.5,
        capabilities={"atomic_multi", "batch_renew", "notify", "server_clock"},
        race_rounds=rounds(300),
        several_processes=True,
        page=500,
        restart=server.restart,
        count_requests=proxy.requests,
        faults=proxy,
        plant_foreign=lambda key: plant(server, key, v=1, state="somebody's"),
        remove=partial(remove, server),
        plant_newer=plant_newer,
        unprovisioned=Opening(url_of(server, proxy.address, "dlock_conformance.missing")),
    )


@pytest.fixture(scope="module")
def postgres_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server, and stand between."""
    server = dlock_server("postgres")
    with closing(FaultProxy(*server.address, is_request=is_statement, greeted=True)) as proxy:
        yield harness_on(server, proxy)


@pytest.fixture(scope="module")
def postgres18_harness(dlock_server: Callable[[str], Server]) -> Iterator[StoreHarness]:
    """Find the server, and stand between."""
    server = dlock_server("postgres18")
    with closing(FaultProxy(*server.address, is_request=is_statement, greeted=True)) as proxy:
        yield harness_on(server, proxy, name="postgres18")


class TestPostgresStore(LockStoreConformance):
    """``postgresql://``, both colours."""

    lacks = ("busy", "own_client", "token_floor", "prune", "claim_wait", "expires")

    @pytest.fixture
    def harness(self, postgres_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return postgres_harness


class TestPostgresClient(LockClientConformance):
    """Both clients over ``postgresql://``."""

    ways = WAYS

    @pytest.fixture
    def harness(self, postgres_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return postgres_harness


class TestPostgres18Store(LockStoreConformance):
    """The newest PostgreSQL; the other colour sends the same words."""

    colours = ("sync",)
    lacks = ("busy", "own_client", "token_floor", "prune", "claim_wait", "expires")

    @pytest.fixture
    def harness(self, postgres18_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return postgres18_harness
