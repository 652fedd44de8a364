"""Crowds: a growing number of clients that want one key, or one of its permits, on Redis, PostgreSQL and DynamoDB Local.

Up to four processes with one client each, and the waiters as tasks of these. What the whole costs is counted in requests; memory is what
a process has grown by in the middle of the window, for each waiter in it.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._figures import Part, Section, percentile, resident_kib
from dlock_core import AcquireTimeoutError, AsyncLockClient, aconnect
from dlock_core.store import Reply
from tests.backends import url_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dlock_core.store import Replace

__all__ = ["permits", "waiters"]

PROCESSES, WINDOW_S, HOLD_S = 4, 4.0, 0.001
WAITERS, CLIENTS, PERMITS = (2, 10, 50, 200, 1000), (2, 10, 50), 2
_HOLDS_MS = (1, 20)
"""How long a permit is held, in ms."""
_WAITERS_MAX = {"dynamodb": 200}
"""What one server of this kind on this machine serves; it polls."""
_WAITERS_WEIGHED = 200
"""Of fewer the growth is that of a process and not of its waiters."""
_NAMES = {"redis": "Redis", "postgres": "PostgreSQL", "dynamodb": "DynamoDB Local"}


class Refusals:
    """How many replaces of a store were refused: of shared locks, those that met another's write."""

    def __init__(self, replace: Callable[..., Awaitable[Reply]]) -> None:
        self._replace, self.sent, self.refused = replace, 0, 0

    async def __call__(self, request: Replace, *, timeout_s: float) -> Reply:
        """Send *request*."""
        reply = await self._replace(request, timeout_s=timeout_s)
        self.sent, self.refused = self.sent + 1, self.refused + (not reply.applied)
        return reply


async def crowd(
    url: str, tasks: int, options: Mapping[str, Any], hold_s: float, start: Any
) -> tuple[list[int], list[float], float, Refusals, float]:
    """Have so many *tasks* acquire and release until the window is over."""
    waits: list[float] = []
    async with await aconnect(url, lease_duration=20, provision=True) as client:
        await (await client.acquire("bench/warm")).release()
        refusals = Refusals(client._engine.store.replace)
        client._engine.store.replace = refusals  # type: ignore[method-assign]  # counted on its way
        began_kib = resident_kib()
        await asyncio.to_thread(start.wait, 60)
        sent = sum(client.cost().requests.values())
        until = time.monotonic() + WINDOW_S
        working = asyncio.gather(*(_work(client, options, hold_s, until, waits) for _ in range(tasks)))
        await asyncio.sleep(WINDOW_S / 2)
        grown = (resident_kib() - began_kib) / tasks
        counts = await working
        requests = sum(client.cost().requests.values()) - sent
    return counts, waits, requests, refusals, grown


async def _work(
    client: AsyncLockClient, options: Mapping[str, Any], hold_s: float, until: float, waits: list[float]
) -> int:
    count = 0
    while (began := time.monotonic()) < until:
        try:
            lease = await client.acquire("bench/crowd", timeout=max(until - began, 0.001), **options)
        except AcquireTimeoutError:
            break
        waits.append(time.monotonic() - began)
        await asyncio.sleep(hold_s)
        await lease.release()
        count += 1
    return count


def process(url: str, tasks: int, held: tuple[Mapping[str, Any], float], start: Any, results: Any) -> None:
    """Run one process of the crowd, which has *held* a lock with these options for so many seconds each time."""
    counts, waits, requests, refusals, grown = asyncio.run(crowd(url, tasks, *held, start))
    results.put((counts, waits, requests, refusals.sent, refusals.refused, grown))


def together(url: str, number: int, options: Mapping[str, Any], hold_s: float = HOLD_S) -> list[Any]:
    """Return what each process of a crowd of that *number* has told."""
    context = multiprocessing.get_context("spawn")
    count = min(number, PROCESSES)
    start, results = context.Barrier(count), context.Queue()
    shares = [number // count + (place < number % count) for place in range(count)]
    processes = [
        context.Process(target=process, args=(url, share, (options, hold_s), start, results)) for share in shares
    ]
    for each in processes:
        each.start()
    told = [results.get(timeout=90) for _ in processes]
    for each in processes:
        each.join()
    return told


def waiters(_rounds: int) -> Part:
    """One key, from two waiters to a thousand."""
    sections = []
    for kind, name in _NAMES.items():
        lines = []
        for number in WAITERS:
            if number > _WAITERS_MAX.get(kind, number):
                continue
            told = together(url_for(kind, Path()), number, {})
            counts = [count for each in told for count in each[0]]
            waits = [wait for each in told for wait in each[1]]
            grants = sum(counts)
            lines.append(
                (
                    f"{number:,}",
                    f"{grants / WINDOW_S:.0f}",
                    f"{1e3 * (WINDOW_S / grants - HOLD_S):.2f}",
                    f"{sum(each[2] for each in told) / grants:.1f}",
                    f"{percentile(waits, 0.99):.2f}",
                    f"{sum(count > 0 for count in counts) / number:.0%}",
                    f"{max(each[5] for each in told):.1f}" if number >= _WAITERS_WEIGHED else "–",
                )
            )
        how = (
            f"Tasks in {PROCESSES} processes with a client each, one key, {1e3 * HOLD_S:g} ms inside, {WINDOW_S:g} s a window. "
            "The hand-over is what a grant took beside the time inside. The waiters of one client stand in line in it."
        )
        head = (
            "waiters",
            "grants a second",
            "hand-over, ms",
            "requests a grant",
            "p99 of waits, s",
            "had it once",
            "KiB a waiter",
        )
        sections.append(Section(f"{name}, as the number of waiters grows", how, head, tuple(lines)))
    return Part(tuple(sections), ())


def permits(_rounds: int) -> Part:
    """A semaphore of two permits, and more and more clients that want one."""
    sections = []
    for kind, name in _NAMES.items():
        lines = []
        for hold_ms, number in itertools.product(_HOLDS_MS, CLIENTS):
            told = together(url_for(kind, Path()), number, {"permits": PERMITS}, hold_ms / 1000)
            counts = [count for each in told for count in each[0]]
            sent, refused = (sum(each[place] for each in told) for place in (3, 4))
            lines.append(
                (
                    f"{hold_ms} ms",
                    f"{number}",
                    f"{sum(counts) / WINDOW_S:.0f}",
                    f"{sum(counts) / WINDOW_S * hold_ms / 1000 / min(PERMITS, number):.0%}",
                    f"{sum(each[2] for each in told) / max(sum(counts), 1):.1f}",
                    f"{refused / max(sent, 1):.0%}",
                    f"{sum(count > 0 for count in counts) / number:.0%}",
                )
            )
        how = (
            f"Tasks in {PROCESSES} processes, {PERMITS} permits, {WINDOW_S:g} s a window. The permits were in use for a share of the time. "
            "A conflict is a write that met another's."
        )
        head = ("held for", "tasks", "permits a second", "in use", "requests a permit", "conflicts", "had one once")
        sections.append(Section(f"{name}, a semaphore", how, head, tuple(lines)))
    return Part(tuple(sections), ())
