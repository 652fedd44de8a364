"""Run the proof and write ``docs/proof.md`` from what it showed: ``python -m proof``.

Each stage leaves its results as JSON in ``--results``; a stage that has run on this version of the code is not run again, and a simulation
that was stopped goes on where it was, so the whole can be stopped at any time. ``--report`` only writes the page, with what there is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proof import report
from proof.explore import members, sessions
from proof.explore.scenarios import QUICK, SCENARIOS
from proof.explore.search import problems, run_compiled, run_scenarios
from proof.explore.visiting import explore_all
from proof.faults import runner as faults
from proof.faults.stores import STORES
from proof.interrupts import __main__ as interrupts
from proof.jobs import runner as jobs
from proof.mutate import by_file, covering, product, simulated
from proof.mutate import runner as mutants
from proof.mutate.mutant import MUTANTS, SLIPS, Mutant
from proof.simulate import runner as simulation
from proof.simulate.knobs import DRIFT, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["STAGES", "main", "version"]

ROOT = Path(__file__).parents[1]
_WORLDS = ("explore/", "watch.py")
_SIMULATION = ("simulate/", "explore/", "watch.py")
# The files of this folder that a stage runs, by how their paths begin.
_PROVES = {
    "explore": _WORLDS,
    "records": _WORLDS,
    "mutants": ("mutate/", *_WORLDS),
    "slips": ("mutate/",),
    "sweep": ("mutate/",),
    "simulate": _SIMULATION,
    "power": _SIMULATION,
    "shrink": ("mutate/", *_SIMULATION),
    "faults": ("faults/",),
    "interrupts": ("interrupts/",),
    "jobs": ("jobs/",),
    "bodies": ("faults/",),
}
# These run whole clients; the others run the machine alone.
_OF_CLIENTS = ("faults", "bodies", "interrupts", "jobs", "slips", "sweep")
# What is kept of these decides by itself what runs again.
_KEPT_BY_FILE = ("slips", "sweep")
# What of the product the faults disturb: all of it but the frameworks.
_PRODUCT = tuple(sorted(path.name for path in ROOT.glob("dlock_*") if path.name != "dlock_contrib"))
_MACHINE = ("early", "errors", "lease", "members", "timings", "record", "states", "store")
_QUICK_WORLDS = ("abandon-copy", "stale-closed")


def version(stage: str) -> str:
    """Return a name for the code that *stage* proves and that proves it; what only tells of it is left out."""
    digest = hashlib.blake2b(digest_size=4)
    if stage in _OF_CLIENTS:
        paths = [path for folder in _PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    else:
        paths = [ROOT / "dlock_core" / f"{name}.py" for name in _MACHINE]
    folder = ROOT / "proof"
    paths += [path for path in sorted(folder.rglob("*.py")) if str(path.relative_to(folder)).startswith(_PROVES[stage])]
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _explore(options: argparse.Namespace) -> dict[str, Any]:
    names = _QUICK_WORLDS if options.quick else tuple(SCENARIOS)
    worlds: dict[str, Any] = {}
    wrong: list[str] = []
    # Compiled it takes half of the time, and finds the same.
    explore = run_scenarios if options.quick or not shutil.which("cc") else run_compiled
    for name, found in explore(names, options.processes, options.states_max).items():
        worlds[name] = found._asdict() | {"must_reach": len(SCENARIOS[name].reaches), "in_tests": name in QUICK}
        missing = [each for each in problems(name, found) if found.complete or found.violation]
        wrong += missing
    return {"worlds": {name: worlds[name] for name in SCENARIOS if name in worlds}, "wrong": wrong}


def _records(options: argparse.Namespace) -> dict[str, Any]:
    """The worlds of shared locks, and of locks that sessions keep."""
    rows: list[tuple[str, str, int, float]] = []
    wrong = []
    for of, module in (("shared locks", members), ("sessions", sessions)):
        cases = dict(list(module.SCENARIOS.items())[: 1 if options.quick else None])
        for name, (found, seconds) in explore_all(cases, module.explore).items():
            rows.append((of, name, found.worlds, seconds))
            wrong += [f"{of}, {name}: {found.violation}: {', '.join(found.way)}"] if found.violation else []
    return {"rows": rows, "wrong": wrong}


def _mutants(options: argparse.Namespace) -> dict[str, Any]:
    chosen = MUTANTS[::25] if options.quick else MUTANTS
    verdicts = [verdict._asdict() for verdict in mutants.run_mutants(chosen, options.processes)]
    survivors = [verdict["name"] for verdict in verdicts if verdict["by"] is None]
    return {"verdicts": sorted(verdicts, key=lambda each: str(each["name"])), "wrong": survivors}


def _slips(options: argparse.Namespace) -> dict[str, Any]:
    """The named mutants of all of the product but the machine."""
    return _by_file("slips", SLIPS[:: 150 if options.quick else 1], options)


def _sweep(options: argparse.Namespace) -> dict[str, Any]:
    """The general changes of the machine and the shell."""
    if options.quick:
        return _by_file("sweep", product.swept(20, only=("engine/timers",)), options, covering.QUICK)
    return _by_file("sweep", product.swept(options.every), options)


def _by_file(
    stage: str,
    mutants: Sequence[Mutant | product.Sweep],
    options: argparse.Namespace,
    covered_by: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The mutants, resumable: what those of a file showed is kept."""
    kept = options.results / f"{stage}{'-quick' if options.quick else ''}"
    only = [] if options.as_far else options.files.split(",")
    return by_file.result_of(
        by_file.judge_files(mutants, kept, options.processes, only=only, covered_by=covered_by, again=options.again)
    )


