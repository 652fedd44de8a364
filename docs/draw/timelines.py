"""Who holds a lock when. The first picture is a run of the library on a clock that is advanced by hand."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from dlock_core.fence import MemoryTokens
from dlock_core.memory import AsyncMemoryStore, MemorySpace
from dlock_core.testing import AsyncFaultyStore, FakeClock
from docs.draw._svg import Picture

__all__ = ["leader", "lease", "lock_delay", "once", "stall"]

_LEFT, _RIGHT, _LANE, _TOP = 120, 740, 58, 30


class Span(NamedTuple):
    """What goes on from one instant to another."""

    begin: float
    end: float
    kind: str
    text: str


@dataclass(frozen=True)
class Lane:
    """One process: its spans, when it ends and how, and what happens at an instant."""

    name: str
    spans: list[Span]
    ends: list[tuple[float, str]] = field(default_factory=list)
    dots: list[tuple[float, str]] = field(default_factory=list)


def timeline(
    title: str, description: str, lanes: list[Lane], instants: list[tuple[float, str]], *, until: float
) -> Picture:
    """Return a picture with a line for each lane, and a line across for each of the *instants*."""
    bottom = _TOP + _LANE * len(lanes) + 8
    picture = Picture(_RIGHT + 20, bottom + 26, title=title, description=description)

    def at(instant: float) -> float:
        return round(_LEFT + instant / until * (_RIGHT - _LEFT), 1)

    for number, lane in enumerate(lanes):
        y = _TOP + _LANE * number
        picture.text(4, y + 19, lane.name)
        picture.line(_LEFT, y + 34, _RIGHT, y + 34)
        for span in lane.spans:
            picture.box(at(span.begin), y, at(span.end) - at(span.begin), 28, span.kind)
            picture.text(at(span.begin) + 6, y + 19, span.text, "" if span.kind == "wait" else "on")
        for instant, why in lane.ends:
            picture.cross(at(instant) + 8, y + 14)
            picture.text(at(instant) + 20, y + 19, why, "small")
        for instant, what in lane.dots:
            picture.dot(at(instant), y + 34)
            if what:
                picture.text(at(instant) - 4, y + 50, what, "small")
    for instant, name in instants:
        picture.line(at(instant), _TOP - 6, at(instant), bottom, dashed=True)
        picture.text(at(instant) - 6, bottom + 16, name, "small")
    return picture


class _Run:
    """A loses the store after 12 s and stops; B waits from 3 s on. Instants are in seconds; the lease is 20 s."""

    def __init__(self) -> None:
        self.renewed: list[float] = []
        self.at: dict[str, float] = {}
        asyncio.run(self._live())

    async def _live(self) -> None:
        space = MemorySpace()
        stores = [AsyncFaultyStore(AsyncMemoryStore(space)) for _ in range(2)]
        log = logging.getLogger("dlock.engine")
        with FakeClock() as clock:
            told = _Told(clock)
            log.addHandler(told)
            level, propagates = log.level, log.propagate
            log.setLevel(logging.INFO)
            log.propagate = False
            try:
                async with (
                    clock.aclient(stores[0], lease_duration=20) as first,
                    clock.aclient(stores[1], lease_duration=20) as second,
                ):
                    held = await first.acquire("k")

                    async def until(instant: float) -> None:
                        while told.now() < instant and not told.taken_over:
                            renewals = stores[0].requests["replace"]
                            clock.advance(0.25)
                            for _ in range(60):
                                await asyncio.sleep(0)
                            if stores[0].requests["replace"] > renewals and "at risk" not in told.at:
                                self.renewed.append(told.now())

                    await until(3)
                    waiter = asyncio.create_task(second.acquire("k"))
                    await until(12)
                    with stores[0].outage():
                        await until(60)
                        taken = await waiter
                    tokens = MemoryTokens()
                    tokens.admit("account", taken.fencing_token)
                    assert tokens.admit("account", held.fencing_token) > held.fencing_token  # the write of A is refused
            finally:
                log.removeHandler(told)
                log.setLevel(level)
                log.propagate = propagates
        self.at = told.at


class _Told(logging.Handler):
    """Notes when the log first told each kind of event."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock, self._began = clock, clock.now()
        self.at: dict[str, float] = {}

    @property
    def taken_over(self) -> bool:
        return "taken over" in self.at

    def now(self) -> float:
        return (self._clock.now() - self._began) / 1e9

    def emit(self, record: logging.LogRecord) -> None:
        if kind := getattr(record, "dlock_kind", None):
            self.at.setdefault(str(kind), self.now())


