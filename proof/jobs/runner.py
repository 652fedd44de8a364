"""Play the worlds of elections and of jobs: ``python -m proof.jobs``.

Each world is simulated by seeds, and explored: every schedule that deviates from the usual one by so many choices is played. The negative
controls are worlds in which a body or a job breaks a rule that its user has to keep: they must show it, or the run proves nothing.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from proof.jobs import elections, once
from proof.jobs.chances import Dice, branches, explored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proof.jobs.chances import Chances, Outcome

__all__ = ["CONTROLS", "EXPLORED", "SIMULATED", "Found", "explore", "main", "run", "simulate"]

SIMULATED: dict[str, Callable[[Chances], Outcome]] = {
    "elections": partial(elections.play_elections, size=elections.SIMULATED),
    "jobs": partial(once.play_jobs, size=once.SIMULATED),
}
EXPLORED: dict[str, Callable[[Chances], Outcome]] = {
    "elections": partial(elections.play_elections, size=elections.EXPLORED),
    "jobs": partial(once.play_jobs, size=once.EXPLORED),
}
CONTROLS: dict[str, tuple[Callable[[Chances], Outcome], str]] = {
    "bodies of leaders need longer to stop than the grace": (
        partial(elections.play_elections, size=elections.SIMULATED._replace(slow_bodies=True)),
        "two bodies run",
    ),
    "bodies of jobs do not look at the end of their lease": (
        partial(once.play_jobs, size=once.SIMULATED._replace(deaf=True)),
        "two bodies run",
    ),
    "jobs release without the mark of their slot": (
        partial(once.play_jobs, size=once.SIMULATED._replace(forgetful=True)),
        "I13",
    ),
}


class Found(NamedTuple):
    """What some schedules of a world came to: *broken* rules, each with the seed or the choices that lead to it."""

    schedules: int
    counts: dict[str, int]
    broken: list[tuple[str, str]]
    seconds: float


class _Batch(NamedTuple):
    schedules: int
    counts: Counter[str]
    broken: list[tuple[str, str]]
    seconds: float


def simulate(play: Callable[[Chances], Outcome], seeds: Iterable[int], processes: int = 1) -> Found:
    """Play the world by each of *seeds*."""
    return _sum(_mapped(partial(_by_seed, play), seeds, processes))


def explore(play: Callable[[Chances], Outcome], deviations: int, processes: int = 1) -> Found:
    """Play the usual schedule, and all that deviate from it by at most so many choices."""
    began = time.process_time()
    outcome, following = branches(play, ())
    first = _batch([("the usual schedule", outcome)], began)
    if not deviations:
        return _sum([first])
    return _sum([first, *_mapped(partial(_from, play, deviations - 1), following, processes)])


def _by_seed(play: Callable[[Chances], Outcome], seed: int) -> _Batch:
    began = time.process_time()
    return _batch([(f"seed {seed}", play(Dice(seed)))], began)


def _from(play: Callable[[Chances], Outcome], deviations: int, planned: tuple[int, ...]) -> _Batch:
    began = time.process_time()
    played = [(f"choices {each.planned}", each.outcome) for each in explored(play, deviations, planned)]
    return _batch(played, began)


def _batch(played: Sequence[tuple[str, Outcome]], began: float) -> _Batch:
    counts: Counter[str] = Counter()
    for _, outcome in played:
        counts += outcome.counts
    broken = [(outcome.violation, how) for how, outcome in played if outcome.violation is not None]
    return _Batch(len(played), counts, broken, time.process_time() - began)


def _mapped(work: Callable[[Any], _Batch], tasks: Iterable[Any], processes: int) -> list[_Batch]:
    if processes == 1:
        return [work(task) for task in tasks]
    with multiprocessing.get_context("fork").Pool(processes, _be_quiet) as pool:
        return list(pool.imap_unordered(work, tasks, chunksize=4))


def _be_quiet() -> None:
    logging.getLogger("dlock").setLevel(logging.CRITICAL)


def _sum(batches: Sequence[_Batch]) -> Found:
    counts: Counter[str] = Counter()
    for batch in batches:
        counts += batch.counts
    broken = sorted(each for batch in batches for each in batch.broken)
    return Found(
        sum(batch.schedules for batch in batches),
        dict(sorted(counts.items())),
        broken,
        sum(batch.seconds for batch in batches),
    )


def run(seeds: int, deviations: int, processes: int) -> dict[str, Any]:
    """Play everything; return what each world came to, and what is wrong."""
    wrong: list[str] = []
    told: dict[str, Any] = {"deviations": deviations, "simulated": {}, "explored": {}, "controls": {}}
    for name, play in SIMULATED.items():
        told["simulated"][name] = simulate(play, range(seeds), processes)
    for name, play in EXPLORED.items():
        told["explored"][name] = explore(play, deviations, processes)
    for kind in ("simulated", "explored"):
        for name, found in told[kind].items():
            wrong += [f"{name}, {kind}: {what}: {how}" for what, how in found.broken]
    for name, (play, rule) in CONTROLS.items():
        found = simulate(play, range(seeds), processes)
        told["controls"][name] = {"schedules": found.schedules, "broken": len(found.broken), "rule": rule}
        if not any(what.startswith(rule) for what, _ in found.broken):
            wrong.append(f"{name}: nothing broke, so this run proves nothing")
    for kind in ("simulated", "explored"):
        told[kind] = {name: found._asdict() for name, found in told[kind].items()}
    return told | {"wrong": wrong}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a rule was broken, or a control breaks none."""
    parser = argparse.ArgumentParser(prog="python -m proof.jobs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--deviations", type=int, default=1, help="from the usual schedule, in the explorations")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    _be_quiet()
    told = run(options.seeds, options.deviations, options.processes)
    for kind in ("simulated", "explored"):
        for name, found in told[kind].items():
            counts = ", ".join(f"{count} {what}" for what, count in found["counts"].items())
            print(f"{name}, {kind}: {found['schedules']} schedules, {found['seconds']:.1f} CPU s; {counts}")
    for name, found in told["controls"].items():
        print(f"{name}: broken in {found['broken']} of {found['schedules']} schedules")
    print("\n".join(told["wrong"]) or "nothing wrong")
    return int(bool(told["wrong"]))
