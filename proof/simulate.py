"""Seeded simulation of the shipped machine: many clients, bad networks, wrong clocks: ``python -m proof.simulate``.

One event heap, real time in nanoseconds; each client reads it through a clock of its own rate. A seed draws the knobs of its schedule
(delays, losses, doubled requests, pauses, crashes, stale refusals, clock rates) and everything after them, so the same seed is the same
schedule. Each client, once it holds, *uses* two resources: one compares the fencing token in the same step as the effect, the other takes
everything.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import multiprocessing
import random
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core import lease
from dlock_core.plan import NANOS, NEVER
from dlock_core.record import LockRecord, State
from dlock_core.states import (
    Answer,
    Begin,
    Disown,
    Due,
    Ended,
    Event,
    Failure,
    Free,
    Fresh,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    Read,
    Seeking,
    Terms,
    Wait,
)
from dlock_core.store import Reply
from proof.knobs import DRIFT, LEASE_S, Knobs, draw, sim_plan
from proof.landing import perform
from proof.world import Request, rvn_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Outcome", "Sim", "main", "run_seed", "run_seeds"]


class Outcome(NamedTuple):
    """What one schedule showed. *digest* is the same for the same seed."""

    seed: int
    digest: str
    events: int
    grants: int
    unfenced: int  # effects of an earlier holder after one of a later, on the resource that takes everything
    violation: str | None


class Sim:
    """One schedule."""

    def __init__(self, seed: int, knobs: Knobs) -> None:
        self.rng = random.Random(f"dlock:{seed}")
        self.knobs = knobs
        self.now = 0
        self.heap: list[tuple[int, int, Any]] = []
        self.turn = 0
        self.record: LockRecord | None = None
        self.previous: LockRecord | None = None
        self.digest = hashlib.blake2b(digest_size=8)
        self.grants = self.unfenced = self.fence = 0
        self.violation: str | None = None
        self.written: set[str] = set()
        self.agents = [Agent(self, number, rate) for number, rate in enumerate(knobs.rates)]

    def at(self, delay_ns: int, action: Any) -> None:
        """Do *action* that much later."""
        self.turn += 1
        heapq.heappush(self.heap, (self.now + max(delay_ns, 0), self.turn, action))

    def run(self, seed: int, events_max: int) -> Outcome:
        """Run until the bound or a violation."""
        for agent in self.agents:
            self.at(self.rng.randrange(NANOS), agent.begin)
        events = 0
        while self.heap and events < events_max and self.violation is None:
            self.now, _, action = heapq.heappop(self.heap)
            action()
            events += 1
            self._check()
        return Outcome(seed, self.digest.hexdigest(), events, self.grants, self.unfenced, self.violation)

    def _check(self) -> None:
        valid = [agent for agent in self.agents if agent.valid]
        if len(valid) > 1:
            self.fail("I1: two leases are valid")

    def fail(self, violation: str) -> None:
        """Keep the first violation."""
        self.violation = self.violation or violation

    def meet(self, request: Request) -> Reply:
        """Let *request* meet the store."""
        if self.knobs.stale and type(request) is not Read and self.previous is not None and self.rng.random() < 0.05:
            applied, record = perform(self.previous, request)
            if not applied and record is not None:
                return Reply(applied=False, record=record)
        applied, record = perform(self.record, request)
        if applied and record is not None:
            self._written(record)
        return Reply(applied, record)

    def _written(self, record: LockRecord) -> None:
        old = 0 if self.record is None else self.record.fencing_token
        self.digest.update(f"{self.now} {record.state} {record.fencing_token} {record.rvn}".encode())
        if record.fencing_token < old:
            self.fail("I2: the token fell")
        if record.fencing_token > old:
            self.grants += 1
            if any(agent.valid for agent in self.agents):
                self.fail("I1: a grant while another lease is valid")
        self.previous, self.record = self.record, record

    def use(self, token: int) -> None:
        """Use both resources with *token*."""
        # The resource with a fence refuses exactly these.
        self.unfenced += token < self.fence
        self.fence = max(token, self.fence)


class Agent:
    """A client: one attempt after the other, and the clean-up of those before."""

    def __init__(self, sim: Sim, number: int, rate: float) -> None:
        self.sim = sim
        self.number = number
        self.rate = rate
        self.plan = sim_plan(stale=sim.knobs.stale)
        self.runs: list[Run] = []
        self.disowned: set[str] = set()
        self.paused_until = 0

    @property
    def clock(self) -> int:
        """What this client's clock shows."""
        return int(self.sim.now * self.rate)

    @property
    def valid(self) -> bool:
        """Whether a lease of it answers so now."""
        clock = self.clock
        return any(lease.is_valid(run.state, clock) for run in self.runs)

    def begin(self) -> None:
        """Start an attempt, with the memory of this process only."""
        self.runs = [run for run in self.runs if type(run.state) is not Ended]
        run = Run(self, Fresh(Terms("k", "t", self.plan)))
        self.runs.append(run)
        run.step(Begin(self.fresh(), self.clock + int(self.sim.rng.uniform(0.5, 5) * NANOS)))

    def fresh(self) -> str:
        """Return an RVN that was never used."""
        return f"{self.sim.rng.getrandbits(64):016x}"

    def crash(self) -> None:
        """Forget everything and start again."""
        for run in self.runs:
            run.dead = True
        self.runs, self.disowned = [], set()
        self.sim.at(int(self.sim.rng.uniform(0, 2) * NANOS), self.begin)

    def pause(self) -> None:
        """Stand still for up to two leases; the clock goes on."""
        self.paused_until = self.sim.now + int(self.sim.rng.uniform(0.1, 2) * LEASE_S * NANOS)


