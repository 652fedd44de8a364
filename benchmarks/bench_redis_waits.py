"""Redis with others there: how soon a waiter has the lock, and sixteen processes that want the same key."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING, Any

import redis
import redis_lock

from benchmarks._figures import Part, Section, Shown, percentile
from dlock_core import LockClient
from dlock_redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["contend", "wake"]

HANDS = 150
WORKERS, WINDOW_S, HOLD_S, WINDOWS_MAX = 16, 4.0, 0.001, 3
FLOOR, OURS = "BLPOP and LPUSH, the floor", "dlock"
PEERS = ("python-redis-lock", "redis-py Lock")
KEY = "bench/busy"
SENT = ("evalsha", "eval", "blpop", "lpush", "set", "get")


def taker(kind: str, client: redis.Redis) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Any]]:
    """Return how a side of *kind* acquires, how it gives back what that returned, and how it ends."""
    key = f"{KEY}/{kind}"
    if kind == FLOOR:
        return lambda: client.blpop([key]), lambda _: client.lpush(key, "1"), lambda: None
    if kind == OURS:
        locks = LockClient(RedisStore(client))
        return lambda: locks.acquire(key, lease_duration=20), lambda lease: lease.release(), locks.close
    lock: Any = client.lock(key, timeout=20) if kind == "redis-py Lock" else redis_lock.Lock(client, key, expire=20)
    return lock.acquire, lambda _: lock.release(), lambda: None


def waiter(port: int, kind: str, go: Any, got: Any) -> None:
    """Whenever told to, wait for the key, and tell when it was had."""
    client = redis.Redis(port=port)
    acquire, release, end = taker(kind, client)
    got.put(0.0)
    for _ in range(HANDS):
        go.get()
        had = acquire()
        had_at = time.monotonic()
        if kind != FLOOR:
            release(had)
        got.put(had_at)
    end()
    client.close()


def wake(port: int, _pid: int, _rounds: int) -> Part:
    """How long after the call of ``release`` another process has the lock."""
    context = multiprocessing.get_context("spawn")
    kinds = (FLOOR, OURS, *PEERS)
    client = redis.Redis(port=port)
    here = {kind: taker(kind, client) for kind in kinds}
    ends = {kind: (context.Queue(), context.Queue()) for kind in kinds}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    processes = [context.Process(target=waiter, args=(port, kind, *ends[kind])) for kind in kinds]
    for process, (_, got) in zip(processes, ends.values(), strict=True):
        process.start()
        got.get()
    for _ in range(HANDS):
        for kind, (go, got) in ends.items():
            acquire, release, _ = here[kind]
            had = acquire() if kind != FLOOR else None
            go.put(None)
            time.sleep(0.02)  # nothing tells that it waits
            began = time.monotonic()
            release(had)
            taken[kind].append((got.get() - began) * 1e3)
    for process in processes:
        process.join()
    for _, _, end in here.values():
        end()
    client.close()
    lines = tuple(
        (kind, f"{percentile(values, 0.5):.2f}", f"{percentile(values, 0.99):.2f}") for kind, values in taken.items()
    )
    how = f"From the call of `release` to the return of `acquire` in another process that waits, {HANDS} times."
    section = Section("Redis, wake-up of a lone waiter", how, ("", "p50, ms", "p99, ms"), lines)
    return Part((section,), (Shown("redis-wake", (statistics.median(taken[OURS]),)),))


def worker(port: int, kind: str, think_s: float, start: Any, results: Any) -> None:
    """Get the key, hold it, think, until the window is over; the counter shows that nobody else was inside."""
    client = redis.Redis(port=port)
    acquire, release, end = taker(kind, client)
    count, wrong, waits = 0, 0, []
    start.wait()
    until = time.monotonic() + WINDOW_S
    while time.monotonic() < until:
        began = time.monotonic()
        had = acquire()
        waits.append(time.monotonic() - began)
        wrong += client.incr("bench/inside") != 1
        time.sleep(HOLD_S)
        client.decr("bench/inside")
        release(had)
        count += 1
        time.sleep(think_s)
    results.put((count, wrong, waits))
    end()
    client.close()


def window(port: int, kind: str, think_s: float) -> tuple[float, ...]:
    """Return grants a second, worst over best worker, commands sent and run for each grant, the p99 of waits, violations."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(WORKERS + 1), context.Queue()
    client = redis.Redis(port=port)
    client.flushall()
    client.lpush(f"{KEY}/{FLOOR}", "1")
    processes = [context.Process(target=worker, args=(port, kind, think_s, start, results)) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    start.wait()
    client.config_resetstat()
    told = [results.get() for _ in processes]
    stats: dict[str, Any] = client.info("commandstats")
    for process in processes:
        process.join()
    client.close()
    counts = [count for count, _, _ in told]
    total = sum(counts)
    used = {name[8:]: each["calls"] for name, each in stats.items() if name[8:] not in ("incr", "decr", "info")}
    waits = [wait for _, _, each in told for wait in each]
    return (
        total / WINDOW_S,
        min(counts) / max(counts),
        sum(used.get(name, 0) for name in SENT) / total,
        sum(used.values()) / total,
        percentile(waits, 0.99),
        sum(wrong for _, wrong, _ in told),
    )


def contend(port: int, _pid: int, rounds: int) -> Part:
    """Sixteen processes, one key, next to BLPOP and LPUSH of one token."""
    sections, shown = [], []
    ran: list[float] = []
    for think_s, aim in ((0.002, "redis-think"), (0.0, "redis-busy")):
        windows = [
            {kind: window(port, kind, think_s) for kind in (FLOOR, OURS)} for _ in range(min(rounds, WINDOWS_MAX))
        ]
        alone = {kind: [window(port, kind, think_s)] for kind in PEERS}
        measured = {kind: [each[kind] for each in windows] for kind in (FLOOR, OURS)} | alone
        shown.append(Shown(aim, tuple(each[OURS][0] / each[FLOOR][0] for each in windows)))
        shown.append(Shown(f"{aim}-fair", tuple(each[OURS][1] for each in windows)))
        ran += [each[OURS][3] for each in windows]
        how = (
            f"{WORKERS} processes, one key, 1 ms inside and {think_s * 1e3:.0f} ms between, {WINDOW_S:g} s a window; "
            f"dlock and the floor in turn {len(windows)} times, the others once. Commands include those that scripts run."
        )
        head = ("", "a second", "worst ÷ best worker", "commands sent", "commands run", "p99 of waits, s", "violations")
        sections.append(Section(f"Redis, {WORKERS} workers, think {think_s * 1e3:.0f} ms", how, head, _lines(measured)))
    shown.append(Shown("redis-commands", tuple(ran)))
    return Part(tuple(sections), tuple(shown))


def _lines(measured: dict[str, list[tuple[float, ...]]]) -> tuple[tuple[str, ...], ...]:
    digits = (0, 2, 1, 1, 3)
    return tuple(
        (
            kind,
            *(", ".join(f"{each[place]:.{precision}f}" for each in windows) for place, precision in enumerate(digits)),
            str(int(sum(each[5] for each in windows))),
        )
        for kind, windows in measured.items()
    )
