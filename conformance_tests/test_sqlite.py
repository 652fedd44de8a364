"""The SQLite store keeps every clause."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dlock_conformance import (
    WAYS,
    Fault,
    LockClientConformance,
    LockStoreConformance,
    StoreHarness,
)
from dlock_conformance.harness import Colour
from dlock_conformance.trial import Trial
from thorough import rounds

from dlock_core.record import LockRecord, State
from dlock_sqlite import SqliteStore


class BusyFile:
    """The only way to disturb a file: somebody else is in the middle of a transaction."""

    kinds = frozenset({Fault.BUSY})

    def __init__(self, path: Path) -> None:
        self._path = path
        self._other: sqlite3.Connection | None = None

    def begin(self, fault: Fault) -> None:
        """Begin a transaction, and leave it open."""
        self._other = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._other.execute("BEGIN IMMEDIATE")

    def heal(self) -> None:
        """End it."""
        if self._other is not None:
            self._other.close()
            self._other = None


@pytest.fixture
def sqlite_harness(tmp_path: Path) -> StoreHarness:
    """Give each test a file of its own."""
    path = tmp_path / "locks.db"

    def plant(key: str, version: int, rvn: str = "rvn", token: int = 1) -> None:
        columns = "key, format, state, rvn, fencing_token, owner, lease_ms"
        values = (key, version, "held", rvn, token, "somebody", 1000)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"INSERT INTO lock ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608

    return StoreHarness(
        f"sqlite:///{path}",
        capabilities={"batch_renew", "notify", "server_clock", "prune", "atomic_multi"},
        race_rounds=rounds(300),
        soon_s=1.0,
        lease_s=0.8,
        tells_wanted=True,
        several_processes=True,
        page=500,
        restart=lambda: None,  # nothing runs between two processes: each new connection is a restart
        faults=BusyFile(path),
        plant_foreign=lambda key: plant(key, -1),
        plant_newer=lambda key, version: plant(key, 2, *version),
    )


class TestSqliteStore(LockStoreConformance):
    """``sqlite:///path``, for threads; tasks use it through threads."""

    colours = ("sync",)
    lacks = (
        "claim_wait",
        "lose_reply",
        "hang",
        "refuse",
        "trickle",
        "cut",
        "drop",
        "slow_connect",
        "count_requests",
        "unprovisioned",
        "own_client",
        "expires",
    )

    @pytest.fixture
    def harness(self, sqlite_harness: StoreHarness) -> StoreHarness:
        """As above."""
        return sqlite_harness


class TestSqliteClient(LockClientConformance):
    """Both clients over ``sqlite:///path``."""

    lacks = ("lose_reply",)
    ways = WAYS

    @pytest.fixture
    def harness(self, sqlite_harness: StoreHarness) -> StoreHarness:
        """As above."""
        return sqlite_harness


@pytest.mark.parametrize("look_every_s", [3600.0, 5.0])
def test_waits_that_only_their_own_process_wakes_are_rejected(
    sqlite_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, look_every_s: float
) -> None:
    """Also where they look at the record now and then: that is what a store without notices does."""
    freed, release = threading.Condition(), SqliteStore.release

    def releasing(store: SqliteStore, request: Any, *, timeout_s: float) -> Any:
        reply = release(store, request, timeout_s=timeout_s)
        with freed:
            freed.notify_all()
        return reply

    def wait(store: SqliteStore, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            with freed:
                freed.wait(min(left_s, look_every_s))
            now = store.read(record.key, timeout_s=1)
            if now is None or now.state is not State.HELD:
                return

    monkeypatch.setattr(SqliteStore, "release", releasing)
    monkeypatch.setattr(SqliteStore, "wait", wait)
    suite = TestSqliteStore()
    with Trial(sqlite_harness, Colour.SYNC, "test_n1_a_release_wakes_a_waiter") as trial:
        suite.test_n1_a_ticket_may_wait_again(trial)
    elsewhere = "N1.*a wait had not returned 1 s after another process released its key"
    with (
        Trial(sqlite_harness, Colour.SYNC, "test_n1_another_process_wakes_a_waiter") as trial,
        pytest.raises(AssertionError, match=elsewhere),
    ):
        suite.test_n1_another_process_wakes_a_waiter(trial)