class Run:
    """One attempt in the hands of a driver that takes no decision."""

    def __init__(self, agent: Agent, state: LeaseState) -> None:
        self.agent = agent
        self.sim = agent.sim
        self.state = state
        self.dead = False
        self.timer = 0
        self.using = False

    def step(self, event: Event) -> None:
        """Step the machine and do what it wants."""
        before = self.state
        self.state, effects = lease.step(before, event, self.agent.clock)
        if type(before) is Lost and type(self.state) is Held:
            self.sim.fail("I5: LOST is absorbing")
        waits = NEVER
        for effect in effects:
            if isinstance(effect, Wait):
                waits = effect.until
            elif isinstance(effect, Disown):
                self.agent.disowned.update(effect.rvns)
            elif type(effect).__name__ != "Risk":
                self._send(effect)  # type: ignore[arg-type]  # what is left are requests
        self._schedule(min(waits, lease.due_at(self.state)))
        if type(self.state) is Held and self.state.way_back is None and not self.using:
            self.using = True
            self.sim.at(0, self._use)
        if type(self.state) is Ended or (
            type(self.state) not in (Fresh, Seeking, Held) and type(before) in (Seeking, Held)
        ):
            self.sim.at(int(self.sim.rng.uniform(0, 1) * NANOS), self._next)

    def _next(self) -> None:
        if self.dead:
            return
        if not any(type(run.state) in (Fresh, Seeking, Held) for run in self.agent.runs):
            self.agent.begin()
        if type(self.state) is Lost:
            self.step(Free(self.agent.fresh()))

    def _schedule(self, until: int) -> None:
        self.timer += 1
        if until < NEVER:
            timer = self.timer
            self.sim.at(
                int((until - self.agent.clock) / self.agent.rate) + 1, lambda: self._awake(lambda: self._due(timer))
            )

    def _awake(self, action: Any) -> None:
        """Do *action* when the client is not paused; pause or crash it now and then."""
        if self.dead:
            return
        sim, agent = self.sim, self.agent
        if sim.now < agent.paused_until:
            sim.at(agent.paused_until - sim.now, lambda: self._awake(action))
            return
        chance = sim.rng.random()
        if chance < sim.knobs.crash:
            agent.crash()
            return
        if chance < sim.knobs.crash + sim.knobs.pause:
            agent.pause()
        action()

    def _due(self, timer: int) -> None:
        waiting = type(self.state) is Seeking and self.state.asked is not None
        if timer == self.timer and not waiting:
            self.step(Due(self.agent.fresh()))

    # -- requests

    def _send(self, request: Request) -> None:
        sim, knobs = self.sim, self.sim.knobs
        rvn, rng = rvn_of(request), sim.rng
        if type(request) is not Read:
            if rvn in sim.written:
                sim.fail("I3: an RVN was written twice")
            sim.written.add(rvn)
        there, back = (int(rng.random() * knobs.delay * LEASE_S * NANOS) for _ in range(2))
        lost_there, lost_back = (rng.random() < knobs.loss for _ in range(2))
        if rng.random() < knobs.doubled and type(request) is not Read:
            sim.at(there + int(rng.random() * 2 * LEASE_S * NANOS), lambda: sim.meet(request))

        def arrive() -> None:
            reply = sim.meet(request)
            if not lost_back:
                sim.at(back, lambda: self._awake(lambda: self._answer(rvn, reply)))

        if not lost_there:
            sim.at(there, arrive)
        timeout = self.agent.plan.acquire_timeout_ns if type(self.state) is Seeking else self.agent.plan.timeout_ns
        sim.at(int(timeout / self.agent.rate), lambda: self._awake(lambda: self._fail(rvn)))

    def _waits_for(self, rvn: str) -> bool:
        asked = getattr(self.state, "asked", None)
        return asked is not None and asked.rvn == rvn

    def _answer(self, rvn: str, reply: Reply) -> None:
        if self._waits_for(rvn):
            disowned = reply.record is not None and reply.record.rvn in self.agent.disowned
            self.step(Answer(rvn, reply, self.agent.fresh(), disowned, self.sim.rng.random()))

    def _fail(self, rvn: str) -> None:
        if self._waits_for(rvn):
            self.step(Failure(rvn, unknown=True, fresh=self.agent.fresh(), jitter=self.sim.rng.random()))
        elif type(self.state) is Seeking and self.sim.rng.random() < 0.02:
            self.step(GiveUp(self.agent.fresh()))

    # -- what the holder does

    def _use(self) -> None:
        if self.dead or type(self.state) is not Held:
            return
        # The check and the effect are two steps: a pause may come between them.
        if lease.is_valid(self.state, self.agent.clock):
            self._check_owner()
            token = self.state.version.fencing_token
            self.sim.at(int(self.sim.rng.random() * 0.05 * NANOS), lambda: self._awake(lambda: self.sim.use(token)))
        if self.sim.rng.random() < 0.1:
            self.step(Free(self.agent.fresh()))
        else:
            self.sim.at(int(self.sim.rng.random() * 0.5 * NANOS), lambda: self._awake(self._use))

    def _check_owner(self) -> None:
        record = self.sim.record
        if type(self.state) is Held and (record is None or record.state is not State.HELD):
            self.sim.fail("I1: a lease is valid, and the key is free")


