"""Redis: the store against the driver's client on the same core, a waiter's wake-up, and a contended key, each next to its floor.

``python benchmarks/bench_redis.py [cycle] [wake] [contend]`` starts a redis-server of its own. Rounds are interleaved; a ratio is the
median of the rounds' ratios, with the lowest and the highest. For ``cycle`` client and server share one core, since the wake-up of an
idle core costs more than the request.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
import redis.asyncio

from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release
from dlock_redis import AsyncRedisStore, RedisStore

CYCLES, ROUNDS = 600, 9
HANDS = 200
WORKERS, WINDOW_S, WINDOWS, HOLD_S = 16, 5.0, 3, 0.001
FREE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Start a redis-server; yield its port and pid."""
    binary = shutil.which(os.environ.get("DLOCK_REDIS_SERVER", "redis-server"))
    if binary is None:
        raise SystemExit("redis-server is not on PATH: RUNLEVEL=1 apt-get install --yes redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        fixed = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "no"]
        with subprocess.Popen([binary, *fixed], stdout=subprocess.DEVNULL) as process:
            client = redis.Redis(port=port)
            while True:
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
            client.close()
            yield port, process.pid
            process.terminate()


def request(key: str, ticket: str) -> Claim:
    """Return a claim as the engine makes it."""
    record = LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "host-7:311:9f3c", 20000)
    return Claim(record, Expect.ANY, ticket=ticket)


def tombstone(record: LockRecord) -> Release:
    """Return the release of *record*."""
    free = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
    return Release(free, record.version, keep_payload=True)


def compare(name: str, floor: Callable[[int], float], ours: Callable[[int], float]) -> None:
    """Print the ratio of two timed loops, each called with a number of cycles."""
    floor(CYCLES), ours(CYCLES)
    pairs = [(floor(CYCLES), ours(CYCLES)) for _ in range(ROUNDS)]
    ratios = sorted(mine / theirs for theirs, mine in pairs)
    least, mine = (statistics.median(each[i] for each in pairs) / CYCLES * 1e6 for i in (0, 1))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(f"{name}: {statistics.median(ratios):.2f} x floor ({spread}); {mine:.0f} us a cycle, floor {least:.0f} us")