def _simulate(options: argparse.Namespace) -> dict[str, Any]:
    """The schedules, resumable; told in a file of their own, which another run of the simulator may have begun."""
    path = options.results / "schedules.json"
    count = 500 if options.quick else options.schedules
    arguments = ["--count", str(count), "--resume", str(path), "--processes", str(options.processes)]
    # Compiled it takes half of the time, and the same steps.
    arguments += ["--compiled"] if not options.quick and shutil.which("cc") else []
    status = 0 if options.as_far else simulation.main(arguments)
    saved = simulation.load(path)
    if saved is None:
        raise SystemExit(f"the simulation left nothing in {path}; its own message says why")
    wrong = [f"{text}: {simulation.replay_line(seed, saved.task)}" for seed, text in saved.totals.failures]
    return {
        "totals": asdict(saved.totals),
        "version": saved.version,
        "asked": count,
        "wrong": wrong or ([f"exit code {status}"] if status else []),
    }


POWER: dict[str, tuple[simulation.Task, str]] = {
    "clocks three times beyond the bound": (simulation.Task(drift=3 * DRIFT, events=1_500, extreme=True), "I1"),
    "clocks that stand still while suspended": (simulation.Task(stops=True), "I1"),
    "a store that loses acknowledged writes": (simulation.Task(mode=Mode.FAILOVER), "I2"),
}


def _power(options: argparse.Namespace) -> dict[str, Any]:
    """What must break: a simulator that can't see it proves nothing."""
    found, wrong = {}, []
    for name, (task, invariant) in POWER.items():
        totals = simulation.simulate(range(150 if options.quick else 2_000), task, options.processes)
        broken = [text for _, text in totals.failures] + list(totals.shown)
        first = min((seed for seed, _ in totals.failures), default=None)
        schedules = totals.violations or max(totals.shown.values(), default=0)
        found[name] = {
            "schedules": totals.schedules,
            "broken_in": schedules,
            "first": first,
            "unfenceable": totals.unfenceable,
            "invariant": invariant,
        }
        if not any(text.startswith(invariant) for text in broken):
            wrong.append(f"{name}: nothing broke, so this run proves nothing")
    return {"found": found, "wrong": wrong}


def _shrink(options: argparse.Namespace) -> dict[str, Any]:
    """What the simulation finds must come out small enough to be read."""
    chosen = [mutant for mutant in MUTANTS if mutant.file in simulated.SIMULATED]
    chosen = chosen[::25] if options.quick else chosen
    found = sorted(simulated.shrink_all(chosen, options.processes))
    wrong = [problem for each in found if (problem := simulated.problem(each)) is not None]
    return {"mutants": len(chosen), "found": [each._asdict() for each in found], "wrong": wrong}


def _faults(options: argparse.Namespace) -> dict[str, Any]:
    """The cells, resumable."""
    chosen = [cell.name for cell in faults.CELLS.values() if not cell.of_bodies]
    return _run_cells(options, ["stop-2"] if options.quick else chosen)


def _bodies(options: argparse.Namespace) -> dict[str, Any]:
    """The cells of leaders and of runners, resumable."""
    chosen = [cell.name for cell in faults.CELLS.values() if cell.of_bodies]
    return _run_cells(options, ["runner-stop-2"] if options.quick else chosen)


