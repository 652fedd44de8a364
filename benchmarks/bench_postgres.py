"""PostgreSQL: a cycle beside two bare upserts through psycopg and beside other locks; renewals in a batch; what the table becomes."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version as of
from typing import TYPE_CHECKING, Any

import psycopg
from dlock_conformance.servers import resolve

from benchmarks._figures import Part, Section, Shown, compared, cycles_in_loop, in_turn, timed
from benchmarks._parties import held, renewed
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release
from dlock_postgres import AsyncPostgresStore, PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["UPSERT", "bloat", "connected", "cycles", "opened", "renewals", "version"]

CYCLES = 60
BLOAT_KEYS, BLOAT_CYCLES, BLOAT_THREADS, BLOAT_S = 100, 1_000_000, 4, 900
_TABLE = "public.dlock_bench"
_BLOAT_TABLE = "public.dlock_bloat"
UPSERT = (
    "INSERT INTO bare AS b (key, state, rvn, token, owner, lease_ms) VALUES (%s, %s, %s, %s, 'bench', 20000) "
    "ON CONFLICT (key) DO UPDATE SET state = excluded.state, rvn = excluded.rvn, token = excluded.token RETURNING b.token"
)


def connected(at: str | None = None) -> psycopg.Connection[Any]:
    """Return a connection of the driver's without prepared statements, as behind a pooler; make the tables of the others.

    A process of ours is told where the server is.
    """
    connection = psycopg.connect(at or resolve("postgres").url, autocommit=True, prepare_threshold=None)
    columns = "key text PRIMARY KEY, state text, rvn text, token bigint, owner text, lease_ms integer"
    if at is None:
        connection.execute(f"CREATE TABLE IF NOT EXISTS bare ({columns}) WITH (fillfactor = 50)")
        connection.execute("CREATE TABLE IF NOT EXISTS queue (key text PRIMARY KEY)")
        connection.execute("INSERT INTO queue VALUES ('bench') ON CONFLICT DO NOTHING")
    return connection


def opened(at: str | None = None, table: str = _TABLE) -> PostgresStore:
    """Return a store with its table made."""
    store = PostgresStore(at or resolve("postgres").url, table=table)
    store.provision()
    return store


def version() -> str:
    """Return the versions of server and drivers."""
    store = opened()
    found = store.guarantees().version
    store.close()
    return f"PostgreSQL {found}, psycopg {of('psycopg')}, SQLAlchemy {of('SQLAlchemy')}, django-pglock {of('django-pglock')}"


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours, beside the floor and the peers."""
    store, connection = opened(), connected()

    def bare() -> None:
        for state in ("held", "free"):
            connection.execute(UPSERT, ("bare", state, os.urandom(16).hex(), 1)).fetchone()

    def through_store() -> None:
        record = store.claim(Claim(held("cycle/store"), Expect.ANY), timeout_s=10).record
        assert record is not None
        tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
        assert store.release(Release(tomb, record.version), timeout_s=10).applied

    with LockClient(opened()) as locks, peers(connection) as others:
        sides: dict[str, Callable[[], object]] = {
            "two bare upserts, the floor": bare,
            "dlock, store": through_store,
            "dlock, client": lambda: locks.acquire("cycle/client").release(),
            **others,
        }
        taken = in_turn({name: timed(side) for name, side in sides.items()}, rounds=rounds, cycles=CYCLES)
    how = (
        "One process, one lock, one cycle after the other; each commit is synced. The others write nothing: their locks end with the "
        "connection, give no token, and nobody can see since when they are held."
    )
    sync = compared("PostgreSQL, one uncontended cycle", how, taken, aims={"dlock, client": "postgres-cycle"})
    how = "One task; the floor is as above, without an event loop."
    floor = "two bare upserts, the floor", bare
    native = partial(AsyncPostgresStore, resolve("postgres").url, table=_TABLE)
    taken = cycles_in_loop(floor, native, rounds=rounds, cycles=CYCLES)
    tasks = compared("PostgreSQL, the same with asyncio", how, taken, aims={})
    store.close()
    connection.close()
    return Part((*sync.sections, *tasks.sections), sync.shown)


