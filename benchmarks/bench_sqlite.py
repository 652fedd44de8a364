"""What ``sqlite://`` adds to the driver: the store and the client against the two bare statements, and the delay of a wake-up.

The sides work in turn on files side by side with the same settings, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._figures import Loop, Part, Section, compared, in_turn, percentile, timed
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Version
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["cycles", "version", "wake"]

_CYCLES, _WAKE_UPS = 100, 200
_TABLE = (
    "CREATE TABLE lock (key TEXT PRIMARY KEY, held INTEGER, rvn TEXT, token INTEGER, lease_ms INTEGER) WITHOUT ROWID"
)
_TAKE = """
INSERT INTO lock VALUES (?, 1, ?, 1, 20000) ON CONFLICT (key) DO UPDATE SET held = 1, rvn = excluded.rvn, token = token + 1 WHERE held = 0
RETURNING token
"""
_FREE = "UPDATE lock SET held = 0, rvn = ? WHERE key = ? AND held = 1 AND rvn = ? RETURNING token"


def version() -> str:
    """Return what the store runs on."""
    return f"SQLite {sqlite3.sqlite_version}, WAL, synchronous FULL"


def cycles(rounds: int) -> Part:
    """Take and free one lock: two bare statements, the store through its port, and the client."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_TABLE)

        def bare() -> None:
            rvn = os.urandom(16).hex()
            assert connection.execute(_TAKE, ("bench/1", rvn)).fetchone()
            assert connection.execute(_FREE, (os.urandom(16).hex(), "bench/1", rvn)).fetchone()

        store, used = SqliteStore(Path(folder) / "store.db"), SqliteStore(Path(folder) / "client.db")
        with LockClient(used) as client:
            sides = {
                "two bare statements, the floor": timed(bare),
                "dlock, store": _store_loop(store),
                "dlock, client": timed(lambda: client.acquire("bench/1").release()),
            }
            taken = in_turn(sides, rounds=rounds, cycles=_CYCLES)
        connection.close()
        store.close()
        used.close()
    how = "One process, one key, each side on a file of its own; every commit is on the disk before it returns."
    return compared("SQLite, one uncontended cycle", how, taken, aims={"dlock, client": "sqlite-cycle"})


def _store_loop(store: SqliteStore) -> Loop:
    """Return the loop of claim and release through the port, whose requests are made before the clock runs."""

    def loop(count: int) -> float:
        seen = store.read("bench/1", timeout_s=10)
        first = 1 if seen is None else seen.fencing_token + 1
        pairs = [(request := claim("bench/1"), release_of(request, token)) for token in range(first, first + count)]
        began = time.perf_counter()
        for claimed, released in pairs:
            assert store.claim(claimed, timeout_s=10).applied
            assert store.release(released, timeout_s=10).applied
        return time.perf_counter() - began

    return loop


def claim(key: str) -> Claim:
    """Return a request for *key*."""
    return Claim(LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "bench", 20_000), Expect.ANY)


def release_of(request: Claim, token: int) -> Release:
    """Return the request that frees what *request* was granted under *token*."""
    held = request.record
    tombstone = LockRecord(held.key, State.FREE, os.urandom(16).hex(), token, "", None)
    return Release(tombstone, Version(held.rvn, token))


def wake(rounds: int) -> Part:
    """From the call of ``release`` to the return of ``wait`` in another process; as often, whatever *rounds*."""
    with tempfile.TemporaryDirectory() as folder:
        delays = _wake_ups(str(Path(folder) / "wake.db"))
    line = ("dlock", f"{statistics.median(delays):.2f}", f"{percentile(delays, 0.99):.2f}")
    how = f"From the call of `release` to the return of `wait` in another process, the commit included, {_WAKE_UPS} times."
    section = Section("SQLite, wake-up of a lone waiter", how, ("", "p50, ms", "p99, ms"), (line,))
    return Part((section,), ())


def _wake_ups(path: str) -> list[float]:
    store = SqliteStore(path)
    store.provision()
    here, there = multiprocessing.Pipe(duplex=False)
    waiter = multiprocessing.get_context("spawn").Process(target=_wait_often, args=(path, there))
    waiter.start()
    delays = []
    for number in range(_WAKE_UPS):
        request = claim(f"wake/{number}")
        assert store.claim(request, timeout_s=10).applied
        here.recv()
        while not any(Path(f"{store.path}-wake").glob("*/[0-9]*")):
            pass
        released = release_of(request, 1)
        began = time.monotonic()
        store.release(released, timeout_s=10)
        delays.append((here.recv() - began) * 1e3)
    waiter.join()
    store.close()
    return delays


def _wait_often(path: str, results: Connection) -> None:
    """Wait in a process of its own, and send when each wait ended."""
    store = SqliteStore(path)
    for number in range(_WAKE_UPS):
        while (record := store.read(f"wake/{number}", timeout_s=10)) is None:
            pass
        results.send(0.0)
        store.wait(record, ticket="bench", timeout_s=10)
        results.send(time.monotonic())
    store.close()
