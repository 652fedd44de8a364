"""Mutation of the whole product: its shell, its clients, its command and its adapters. ``python -m proof.mutate.product``.

A mutant is a file of a copy of the project changed on disk, so that it also reaches what tests start; tests in an interpreter of its own
judge it, and the file is put back. The named ones are in ``slips.txt`` (:mod:`proof.mutate.mutant`). The sweep changes the files of
:data:`SWEPT` by all operators of :mod:`proof.mutate.general`; the tests that run a changed line judge it (:mod:`proof.mutate.covering`).
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proof.mutate.covering import ADAPTERS, LAST, TESTS, Covering, cover, judges_of
from proof.mutate.explained import EXPLAINED
from proof.mutate.general import changes, mutated
from proof.mutate.mutant import ROOT, SLIPS, Mutant
from proof.mutate.runner import QUIET, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SWEPT", "Sweep", "judge", "main", "swept"]

# A test may take so long, and all that are asked together four times as long: a change may loop for ever, and catch what would end it.
_TEST_S, _QUICK_TEST_S, _ALL = 60, 15, 4
_LEFT_BEHIND = (".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "node_modules")
# The files that are swept: the machine, what everything else of a client stands on, and the adapters.
_OF_THE_ENGINE = (
    "lines timers observations joining renewals handle driver sessions membership keeper sharing turns converting"
)
SWEPT = (
    *("dlock_core/lease.py", "dlock_core/kit/outcome.py", "dlock_core/kit/lane.py"),
    *(f"dlock_core/engine/{name}.py" for name in _OF_THE_ENGINE.split()),
    *(
        str(path.relative_to(ROOT))
        for adapter in ADAPTERS
        for path in sorted((ROOT / adapter).rglob("*.py"))
        if path.name != "__init__.py"
    ),
)


class Sweep(NamedTuple):
    """The general change *number* of *file*, at *line*; a test that runs this line must notice."""

    name: str
    file: str
    number: int
    line: int
    by: tuple[str, ...] = ()

    def rounds(self, covering: Covering) -> Iterator[tuple[Sequence[str], int]]:
        """Yield the tests that are asked, one lot after the other, with the seconds that each of them may take."""
        for tests in covering.rounds(self.file, self.line):
            yield tests, _QUICK_TEST_S
        if self.name not in EXPLAINED and judges_of(self.file) == TESTS:
            yield LAST, _TEST_S

    def text_in(self, root: Path) -> str:
        """Return the changed file of the copy of the project in *root*."""
        return ast.unparse(mutated(self.number, self.file, root)[0])


def swept(every: int = 1, *, only: Sequence[str] = ("",)) -> list[Sweep]:
    """Return the changes of the files whose path has one of *only* in it."""
    return [
        Sweep(f"{file}: {change.name}", file, change.number, change.line)
        for file in SWEPT
        if any(part in file for part in only)
        for change in changes(file)[::every]
    ]


@contextmanager
def _copies(count: int) -> Iterator[queue.SimpleQueue[Path]]:
    """Yield *count* copies of the project, compiled."""
    with tempfile.TemporaryDirectory(prefix="dlock-mutants-") as folder:
        ready: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(count):
            copy = Path(folder) / str(number)
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_BEHIND), symlinks=True)
            subprocess.run(
                [sys.executable, "-m", "compileall", "-q", str(copy)], check=False, stdout=subprocess.DEVNULL
            )
            ready.put(copy)
        yield ready


def _failing(copy: Path, tests: Sequence[str], most_s: int = _TEST_S) -> str | None:
    """Return the first of *tests* that fails in *copy*, or takes longer than *most_s*, or how they end otherwise."""
    # What is compiled is not written: it would be taken for that of another mutant of the same size.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *QUIET, f"--timeout={most_s}", "--rootdir", str(copy), *tests]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=copy, env=environment, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            told, errors = run.communicate(timeout=_ALL * most_s)
        except subprocess.TimeoutExpired:
            _end(run)
            return "they do not end"
    if not run.returncode:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*::)?([^\s\[]+)", told, re.MULTILINE)
    if failed is None or "no tests ran" in told:
        raise RuntimeError(f"{tests} could not be run: {told[-800:]}{errors[-400:]}")
    return failed[1]


def _end(run: subprocess.Popen[str]) -> None:
    """End a *run* of tests, and first the servers that it has started, if it can still do that."""
    run.send_signal(signal.SIGINT)
    try:
        run.communicate(timeout=_QUICK_TEST_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()


def _judge(mutant: Mutant | Sweep, covering: Covering, copies: queue.SimpleQueue[Path]) -> Verdict:
    began, copy = time.monotonic(), copies.get()
    rounds = mutant.rounds(covering) if isinstance(mutant, Sweep) else [(mutant.by, _TEST_S)]
    file = copy / mutant.file
    before, status = file.read_text(), file.stat()
    try:
        file.write_text(mutant.text_in(copy))
        by = next((by for tests, most_s in rounds if tests and (by := _failing(copy, tests, most_s)) is not None), None)
    finally:
        file.write_text(before)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        copies.put(copy)
    return Verdict(mutant.name, mutant.file.removesuffix(".py"), by, time.monotonic() - began, 0)


def judge(
    chosen: Sequence[Mutant | Sweep], processes: int = 2, covered_by: Sequence[str] | None = None
) -> Iterator[Verdict]:
    """Judge each of *chosen*; the verdicts come as they are found. *covered_by* may notice the general ones in place of their own tests.

    Raises: RuntimeError: the tests that must notice fail of themselves, or cannot be run.
    """
    files_of: dict[tuple[str, ...], list[str]] = {}
    for file in sorted({mutant.file for mutant in chosen if isinstance(mutant, Sweep)}):
        files_of.setdefault(tuple(covered_by or judges_of(file)), []).append(file)
    named = sorted({test for mutant in chosen for test in mutant.by})
    with _copies(processes) as copies, ThreadPoolExecutor(processes) as pool:
        copy = copies.get()
        covering = Covering({}, {})
        for tests, files in files_of.items():
            covering |= cover(copy, files, tests, processes)
        if named and (by := _failing(copy, named)) is not None:
            raise RuntimeError(f"{by} fails without any mutant")
        copies.put(copy)
        for done in as_completed([pool.submit(_judge, mutant, covering, copies) for mutant in chosen]):
            yield done.result()


def survivors(verdicts: Sequence[Verdict], explained: Mapping[str, str] = EXPLAINED) -> list[str]:
    """Return the names of those that nothing noticed, and that nothing explains."""
    return [each.name for each in verdicts if each.by is None and each.name not in explained]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a mutant survives that is not explained."""
    parser = argparse.ArgumentParser(prog="python -m proof.mutate.product", description=__doc__)
    parser.add_argument("names", nargs="*", help="what is in the file, or in the name of a named mutant; default: all")
    parser.add_argument("--sweep", action="store_true", help="the general changes in place of the named ones")
    parser.add_argument("--every", type=int, default=1, help="only each so many changes of the sweep")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    names = options.names or [""]
    chosen: Sequence[Mutant | Sweep]
    if options.sweep:
        chosen = swept(options.every, only=names)
    else:
        chosen = [each for each in SLIPS if any(name in each.name or name in each.file for name in names)]
    verdicts = []
    for verdict in judge(chosen, options.processes):
        verdicts.append(verdict)
        print(f"{verdict.seconds:6.2f} s  {verdict.rule:34} {verdict.name:60} {verdict.by or 'SURVIVED'}", flush=True)
    left = survivors(verdicts)
    print(
        f"{len(verdicts)} mutants, {sum(each.by is None for each in verdicts)} survived; {len(left)} of those unexplained"
    )
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