def run_seed(seed: int, drift: float = DRIFT, events_max: int = 300) -> Outcome:
    """Run the schedule of *seed*."""
    return Sim(seed, draw(seed, drift)).run(seed, events_max)


def _run_one(task: tuple[int, float]) -> Outcome:
    return run_seed(*task)


def run_seeds(seeds: Sequence[int], drift: float = DRIFT, processes: int = 2) -> Iterator[Outcome]:
    """Run the schedules of *seeds*; the outcomes come as they are found."""
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_run_one, [(seed, drift) for seed in seeds], chunksize=64)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a schedule violates an invariant."""
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--drift", type=float, default=DRIFT, help=f"how far the clocks are off; the bound is {DRIFT}")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    began = time.monotonic()
    count = events = grants = unfenced = 0
    failed: list[Outcome] = []
    for outcome in run_seeds(range(options.seed, options.seed + options.schedules), options.drift, options.processes):
        count, events, grants = count + 1, events + outcome.events, grants + outcome.grants
        unfenced += outcome.unfenced
        if outcome.violation is not None:
            failed.append(outcome)
    seconds = time.monotonic() - began
    print(
        f"{count:,} schedules, {events:,} events, {grants:,} grants, {unfenced:,} stale effects on the resource without a fence"
    )
    print(f"{seconds:.1f} s, {count / seconds:,.0f} schedules/s")
    for outcome in sorted(failed)[:5]:
        print(
            f"violated: {outcome.violation}: python -m proof.simulate --seed {outcome.seed} --schedules 1 --drift {options.drift}"
        )
    print(f"{len(failed)} violations")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
