"""Explore small worlds of the shipped machine exhaustively, breadth first: ``python -m proof.explore``.

Each world is explored until no new one is found ("complete: yes"), after every step the invariants are checked, and what must have been
reached is. A violation is told by the shortest sequence of choices that leads to it; ``--replay`` shows that sequence step by step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from proof.explore.scenarios import QUICK, SCENARIOS
from proof.explore.table import Table
from proof.explore.visiting import uncollected
from proof.explore.world import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proof.explore.table import World

__all__ = ["GOLDEN", "Report", "explore", "explored", "main", "problems", "replay", "run_compiled", "run_scenarios"]

GOLDEN = Path(__file__).with_name("golden.json")


class Report(NamedTuple):
    """What an exploration found. *trace*: the choices that lead to the *violation*; *transitions*: what the machine did, by name."""

    states: int
    steps: int
    depth: int
    complete: bool
    seconds: float
    notes: dict[str, int]
    violation: str | None = None
    trace: tuple[str, ...] = ()
    transitions: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the report on one line."""
        pace = self.states / max(self.seconds, 1e-9)
        complete = "yes" if self.complete else "no"
        size = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}, complete: {complete}"
        return f"{size}, {self.seconds:.1f} CPU s, {pace:,.0f} states/s"


@uncollected()
def explore(
    rules: Rules,
    *,
    states_max: int | None = None,
    seconds_max: float | None = None,
    traced: bool = True,
    tell: Callable[[Report], None] | None = None,
) -> Report:
    """Visit every world that *rules* allow, or stop at a bound. The visited ones are kept as hashes of 64 bits.

    The seconds are those of the processor. Unless *traced* a violation is told without the way to it. *tell* is told after each layer.
    """
    began = time.process_time()
    table = Table(rules)
    start = table.start()
    visited = {hash(start)}
    layer, depth, steps = [start], 0, 0
    notes: dict[str, int] = {}
    so_far = Report(1, 0, 0, complete=False, seconds=0.0, notes=notes)
    while layer:
        found: list[World] = []
        for here in layer:
            for step in table.steps(here):
                steps += 1
                for note in step.notes:
                    notes[note] = notes.get(note, 0) + 1
                if step.violation is not None:
                    seconds = time.process_time() - began
                    trace = _shortest(rules, step.violation) if traced else ()
                    return Report(
                        len(visited),
                        steps,
                        depth + 1,
                        complete=False,
                        seconds=seconds,
                        notes=notes,
                        violation=step.violation,
                        trace=trace,
                    )
                name = hash(step.world)
                if name not in visited:
                    visited.add(name)
                    found.append(step.world)
        layer = found
        depth += bool(found)
        _stop_if_orphaned()
        seconds = time.process_time() - began
        so_far = Report(len(visited), steps, depth, complete=False, seconds=seconds, notes=notes)
        if tell is not None:
            tell(so_far)
        out_of_time = seconds_max is not None and seconds > seconds_max
        if layer and (out_of_time or (states_max is not None and len(visited) > states_max)):
            return so_far._replace(transitions=tuple(sorted(table.transitions)))
    return so_far._replace(complete=True, transitions=tuple(sorted(table.transitions)))


def _stop_if_orphaned() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise SystemExit("the run that this exploration belongs to was stopped")


def _shortest(rules: Rules, violation: str) -> tuple[str, ...]:
    """Search once more, with clients that keep their places, and remember the way."""
    table = Table(rules, symmetric=False)
    start = table.start()
    came: dict[World, tuple[World, str]] = {}
    layer = [start]
    while layer:
        found: list[World] = []
        for here in layer:
            for step in table.steps(here):
                if step.violation == violation:
                    trace = [step.label]
                    while here != start:
                        here, label = came[here]  # noqa: PLW2901  # walks back to the start, and the loop ends here
                        trace.append(label)
                    return tuple(reversed(trace))
                if step.world not in came and step.world != start:
                    came[step.world] = (here, step.label)
                    found.append(step.world)
        layer = found
    return ()


def replay(rules: Rules, trace: Sequence[str]) -> list[str]:
    """Return what happens at each choice of *trace*, line by line."""
    table = Table(rules, symmetric=False)
    here = table.start()
    lines: list[str] = []
    for label in trace:
        step = next((step for step in table.steps(here) if step.label == label), None)
        if step is None:
            possible = " ".join(step.label for step in table.steps(here))
            raise SystemExit(f"choice {len(lines) + 1}, {label!r}, is not possible here; possible: {possible}")
        here = step.world
        lines.append(f"{len(lines) + 1:3} {label:20} {table.describe(here)}")
        if step.violation is not None:
            lines.append(f"    violated: {step.violation}")
            break
    return lines


# ---- many worlds ----------------------------------------------------------------------------------------------------------------------


def _one(task: tuple[str, int | None]) -> tuple[str, Report]:
    name, states_max = task
    return name, explore(SCENARIOS[name].rules, states_max=states_max)


