"""How sides are timed beside each other, and what a part of the benchmarks hands back for the report."""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dlock_core import AsyncLockClient
from dlock_core.store import AsyncLockStore, LockStore

__all__ = [
    "Part",
    "Section",
    "Shown",
    "atimed",
    "compared",
    "cycles_in_loop",
    "in_turn",
    "percentile",
    "resident_kib",
    "spread",
    "timed",
]

Loop = Callable[[int], float]


def resident_kib() -> float:
    """Return how much memory this process has now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024


class Section(NamedTuple):
    """A table of the report: what was done, and a line for each side."""

    title: str
    how: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Shown(NamedTuple):
    """What was measured for an aim, by its name in ``aims.py``: the values of the rounds, of which the median counts."""

    aim: str
    values: tuple[float, ...]


class Part(NamedTuple):
    """What one part found."""

    sections: tuple[Section, ...]
    shown: tuple[Shown, ...]


def timed(cycle: Callable[[], object]) -> Loop:
    """Return the loop of *cycle*: called with a number of cycles, it returns the seconds that they took."""

    def loop(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            cycle()
        return time.perf_counter() - began

    return loop


def atimed(runner: asyncio.Runner, cycle: Callable[[], Awaitable[object]]) -> Loop:
    """Return the loop of an async *cycle*, in one task."""

    async def loop(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            await cycle()
        return time.perf_counter() - began

    return lambda count: runner.run(loop(count))


def cycles_in_loop(
    floor: tuple[str, Callable[[], object]],
    opened: Callable[[], AsyncLockStore | LockStore],
    *,
    rounds: int,
    cycles: int,
) -> dict[str, list[float]]:
    """Return the times of acquire and release by one task on the store *opened*, and of the *floor* without an event loop."""
    name, bare = floor
    with asyncio.Runner() as runner:

        async def client() -> AsyncLockClient:
            return await AsyncLockClient(opened())

        locks = runner.run(client())

        async def ours() -> None:
            lease = await locks.acquire("cycle/async")
            await lease.release()

        taken = in_turn({name: timed(bare), "dlock, client": atimed(runner, ours)}, rounds=rounds, cycles=cycles)
        runner.run(locks.close())
    return taken


def in_turn(sides: dict[str, Loop], *, rounds: int, cycles: int) -> dict[str, list[float]]:
    """Return the seconds a cycle of each side, round by round; who goes first changes, so that neither has the warmer machine."""
    names = list(sides)
    for name in names:
        sides[name](max(1, cycles // 4))
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(sides[name](cycles) / cycles)
    return taken


def compared(
    title: str,
    how: str,
    taken: dict[str, list[float]],
    *,
    aims: dict[str, str],
    extra: dict[str, str] | None = None,
    digits: int = 0,
) -> Part:
    """Return the table of *taken*, whose first side is the floor; *aims* names those sides whose ratio to it is aimed at."""
    floor = next(iter(taken))
    ratios = {name: [mine / least for mine, least in zip(taken[name], taken[floor], strict=True)] for name in taken}
    lines = tuple(
        (name, spread([each * 1e6 for each in values], digits), spread(ratios[name], 2), *([(extra or {}).get(name, "")] if extra else []))
        for name, values in taken.items()
    )  # fmt: skip
    head = ("", "µs a cycle", "× floor", *(["requests a cycle"] if extra else []))
    return Part(
        (Section(title, how, head, lines),), tuple(Shown(aim, tuple(ratios[name])) for name, aim in aims.items())
    )


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median of *values*, and the least and the most in brackets."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which *part* of them lie."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]
