"""Many locks that are renewed, a waiter that is woken, and workers that contend; for the benchmarks of any server."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks._figures import Part, Section, Shown, percentile, spread
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from dlock_core.store import LockStore

    Sections = Callable[[str], AbstractContextManager[Callable[[], AbstractContextManager[object]]]]

__all__ = ["HANDS", "HOLD_S", "WINDOW_S", "WORKERS", "contended", "held", "of_dlock", "renewed", "wake_ups", "window"]

HANDS, WORKERS, WINDOW_S, HOLD_S = 100, 16, 4.0, 0.001
_RENEWED = 1_000
_IDLE_S = 0.05  # nobody releases a lock for which another waits in a hot loop: who wakes from idleness is slower, and so is the server


def held(key: str, token: int = 1) -> LockRecord:
    """Return a record of a new hold."""
    return LockRecord(key, State.HELD, os.urandom(16).hex(), token, "bench", 20_000)


def renewed(server: str, store: Any, rounds: int, *, aim: str, unit: str = "transactions") -> Part:
    """Renew a thousand locks through *store*, in batches as large as it takes; the *aim* is the number of batches."""
    run = os.urandom(4).hex()
    records = []
    for number in range(_RENEWED):
        granted = store.claim(Claim(held(f"{run}/{number}"), Expect.ANY), timeout_s=10).record
        assert granted is not None
        records.append(granted)
    taken, sent = [], 0
    for _ in range(max(rounds, 1)):
        requests = [Replace(held(record.key, record.fencing_token), record.version) for record in records]
        began, before = time.perf_counter(), store.requests["replace"]
        for first in range(0, _RENEWED, store.batch_limit):
            for reply in store.replace_many(requests[first : first + store.batch_limit], timeout_s=30):
                assert getattr(reply, "applied", False)
        taken.append(time.perf_counter() - began)
        sent = store.requests["replace"] - before
        records = [request.record for request in requests]
    lines = (
        ("all, ms", spread([each * 1e3 for each in taken], 0)),
        ("a lock, µs", spread([each / _RENEWED * 1e6 for each in taken], 0)),
        (unit, str(sent)),
    )
    how = f"{_RENEWED} held locks, renewed through the store once a round."
    return Part((Section(f"{server}, renewals", how, ("", ""), lines),), (Shown(aim, (float(sent),)),))


def _waiter(opened: Callable[[str], LockStore], at: str, ready: Any, got: Any, go: Any) -> None:
    """Whenever told to, wait for the key, and tell when it was had."""
    with LockClient(opened(at)) as locks:
        for _ in range(HANDS):
            ready.put(0.0)
            go.get()
            lease = locks.acquire("bench/wake", lease_duration=20)
            got.put(time.monotonic())
            lease.release()


def wake_ups(
    server: str,
    opened: Callable[[str], LockStore],
    at: str,
    floors: Mapping[str, Callable[[], float]],
    *,
    how: str,
    aim: str,
) -> Part:
    """How long after the call of ``release`` another process has the lock, in turn with the *floors*, which return their own seconds.

    *opened* is a function of a module: the other process opens its store at the server's address by it, too. The *aim* is that of the
    ratio to the first floor.
    """
    context = multiprocessing.get_context("spawn")
    ready, got, go = (context.Queue() for _ in range(3))
    waiting = context.Process(target=_waiter, args=(opened, at, ready, got, go))
    waiting.start()
    taken: dict[str, list[float]] = {name: [] for name in (*floors, "dlock")}
    with LockClient(opened(at)) as locks:
        for _ in range(HANDS):
            for name, bare in floors.items():
                time.sleep(_IDLE_S)
                taken[name].append(bare() * 1e3)
            ready.get()
            lease = locks.acquire("bench/wake", lease_duration=20)
            go.put(None)
            time.sleep(_IDLE_S)  # nothing tells that it waits
            began = time.monotonic()
            lease.release()
            taken["dlock"].append((got.get() - began) * 1e3)
        waiting.join()
    ours = statistics.median(taken["dlock"])
    ratios = {name: ours / statistics.median(each) for name, each in taken.items()}
    lines = tuple(
        (name, f"{percentile(each, 0.5):.2f}", f"{percentile(each, 0.99):.2f}", f"{ratios[name]:.2f}")
        for name, each in taken.items()
    )
    said = (
        f"From the call of `release` to the return of `acquire` in another process that waits, {HANDS} times; {how} Each side has been "
        f"idle for {_IDLE_S * 1e3:.0f} ms before."
    )
    head = ("", "p50, ms", "p99, ms", "p50 of dlock × this")
    section = Section(f"{server}, wake-up of a lone waiter", said, head, lines)
    return Part((section,), (Shown(aim, (ratios[next(iter(floors))],)),))


@contextmanager
def _sections(opened: Callable[[str], LockStore], at: str) -> Iterator[Callable[[], AbstractContextManager[object]]]:
    with LockClient(opened(at)) as locks:
        yield lambda: locks.lock("bench/busy", lease_duration=20)


def of_dlock(opened: Callable[[str], LockStore]) -> Sections:
    """Return how a worker makes its sections with a client on the store that *opened* opens."""
    return partial(_sections, opened)


def _worker(sections: Sections, at: str, start: Any, results: Any) -> None:
    """Get the key and hold it, until the window is over."""
    count = 0
    with sections(at) as section:
        start.wait()
        until = time.monotonic() + WINDOW_S
        while time.monotonic() < until:
            with section():
                time.sleep(HOLD_S)
            count += 1
    results.put(count)


def window(sections: Sections, at: str) -> list[int]:
    """Return how often each of sixteen workers had the key."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(WORKERS), context.Queue()
    running = [context.Process(target=_worker, args=(sections, at, start, results)) for _ in range(WORKERS)]
    for process in running:
        process.start()
    counts = [results.get() for _ in running]
    for process in running:
        process.join()
    return counts


def contended(
    server: str, windows: dict[str, list[list[int]]], *, how: str, aims: tuple[str, str] | None = None
) -> Part:
    """Return the table of the *windows* of all sides, of which the floor comes first; the *aims* are dlock's share of it and fairness."""
    floor = next(iter(windows.values()))
    shares = {
        name: [sum(counts) / sum(bare) for counts, bare in zip(each, floor, strict=True)]
        for name, each in windows.items()
    }
    fair = {name: [min(counts) / max(counts) for counts in each] for name, each in windows.items()}
    lines = tuple(
        (name, spread([sum(counts) / WINDOW_S for counts in each], 0), spread(shares[name], 2), spread(fair[name], 2))
        for name, each in windows.items()
    )
    said = f"{WORKERS} processes, one key, 1 ms inside, {WINDOW_S:g} s a window, in turn {len(floor)} times. {how}"
    section = Section(f"{server}, {WORKERS} workers", said, ("", "a second", "× floor", "worst ÷ best worker"), lines)
    shown = zip(aims, (shares["dlock"], fair["dlock"]), strict=True) if aims else ()
    return Part((section,), tuple(Shown(aim, tuple(values)) for aim, values in shown))
