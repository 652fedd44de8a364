"""Break the protocol one line at a time, and see that it is noticed: ``python -m proof.mutate``.

Each mutant is the shipped source with one text replaced, executed in place of the module in a process of its own. What must notice is
named beside it (``mutants.txt``): an exploration that violates an invariant, or a test. A survivor fails the run.
"""

from __future__ import annotations

import argparse
import importlib
import io
import multiprocessing
import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, NamedTuple

from proof.explore import search
from proof.mutate.mutant import MUTANTS, ROOT, WORLDS, Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["QUIET", "Verdict", "failing", "main", "plant", "run_mutants"]

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


def plant(mutant: Mutant) -> None:
    """Change the module for good: for a process of its own."""
    if any(part in mutant.file for part in _NAMES_TAKEN_FROM):
        _forget_importers()
    module = importlib.import_module(mutant.file.removesuffix(".py").replace("/", "."))
    exec(compile(mutant.text_in(), mutant.file, "exec"), module.__dict__)  # noqa: S102  # our own source, one text replaced


def _forget_importers() -> None:
    """Have all modules be loaded anew."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("dlock_core", "proof") and not name.startswith("proof.mutate"):
            del sys.modules[name]


def _judge(mutant: Mutant) -> Verdict:
    plant(mutant)
    began = time.process_time()
    if (world := WORLDS.get(mutant.by[0])) is not None:
        report = search.explore(world, seconds_max=SECONDS_MAX, traced=False)
        return Verdict(mutant.name, mutant.rule, report.violation, time.process_time() - began, report.states)
    return Verdict(mutant.name, mutant.rule, failing(*mutant.by), time.process_time() - began, 0)


def failing(*tests: str) -> str | None:
    """Return the first of *tests* if one fails. The process that asks runs no other test."""
    import pytest

    # A run of all tests has them loaded already, bound to what is not mutated.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    output = io.StringIO()
    with redirect_stdout(output):
        status = pytest.main([*QUIET, "--rootdir", str(ROOT), *(str(ROOT / test) for test in tests)])
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
