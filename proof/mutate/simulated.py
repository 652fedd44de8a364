"""How small what the simulation finds becomes: each mutant of the machine, simulated, and one schedule for each invariant shrunk."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, NamedTuple

from proof.mutate.runner import plant
from proof.simulate.runner import Outcome, Task, run_seed
from proof.simulate.shrink import ENOUGH, kind_of, shrink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proof.mutate.mutant import Mutant

__all__ = ["SECONDS_MAX", "SIMULATED", "Small", "problem", "shrink_all"]

# What a simulated client runs.
SIMULATED = ("dlock_core/early.py", "dlock_core/lease.py", "dlock_core/timings.py")
SECONDS_MAX = 60.0
_SEEDS = 500


class Small(NamedTuple):
    """A schedule that a *mutant* made of the seed, and how many events are left of it; None: it could not be shrunk at all."""

    mutant: str
    violation: str
    seed: int
    whole: int
    events: int | None
    seconds: float


def problem(small: Small) -> str | None:
    """Return what is wrong with a schedule that should be small by now."""
    if small.events is not None and small.events <= ENOUGH and small.seconds <= SECONDS_MAX:
        return None
    return f"{small.mutant}: seed {small.seed}, {small.violation}: {small.events} events after {small.seconds:.0f} s"


def shrink_all(mutants: Sequence[Mutant], processes: int) -> Iterator[Small]:
    """Shrink the first violation of each invariant that the schedules of each mutant show, if they show any."""
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(_shrunk, mutants, chunksize=1):
            yield from found


def _shrunk(mutant: Mutant) -> list[Small]:
    plant(mutant)
    task = Task()
    firsts: dict[str, Outcome] = {}
    for seed in range(_SEEDS):
        outcome = run_seed(seed, task)
        if outcome.violation is not None:
            firsts.setdefault(kind_of(outcome.violation), outcome)
    smalls = []
    for kind, outcome in firsts.items():
        found = shrink(outcome.seed, task)
        events, seconds = (None, 0.0) if found is None else (len(found.lines), found.seconds)
        smalls.append(Small(mutant.name, kind, outcome.seed, outcome.events, events, seconds))
    return smalls