def lease() -> Picture:
    """A lease from its grant over risk and loss to the takeover, and a late write that is refused."""
    run = _Run()
    renewed, risk, lost = run.renewed, run.at["at risk"], run.at["lost"]
    taken = math.ceil(run.at["taken over"])  # the last pause of the waiter is drawn by chance
    return timeline(
        "A lease: renewed, at risk, lost, taken over, fenced",
        f"With a lease of 20 seconds A renews at {' and '.join(f'{each:g}' for each in renewed)} seconds and "
        f"loses the store. At {risk:g} seconds a "
        f"renewal fails, and the lock is at risk; at {lost:g} seconds it is lost. B is granted it at "
        f"{taken:g} seconds, with a greater token, and the "
        "late write of A is refused.",
        [
            Lane(
                "holder A",
                [Span(0, risk, "held", "holds, token 1"), Span(risk, lost, "late", "at risk: tries again")],
                ends=[(lost, "lost")],
                dots=[*((each, "renewed") for each in renewed), (risk, "fails")],
            ),
            Lane("waiter B", [Span(3, taken, "wait", "waits"), Span(taken, 50, "held", "holds, token 2")]),
            Lane(
                "the data",
                [Span(taken + 1.5, 50, "run", "has seen token 2")],
                dots=[(taken + 4, "A wakes up and writes: refused")],
            ),
        ],
        [(0, "0 s"), (risk, f"{risk:g} s"), (lost, f"{lost:g} s")],
        until=50,
    )


def leader() -> Picture:
    """A leader dies; its successor loses the store."""
    return timeline(
        "A leader that dies and one that follows",
        "Candidate A leads term 1 and dies. Its lease runs out; candidate B leads term 2. When B loses the "
        "store, it is told to stop before its lease "
        "ends, so C begins only after B's body has ended.",
        [
            Lane("candidate A", [Span(2, 24, "held", "leads, term 1")], ends=[(24, "dies")]),
            Lane(
                "candidate B",
                [
                    Span(2, 40, "wait", "campaigns"),
                    Span(40, 72, "held", "leads, term 2"),
                    Span(72, 80, "late", "stops"),
                ],
            ),
            Lane("candidate C", [Span(2, 86, "wait", "campaigns"), Span(86, 100, "held", "term 3")]),
        ],
        [(24, "last renewal"), (40, "+ a lease"), (72, "term.stopping"), (86, "B's lease ends")],
        until=100,
    )


def lock_delay() -> Picture:
    """A late request of a dead holder, and the delay that waits for it."""
    return timeline(
        "The delay after a holder that died",
        "With a lease of 20 seconds and lock_delay=5 the late request of the dead holder takes effect before "
        "the waiter is granted the lock at 25 seconds.",
        [
            Lane("holder A", [Span(0, 6, "held", "works")], ends=[(6, "dies")]),
            Lane("its request", [Span(5, 22.5, "late", "on its way to a slow server")], dots=[(22.5, "takes effect")]),
            Lane(
                "waiter B",
                [
                    Span(0, 20, "wait", "waits for the lease"),
                    Span(20, 25, "run", "the delay"),
                    Span(25, 30, "held", "token + 1"),
                ],
            ),
        ],
        [(0, "last renewal"), (20, "20 s: lease over"), (25, "25 s")],
        until=30,
    )


def once() -> Picture:
    """A slot that is run again after a death."""
    return timeline(
        "A run that died is done again",
        "Host A runs the slot of 02:00 and dies; host B sees no renewal for one lease, runs the slot again "
        "and finishes it; host C comes later and finds it done.",
        [
            Lane("host A", [Span(5, 30, "held", "runs 02:00")], ends=[(30, "dies")]),
            Lane(
                "host B",
                [Span(6, 50, "wait", "sees no renewal for a lease"), Span(50, 78, "held", "runs 02:00 again")],
                dots=[(78, "finished, with its result")],
            ),
            Lane("host C", [Span(86, 99, "run", "done")]),
        ],
        [(5, "02:00"), (50, "one lease after A's last renewal"), (86, "later")],
        until=100,
    )


def stall() -> Picture:
    """A holder that hangs, and is renewed."""
    return timeline(
        "A holder that hangs",
        "With stall_timeout=30 worker A shows progress at 10 and 20 seconds, then hangs; its lock is lost at "
        "50 seconds, and worker B is granted it when its "
        "lease is over.",
        [
            Lane(
                "worker A",
                [Span(0, 20, "held", "works"), Span(20, 50, "late", "hangs; is still renewed")],
                ends=[(50, "lost: stalled")],
                dots=[(10, "progress"), (20, "progress")],
            ),
            Lane("worker B", [Span(0, 66, "wait", "waits"), Span(66, 80, "held", "token + 1")]),
        ],
        [(0, "0 s"), (20, "20 s"), (50, "50 s"), (66, "A's lease is over")],
        until=80,
    )