def _run_cells(options: argparse.Namespace, only: Sequence[str]) -> dict[str, Any]:
    trials = 2 if options.quick else 0 if options.as_far else options.trials
    # One place for all versions of the code: a cell that is run again replaces what it showed before, and only that.
    kept = options.results / f"cells{'-quick' if options.quick else ''}"
    told = faults.run_cells(
        options.stores.split(","), trials, only, jobs=options.processes, kept=kept, code=version("faults")
    )
    by_store: dict[str, float] = {}
    for cell in told["cells"]:
        by_store[cell["store"]] = by_store.get(cell["store"], 0.0) + cell["seconds"]
    return told | {"ran_s": max(by_store.values(), default=0.0)}


def _jobs(options: argparse.Namespace) -> dict[str, Any]:
    """The worlds of elections and of jobs that run once."""
    seeds, deviations = (10, 0) if options.quick else (options.seeds, options.deviations)
    return jobs.run(seeds, deviations, options.processes)


def _interrupts(options: argparse.Namespace) -> dict[str, Any]:
    """Signals, finalizers, other threads and tasks at the points of our code."""
    swept = (
        interrupts.run(("memory",), 300, ("acquire",))
        if options.quick
        else interrupts.run(interrupts.STORES, options.every)
    )
    rows = [(where, *each) for where, each in swept]
    wrong = [
        f"{where}, {operation}, {act}: {each}, {what}"
        for where, operation, act, *_, all_ in rows
        for each, what in all_.items()
    ]
    return {"rows": rows, "wrong": wrong}


STAGES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "explore": _explore,
    "records": _records,
    "mutants": _mutants,
    "power": _power,
    "shrink": _shrink,
    "jobs": _jobs,
    "faults": _faults,
    "bodies": _bodies,
    "interrupts": _interrupts,
    "slips": _slips,
    "sweep": _sweep,
    "simulate": _simulate,
}


def _run(name: str, options: argparse.Namespace) -> None:
    """Run a stage, unless its result is there, and keep what it shows."""
    path, code = options.results / f"{name}.json", version(name)
    if path.exists() and not options.again and name not in _KEPT_BY_FILE:
        kept = json.loads(path.read_text())
        if kept["version"] == code and kept["quick"] == options.quick:
            print(f"{name}: has run on this version of the code; --again runs it again")
            return
    print(f"{name} ...", flush=True)
    began, at = time.monotonic(), datetime.now(UTC)
    result = STAGES[name](options)
    told = {
        "version": code,
        "quick": options.quick,
        "at": f"{at:%Y-%m-%d %H:%M} UTC",
        # Cells that ran before took their time then, one after the other on each store.
        "seconds": max(time.monotonic() - began, result.get("ran_s", 0.0)),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "result": result,
    }
    path.write_text(json.dumps(told, indent=1))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "proof", help="folder of the JSON results")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "proof.md", help="the page")
    parser.add_argument("--only", action="append", choices=list(STAGES), help="run this stage; repeatable")
    parser.add_argument("--report", action="store_true", help="run nothing, write the page")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument(
        "--again", action="store_true", help="run also what has run; of mutants on disk, those that nothing has noticed"
    )
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=1_000, help="of the worlds of elections and jobs")
    parser.add_argument("--deviations", type=int, default=2, help="of their explorations")
    parser.add_argument(
        "--as-far", action="store_true", help="simulate, disturb and change no more, and tell of what has been"
    )
    parser.add_argument("--trials", type=int, default=300, help="of each fault, on each store")
    parser.add_argument("--stores", default=",".join(STORES), help="for the faults")
    parser.add_argument("--every", type=int, default=1, help="only each so many of the general changes")
    parser.add_argument(
        "--files", default="", help="judge only mutants of files with one of these in their paths, by commas"
    )
    parser.add_argument("--states-max", type=int, help="give up an exploration there, and say so")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    options = _arguments(argv)
    options.results.mkdir(parents=True, exist_ok=True)
    for name in () if options.report else (options.only or STAGES):
        _run(name, options)
    results = {
        name: json.loads(path.read_text()) for name in STAGES if (path := options.results / f"{name}.json").exists()
    }
    standing = options.output.read_text() if options.output.exists() else ""
    options.output.write_text(report.page(results, {name: version(name) for name in STAGES}, standing))
    wrong = [f"{name}: {each}" for name, told in results.items() for each in told["result"]["wrong"]]
    print("\n".join([*wrong, f"{len(wrong)} problems; the page is {options.output}"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
