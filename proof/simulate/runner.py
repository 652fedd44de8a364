"""Seeded simulation of the shipped machine: many clients, bad networks, wrong clocks, bad stores: ``python -m proof.simulate``.

A seed draws the knobs of its schedule (``knobs.py``) and everything after them, so the same seed is the same schedule. Each client, once it
holds, *uses* two resources: one compares the fencing token in the same step as the effect, the other takes everything. What is checked
where: ``schedule.py`` and ``store.py``. A failure prints the line that replays it; ``--shrink`` looks for its smallest form.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import multiprocessing
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proof.simulate.knobs import DRIFT, Knobs, Mode, draw, extreme
from proof.simulate.schedule import Sim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "EVENTS",
    "Outcome",
    "Task",
    "Totals",
    "code_version",
    "finished",
    "main",
    "run_seed",
    "run_seeds",
    "simulate",
]

EVENTS = 150
ROOT = Path(__file__).parents[2]
_CHUNK = 250
_BUCKETS = 40  # of a tenth of a lease
_SAVE_S = 2.0
_TELL_S = 10.0
_FAILURES_KEPT = 100
_SUMMED = (
    "events",
    "grants",
    "takeovers",
    "effects",
    "unfenced",
    "refused",
    "unfenceable",
    "settled",
    "failovers",
    "virtual_s",
)


class Outcome(NamedTuple):
    """What one schedule showed. *digest* is the same for the same seed; *shown* is what broke after a failover that lost writes."""

    seed: int
    digest: str
    events: int
    grants: int
    takeovers: int
    effects: int
    unfenced: int  # effects of an earlier holder after one of a later, on the resource that takes everything
    refused: int  # what the fence has refused
    unfenceable: int  # such effects that the fence has taken, because its token was granted twice
    mode: Mode
    settled: bool
    failovers: int
    shown: tuple[str, ...]
    delays: tuple[float, ...]
    virtual_s: float
    violation: str | None


class Task(NamedTuple):
    """Which schedules are run: what is drawn from a seed, and how long."""

    drift: float = DRIFT
    mode: Mode | None = None
    stops: bool = False
    events: int = EVENTS
    extreme: bool = False

    def knobs(self, seed: int) -> Knobs:
        """Draw the knobs of *seed*."""
        if self.extreme:
            return extreme(self.drift)
        return draw(seed, self.drift, self.mode)._replace(stops=self.stops)


@dataclass
class Totals:
    """What many schedules showed together."""

    schedules: int = 0
    events: int = 0
    grants: int = 0
    takeovers: int = 0
    effects: int = 0
    unfenced: int = 0
    refused: int = 0
    unfenceable: int = 0
    settled: int = 0
    failovers: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    modes: dict[str, int] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    delays: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    violations: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def count(self, outcome: Outcome) -> None:
        """Add one schedule."""
        self.schedules += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.modes[outcome.mode] = self.modes.get(outcome.mode, 0) + 1
        for each in outcome.shown:
            self.shown[each] = self.shown.get(each, 0) + 1
        for delay in outcome.delays:
            self.delays[min(int(delay * 10), _BUCKETS - 1)] += 1
        if outcome.violation is not None:
            self.violations += 1
            self.failures.append((outcome.seed, outcome.violation))

    def add(self, other: Totals) -> None:
        """Add those of other schedules."""
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict):
                for each, number in value.items():
                    mine[each] = mine.get(each, 0) + number
            elif name == "delays":
                self.delays = [one + another for one, another in zip(mine, value, strict=True)]
            elif name == "failures":
                self.failures = [*mine, *value][:_FAILURES_KEPT]
            else:
                setattr(self, name, mine + value)


def run_seed(seed: int, task: Task | None = None, knobs: Knobs | None = None) -> Outcome:
    """Run the schedule of *seed*, with the *knobs* given or those that it draws."""
    task = task or Task()
    return outcome_of(seed, finished(Sim(seed, knobs or task.knobs(seed)), task.events))


def finished(sim: Sim, events: int) -> Sim:
    """Run *sim* to its end."""
    sim.start()
    sim.run(events)
    if sim.knobs.settles and sim.violation is None:
        sim.settle()
    return sim


def outcome_of(seed: int, sim: Sim) -> Outcome:
    """Return what *sim* showed."""
    store, resources = sim.store, sim.resources
    return Outcome(
        seed=seed,
        digest=store.digest(),
        events=sim.events,
        grants=store.grants,
        takeovers=store.takeovers,
        effects=resources.effects,
        unfenced=resources.unfenced,
        refused=resources.refused,
        unfenceable=resources.unfenceable,
        mode=sim.mode,
        settled=sim.knobs.settles,
        failovers=store.failovers,
        shown=tuple(sorted(sim.shown)),
        delays=() if store.rolled_back else tuple(store.delays),
        virtual_s=sim.now / 1e9,
        violation=sim.violation,
    )


def _run_chunk(work: tuple[range, Task]) -> Totals:
    seeds, task = work
    began = time.process_time()
    gc.disable()  # a schedule is many small objects and one cycle: collecting after each chunk is enough
    totals = Totals()
    for seed in seeds:
        totals.count(run_seed(seed, task))
    gc.collect()
    totals.cpu_s = time.process_time() - began
    return totals


def run_seeds(seeds: range, task: Task | None = None, processes: int = 2) -> Iterator[tuple[int, Totals]]:
    """Run the schedules of *seeds*; yield, in order, up to which seed and what those since the last showed."""
    chunks = [(seeds[at : at + _CHUNK], task or Task()) for at in range(0, len(seeds), _CHUNK)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for (part, _), totals in zip(chunks, pool.imap(_run_chunk, chunks), strict=True):
            yield part[-1] + 1, totals


def simulate(seeds: range, task: Task | None = None, processes: int = 2) -> Totals:
    """Run the schedules of *seeds* and return what they showed."""
    totals = Totals()
    for _, part in run_seeds(seeds, task, processes):
        totals.add(part)
    return totals


# ---- a run that can be stopped and gone on with ---------------------------------------------------------------------------------------


def code_version() -> str:
    """Return a name for the code that decides what a seed means: the machine and the simulator."""
    digest = hashlib.blake2b(digest_size=4)
    machine = [f"dlock_core/{name}.py" for name in ("lease", "states", "timings", "record", "store")]
    simulator = [f"proof/simulate/{name}.py" for name in ("knobs", "attempt", "store", "schedule")]
    for name in (*machine, *simulator, "proof/explore/store_model.py", "proof/watch.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


class Saved(NamedTuple):
    """What the file of a resumable run holds."""

    version: str
    task: Task
    first: int
    after: int
    totals: Totals


def load(path: Path) -> Saved | None:
    """Return what an earlier run left in *path*, None if there is nothing."""
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text())
        drift, mode, *rest = told["task"]
        totals = Totals(**told["totals"])
        totals.failures = [(seed, text) for seed, text in totals.failures]
        return Saved(
            told["version"],
            Task(drift, None if mode is None else Mode(mode), *rest),
            told["first"],
            told["after"],
            totals,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is no file of this program ({error}); remove it, or name another one") from error


def save(path: Path, saved: Saved) -> None:
    """Keep *saved* in *path*, in one step."""
    other = path.with_suffix(path.suffix + ".new")
    other.write_text(json.dumps(saved._asdict() | {"totals": asdict(saved.totals)}))
    other.replace(path)


def resumed(path: Path, fresh: Saved) -> Saved:
    """Return where to go on: *fresh*, or what *path* holds."""
    earlier = load(path)
    if earlier is None:
        return fresh
    if (earlier.version, earlier.task, earlier.first) != (fresh.version, fresh.task, fresh.first):
        raise SystemExit(
            f"{path} is of code version {earlier.version}, {earlier.task}, from seed {earlier.first}; this would be {fresh.version}, "
            f"{fresh.task}, from seed {fresh.first}. Counts of both can't be added: remove the file, or check out what it was made with"
        )
    return earlier


def run_resumable(path: Path | None, fresh: Saved, count: int, processes: int) -> Totals:
    """Run *count* schedules in all, those of *path* included, and show the progress."""
    saved = fresh if path is None else resumed(path, fresh)
    totals, before = saved.totals, saved.totals.schedules
    began = shown = kept = time.monotonic()
    for after, part in run_seeds(range(saved.after, saved.first + count), saved.task, processes):
        totals.add(part)
        now = time.monotonic()
        if path is not None and (now - kept > _SAVE_S or totals.schedules == count):
            save(path, saved._replace(after=after))
            kept = now
        if now - shown > _TELL_S:
            pace = (totals.schedules - before) / (now - began)
            print(
                f"{totals.schedules:,} of {count:,} schedules, {pace:,.0f}/s, {totals.violations} violations",
                file=sys.stderr,
                flush=True,
            )
            shown = now
    return totals


# ---- the command ----------------------------------------------------------------------------------------------------------------------


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="of schedules")
    parser.add_argument("--drift", type=float, default=DRIFT, help=f"how far the clocks are off; the bound is {DRIFT}")
    parser.add_argument(
        "--mode", type=Mode, choices=list(Mode), help="of the store, for all schedules; default: each seed draws one"
    )
    parser.add_argument("--stops", action="store_true", help="clocks that stand still while their process is suspended")
    parser.add_argument(
        "--extreme", action="store_true", help="all clocks at the bound of --drift, pauses, no other fault"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="run a copy compiled by mypyc: the same steps, in half the time"
    )
    parser.add_argument("--events", type=int, default=EVENTS, help="of one schedule")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the progress there, and go on from it")
    parser.add_argument(
        "--shrink", action="store_true", help="look for the smallest form of what the one seed violates"
    )
    parser.add_argument("--knobs", help="name=value of knobs that are not as drawn, as --shrink tells them")
    parser.add_argument("--keep", help="numbers of the events that happen, as --shrink tells them; shows each")
    parser.add_argument("--of", metavar="VERSION", help="the version of the code that the seed was found with")
    return parser.parse_args(argv)


def turned(knobs: Knobs, told: str) -> Knobs:
    """Return *knobs* with those that *told* names changed."""
    try:
        pairs = {name: ast.literal_eval(value) for name, value in (each.split("=") for each in told.split())}
        changed = knobs._replace(**pairs)
        return changed._replace(mode=Mode(changed.mode))
    except (TypeError, ValueError, SyntaxError) as error:  # an unknown name: TypeError from Python 3.13 on
        raise SystemExit(f"--knobs {told!r}: {error}; knobs are {', '.join(Knobs._fields)}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a schedule violates an invariant."""
    options = _arguments(argv)
    if options.compiled:
        from proof import compiled

        given = list(sys.argv[1:] if argv is None else argv)
        if options.resume is not None:
            given += ["--resume", str(options.resume.absolute())]
        return compiled.run("proof.simulate", [each for each in given if each != "--compiled"])
    task = Task(options.drift, options.mode, options.stops, options.events, options.extreme)
    version = code_version()
    if options.of not in (None, version):
        print(
            f"the seed was found with code version {options.of}, and this is {version}: it may be another schedule here",
            file=sys.stderr,
        )
    if options.keep is not None or options.shrink:
        from proof.simulate import shrink

        knobs = turned(task.knobs(options.seed), options.knobs or "")
        return shrink.show(options.seed, task, knobs, options.keep)
    began = time.monotonic()
    fresh = Saved(version, task, options.seed, options.seed, Totals())
    totals = run_resumable(options.resume, fresh, options.count, options.processes)
    print("\n".join(told(totals, task, time.monotonic() - began)))
    return int(bool(totals.violations))


