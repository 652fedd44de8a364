"""A claim of several keys that meets another client's write in the middle."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_core.store import Reply
from dlock_postgres import PostgresStore
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, released

STOLEN = f"UPDATE {TABLE} SET state = 'held', rvn = 'stolen', token = token + 1 WHERE key = %s"  # noqa: S608  # a constant
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%json_to_recordset%'"


def freed(store: PostgresStore, key: str) -> None:
    """Leave a tombstone under *key*."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    store.release(released(record), timeout_s=TIMEOUT_S)


def test_a_key_that_was_taken_since_the_snapshot_refuses_all(
    store: PostgresStore, admin: psycopg.Connection[Any], server_url: str, key: str
) -> None:
    """The statement has written one key already, waits for the row of the other, finds it held, and is rolled back as a whole."""
    keys = [f"{key}/{end}" for end in "ab"]
    freed(store, keys[1])
    came: list[Any] = []

    def claim() -> None:
        came.append(store.claim_many([any_claim(each) for each in keys], timeout_s=TIMEOUT_S))

    with psycopg.connect(server_url) as other:
        other.execute(STOLEN, (keys[1],))
        thread = threading.Thread(target=claim)
        thread.start()
        until = time.monotonic() + TIMEOUT_S
        while not admin.execute(BLOCKED).fetchone()[0]:  # type: ignore[index]  # a count is always a row
            assert time.monotonic() < until
            time.sleep(0.01)  # the server says nothing when a statement begins to wait
        other.commit()
    thread.join()

    [replies] = came
    standing = store.read(keys[1], timeout_s=TIMEOUT_S)
    assert standing is not None
    assert standing.rvn == "stolen"
    assert replies == [Reply(False, None), Reply(False, standing)]
    assert store.read(keys[0], timeout_s=TIMEOUT_S) is None


def test_a_row_that_stays_locked_takes_no_longer_than_the_time_out(
    store: PostgresStore, server_url: str, key: str
) -> None:
    """And nothing was written for the other key."""
    keys = [f"{key}/{end}" for end in "ab"]
    freed(store, keys[1])
    with psycopg.connect(server_url) as other:
        other.execute(STOLEN, (keys[1],))

        with pytest.raises(StoreUnavailableError, match="rolled back"):
            store.claim_many([any_claim(each) for each in keys], timeout_s=0.5)

        other.rollback()
    assert store.read(keys[0], timeout_s=TIMEOUT_S) is None
