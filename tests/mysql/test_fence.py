"""A zombie cannot commit: the effect's own transaction locks the row of the lock, and finds none if the lock was lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from dlock_core import Lease, connect
from dlock_core.errors import ConfigurationError, OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.kit import PooledLink, Seats
from dlock_core.record import LockRecord
from dlock_core.store import Replace, Reply
from dlock_mysql import MySQLStore
from tests.mysql.support import TABLE, TIMEOUT_S, held, plain, renewal, taken

LEASE_S = 1.0


def is_held(cursor: Any, lease: Lease | LockRecord, table: str = TABLE, **changes: Any) -> bool:
    """Whether the fence finds the row of *lease*; if so, it is locked until the transaction ends."""
    holder = {"key": lease.key, "token": lease.fencing_token, "owner": lease.owner, **changes}
    return bool(cursor.execute(MySQLStore.fence_sql(table), holder))


def test_a_zombie_finds_no_row(url: str, key: str) -> None:
    """Its lease ended, and another holds the lock. The table may be named with its database."""
    locks = f"{url}?table={TABLE}&ssl_mode=disabled"
    with connect(locks, lease_duration=LEASE_S) as paused, connect(locks, lease_duration=LEASE_S) as other:
        zombie = paused.acquire(key, auto_renew=False)
        with plain(url) as cursor:
            assert is_held(cursor, zombie)
        with other.lock(key, timeout=20 * LEASE_S) as lease, plain(url) as cursor:
            assert not is_held(cursor, zombie)
            assert is_held(cursor, lease, table=f"locks.{TABLE}")


def test_a_holder_of_the_same_token_finds_no_row(url: str, store: MySQLStore, key: str) -> None:
    """After a failover that lost a grant two may hold a lock with one token; their owners differ."""
    record = taken(store, key)

    with plain(url) as cursor:
        assert not is_held(cursor, record, owner="another")


def test_nobody_takes_over_while_a_fenced_transaction_is_open(url: str, each_store: MySQLStore, key: str) -> None:
    """A takeover waits for the row; when its time is over it was not applied. After the commit it is."""
    record = taken(each_store, key)
    takeover = Replace(held(key, fencing_token=record.fencing_token + 1), record.version)

    with plain(url) as cursor:
        assert is_held(cursor, record)
        with pytest.raises(StoreUnavailableError, match="1205"):
            each_store.replace(takeover, timeout_s=TIMEOUT_S)
        cursor.connection.commit()
        assert each_store.replace(takeover, timeout_s=TIMEOUT_S).applied
        assert not is_held(cursor, record)


def test_a_reader_of_the_row_does_not_wait(url: str, store: MySQLStore, key: str) -> None:
    """Reads lock nothing."""
    record = taken(store, key)

    with plain(url) as cursor:
        assert is_held(cursor, record)
        assert store.read(key, timeout_s=TIMEOUT_S) == record


def test_a_fenced_transaction_costs_no_other_lock_its_renewal(url: str, each_store: MySQLStore, key: str) -> None:
    """A batch passes over the row that it has locked, from the second one on without waiting for it; a row that is gone is none of them.

    Also where the table has few rows, all of which a plan would look at, and where those who wait have all connections but its own.
    """
    with plain(url) as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")  # noqa: S608  # a name of ours
        cursor.connection.commit()
        cursor.execute(f"ANALYZE TABLE {TABLE}")
    records = [taken(each_store, f"{key}/{number}") for number in range(3)]
    gone, link = held(f"{key}/gone"), each_store._link
    assert isinstance(link, PooledLink)
    link.pools[False].seats = Seats(0)
    with plain(url) as cursor:
        assert is_held(cursor, records[1])
        for _ in range(2):
            first, locked, last, none = each_store.replace_many(
                [renewal(record) for record in (*records, gone)], timeout_s=TIMEOUT_S
            )
            assert isinstance(locked, StoreUnavailableError)
            assert "1205: another transaction had the row" in str(locked)
            assert none == Reply(applied=False, record=None)
            records[::2] = applied(first), applied(last)
        assert each_store.requests["replace"] == 3 + 2
        cursor.connection.commit()

    for _ in range(2):
        replies = each_store.replace_many([renewal(record) for record in records], timeout_s=TIMEOUT_S)
        records = [applied(reply) for reply in replies]
    assert each_store.requests["replace"] == (3 + 2) + (2 + 1)


def test_a_batch_that_ended_before_the_wait_for_a_row_passes_over_that_the_next_time(
    url: str, each_store: MySQLStore, key: str
) -> None:
    """The server gives up the row after a second, which the renewals of short leases do not have: each of them would fail whole."""
    records = [taken(each_store, f"{key}/{number}") for number in range(2)]
    requests = [renewal(record) for record in records]
    results: Sequence[Reply | StoreError] = []
    until = time.monotonic() + TIMEOUT_S
    with plain(url) as cursor:
        assert is_held(cursor, records[1])
        with pytest.raises(OutcomeUnknownError, match="no answer in time"):
            each_store.replace_many(requests, timeout_s=0.3)
        while not results:  # at first the server still has that one
            assert time.monotonic() < until
            with suppress(StoreUnavailableError):
                results = each_store.replace_many(requests, timeout_s=0.3)

    applied(results[0])
    assert isinstance(results[1], StoreUnavailableError)


def applied(reply: Reply | StoreError) -> LockRecord:
    """Return the record that *reply* says was written."""
    assert isinstance(reply, Reply)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def test_a_transaction_that_began_before_the_grant_reads_what_is_old(url: str, store: MySQLStore, key: str) -> None:
    """The fence locks the row that stands, and a plain SELECT shows the snapshot: so the page has the transaction begin under the lock."""
    data = taken(store, f"{key}/data")
    with plain(url) as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SET SESSION autocommit = 0 /*M!110602 , innodb_snapshot_isolation = OFF */")  # else error 1020
        cursor.execute(f"SELECT rvn FROM {TABLE} WHERE k = %s", (data.key,))  # noqa: S608  # a name of ours
        written = applied(store.replace(renewal(data), timeout_s=TIMEOUT_S))  # by the holder before

        assert is_held(cursor, taken(store, key))

        cursor.execute(f"SELECT rvn FROM {TABLE} WHERE k = %s", (data.key,))  # noqa: S608  # as above
        assert cursor.fetchone() == (data.rvn.encode(),)
        cursor.connection.commit()
        cursor.execute(f"SELECT rvn FROM {TABLE} WHERE k = %s", (data.key,))  # noqa: S608  # as above
        assert cursor.fetchone() == (written.rvn.encode(),)


def test_a_renewal_after_a_fenced_transaction_is_applied(url: str, store: MySQLStore, key: str) -> None:
    """The fence leaves nothing behind."""
    record = taken(store, key)

    with plain(url) as cursor:
        assert is_held(cursor, record)

    assert store.replace(renewal(record), timeout_s=TIMEOUT_S).applied


@pytest.mark.parametrize("table", ["a`b", "a.b.c", "", "1"])
def test_a_name_that_is_none_is_refused(table: str) -> None:
    """Nothing but a checked name is written into the statement."""
    with pytest.raises(ConfigurationError, match="is no table"):
        MySQLStore.fence_sql(table)