def explored(names: Sequence[str], processes: int = 2, states_max: int | None = None) -> Iterator[tuple[str, Report]]:
    """Explore the scenarios *names*, the largest first, in that many processes; yield each report as it is found."""
    golden = _golden()
    largest_first = sorted(names, key=lambda name: -golden.get(name, {}).get("states", 1 << 40))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_one, [(name, states_max) for name in largest_first])


def run_scenarios(names: Sequence[str], processes: int = 2, states_max: int | None = None) -> dict[str, Report]:
    """Explore the scenarios *names* and show each."""
    reports: dict[str, Report] = {}
    for name, report in explored(names, processes, states_max):
        print(f"{name:20} {report.line()}", flush=True)
        reports[name] = report
    return reports


def run_compiled(names: Sequence[str], processes: int = 2, states_max: int | None = None) -> dict[str, Report]:
    """As :func:`run_scenarios`, in a copy compiled by mypyc: the same worlds, in half the time."""
    from proof import compiled

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        arguments = ["--processes", str(processes), "--results", str(results)]
        arguments += ["--states-max", str(states_max)] if states_max is not None else []
        compiled.run("proof.explore", [*arguments, *(word for name in names for word in ("--world", name))])
        found = json.loads(results.read_text())
    return {
        name: Report(**told | {field: tuple(told[field]) for field in ("trace", "transitions")})
        for name, told in found.items()
    }


def _golden() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return known


def _keep(name: str, report: Report) -> None:
    golden = _golden()
    golden[name] = {
        "states": report.states,
        "steps": report.steps,
        "depth": report.depth,
        "reached": sorted(report.notes),
    }
    ordered = {each: golden[each] for each in SCENARIOS if each in golden}
    GOLDEN.write_text(json.dumps(ordered, indent=2) + "\n")


def problems(name: str, report: Report) -> list[str]:
    """Return what is wrong with a *report*: a violation, something not reached, or another count than the golden one."""
    if report.violation is not None:
        choices = " ".join(report.trace)
        return [f"{name}: {report.violation}\n  python -m proof.explore --world {name} --replay '{choices}'"]
    found = [] if report.complete else [f"{name}: not complete"]
    found += [f"{name}: never reached: {note}" for note in SCENARIOS[name].reaches if note not in report.notes]
    golden = _golden().get(name)
    if golden is not None and (report.states, report.depth) != (golden["states"], golden["depth"]):
        found.append(
            f"{name}: {report.states} states, depth {report.depth}; golden: {golden['states']}, {golden['depth']}. "
            f"If the change is meant: python -m proof.explore --world {name} --golden"
        )
    return found


# ---- the command ----------------------------------------------------------------------------------------------------------------------


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.explore", description=__doc__)
    parser.add_argument(
        "--world",
        action="append",
        choices=[*SCENARIOS, "all"],
        help="a named world, repeatable; default: those of make test",
    )
    parser.add_argument("--clients", type=int, help="a world of this many clients instead of a named one")
    parser.add_argument("--ticks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--lease", type=int, default=2, help="ticks")
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--abandons", type=int, default=0)
    parser.add_argument("--fail-closed", action="store_true")
    parser.add_argument("--states-max", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--golden", action="store_true", help="keep the counts as the golden ones")
    parser.add_argument("--compiled", action="store_true", help="explore with a copy compiled by mypyc")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="write what was found there, as JSON, and judge nothing"
    )
    parser.add_argument("--replay", metavar="CHOICES", help="show this sequence of choices in the one world named")
    return parser.parse_args(argv)


def _own_world(options: argparse.Namespace) -> Rules:
    lease = None if options.fail_closed else options.lease
    return Rules(
        leases=(lease,) * options.clients,
        ticks=options.ticks,
        faults=options.faults,
        attempts=options.attempts,
        abandons=options.abandons,
        heartbeat=not options.fail_closed,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    options = _arguments(argv)
    names = list(SCENARIOS) if options.world == ["all"] else (options.world or list(QUICK))
    if options.replay is not None:
        rules = _own_world(options) if options.clients else SCENARIOS[names[0]].rules
        print("\n".join(replay(rules, options.replay.split())))
        return 0
    if options.clients:
        report = explore(_own_world(options), states_max=options.states_max)
        print(report.line())
        for note, count in sorted(report.notes.items()):
            print(f"  {note}: {count:,}")
        if report.violation is not None:
            print(f"violated: {report.violation}\n--replay '{' '.join(report.trace)}'")
        return int(report.violation is not None)
    run = run_compiled if options.compiled else run_scenarios
    reports = run(names, options.processes, options.states_max)
    if options.results is not None:
        options.results.write_text(json.dumps({name: report._asdict() for name, report in reports.items()}))
        return 0
    wrong: list[str] = []
    for name in names:
        if options.golden and reports[name].complete:
            _keep(name, reports[name])
        else:
            wrong += problems(name, reports[name])
    print("\n".join(wrong) or "no violation")
    return int(bool(wrong))
