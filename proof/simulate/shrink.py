"""The smallest form of a schedule that violates an invariant.

A schedule is run once with each event named by what led to it, and each random draw kept under the event that made it. Then events are left
out or put off, as if their process had stood still or the network had lost them, and the rest goes on with the draws that it had. Where
that leaves more than a handful, the knobs are made simpler first, and other seeds are tried with them.
"""

from __future__ import annotations

import heapq
import time
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from proof.simulate.attempt import Run
from proof.simulate.knobs import LEASE_S, Knobs, Mode
from proof.simulate.runner import Task, code_version, finished, replay_line, run_seed
from proof.simulate.schedule import Agent, Sim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Try: TypeAlias = Callable[[Mapping[int, int]], "Taped | None"]

__all__ = ["ENOUGH", "Shrunk", "Tape", "Taped", "kind_of", "show", "shrink"]

ENOUGH = 20
SECONDS = 50.0
_SEEDS = 300
_MILLI = 1_000_000
# A client that is not given one of these does nothing more.
_DRIVES = {each.__name__ for each in (Agent.begin, Run.go_on, Run.due, Run.hear)}
_BENIGN = 0.5  # a draw that was not made before: no fault has a chance of more


class Tape:
    """What one run has drawn, and the names of its events."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, str, int, int], int] = {}
        self.draws: dict[int, list[float]] = {}


class Taped(Sim):
    """A schedule that keeps its draws on *tape*, or, given which events to *keep*, and by how much they are put off, follows a tape."""

    def __init__(self, seed: int, knobs: Knobs, tape: Tape, keep: Mapping[int, int] | None = None) -> None:
        super().__init__(seed, knobs)
        self.tape, self.keep = tape, keep
        self.current, self.cursor, self.children = -1, 0, 0
        self.happened: list[int] = []
        self.stuck: set[Agent | None] = set()
        self.settling = False
        self.lines: list[str] = []
        self._drawn = self.random
        self.random = self._draw

    def _draw(self) -> float:
        draws = self.tape.draws.setdefault(self.current, [])
        if self.keep is None:
            draws.append(self._drawn())
            return draws[-1]
        self.cursor += 1
        return draws[self.cursor - 1] if self.cursor <= len(draws) else _BENIGN

    def at(self, delay_ns: int, action: Any, about: Any = None) -> None:
        """Do *action* that much later, if it is one of those kept."""
        names = self.tape.names
        key = (self.current, action.__name__, _number(action), self.children)
        self.children += 1
        name = names.setdefault(key, len(names)) if self.keep is None else names.get(key, -1)
        if self.settling or self.keep is None or name in self.keep:
            self.turn += 1
            at = self.now + max(delay_ns, 0) + (self.keep or {}).get(name, 0)
            heapq.heappush(self.heap, (at, self.turn, self._go, (name, action, about)))
        elif action.__name__ in _DRIVES:
            self.stuck.add(_agent(action))

    def settle(self) -> None:
        """I7: nothing is left out any more, and who could not go on without what was left out has crashed, and begins anew."""
        self.settling = True
        for agent in self.agents:
            if agent in self.stuck:
                agent.crash()
        super().settle()

    def _go(self, event: tuple[int, Any, Any]) -> None:
        self.current, action, about = event
        self.cursor = self.children = 0
        if not self.settling:
            self.happened.append(self.current)
        action(about)
        if self.keep is not None:
            self.lines.append(self._line(action))

    def kept(self) -> dict[int, int]:
        """Return the events that happened, and by how much each was put off."""
        return {name: (self.keep or {}).get(name, 0) for name in self.happened}

    def action_of(self, entry: tuple[int, int, Any, Any]) -> Any:
        """Return what an entry of the heap does."""
        return entry[3][1]

    def _line(self, action: Any) -> str:
        record = self.store.record
        standing = "-" if record is None else f"{record.state} {record.rvn} token {record.fencing_token}"
        who = getattr(action, "__self__", None)
        state = type(who.state).__name__ if isinstance(who, Run) else ""
        valid = [run.agent.number for run in self.holders if run.valid()]
        return f"{self.now / 1e9:9.4f}  client {_number(action):2}  {action.__name__:13} {state:10} record: {standing:24} valid: {valid}"


def _agent(action: Any) -> Agent | None:
    who = action.__self__
    return who.agent if isinstance(who, Run) else who if isinstance(who, Agent) else None


def _number(action: Any) -> int:
    agent = _agent(action)
    return -1 if agent is None else agent.number


class Shrunk(NamedTuple):
    """A small schedule: what it violates, how to run it again, and its events."""

    seed: int
    knobs: Knobs
    violation: str
    keep: tuple[tuple[int, int], ...]
    lines: tuple[str, ...]
    seconds: float

    def line(self, task: Task) -> str:
        """Return the command that shows it."""
        told = " ".join(f"{name}={value!r}".replace(", ", ",") for name, value in _changed(self.seed, self.knobs, task))
        kept = ",".join(f"{name}+{stall // _MILLI}" if stall else str(name) for name, stall in self.keep)
        return replay_line(self.seed, task) + (f' --knobs "{told}"' if told else "") + f" --keep {kept}"


def _changed(seed: int, knobs: Knobs, task: Task) -> Iterator[tuple[str, Any]]:
    drawn = task.knobs(seed)._asdict()
    for name, value in knobs._asdict().items():
        if value != drawn[name]:
            text = tuple(value) if isinstance(value, tuple) else value
            yield name, str(text) if isinstance(text, Mode) else text


def shrink(seed: int, task: Task, knobs: Knobs | None = None, seconds: float = SECONDS) -> Shrunk | None:
    """Return the smallest schedule found that violates what the one of *seed* does; None if that violates nothing.

    *seconds* are of processor time, so a busy machine does not leave the schedule long.
    """
    until = time.process_time() + seconds
    began = time.process_time()
    knobs = knobs or task.knobs(seed)
    found = run_seed(seed, task, knobs)
    if found.violation is None:
        return None
    kind = kind_of(found.violation)
    best = _reduced(seed, knobs, task, kind, until)
    others = _simplified(seed, knobs, task, kind, until)
    while (best is None or len(best.lines) > ENOUGH) and (other := next(others, None)) is not None:
        again = _reduced(*other, task, kind, until)
        if again is not None and (best is None or len(again.lines) < len(best.lines)):
            best = again
    return None if best is None else best._replace(seconds=time.process_time() - began)


def kind_of(violation: str | None) -> str:
    """Return what makes two violations the same: the invariant, not the numbers."""
    return (violation or "").split(":")[0]


def _reduced(seed: int, knobs: Knobs, task: Task, kind: str, until: float) -> Shrunk | None:
    """Leave out events of one schedule, in halves, quarters and so on, as long as it violates the same."""
    tape = Tape()
    whole = finished(Taped(seed, knobs, tape), task.events)
    if isinstance(whole, Taped) and kind_of(whole.violation) != kind:
        return None
    last = _replayed(seed, knobs, task, tape, dict.fromkeys(tape.names.values(), 0))
    if kind_of(last.violation) != kind:
        return None

    def still(kept: Mapping[int, int]) -> Taped | None:
        tried = _replayed(seed, knobs, task, tape, kept)
        return tried if kind_of(tried.violation) == kind else None

    last = _left_out(last, still, until)
    if len(last.lines) > ENOUGH:
        last = _left_out(_put_off(last, still, until), still, until)
    return Shrunk(seed, knobs, last.violation or "", tuple(last.kept().items()), tuple(last.lines), 0.0)


def _left_out(last: Taped, still: Try, until: float) -> Taped:
    size = max(len(last.happened) // 2, 1)
    while time.process_time() < until:
        at, less = 0, False
        while at < len(last.happened) and time.process_time() < until:
            out = set(last.happened[at : at + size])
            tried = still({name: stall for name, stall in last.kept().items() if name not in out})
            if tried is None:
                at += size
            else:
                last, less = tried, True
        if size == 1 and not less:
            break
        size = max(size // 2, 1)
    return last


def _put_off(last: Taped, still: Try, until: float) -> Taped:
    """Put off one event after the other by up to a lease where fewer happen until the violation."""
    at = 0
    while at < len(last.happened) and time.process_time() < until:
        for stall in (1000, 500, 200):
            tried = still(last.kept() | {last.happened[at]: stall * _MILLI})
            if tried is not None and len(tried.lines) < len(last.lines):
                last = tried
                break
        at += 1
    return last


def _replayed(seed: int, knobs: Knobs, task: Task, tape: Tape, keep: Mapping[int, int]) -> Taped:
    sim = Taped(seed, knobs, tape, keep)
    finished(sim, task.events)
    return sim


def _simplified(seed: int, knobs: Knobs, task: Task, kind: str, until: float) -> Iterator[tuple[int, Knobs]]:
    """Yield schedules of other seeds, and of fewer knobs, that violate the same, the shortest of each lot of seeds first; for so long."""
    for first in count(seed, _SEEDS):
        if time.process_time() > until:
            break
        yield from _turned(range(first, first + _SEEDS), knobs, task, kind, until)


def _turned(seeds: range, knobs: Knobs, task: Task, kind: str, until: float) -> list[tuple[int, Knobs]]:
    """Turn one knob after the other where some seed then violates the same no later; return those schedules, the shortest first."""
    found = _soonest(seeds, knobs, task, kind, until)
    for change in _turns(knobs) if found else ():
        if time.process_time() > until:
            break
        tried = knobs._replace(**change)
        sooner = task._replace(events=min(task.events, found[0][0]))
        others = _soonest(seeds, tried, sooner, kind, until)
        if others:
            knobs, found = tried, others
    return [(other, knobs) for _, other in found]


def _soonest(seeds: range, knobs: Knobs, task: Task, kind: str, until: float) -> list[tuple[int, int]]:
    """Return (events until the violation, seed) of those of *seeds* that violate the same, the soonest first."""
    found = []
    for seed in seeds:
        outcome = run_seed(seed, task, knobs)
        if kind_of(outcome.violation) == kind:
            found.append((outcome.events, seed))
        if time.process_time() > until:
            break
    return sorted(found)


def _turns(knobs: Knobs) -> Iterator[dict[str, Any]]:
    yield {"clients": 2, "rates": (min(knobs.rates), max(knobs.rates)), "leases": (LEASE_S, LEASE_S)}
    yield {"clients": 1, "rates": (1.0,), "leases": (LEASE_S,)}
    yield {"settles": False}
    yield {"mode": Mode.LINEARIZABLE}
    yield {"poll": LEASE_S, "notifies": True}
    yield from ({name: 0.0} for name in ("doubled", "loss", "crash", "give_up", "relet", "breaks", "pause"))
    yield from ({"delay": delay} for delay in (0.01, 0.5, 1.0))
    yield {"pause": 0.1}


# ---- the command ----------------------------------------------------------------------------------------------------------------------


def show(seed: int, task: Task, knobs: Knobs, keep: str | None) -> int:
    """Show a kept schedule event by event, or the smallest form of one; 1 if it violates an invariant."""
    if keep is None:
        found = shrink(seed, task, knobs)
        if found is None:
            print(f"the schedule of seed {seed} violates nothing here (code version {code_version()})")
            return 0
        print("\n".join(found.lines))
        print(
            f"violated: {found.violation}, {len(found.lines)} events, found in {found.seconds:.1f} s:\n  {found.line(task)}"
        )
        return 1
    try:
        pairs = [each.partition("+") for each in keep.split(",")]
        kept = {int(name): int(stall or 0) * _MILLI for name, _, stall in pairs}
    except ValueError as error:
        raise SystemExit(
            f"--keep {keep!r}: numbers with commas between them, as --shrink tells them ({error})"
        ) from error
    tape = Tape()
    finished(Taped(seed, knobs, tape), task.events)
    sim = _replayed(seed, knobs, task, tape, kept)
    print("\n".join(sim.lines))
    print(f"violated: {sim.violation}" if sim.violation else "no violation")
    return int(sim.violation is not None)
