"""This checkout beside an earlier one: the same cycles on both, in turn, in one run. Each has a ``.venv`` of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dlock_conformance.servers import resolve

from benchmarks import bench_redis
from benchmarks._figures import Part, Section, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["before_and_after"]

_HERE = Path(__file__).parents[1]
# Reads a number of cycles a line, and answers with the seconds that they took.
_WORKER = """
import asyncio, sys, time
colour, url = sys.argv[1:]
lines = iter(sys.stdin.readline, "")
def blocking():
    from dlock_core import connect
    with connect(url, lease_duration=20) as client:
        for line in lines:
            began = time.perf_counter()
            for _ in range(int(line)):
                with client.lock("bench/1"):
                    pass
            print(time.perf_counter() - began, flush=True)
async def native():
    from dlock_core import aconnect
    async with aconnect(url, lease_duration=20) as client:
        for line in lines:
            began = time.perf_counter()
            for _ in range(int(line)):
                async with client.lock("bench/1"):
                    pass
            print(time.perf_counter() - began, flush=True)
blocking() if colour == "blocking" else asyncio.run(native())
"""
_INIT = "import sys; from dlock_core.__main__ import main; sys.argv = ['dlock', 'init', '--url', sys.argv[1]]; main()"


class _Worker:
    """A process of one checkout that runs cycles on command."""

    def __init__(self, checkout: Path, colour: str, url: str) -> None:
        self._process = subprocess.Popen(
            [_python(checkout), "-c", _WORKER, colour, url],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, cycles: int) -> float:
        """Return the seconds a cycle."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{cycles}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / cycles

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _python(checkout: Path) -> str:
    return str(checkout / ".venv" / "bin" / "python")


def before_and_after(before: Path, rounds: int) -> Part:
    """Return one table: cycles on each store in both colours, the import, and the command, in *before* and here."""
    checkouts = (before.resolve(), _HERE)
    lines: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        for work, cycles, url_of in _works(stack):
            colour = "asyncio" if work.endswith("asyncio") else "blocking"
            urls = [url_of(side) for side in (0, 1)]
            for checkout, url in zip(checkouts, urls, strict=True):
                subprocess.run(
                    [_python(checkout), "-c", _INIT, url], cwd=checkout, check=True, stdout=subprocess.DEVNULL
                )
            workers = [_Worker(checkout, colour, url) for checkout, url in zip(checkouts, urls, strict=True)]
            for worker in workers:
                worker.run(max(1, cycles // 4))
            lines.append(_line(work, [partial(worker.run, cycles) for worker in workers], rounds))
            for worker in workers:
                worker.close()
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        command = ["-m", "dlock_core", "run", "--url", f"sqlite:///{directory}/locks.db", "k", "--", "true"]
        for work, argv in (("import dlock_core", ["-c", "import dlock_core"]), ("dlock run … true", command)):
            lines.append(_line(work, [_process_timer(each, argv) for each in checkouts], rounds))
    how = "A cycle is `with client.lock(key)` on a key that nobody else wants; the last two rows are whole processes."
    return Part(
        (Section("Before and after", how, ("", "before, µs", "after, µs", "after ÷ before"), tuple(lines)),), ()
    )


def _line(work: str, sides: list[Callable[[], float]], rounds: int) -> tuple[str, ...]:
    taken: list[list[float]] = [[], []]
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            taken[side].append(sides[side]() * 1e6)
    ratios = [after / first for first, after in zip(*taken, strict=True)]
    sys.stderr.write(f"{work}: {statistics.median(ratios):.2f}\n")
    return (work, spread(taken[0], 0), spread(taken[1], 0), spread(ratios, 2))


def _process_timer(checkout: Path, argv: list[str]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        subprocess.run([_python(checkout), *argv], cwd=checkout, check=True)
        return time.perf_counter() - began

    return run


def _works(stack: ExitStack) -> Iterator[tuple[str, int, Callable[[int], str]]]:
    """Yield the name of each row, the cycles a round, and the URL of each side: sides share a server, and no data."""
    yield "memory", 2_000, lambda _: "memory://"
    yield "memory, asyncio", 2_000, lambda _: "memory://"
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    yield "SQLite", 200, lambda side: f"sqlite:///{directory}/{side}.db"
    port, _ = stack.enter_context(bench_redis.server())
    for name in ("Redis", "Redis, asyncio"):
        yield name, 500, lambda side: f"redis://127.0.0.1:{port}/{side}"
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    endpoint, mongodb = resolve("dynamodb").url, resolve("mongodb").url
    yield "DynamoDB Local", 100, lambda side: f"dynamodb://us-east-1/side{side}?endpoint_url={endpoint}"
    for name in ("MongoDB's wire", "MongoDB's wire, asyncio"):
        yield name, 30, lambda side: urlsplit(mongodb)._replace(path=f"/side{side}").geturl()