@contextmanager
def peers(connection: psycopg.Connection[Any]) -> Iterator[dict[str, Callable[[], object]]]:
    """Yield a cycle of each lock that is no record: through psycopg, SQLAlchemy and django-pglock."""
    import django
    import pglock
    import sqlalchemy
    from django.conf import settings

    url = resolve("postgres").url
    host, port = resolve("postgres").address
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
    settings.configure(
        DATABASES={"default": database | {"HOST": host, "PORT": port}}, INSTALLED_APPS=["pgactivity", "pglock"]
    )
    django.setup()
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    take, give = sqlalchemy.text("SELECT pg_advisory_lock(7)"), sqlalchemy.text("SELECT pg_advisory_unlock(7)")

    def advisory() -> None:
        connection.execute("SELECT pg_advisory_lock(%s)", (8,))
        connection.execute("SELECT pg_advisory_unlock(%s)", (8,))

    def skip_locked() -> None:
        with connection.transaction():
            connection.execute("SELECT key FROM queue WHERE key = 'bench' FOR UPDATE SKIP LOCKED").fetchone()

    def through_django() -> None:
        with pglock.advisory("bench"):
            pass

    with engine.connect() as session:

        def through_sqlalchemy() -> None:
            session.execute(take)
            session.execute(give)

        yield {
            "session advisory lock, psycopg": advisory,
            "session advisory lock, SQLAlchemy": through_sqlalchemy,
            "session advisory lock, django-pglock": through_django,
            "FOR UPDATE SKIP LOCKED, held in a transaction": skip_locked,
        }
    engine.dispose()


def renewals(rounds: int) -> Part:
    """Renew a thousand locks, in as many statements as a client needs."""
    with closing(opened()) as store:
        return renewed("PostgreSQL", store, rounds, aim="postgres-renewals", unit="statements")


def bloat(rounds: int) -> Part:
    """Lock and release the same keys again and again, and look at the table, with the server's own autovacuum."""
    connection = connected()
    connection.execute(f"DROP TABLE IF EXISTS {_BLOAT_TABLE}")
    store = opened(table=_BLOAT_TABLE)
    cycle_all(store, BLOAT_KEYS)
    fresh = size_of(connection)
    began = time.perf_counter()
    # Without the wait for the disk: it is the number of writes that counts.
    os.environ["PGOPTIONS"] = "-c synchronous_commit=off"
    quick = PostgresStore(resolve("postgres").url, table=_BLOAT_TABLE)
    count = cycle_all(quick, BLOAT_CYCLES if rounds > 1 else BLOAT_CYCLES // 100)
    del os.environ["PGOPTIONS"]
    took = time.perf_counter() - began
    after = size_of(connection)
    [dead, vacuums, hot, updates] = connection.execute(
        "SELECT n_dead_tup, autovacuum_count, n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relid = %s::regclass",
        (_BLOAT_TABLE,),
    ).fetchone() or (0, 0, 0, 1)
    for each in (store, quick):
        each.close()
    connection.close()
    lines = (
        ("table and index, fresh", f"{fresh // 1024} KiB"),
        (f"the same after {count:,} cycles", f"{after // 1024} KiB"),
        ("dead rows then", f"{dead:,}"),
        ("updates within their page (HOT)", f"{100 * hot / max(updates, 1):.1f} %"),
        ("runs of autovacuum", f"{vacuums}"),
        ("cycles a second", f"{count / took:,.0f}"),
    )
    how = (
        f"{BLOAT_KEYS} keys, {BLOAT_THREADS} threads, through the store, default autovacuum; sessions with `synchronous_commit = off`, "
        "since only the number of writes counts here."
    )
    section = Section("PostgreSQL, what the table becomes", how, ("", ""), lines)
    return Part((section,), (Shown("postgres-bloat", (after / fresh,)),))


def cycle_all(store: PostgresStore, count: int) -> int:
    """Lock and release the keys in turn, *count* times in all; return how often it was done before the time was over."""
    done, until = [0] * BLOAT_THREADS, time.monotonic() + BLOAT_S

    def work(place: int) -> None:
        mine = range(place, BLOAT_KEYS, BLOAT_THREADS)
        while done[place] < count // BLOAT_THREADS and time.monotonic() < until:
            for number in mine:
                record = store.claim(Claim(held(f"bloat/{number}"), Expect.ANY), timeout_s=60).record
                assert record is not None
                tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
                assert store.release(Release(tomb, record.version), timeout_s=60).applied
            done[place] += len(mine)

    running = [threading.Thread(target=work, args=(place,)) for place in range(BLOAT_THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(done)


def size_of(connection: psycopg.Connection[Any]) -> int:
    """Return the bytes of the table with its index."""
    [size] = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (_BLOAT_TABLE,)).fetchone() or (0,)
    return int(size)
