"""MariaDB: a cycle beside two bare upserts through PyMySQL and beside ``GET_LOCK``, in both colours; renewals one by one and in a batch."""

from __future__ import annotations

import os
from importlib.metadata import version as of
from typing import TYPE_CHECKING, Any

import pymysql
from dlock_conformance.servers import resolve

from benchmarks._figures import Part, Section, compared, cycles_in_loop, in_turn, spread, timed
from dlock_core import LockClient
from dlock_core.clock import now_ns
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_mysql import MySQLStore, MySQLStoreOptions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cycles", "version"]

CYCLES = 30
_BATCH = 100
_TABLE = "dlock_bench"
_UPSERT = (
    "INSERT INTO bare (k, state, rvn, token, owner, lease_ms) VALUES (%s, %s, %s, %s, 'bench', 20000) "
    "ON DUPLICATE KEY UPDATE state = VALUES(state), rvn = VALUES(rvn), token = VALUES(token)"
)


def opened() -> MySQLStore:
    """Return a store with its table made."""
    options = MySQLStoreOptions.from_url(resolve("mysql").url, table=_TABLE)
    store = MySQLStore(**dict(options))
    store.provision()
    return store


def connected() -> Any:
    """Return a connection of the driver's, and make the table of the floor."""
    options = MySQLStoreOptions.from_url(resolve("mysql").url)
    password = options.password.get_secret_value()
    connection = pymysql.connect(
        **options.model_dump(include={"host", "port", "user", "database"}), password=password, autocommit=True
    )
    columns = (
        "k VARBINARY(1024) PRIMARY KEY, state VARCHAR(8), rvn VARBINARY(256), token BIGINT, owner TEXT, lease_ms BIGINT"
    )
    connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS bare ({columns})")
    return connection


def version() -> str:
    """Return the versions of server and driver."""
    store = opened()
    found = store.guarantees().version
    store.close()
    return f"{found}, PyMySQL {of('PyMySQL')}"


def claim(key: str) -> Claim:
    """Return a request for *key*."""
    return Claim(LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "bench", 20_000), Expect.ANY)


def held(store: MySQLStore, key: str) -> LockRecord:
    """Return the record of a new hold."""
    record = store.claim(claim(key), timeout_s=10).record
    assert record is not None
    return record


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours; renewals."""
    store, connection = opened(), connected()
    cursor = connection.cursor()

    def bare() -> None:
        for state in ("held", "free"):
            cursor.execute(_UPSERT, ("bare", state, os.urandom(16).hex(), 1))

    def through_store() -> None:
        record = held(store, "cycle/store")
        tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
        assert store.release(Release(tomb, record.version), timeout_s=10).applied

    def get_lock() -> None:
        cursor.execute("SELECT GET_LOCK('bench', 0)")
        cursor.execute("SELECT RELEASE_LOCK('bench')")

    with LockClient(opened()) as locks:
        sides: dict[str, Callable[[], object]] = {
            "two bare upserts, the floor": bare,
            "dlock, store": through_store,
            "dlock, client": lambda: locks.acquire("cycle/client").release(),
            "GET_LOCK (no token; ends with the connection; nothing is written)": get_lock,
        }
        taken = in_turn({name: timed(side) for name, side in sides.items()}, rounds=rounds, cycles=CYCLES)
    how = "One process, one lock, one cycle after the other; each commit is synced."
    sync = compared("MariaDB, one uncontended cycle", how, taken, aims={"dlock, client": "mysql-cycle"})
    how = "asyncio is served by threads; the floor is as above."
    taken = cycles_in_loop(("two bare upserts, the floor", bare), opened, rounds=rounds, cycles=CYCLES)
    tasks = compared("MariaDB, the same with asyncio", how, taken, aims={})
    lines = tuple((name, spread(values, 0)) for name, values in renewals(store, rounds).items())
    section = Section("MariaDB, renewals", "Through the store, for each lock.", ("", "µs"), lines)
    store.close()
    connection.close()
    return Part((*sync.sections, *tasks.sections, section), sync.shown)


def renewals(store: MySQLStore, rounds: int) -> dict[str, list[float]]:
    """Return the µs a lock, one by one and in a batch."""
    records = [held(store, f"batch/{os.urandom(4).hex()}/{place}") for place in range(_BATCH)]
    taken: dict[str, list[float]] = {"one by one": [], f"in a batch of {_BATCH}": []}
    for _ in range(rounds):
        for name, values in taken.items():
            requests = [Replace(renewed(record), record.version, keep_payload=True) for record in records]
            begin = now_ns()
            if name == "one by one":
                for request in requests:
                    assert store.replace(request, timeout_s=10).applied
            else:
                store.replace_many(requests, timeout_s=10)
            values.append((now_ns() - begin) / _BATCH / 1000)
            records = [request.record for request in requests]
    return taken


def renewed(record: LockRecord) -> LockRecord:
    """Return *record* with a new version number."""
    return LockRecord(
        record.key, record.state, os.urandom(16).hex(), record.fencing_token, record.owner, record.lease_ms
    )
