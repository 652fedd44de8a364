"""PostgreSQL with others there: how soon a waiter has the lock, and sixteen processes that want the same key."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING, Any

import psycopg
from dlock_conformance.servers import resolve

from benchmarks._figures import Part, Section, Shown, percentile
from dlock_core import LockClient
from dlock_postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["contend", "wake"]

HANDS = 100
WORKERS, WINDOW_S, HOLD_S, WINDOWS_MAX = 16, 4.0, 0.001, 3
NOTIFY, ADVISORY, ROW, OURS = "bare NOTIFY, the floor", "pg_advisory_lock, the floor", "SELECT … FOR UPDATE", "dlock"
_TABLE = "public.dlock_bench"


def connected(url: str) -> psycopg.Connection[Any]:
    """Return a connection of the driver's."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


def listener(url: str, ready: Any, got: Any) -> None:
    """Tell when each notification came."""
    with connected(url) as connection:
        connection.execute("LISTEN bench")
        ready.put(0.0)
        for _ in connection.notifies(stop_after=HANDS):
            got.put(time.monotonic())


def waiter(url: str, ready: Any, got: Any, go: Any) -> None:
    """Whenever told to, wait for the key, and tell when it was had."""
    with LockClient(PostgresStore(url, table=_TABLE)) as locks:
        ready.put(0.0)
        for _ in range(HANDS):
            go.get()
            lease = locks.acquire("bench/wake", lease_duration=20)
            got.put(time.monotonic())
            lease.release()
            ready.put(0.0)


def wake(_rounds: int) -> Part:
    """How long after the call of ``release`` another process has the lock, and after a bare NOTIFY hears of it."""
    context = multiprocessing.get_context("spawn")
    url = resolve("postgres").url
    store = PostgresStore(url, table=_TABLE)
    store.provision()
    queues = [context.Queue() for _ in range(5)]
    heard_ready, heard, ready, got, go = queues
    processes = [
        context.Process(target=listener, args=(url, heard_ready, heard)),
        context.Process(target=waiter, args=(url, ready, got, go)),
    ]
    for process in processes:
        process.start()
    heard_ready.get()
    taken: dict[str, list[float]] = {NOTIFY: [], OURS: []}
    with LockClient(store) as locks, connected(url) as connection:
        for _ in range(HANDS):
            began = time.monotonic()
            connection.execute("SELECT pg_notify('bench', '')")
            taken[NOTIFY].append((heard.get() - began) * 1e3)
            ready.get()
            lease = locks.acquire("bench/wake", lease_duration=20)
            go.put(None)
            time.sleep(0.05)  # nothing tells that it waits
            began = time.monotonic()
            lease.release()
            taken[OURS].append((got.get() - began) * 1e3)
        for process in processes:
            process.join()
    floor = statistics.median(taken[NOTIFY])
    lines = tuple(
        (kind, f"{percentile(values, 0.5):.2f}", f"{percentile(values, 0.99):.2f}") for kind, values in taken.items()
    )
    how = (
        f"From the call of `release` to the return of `acquire` in another process that waits, {HANDS} times; for the floor from the "
        "call of `pg_notify` to its arrival in another process that listens. Commits that free a key are synced, a bare NOTIFY is not."
    )
    section = Section("PostgreSQL, wake-up of a lone waiter", how, ("", "p50, ms", "p99, ms"), lines)
    return Part((section,), (Shown("postgres-wake", (statistics.median(taken[OURS]) / floor,)),))


def taker(kind: str, url: str) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], None]]:
    """Return how a side of *kind* acquires, how it gives back what that returned, and how it ends."""
    if kind == OURS:
        locks = LockClient(PostgresStore(url, table=_TABLE))
        return lambda: locks.acquire("bench/busy", lease_duration=20), lambda lease: lease.release(), locks.close
    connection = connected(url)
    if kind == ADVISORY:
        take, give = "SELECT pg_advisory_lock(9)", "SELECT pg_advisory_unlock(9)"
    else:
        take, give = "SELECT key FROM queue WHERE key = 'bench' FOR UPDATE", "COMMIT"
        connection.autocommit = False
    return lambda: connection.execute(take), lambda _: connection.execute(give), connection.close


def worker(url: str, kind: str, start: Any, results: Any) -> None:
    """Get the key and hold it, until the window is over; an advisory lock of its own shows that nobody else was inside."""
    acquire, release, end = taker(kind, url)
    inside = connected(url)
    count, wrong, waits = 0, 0, []
    start.wait()
    until = time.monotonic() + WINDOW_S
    while time.monotonic() < until:
        began = time.monotonic()
        had = acquire()
        waits.append(time.monotonic() - began)
        wrong += inside.execute("SELECT pg_try_advisory_lock(10)").fetchone() != (True,)
        time.sleep(HOLD_S)
        inside.execute("SELECT pg_advisory_unlock(10)")
        release(had)
        count += 1
    results.put((count, wrong, waits))
    end()
    inside.close()


def window(url: str, kind: str) -> tuple[float, ...]:
    """Return grants a second, worst over best worker, the p99 of waits, violations."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(WORKERS + 1), context.Queue()
    processes = [context.Process(target=worker, args=(url, kind, start, results)) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    start.wait()
    told = [results.get() for _ in processes]
    for process in processes:
        process.join()
    counts = [count for count, _, _ in told]
    waits = [wait for _, _, each in told for wait in each]
    wrong = sum(wrong for _, wrong, _ in told)
    return sum(counts) / WINDOW_S, min(counts) / max(counts), percentile(waits, 0.99), wrong


def contend(rounds: int) -> Part:
    """Sixteen processes and one key, next to the server's own queue."""
    url = resolve("postgres").url
    with connected(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS queue (key text PRIMARY KEY)")
        connection.execute("INSERT INTO queue VALUES ('bench') ON CONFLICT DO NOTHING")
    store = PostgresStore(url, table=_TABLE)
    store.provision()
    store.close()
    kinds = (ADVISORY, ROW, OURS)
    windows = [{kind: window(url, kind) for kind in kinds} for _ in range(min(rounds, WINDOWS_MAX))]
    lines = tuple(
        (
            kind,
            *(
                ", ".join(f"{each[kind][place]:.{digits}f}" for each in windows)
                for place, digits in enumerate((0, 2, 3))
            ),
            str(int(sum(each[kind][3] for each in windows))),
        )
        for kind in kinds
    )
    how = (
        f"{WORKERS} processes, one key, 1 ms inside, {WINDOW_S:g} s a window, in turn {len(windows)} times. The server itself hands its "
        "locks on, and writes nothing."
    )
    head = ("", "a second", "worst ÷ best worker", "p99 of waits, s", "violations")
    return Part((Section(f"PostgreSQL, {WORKERS} workers", how, head, lines),), ())
