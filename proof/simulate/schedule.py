"""One simulated schedule: an event heap, clients whose clocks run at rates of their own, and drivers that take no decision.

What is checked where, by the names of the invariants: I1 at each step that leaves a lease valid, at each grant and at each use of a lease;
I2 and I3 at each write (``store.py``); I4 at each effect; I5, I6 and I8 at each step of the machine (``watch.py``, ``attempt.py``);
I7 at the end of each eighth schedule, after the faults have stopped, and at each step of a wait in a schedule whose only faults
are clients that die and stand still.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

from dlock_core import lease
from dlock_core.record import Broken
from dlock_core.states import Begin, Break, Confirming, Ended, Held, New, Observation, Seeking, Terms
from dlock_core.timings import NANOS
from proof.simulate.attempt import Run
from proof.simulate.knobs import LEASE_S, Knobs, Mode, sim_timings
from proof.simulate.store import Resources, SimStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.record import Version

__all__ = ["Agent", "Sim"]

_TRYING = (New, Seeking, Confirming, Held)
# A takeover is a poll, a refused claim of another's, a read and the write that takes over: a way there and back each.
_WAYS = 8
_QUICK = 0.1  # of a second: with slower requests their time-outs decide when a takeover comes
_LATE_NS_PER_MS = 1_020_000  # a lease, by a clock that is slow


class Sim:
    """One schedule: the same *seed* and *knobs* are the same events at the same instants."""

    def __init__(self, seed: int, knobs: Knobs) -> None:
        self.random: Callable[[], float] = random.Random(f"dlock:{seed}").random
        self.knobs = knobs
        self.mode = knobs.mode
        self.delay_ns = int(knobs.delay * NANOS)
        self.loss, self.doubled = knobs.loss, knobs.doubled
        self.trouble = knobs.pause + knobs.crash
        self.prompt = knobs.mode is Mode.LINEARIZABLE and not knobs.loss and knobs.delay <= _QUICK
        self.now = 0
        self.heap: list[tuple[int, int, Any, Any]] = []
        self.turn = self.events = self.ids = 0
        self.violation: str | None = None
        self.shown: set[str] = set()
        self.think_ns = NANOS
        self.valid_at = 0
        self.store = SimStore(self)
        self.resources = Resources(self)
        self.holders: list[Run] = []
        self.agents = [Agent(self, number) for number in range(knobs.clients)]

    def at(self, delay_ns: int, action: Any, about: Any = None) -> None:
        """Do *action* that much later."""
        self.turn += 1
        heapq.heappush(self.heap, (self.now + max(0, delay_ns), self.turn, action, about))

    def start(self) -> None:
        """Let the clients begin, one after the other."""
        for agent in self.agents:
            self.at(int(self.random() * NANOS), agent.begin)
        if self.random() < self.knobs.breaks:
            self.at(int((1 + self.random()) * 2 * NANOS), self._break)

    def run(self, events_max: int) -> None:
        """Run until the bound or a violation."""
        heap, pop = self.heap, heapq.heappop
        events = self.events
        while heap and events < events_max and self.violation is None:
            self.now, _, action, about = pop(heap)
            action(about)
            events += 1
        self.events = events

    def new_rvn(self) -> str:
        """Return an RVN that was never used."""
        self.ids += 1
        return f"{self.ids:x}"

    def fail(self, violation: str) -> None:
        """Keep the first violation; what a store that forgets its writes may lead to is shown, and no violation."""
        if self.store.rolled_back:
            self.shown.add(violation)
        else:
            self.violate(violation)

    def violate(self, violation: str) -> None:
        """Keep the first violation of what holds on every store."""
        self.violation = self.violation or violation

    def someone_valid(self) -> bool:
        """Whether a lease is valid now."""
        return any(run.valid() for run in self.holders)

    def notify(self) -> None:
        """Tell the waiters of a write, as a store that notifies does: each of them, unless that is lost on the way."""
        for agent in self.agents:
            for run in agent.runs:
                if run.listens and not run.dead and not (self.loss and self.random() < self.loss):
                    self.at(int(self.random() * self.delay_ns), run.woken, run.timer)

    def _break(self, _: Any) -> None:
        record = self.store.record
        if record is None:
            return
        by = Broken("operator", 0)
        request = lease.break_request(Break(record.key, record.fencing_token, by), record, self.new_rvn())
        if request is not None:
            self.at(int(self.random() * self.delay_ns), self._break_lands, request)

    def _break_lands(self, request: Any) -> None:
        self.store.meet(request, None)

    def remove_later(self, version: Version) -> None:
        """Have an operator, who has listed this free *version*, ask for its removal.

        It may be young: a prune asks for an age because of claims that expect an absent key, and no lock with a lease sends these.
        """
        self.at(int(self.random() * self.delay_ns), self._removal_lands, version)

    def _removal_lands(self, version: Version) -> None:
        self.store.remove(version)

    def watch_wait(self, run: Run) -> None:
        """I7 among deaths: a held record stands no longer than a lease, a poll and its requests while one client waits undisturbed."""
        knobs, record = self.knobs, self.store.record
        if record is None or record.lease_ms is None or not self.prompt:
            return
        bound = record.lease_ms * _LATE_NS_PER_MS + int(knobs.poll * NANOS) + _WAYS * self.delay_ns
        if self.now - max(self.store.written_at, run.began_at, run.agent.paused_until) > bound:
            self.violate("I7: a held record stood longer than a takeover takes, and a client waited all the time")

    # -- the end of all faults

    def settle(self) -> None:
        """I7: stop all faults, drop what is on the way, and see the key held again within a lease, a poll and two requests."""
        longest = int(self.knobs.longest_s * NANOS)
        self.knobs = self.store.knobs = self.knobs._replace(mode=Mode.LINEARIZABLE, give_up=0.0)
        self.loss = self.doubled = self.trouble = 0.0
        self.delay_ns, self.think_ns = NANOS // 100, NANOS // 20
        self._wake_all()
        for agent in self.agents:
            agent.paused_until = self.now
            for run in agent.runs:
                run.flights.clear()
            if not any(type(run.state) in _TRYING for run in agent.runs):
                agent.begin(None)
        # Calls that were under way at the end of the faults have their time-out first.
        self.valid_at = self.now + longest // 2
        bound = int(longest * 1.02 + self.knobs.poll * NANOS + 4 * self.delay_ns)
        while self.heap and self.violation is None and not self.someone_valid():
            self.run(self.events + 1)
            if self.now - self.valid_at > bound:
                self.violate("I7: without faults nobody has held the key for longer than a takeover takes")

    def action_of(self, entry: tuple[int, int, Any, Any]) -> Any:
        """Return what an entry of the heap does."""
        return entry[2]

    def _wake_all(self) -> None:
        """Drop the requests on the way, copies and those of operators too, and end all pauses: what a client has put off comes now."""
        operators = (Sim._break, Sim._break_lands, Sim._removal_lands)
        under_way = {each.__name__ for each in (Run.arrive, Run.arrive_again, *operators)}
        entries = [entry for entry in self.heap if self.action_of(entry).__name__ not in under_way]
        paused = {agent.paused_until for agent in self.agents}
        self.heap = [(self.now if at in paused else at, turn, action, about) for at, turn, action, about in entries]
        heapq.heapify(self.heap)


class Agent:
    """A client: one attempt after the other, and the clean-up of those before."""

    def __init__(self, sim: Sim, number: int) -> None:
        self.sim = sim
        self.number = number
        self.rate = sim.knobs.rates[number]
        self.timings = sim_timings(sim.knobs.leases[number], sim.knobs)
        self.runs: list[Run] = []
        self.abandoned: set[str] = set()
        self.seen: Observation | None = None
        self.paused_until = 0
        self.stood_still = 0

    def clock(self) -> int:
        """Return what this client's clock shows."""
        return int((self.sim.now - self.stood_still) * self.rate)

    def begin(self, _: Any) -> None:
        """Start an attempt, with the memory of this process only."""
        self.runs = [run for run in self.runs if type(run.state) is not Ended]
        if any(type(run.state) in _TRYING for run in self.runs):
            return
        run = Run(self, New(Terms("k", "t", self.timings)))
        self.runs.append(run)
        patience = int((0.5 + 4.5 * self.sim.random()) * NANOS)
        run.step(Begin(self.sim.new_rvn(), self.clock() + patience, self.seen))

    def crash(self) -> None:
        """Forget everything and start again."""
        for run in self.runs:
            run.end()
        self.runs, self.abandoned, self.seen = [], set(), None
        self.sim.at(int(self.sim.random() * 2 * NANOS), self.begin)

    def pause(self) -> None:
        """Stand still for up to two leases; a good clock goes on."""
        length = int((0.1 + 1.9 * self.sim.random()) * LEASE_S * NANOS)
        self.paused_until = self.sim.now + length
        if self.sim.knobs.stops:
            self.stood_still += length
