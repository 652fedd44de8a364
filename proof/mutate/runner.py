"""Break the protocol one line at a time, and see that it is noticed: ``python -m proof.mutate``.

Each mutant is the shipped source with one text replaced, executed in place of the module in a process of its own. What must notice is
named beside it (``catalogue.py``): an exploration that violates an invariant, or a test. A survivor fails the run.
"""

from __future__ import annotations

import argparse
import importlib
import io
import multiprocessing
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proof.explore import search
from proof.mutate.catalogue import MUTANTS, WORLDS, Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["QUIET", "ROOT", "Verdict", "failing", "main", "mutated", "plant", "run_mutants"]

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 30.0
# Loading hypothesis and rewriting assertions would take five times as long as the rest.
QUIET = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--assert=plain")


# Other modules take classes and functions from these by name: who has loaded such a module goes on with the old ones.
_NAMES_TAKEN_FROM = ("closing", "driver", "election", "jobs", "joining", "observations", "once", "renewals")


class Verdict(NamedTuple):
    """How a mutant ended: *by* names the invariant or the test that noticed, None if nobody did."""

    name: str
    rule: str
    by: str | None
    seconds: float
    states: int


def mutated(mutant: Mutant) -> str:
    """Return the source with the one text replaced.

    Raises: ValueError: the text is not there exactly once any more; the mutant must follow the code.
    """
    source = (ROOT / "dlock_core" / f"{mutant.file.replace('.', '/')}.py").read_text()
    begin = source.index(f"\ndef {mutant.within}(") if mutant.within else 0
    end = source.find("\ndef ", begin + 1) if mutant.within else len(source)
    body = source[begin : end if end > 0 else len(source)]
    found = body.count(mutant.old)
    if found != 1:
        raise ValueError(
            f"mutant {mutant.name!r}: {mutant.old!r} is {found} times in {mutant.within or mutant.file}, not once"
        )
    return source[:begin] + body.replace(mutant.old, mutant.new) + source[begin + len(body) :]


def plant(mutant: Mutant) -> None:
    """Change the module for good: for a process of its own."""
    if any(part in mutant.file for part in _NAMES_TAKEN_FROM):
        _forget_importers()
    module = importlib.import_module(f"dlock_core.{mutant.file}")
    exec(compile(mutated(mutant), f"{mutant.file}.py", "exec"), module.__dict__)  # noqa: S102  # our own source, one text replaced


def _forget_importers() -> None:
    """Have all modules be loaded anew."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("dlock_core", "proof") and not name.startswith("proof.mutate"):
            del sys.modules[name]


def _judge(mutant: Mutant) -> Verdict:
    plant(mutant)
    began = time.process_time()
    if mutant.by in WORLDS:
        report = search.explore(WORLDS[mutant.by], seconds_max=SECONDS_MAX, traced=False)
        return Verdict(mutant.name, mutant.rule, report.violation, time.process_time() - began, report.states)
    return Verdict(mutant.name, mutant.rule, failing(mutant.by), time.process_time() - began, 0)


def failing(*tests: str) -> str | None:
    """Return the first of *tests*, of ``tests/core``, if one fails. The process that asks runs no other test."""
    import pytest

    # A run of all tests has them loaded already, bound to what is not mutated.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    output = io.StringIO()
    with redirect_stdout(output):
        status = pytest.main([*QUIET, "--rootdir", str(ROOT), *(str(ROOT / "tests" / "core" / test) for test in tests)])
    if status == pytest.ExitCode.TESTS_FAILED:
        return tests[0].split("::")[-1]
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"{tests} could not be run: {output.getvalue()[-500:]}")
    return None


def run_mutants(mutants: Sequence[Mutant], processes: int = 2) -> Iterator[Verdict]:
    """Judge each of *mutants*; the verdicts come as they are found."""
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_judge, mutants, chunksize=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m proof.mutate", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants whose name contains one of these; default: all")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if not options.names or any(name in mutant.name for name in options.names)]
    verdicts = []
    for verdict in run_mutants(chosen, options.processes):
        verdicts.append(verdict)
        print(
            f"{verdict.seconds:6.2f} s {verdict.states:8,} states  {verdict.name:50} {verdict.rule:12} {verdict.by or 'SURVIVED'}",
            flush=True,
        )
    survivors = [verdict.name for verdict in verdicts if verdict.by is None]
    seconds = sorted(verdict.seconds for verdict in verdicts)
    print(
        f"{len(verdicts)} mutants, {len(survivors)} survived; median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s"
    )
    return int(bool(survivors))
