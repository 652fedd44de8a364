"""A small world of elections.

Nothing of an election is modelled: candidates are :meth:`AsyncElection.run`, observers are :meth:`AsyncElection.observe`. Chances decide
when a candidate is cut off from the store or dies, which reply gets lost, how long a body works and needs to stop, and which reads of
an observer are old. What is checked at each step: at most one body runs; the lock is held while the body of its term runs; the terms that
an observer tells never fall (I12).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore
from dlock_core.testing import AsyncFaultyStore
from dlock_core.timings import NEVER
from proof.jobs.virtual import KEY, World, play

if TYPE_CHECKING:
    from dlock_core import AsyncTerm, LockRecord
    from proof.jobs.chances import Chances, Outcome

__all__ = ["EXPLORED", "SIMULATED", "Elections", "play_elections"]

LEASE_S = 20.0
GRACE_S = LEASE_S / 4
# How long a candidate is cut off.
CUT_S = (0.2 * LEASE_S, 1.5 * LEASE_S)
# Of the negative control: into the time of the next leader.
STOPS_TOO_LATE_S = (LEASE_S, 1.5 * LEASE_S)


class Elections(NamedTuple):
    """How large a world is. A candidate may be cut off or die at each *calm* steps, with these chances in a simulation."""

    steps: int
    steps_a_lease: int
    candidates: int
    observers: int
    calm: int = 1
    cuts: float = 0.012
    deaths: float = 0.002
    slow_bodies: bool = False


SIMULATED = Elections(steps=320, steps_a_lease=80, candidates=3, observers=2)
EXPLORED = Elections(steps=56, steps_a_lease=16, candidates=2, observers=1, calm=4)


class _Store(AsyncFaultyStore):
    """A candidate's way to the store, which may be cut: a request is then not sent, or, where it *leaks*, applied and never answered."""

    def __init__(self, world: _World) -> None:
        super().__init__(AsyncMemoryStore(world.space))
        self._world = world
        self.cut_until = 0
        self.leaks = False

    async def _do(self, verb: str, call: Any, request: Any, timeout_s: float) -> Any:
        if self._world.clock.now() >= self.cut_until:
            return await super()._do(verb, call, request, timeout_s)
        if not self.leaks or self._world.chances.pick((1, 1)):
            raise StoreUnavailableError("cut off")
        await super()._do(verb, call, request, timeout_s)
        raise OutcomeUnknownError("the reply was cut off")


class _OldStore(AsyncFaultyStore):
    """An observer's way to the store: some answers are old."""

    def __init__(self, world: _World) -> None:
        super().__init__(AsyncMemoryStore(world.space))
        self._world = world

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record, or one that stood before."""
        world = self._world
        if world.past and world.chances.pick((7, 3)):
            world.counts["old answers"] += 1
            return world.past[world.chances.pick([1] * len(world.past))]
        return await super().read(key, timeout_s=timeout_s)


class _Candidate:
    """A process that runs an election until it dies."""

    def __init__(self, world: _World, number: int) -> None:
        self.world, self.number = world, number
        self.store = _Store(world)
        self.client = world.client(self.store, f"candidate {number}")
        self.running: AsyncTerm | None = None
        self.dead = False
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self.client:
            await self.client.election(KEY).run(self._body)

    async def _body(self, term: AsyncTerm) -> None:
        if self.dead:
            return
        world = self.world
        world.counts["terms"] += 1
        if self.running is not None:
            world.violate(f"candidate {self.number} runs two bodies")
        self.running = term
        try:
            await world.sleep(world.chances.between(0, 2 * LEASE_S))
        except asyncio.CancelledError:
            world.counts["bodies told to stop"] += 1
            await world.sleep(world.chances.between(*world.stops_within_s))
            raise
        finally:
            self.running = None

    def die(self) -> None:
        """End the process: nothing of it is heard any more."""
        self.dead, self.store.cut_until, self.running = True, NEVER, None
        self.world.counts["deaths"] += 1


class _World(World):
    def __init__(self, chances: Chances, size: Elections) -> None:
        super().__init__(chances, LEASE_S)
        self.size = size
        self.step_s = LEASE_S / size.steps_a_lease
        # What a body that keeps to the rule may need after it was told to stop: the steps of the clock come late by one each.
        self.stops_within_s = STOPS_TOO_LATE_S if size.slow_bodies else (0.0, GRACE_S - 2 * self.step_s)
        self.past: list[LockRecord] = []

    async def observe(self, number: int) -> None:
        """Observe, and check that no term falls."""
        told = 0
        async with self.client(_OldStore(self), f"observer {number}") as client:
            async for leader in client.election(KEY).observe():
                self.counts["reports"] += 1
                if leader.term < told:
                    self.violate(f"I12: an observer tells term {leader.term} after term {told}")
                told = leader.term

    async def play(self) -> None:
        """Let candidates and observers live for a while."""
        candidates = [_Candidate(self, number) for number in range(self.size.candidates)]
        observers = [asyncio.ensure_future(self.observe(number)) for number in range(self.size.observers)]
        tasks = [*observers, *(candidate.task for candidate in candidates)]
        for step in range(self.size.steps):
            if not step % self.size.calm:
                self._disturb(candidates, tasks)
            await self.pass_time(self.step_s)
            self._check(candidates, tasks)
            if self.violation is not None:
                break
        await self.end(tasks)

    def _disturb(self, candidates: list[_Candidate], tasks: list[asyncio.Task[None]]) -> None:
        cuts, deaths = self.size.cuts, self.size.deaths
        for place, candidate in enumerate(candidates):
            disturbed = self.chances.pick((1 - cuts - deaths, 0.7 * cuts, 0.3 * cuts, deaths))
            if disturbed in (1, 2):
                candidate.store.cut_until = self.clock.now() + round(self.chances.between(*CUT_S) * 1e9)
                candidate.store.leaks = disturbed == 2
                self.counts["cuts"] += 1
            elif disturbed:
                candidate.die()
                candidates[place] = _Candidate(self, len(self.clients))
                tasks.append(candidates[place].task)

    def _check(self, candidates: list[_Candidate], tasks: list[asyncio.Task[None]]) -> None:
        running = [candidate.running for candidate in candidates if candidate.running is not None]
        if len(running) > 1:
            self.violate(f"two bodies run, of the terms {sorted(term.term for term in running)}")
        record = self.space.records.get(KEY)
        if record is not None and record not in self.past[-3:]:
            self.past = [*self.past[-20:], record]
        for term in running:
            if record is not None and record.fencing_token == term.term and not record.held:
                self.violate(f"the lock of term {term.term} was given back while its body runs")
        self.find_errors(tasks)


def play_elections(chances: Chances, size: Elections = SIMULATED) -> Outcome:
    """Play a world of this size."""
    return play(_World(chances, size))
