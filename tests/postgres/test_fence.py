"""A zombie cannot commit: the effect's own transaction locks the row of the lock, and finds none if the lock was lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy

from dlock_core import Lease, connect
from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_postgres import PostgresStore
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, renewed

LEASE_S = 1.0
FENCE = PostgresStore.fence_sql(TABLE)


class LostError(Exception):
    """The fence found no row."""


def write(
    connection: psycopg.Connection[Any], lease: Lease | LockRecord, meanwhile: Callable[[], object] | None = None
) -> None:
    """Write an effect for the holder of *lease*, in one transaction with the fence."""
    holder = {"key": lease.key, "token": lease.fencing_token, "owner": lease.owner}
    with connection.transaction():
        if connection.execute(FENCE, holder).fetchone() is None:
            raise LostError
        connection.execute("INSERT INTO dlock_effects VALUES (%s, %s)", (lease.key, lease.fencing_token))
        if meanwhile is not None:
            meanwhile()


@pytest.fixture
def database(admin: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return a connection to a database with a table of effects."""
    admin.execute("CREATE TABLE IF NOT EXISTS dlock_effects (key text, token bigint)")
    return admin


def effects(database: psycopg.Connection[Any], key: str) -> list[int]:
    """Return the tokens of the effects."""
    return [token for (token,) in database.execute("SELECT token FROM dlock_effects WHERE key = %s", (key,))]


def test_a_zombie_cannot_write(url: str, key: str, database: psycopg.Connection[Any]) -> None:
    """Its lease ended, another holds the lock: what it then writes is rolled back."""
    with connect(url, lease_duration=LEASE_S) as paused, connect(url, lease_duration=LEASE_S) as other:
        zombie = paused.acquire(key, auto_renew=False)
        write(database, zombie)
        with other.lock(key, timeout=20 * LEASE_S) as lease:
            with pytest.raises(LostError):
                write(database, zombie)
            write(database, lease)

        assert effects(database, key) == [zombie.fencing_token, lease.fencing_token]


def test_nobody_takes_over_while_a_fenced_transaction_is_open(
    store: PostgresStore, key: str, database: psycopg.Connection[Any]
) -> None:
    """A takeover waits for the row; when its time is over it was not applied. After the commit it is."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    takeover = renewed(record, token=record.fencing_token + 1)

    def try_to_take_over() -> None:
        with pytest.raises(StoreUnavailableError, match="rolled back"):
            store.replace(takeover, timeout_s=0.5)

    write(database, record, meanwhile=try_to_take_over)

    assert store.replace(takeover, timeout_s=TIMEOUT_S).applied
    with pytest.raises(LostError):
        write(database, record)
    assert effects(database, key) == [record.fencing_token]


def test_a_fenced_transaction_delays_the_renewal_of_no_other_lock(
    store: PostgresStore, key: str, database: psycopg.Connection[Any]
) -> None:
    """A batch passes over the row that is locked, and its own renewal follows the commit, or was not applied."""
    mine = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    other = store.claim(any_claim(f"{key}/other"), timeout_s=TIMEOUT_S).record
    assert mine is not None
    assert other is not None

    def renew() -> None:
        results = store.replace_many([renewed(mine), renewed(other)], timeout_s=2)
        assert isinstance(results[0], StoreUnavailableError)
        assert getattr(results[1], "applied", False)

    write(database, mine, meanwhile=renew)


def test_a_claim_of_a_fenced_lock_is_refused_at_once(
    store: PostgresStore, key: str, database: psycopg.Connection[Any]
) -> None:
    """It neither waits for the row nor locks it."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    refusals = []

    def claim() -> None:
        began = time.monotonic()
        refusals.append(store.claim(any_claim(key), timeout_s=TIMEOUT_S))
        assert time.monotonic() - began < TIMEOUT_S / 2

    write(database, record, meanwhile=claim)

    assert [reply.record for reply in refusals] == [record]


def test_the_forms_of_sqlalchemy_find_the_row_of_a_held_lock_only(server_url: str, url: str, key: str) -> None:
    """In the driver's own form, and in that of ``text()``, as the page has them."""
    engine = sqlalchemy.create_engine(server_url.replace("postgresql://", "postgresql+psycopg://"))
    text = sqlalchemy.text(re.sub(r"%\((\w+)\)s", r":\1", FENCE))
    found = []
    with connect(url) as client:
        lease = client.acquire(key)
        holder = {"key": key, "token": lease.fencing_token, "owner": lease.owner}
        for released in (False, True):
            if released:
                lease.release()
            with engine.begin() as connection:
                found += [connection.exec_driver_sql(FENCE, holder).scalar(), connection.execute(text, holder).scalar()]
    engine.dispose()

    assert found == [lease.fencing_token, lease.fencing_token, None, None]