def timed(cycle: Callable[[], object]) -> Callable[[int], float]:
    """Return the loop of *cycle*."""

    def loop(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            cycle()
        return time.perf_counter() - began

    return loop


def atimed(runner: asyncio.Runner, cycle: Callable[[], Awaitable[object]]) -> Callable[[int], float]:
    """Return the loop of an async *cycle*, in one task."""

    async def loop(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            await cycle()
        return time.perf_counter() - began

    return lambda count: runner.run(loop(count))


def cycle(port: int, pid: int) -> None:
    """Uncontended claim and release, against ``client.set`` and ``client.evalsha``."""
    os.sched_setaffinity(0, {0})
    os.sched_setaffinity(pid, {0})
    client = redis.Redis(port=port)
    sha = client.script_load(FREE_IF_MINE)
    store, key, ticket = RedisStore(client), "bench/cycle", secrets.token_hex(16)

    def floor() -> None:
        mark = os.urandom(16).hex()
        client.set("bench/floor", mark, nx=True, px=20000)
        client.evalsha(sha, 1, "bench/floor", mark)

    def ours() -> None:
        record = store.claim(request(key, ticket), timeout_s=10.0).record
        assert record is not None
        assert store.release(tombstone(record), timeout_s=10.0).applied

    compare("sync store", timed(floor), timed(ours))
    with LockClient(RedisStore(client)) as locks:
        compare("sync LockClient", timed(floor), timed(lambda: locks.acquire("bench/client").release()))
    acycle(port, sha, ticket)
    store.close()
    client.close()


def acycle(port: int, sha: str, ticket: str) -> None:
    """As :func:`cycle`, for one task."""
    client = redis.asyncio.Redis(port=port)
    store = AsyncRedisStore(client)

    async def floor() -> None:
        mark = os.urandom(16).hex()
        await client.set("bench/floor", mark, nx=True, px=20000)
        await client.evalsha(sha, 1, "bench/floor", mark)

    async def ours() -> None:
        record = (await store.claim(request("bench/async", ticket), timeout_s=10.0)).record
        assert record is not None
        assert (await store.release(tombstone(record), timeout_s=10.0)).applied

    with asyncio.Runner() as runner:
        compare("async store", atimed(runner, floor), atimed(runner, ours))
        runner.run(store.close())
        runner.run(client.aclose())


def percentile(values: list[float], part: float) -> float:
    """Return the value below which *part* of them lie."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def waiter(port: int, kind: str, go: Any, got: Any) -> None:
    """Whenever told to, wait for the key, and tell when it was had."""
    client = redis.Redis(port=port)
    locks = LockClient(RedisStore(client))
    got.put(0.0)
    for _ in range(HANDS):
        go.get()
        if kind == "dlock":
            lease = locks.acquire("bench/wake", lease_duration=20)
            had_at = time.monotonic()
            lease.release()
        else:
            client.blpop(["bench/wake-floor"])
            had_at = time.monotonic()
        got.put(had_at)
    locks.close()
    client.close()


def wake(port: int, _pid: int) -> None:
    """How long after the call of ``release`` another process has the lock; the floor is BLPOP and LPUSH."""
    client = redis.Redis(port=port)
    locks = LockClient(RedisStore(client))
    context = multiprocessing.get_context("spawn")
    taken: dict[str, list[float]] = {"floor": [], "dlock": []}
    ends = {kind: (context.Queue(), context.Queue()) for kind in taken}
    processes = [context.Process(target=waiter, args=(port, kind, *ends[kind])) for kind in taken]
    for process, (_, got) in zip(processes, ends.values(), strict=True):
        process.start()
        got.get()
    for _ in range(HANDS):
        for kind, (go, got) in ends.items():
            lease = locks.acquire("bench/wake", lease_duration=20) if kind == "dlock" else None
            go.put(None)
            time.sleep(0.02)  # nothing tells that it waits
            began = time.monotonic()
            if lease is not None:
                lease.release()
            else:
                client.lpush("bench/wake-floor", "1")
            taken[kind].append(got.get() - began)
    for kind, values in taken.items():
        print(
            f"wake-up, {kind}: p50 {percentile(values, 0.5) * 1e3:.2f} ms, p99 {percentile(values, 0.99) * 1e3:.2f} ms"
        )
    for process in processes:
        process.join()
    locks.close()
    client.close()


def worker(port: int, kind: str, think_s: float, start: Any, results: Any) -> None:
    """Get the key, hold it, think, until the window is over; the counter shows that nobody else was inside."""
    client = redis.Redis(port=port)
    locks = LockClient(RedisStore(client))
    count, wrong, waits = 0, 0, []
    start.wait()
    until = time.monotonic() + WINDOW_S
    while time.monotonic() < until:
        began = time.monotonic()
        lease = locks.acquire("bench/busy", lease_duration=20) if kind == "dlock" else None
        if lease is None:
            client.blpop(["bench/busy-floor"])
        waits.append(time.monotonic() - began)
        wrong += client.incr("bench/inside") != 1
        time.sleep(HOLD_S)
        client.decr("bench/inside")
        if lease is not None:
            lease.release()
        else:
            client.lpush("bench/busy-floor", "1")
        count += 1
        time.sleep(think_s)
    results.put((count, wrong, waits))
    locks.close()
    client.close()


def window(port: int, kind: str, think_s: float) -> tuple[float, float, float, float, int, float]:
    """Return grants a second, worst over best worker, commands sent and run for each grant, violations, and the p99 of waits."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(WORKERS + 1), context.Queue()
    client = redis.Redis(port=port)
    client.delete("bench/busy-floor", "bench/inside")
    client.lpush("bench/busy-floor", "1")
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
    sent = sum(used.get(name, 0) for name in ("evalsha", "eval", "blpop", "lpush"))
    waits = [wait for _, _, each in told for wait in each]
    wrong = sum(wrong for _, wrong, _ in told)
    return (
        total / WINDOW_S,
        min(counts) / max(counts),
        sent / total,
        sum(used.values()) / total,
        wrong,
        percentile(waits, 0.99),
    )


def contend(port: int, _pid: int) -> None:
    """Sixteen processes, one key, next to BLPOP and LPUSH of one token."""
    for think_s in (0.002, 0.0):
        rounds = [[window(port, kind, think_s) for kind in ("floor", "dlock")] for _ in range(WINDOWS)]
        ratios = sorted(mine[0] / floor[0] for floor, mine in rounds)
        print(f"{WORKERS} workers, hold 1 ms, think {think_s * 1e3:.0f} ms: {statistics.median(ratios):.2f} x floor "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f})")  # fmt: skip
        for place, kind in enumerate(("floor", "dlock")):
            each = [both[place] for both in rounds]
            fair, sent, run, late = (", ".join(f"{one[i]:.2f}" for one in each) for i in (1, 2, 3, 5))
            rates = ", ".join(f"{one[0]:.0f}" for one in each)
            print(f"  {kind}: {rates} a second; worst/best worker {fair}; commands sent {sent}, run {run}; p99 of waits {late} s; "
                  f"violations {sum(one[4] for one in each)}")  # fmt: skip


def main() -> None:
    """Run what the command line names, or all."""
    parts = {"cycle": cycle, "wake": wake, "contend": contend}
    with server() as (port, pid):
        client = redis.Redis(port=port)
        version = client.info("server")["redis_version"]
        client.close()
        print(f"redis-server {version}, redis-py {redis.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
        for name in sys.argv[1:] or parts:
            process = multiprocessing.get_context("spawn").Process(target=parts[name], args=(port, pid))
            process.start()
            process.join()
            os.sched_setaffinity(pid, range(os.cpu_count() or 1))


if __name__ == "__main__":
    main()
