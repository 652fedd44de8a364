"""What the tests of the MySQL adapter share: records, stores, and plain connections to do things behind a store's back."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymysql

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_mysql import MySQLStore, MySQLStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "dlock_tests"
TIMEOUT_S = 10.0


def held(key: str, **changes: Any) -> LockRecord:
    """Return a record that holds *key*, with an RVN that was never used."""
    fields = {
        "state": State.HELD,
        "rvn": secrets.token_hex(16),
        "fencing_token": 1,
        "owner": "tests",
        "lease_ms": 20_000,
    }
    return LockRecord(key, **{**fields, **changes})


def claim(key: str) -> Claim:
    """Return a claim that expects nothing."""
    return Claim(held(key), Expect.ANY)


def renewal(record: LockRecord, **changes: Any) -> Replace:
    """Return the renewal of *record*."""
    return Replace(held(record.key, fencing_token=record.fencing_token, **changes), record.version)


def release(record: LockRecord) -> Release:
    """Return the release of *record*."""
    tombstone = held(record.key, state=State.FREE, fencing_token=record.fencing_token, lease_ms=None)
    return Release(tombstone, record.version)


def taken(store: MySQLStore, key: str) -> LockRecord:
    """Claim *key*, and return the record."""
    reply = store.claim(claim(key), timeout_s=TIMEOUT_S)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def options_of(url: str, **changes: Any) -> MySQLStoreOptions:
    """Return the options in *url*, for the table of these tests."""
    options = MySQLStoreOptions.from_url(url, table=TABLE, ssl_mode="disabled")
    return MySQLStoreOptions(**{**dict(options), **changes})


def opened(url: str, **changes: Any) -> MySQLStore:
    """Return a store."""
    return MySQLStore(**dict(options_of(url, **changes)))


@contextmanager
def plain(url: str, **changes: Any) -> Iterator[Any]:
    """Yield a cursor of the driver's, outside of every store; nothing is committed by itself."""
    options = options_of(url, **changes)
    with pymysql.connect(
        host=options.host,
        port=options.port,
        user=options.user,
        password=options.password.get_secret_value(),
        database=options.database,
    ) as connection:
        yield connection.cursor()


def wait_for_waiters(url: str, count: int) -> None:
    """Return when *count* transactions wait for a row."""
    until = time.monotonic() + TIMEOUT_S
    with plain(url) as cursor:
        while time.monotonic() < until:
            # The tables of InnoDB in information_schema show the same again to who asks within a tenth of a second.
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            if int(cursor.fetchone()[1]) >= count:
                return
            time.sleep(0.01)  # between two looks
    raise AssertionError(f"{count} transactions did not come to wait")
