"""What the core itself costs, on ``memory://``: a cycle, many held locks, a wake-up, and the import.

Both sides of a ratio work in turn, in rounds of one run. Run: ``python -m benchmarks.bench_core [--rounds N] [--locks N …]``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from dlock_core import AsyncLockClient, LockClient
from dlock_core.clock import now_ns
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CYCLES = 1_000
WAKE_UPS = 40
IMPORTS = 7
LEASES_S = {10_000: 6.0}
HELD_S = 12.0


def spread(values: Sequence[float], unit: str) -> str:
    """Return the median of *values* with their range."""
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f} to {max(values):.2f})"


def per_cycle(cycle: Callable[[], object]) -> float:
    """Return the µs of one *cycle*."""
    begin = now_ns()
    for _ in range(CYCLES):
        cycle()
    return (now_ns() - begin) / CYCLES / 1000


def bench_cycle(rounds: int) -> None:
    """Acquire and release, both colours, beside a dictionary under a mutex."""
    mutex, table = threading.Lock(), dict[str, int]()

    def bare() -> None:
        with mutex:
            table["bench/1"] = 1
        with mutex:
            del table["bench/1"]

    times: dict[str, list[float]] = {"bare dictionary": [], "sync": [], "asyncio": []}
    with LockClient(MemoryStore()) as client, asyncio.Runner() as runner:

        def blocking() -> None:
            with client.lock("bench/1"):
                pass

        async def cycles(aclient: AsyncLockClient) -> float:
            begin = now_ns()
            for _ in range(CYCLES):
                async with aclient.lock("bench/1"):
                    pass
            return (now_ns() - begin) / CYCLES / 1000

        aclient = AsyncLockClient(AsyncMemoryStore())
        runner.run(aclient.__aenter__())
        for _ in range(rounds):
            times["bare dictionary"].append(per_cycle(bare))
            times["sync"].append(per_cycle(blocking))
            times["asyncio"].append(runner.run(cycles(aclient)))
        runner.run(aclient.close())
    for name, values in times.items():
        print(f"acquire + release, {name}: {spread(values, 'µs')}")


def bench_held(count: int) -> None:
    """Hold *count* locks over several heartbeats: CPU of the renewals, threads, memory."""
    threads_before = threading.active_count()
    lease_s = LEASES_S.get(count, 20.0)
    logging.getLogger("dlock").setLevel(logging.ERROR)  # what is lost is counted
    with LockClient(MemoryStore(), lease_duration=lease_s) as client:
        client.acquire("warm-up").release()
        before = _rss_kib()
        leases = [client.acquire(f"bench/{number}") for number in range(count)]
        grown = _rss_kib() - before
        cpu, begin = time.process_time(), time.monotonic()
        time.sleep(HELD_S)
        share = (time.process_time() - cpu) / (time.monotonic() - begin)
        lost = sum(not lease.is_valid for lease in leases)
        threads = threading.active_count() - threads_before
    head = f"{count} held locks, lease {lease_s:g} s: renewals {share:.1%} of a core"
    print(f"{head}, {threads} thread, {grown / count:.2f} KiB a lock, {lost} lost")


def _rss_kib() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024


def bench_wake_up() -> None:
    """From the start of a release to the grant of the one that waits."""
    delays: list[float] = []
    space = MemorySpace()
    with LockClient(MemoryStore(space)) as holder, LockClient(MemoryStore(space)) as waiter:
        for _ in range(WAKE_UPS):
            lease = holder.acquire("bench/1")
            granted: list[int] = []

            def wait(granted: list[int] = granted) -> None:
                taken = waiter.acquire("bench/1")
                granted.append(now_ns())
                taken.release()

            thread = threading.Thread(target=wait)
            thread.start()
            while not space.waiters.get("bench/1"):
                time.sleep(0.001)  # until it waits
            begin = now_ns()
            lease.release()
            thread.join()
            delays.append((granted[0] - begin) / 1e6)
    print(f"wake-up of a lone waiter: {spread(delays, 'ms')}")


def bench_import() -> None:
    """Importing the package, beside importing pydantic alone."""
    times: dict[str, list[float]] = {"import pydantic": [], "import dlock_core": []}
    for _ in range(IMPORTS):
        for statement, values in times.items():
            begin = now_ns()
            subprocess.run([sys.executable, "-c", statement], check=True)
            values.append((now_ns() - begin) / 1e6)
    for statement, values in times.items():
        print(f"{statement}, the interpreter included: {spread(values, 'ms')}")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--locks", type=int, nargs="*", default=[10_000, 100_000])
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, pydantic {pydantic.VERSION}, {platform.machine()}, load {_load()}")
    bench_cycle(arguments.rounds)
    for count in arguments.locks:
        bench_held(count)
    bench_wake_up()
    bench_import()


def _load() -> str:
    return Path("/proc/loadavg").read_text(encoding="ascii").split()[0]


if __name__ == "__main__":
    main()
