"""PostgreSQL with others there: how soon a waiter has the lock, and sixteen processes that want the same key."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_conformance.servers import resolve

from benchmarks._parties import contended, of_dlock, wake_ups, window
from benchmarks.bench_postgres import UPSERT, connected, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from benchmarks._figures import Part

__all__ = ["contend", "wake"]

WINDOWS_MAX = 3
ADVISORY, ROW, WRITES = "pg_advisory_lock, the floor", "SELECT … FOR UPDATE", "the same, with a committed write"
_NOTIFY = "SELECT pg_notify('bench', %s)"
_WRITE_AND_NOTIFY = f"WITH done AS ({UPSERT}) {_NOTIFY} FROM done"
_ROW = ("held", "free", "rvn", 1)


def listener(at: str, ready: Any, got: Any) -> None:
    """Tell when each notification came; where it says so, write before that."""
    with connected(at) as connection:
        connection.execute("LISTEN bench")
        ready.put(0.0)
        while True:
            [heard] = connection.notifies(stop_after=1)
            if heard.payload == "write":
                connection.execute(UPSERT, ("heard", "held", "rvn", 1))
            got.put(time.monotonic())


def wake(_rounds: int) -> Part:
    """How long after the call of ``release`` another process has the lock, and after a NOTIFY hears of it."""
    context = multiprocessing.get_context("spawn")
    url = resolve("postgres").url
    connected().close()  # the tables are made
    ready, got = context.Queue(), context.Queue()
    listening = context.Process(target=listener, args=(url, ready, got), daemon=True)
    listening.start()
    ready.get()
    with connected(url) as connection:

        def handed(statement: str, *values: object) -> float:
            began = time.monotonic()
            connection.execute(statement, values)
            return float(got.get() - began)

        floors = {
            "bare NOTIFY, the floor": partial(handed, _NOTIFY, ""),
            "NOTIFY in a committed write": partial(handed, _WRITE_AND_NOTIFY, *_ROW, ""),
            "the same, and a committed write by who hears it": partial(handed, _WRITE_AND_NOTIFY, *_ROW, "write"),
        }
        how = (
            "for the others from the call of a statement that notifies to its arrival in another process that listens. A bare NOTIFY syncs "
            "nothing. A release that wakes is one synced commit, and the claim of whoever is woken another: only the third line does as "
            "much as they have to."
        )
        part = wake_ups("PostgreSQL", opened, url, floors, how=how, aim="postgres-wake")
    listening.kill()
    return part


@contextmanager
def peers(kind: str, at: str) -> Iterator[Callable[[], AbstractContextManager[object]]]:
    """Yield what gives a worker the key by a lock of the server's own."""
    with connected(at) as connection:

        @contextmanager
        def section() -> Iterator[None]:
            if kind == ADVISORY:
                connection.execute("SELECT pg_advisory_lock(9)")
                yield
                connection.execute("SELECT pg_advisory_unlock(9)")
                return
            with connection.transaction():
                connection.execute("SELECT key FROM queue WHERE key = 'bench' FOR UPDATE")
                yield
                if kind == WRITES:
                    connection.execute(UPSERT, _ROW)

        yield section


def contend(rounds: int) -> Part:
    """Sixteen processes and one key, next to the server's own queues."""
    url = resolve("postgres").url
    connected().close()  # the tables are made
    sides = {kind: partial(peers, kind) for kind in (ADVISORY, ROW, WRITES)} | {"dlock": of_dlock(opened)}
    windows: dict[str, list[list[int]]] = {name: [] for name in sides}
    for _ in range(min(rounds, WINDOWS_MAX)):
        for name, sections in sides.items():
            windows[name].append(window(sections, url))
    how = (
        "The server itself hands its locks on. The first two write nothing; a grant of dlock is two synced commits, one for the claim and "
        "one for the release, and the third line has one."
    )
    return contended("PostgreSQL", windows, how=how)
