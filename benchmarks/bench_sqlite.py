"""What ``sqlite://`` adds to the driver: claim and release of the store against the two bare statements, and the delay of a wake-up.

Both sides work in turn, in rounds of one run, on files side by side with the same settings, so that what else the machine does meets both.
The ratio is that of the two times of one round. Run: ``python -m benchmarks.bench_sqlite [--rounds N] [--directory PATH]``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sqlite3
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dlock_core.clock import now_ns
from dlock_core.record import LockRecord, State
from dlock_core.sqlite import SqliteStore
from dlock_core.store import Claim, Expect, Release, Version

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_CYCLES = 100
_TABLE = (
    "CREATE TABLE lock (key TEXT PRIMARY KEY, held INTEGER, rvn TEXT, token INTEGER, lease_ms INTEGER) WITHOUT ROWID"
)
_TAKE = """
INSERT INTO lock VALUES (?, 1, ?, 1, 20000) ON CONFLICT (key) DO UPDATE SET held = 1, rvn = excluded.rvn, token = token + 1 WHERE held = 0
RETURNING token
"""
_FREE = "UPDATE lock SET held = 0, rvn = ? WHERE key = ? AND held = 1 AND rvn = ? RETURNING token"


def bare_series(connection: sqlite3.Connection) -> float:
    """Take and free a lock with one statement each; return the µs of a cycle."""
    pairs = [(os.urandom(16).hex(), os.urandom(16).hex()) for _ in range(_CYCLES)]
    begin = now_ns()
    for rvn, fresh in pairs:
        assert connection.execute(_TAKE, ("bench/1", rvn)).fetchone()
        assert connection.execute(_FREE, (fresh, "bench/1", rvn)).fetchone()
    return (now_ns() - begin) / _CYCLES / 1000


def store_series(store: SqliteStore) -> float:
    """Claim and release a key through the port, with requests made before; return the µs of a cycle."""
    seen = store.read("bench/1", timeout_s=10)
    first = 1 if seen is None else seen.fencing_token + 1
    pairs = [(request := claim("bench/1"), release_of(request, token)) for token in range(first, first + _CYCLES)]
    begin = now_ns()
    for claimed, released in pairs:
        assert store.claim(claimed, timeout_s=10).applied
        assert store.release(released, timeout_s=10).applied
    return (now_ns() - begin) / _CYCLES / 1000


def claim(key: str) -> Claim:
    """Return a request for *key*."""
    return Claim(LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "bench", 20_000), Expect.ANY)


def release_of(request: Claim, token: int) -> Release:
    """Return the request that frees what *request* was granted under *token*."""
    held = request.record
    tombstone = LockRecord(held.key, State.FREE, os.urandom(16).hex(), token, "", None)
    return Release(tombstone, Version(held.rvn, token))


def compare(folder: Path, rounds: int) -> None:
    """Print the two times and the ratio."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(_TABLE)
    store = SqliteStore(folder / "store.db")
    bare_series(connection)
    store_series(store)
    pairs = []
    for number in range(rounds):
        # Who goes first changes, so that neither has the warmer disk.
        if number % 2:
            bare = bare_series(connection)
            ours = store_series(store)
        else:
            ours = store_series(store)
            bare = bare_series(connection)
        pairs.append((bare, ours))
    connection.close()
    store.close()
    ratios = [ours / bare for bare, ours in pairs]
    print(f"bare statements  {statistics.median(bare for bare, _ in pairs):8.1f} us a cycle")
    print(f"store            {statistics.median(ours for _, ours in pairs):8.1f} us a cycle")
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"ratio            {statistics.median(ratios):8.3f}    quartiles {low:.3f} to {high:.3f}, {rounds} rounds of {_CYCLES}"
    )


def wait_often(path: str, results: Connection, rounds: int) -> None:
    """Wait in a process of its own, and send when each wait ended."""
    store = SqliteStore(path)
    for number in range(rounds):
        while (record := store.read(f"wake/{number}", timeout_s=10)) is None:
            pass
        results.send(0)
        store.wait(record, ticket="bench", timeout_s=10)
        results.send(now_ns())
    store.close()


def wake_ups(folder: Path, rounds: int) -> None:
    """Print the delay from the call of ``release`` to the return of ``wait`` in another process."""
    path = str(folder / "wake.db")
    store = SqliteStore(path)
    store.provision()
    here, there = multiprocessing.Pipe(duplex=False)
    waiter = multiprocessing.get_context("spawn").Process(target=wait_often, args=(path, there, rounds))
    waiter.start()
    delays = []
    for number in range(rounds):
        request = claim(f"wake/{number}")
        assert store.claim(request, timeout_s=10).applied
        here.recv()
        while not any(Path(f"{store.path}-wake").glob("*/[0-9]*")):
            pass
        released = release_of(request, 1)
        begin = now_ns()
        store.release(released, timeout_s=10)
        delays.append((here.recv() - begin) / 1000)
    waiter.join()
    store.close()
    cuts = statistics.quantiles(delays, n=20)
    print(f"wake-up across processes, commit included: p50 {cuts[9]:.0f} us, p95 {cuts[18]:.0f} us, {rounds} releases")


def main() -> None:
    """Measure in a new folder of *--directory*."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--directory", default=None, help="where the files are made; the disk is most of what is measured"
    )
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.platform()}")
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        compare(Path(folder), options.rounds)
        wake_ups(Path(folder), options.rounds * 5)


if __name__ == "__main__":
    main()