def told(totals: Totals, task: Task, seconds: float) -> list[str]:
    """Return *totals* for people."""
    pace = totals.schedules / max(totals.cpu_s, 1e-9)
    lines = [
        f"{totals.schedules:,} schedules, {totals.events:,} events, {totals.virtual_s / 3600:,.1f} simulated hours",
        f"{totals.grants:,} grants, {totals.takeovers:,} of them takeovers; {totals.settled:,} schedules with an end of all faults",
        f"{totals.effects:,} effects; {totals.unfenced:,} stale ones where no fence was; {totals.refused:,} refused by the fence",
        f"{totals.failovers:,} failovers that lost writes, after which: {totals.unfenceable:,} stale effects that no fence can tell,",
        *(f"  in {count:,} schedules {name}" for name, count in sorted(totals.shown.items())),
        f"{seconds:.1f} s, {totals.cpu_s:.1f} CPU s, {pace:,.0f} schedules/s/core",
    ]
    lines += [f"violated: {text}: {replay_line(seed, task)}" for seed, text in totals.failures[:5]]
    return [*lines, f"{totals.violations} violations"]


def replay_line(seed: int, task: Task) -> str:
    """Return the command that runs the schedule of *seed* again."""
    words = [f"python -m proof.simulate --seed {seed} --count 1"]
    words += [f"--drift {task.drift}"] if task.drift != DRIFT else []
    words += [f"--mode {task.mode}"] if task.mode is not None else []
    words += ["--stops"] if task.stops else []
    words += ["--extreme"] if task.extreme else []
    words += [f"--events {task.events}"] if task.events != EVENTS else []
    return " ".join([*words, f"--of {code_version()}"])
