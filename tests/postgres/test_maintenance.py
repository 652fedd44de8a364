"""Work of an operator on the table while locks are held."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_postgres import PostgresStore
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, with_parts


@pytest.fixture
def reader(server_url: str, store: PostgresStore, key: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection that has read the table, and is idle in its transaction: reading locks it so."""
    store.claim(any_claim(key), timeout_s=TIMEOUT_S)
    with psycopg.connect(server_url) as connection:
        connection.execute(f"LOCK TABLE {TABLE} IN ACCESS SHARE MODE")
        yield connection
        connection.rollback()


def test_who_waits_behind_work_on_the_table_is_told_so(
    admin: psycopg.Connection[Any], reader: psycopg.Connection[Any], store: PostgresStore, key: str
) -> None:
    """No transaction had locked the row, which was all that the error knew."""
    waiting = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
    with ThreadPoolExecutor() as threads, ExitStack() as end:
        end.callback(reader.rollback)
        threads.submit(admin.execute, f"VACUUM FULL {TABLE}")
        while not reader.execute(waiting, [admin.info.backend_pid]).fetchone():
            pass
        with pytest.raises(
            StoreUnavailableError, match="or the table, as VACUUM FULL and ALTER TABLE do, also while they"
        ):
            store.claim(any_claim(key), timeout_s=1.0)


@pytest.mark.usefixtures("reader")
def test_work_on_the_table_that_gives_up_waiting_holds_up_no_request(
    admin: psycopg.Connection[Any], store: PostgresStore, key: str
) -> None:
    """As the page of the stores says."""
    admin.execute("SET lock_timeout = '0.1s'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        admin.execute(f"VACUUM FULL {TABLE}")

    assert store.read(key, timeout_s=1.0) is not None


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        ("CREATE TABLE {table} (key text)", "it has no context text, it has no lease_ms integer"),
        ("CREATE TABLE {table} ()", "is not a table of dlock's"),
        ("CREATE VIEW {table} AS SELECT 1 AS key", "is not a table of dlock's: it is not a plain table"),
        ("CREATE TABLE {table} (LIKE {ours})", 'its primary key is not key COLLATE "C"'),
        (
            "CREATE TABLE {table} (LIKE {ours} INCLUDING ALL); ALTER TABLE {table} ADD COLUMN note text",
            "dlock's: note text is not dlock's; if programs keep locks in it, put that right, since in another table what they",
        ),
        ("CREATE UNLOGGED TABLE {table} (LIKE {ours} INCLUDING ALL)", "SET LOGGED"),
    ],
)
def test_a_table_of_another_shape_is_refused(
    url: str, server_url: str, admin: psycopg.Connection[Any], prepare: str, told: str
) -> None:
    """When the store is opened, and by ``dlock init``; the table is left as it is."""
    table = f"public.t_{secrets.token_hex(4)}"
    admin.execute(prepare.format(table=table, ours=TABLE))

    with pytest.raises(StoreSetupError, match=told):
        connect(with_parts(server_url, query=f"table={table}"))
