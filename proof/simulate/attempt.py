"""One attempt of a simulated client, in the hands of a driver that takes no decision, and what is checked at each of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core import lease
from dlock_core.record import LossReason
from dlock_core.states import (
    Abandon,
    Answer,
    Cleaning,
    Confirming,
    Due,
    Ended,
    Event,
    Failure,
    Free,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    Outcome,
    Read,
    Releasing,
    Renew,
    Risk,
    Seeking,
    Stop,
    Wait,
    Woken,
)
from dlock_core.timings import NANOS, NEVER
from proof import watch
from proof.explore.canonical import may_apply
from proof.explore.world import Request, rvn_of
from proof.simulate.knobs import LEASE_S, RELET_S, Mode, sim_timings

if TYPE_CHECKING:
    from dlock_core.store import Reply
    from proof.simulate.schedule import Agent

__all__ = ["Run"]

_CALLS_FIRST = 40  # a request more than this, and than one in this time, is a storm
_CALL_NS = NANOS // 200
_GRANTED = (Held, Confirming)
_SOUGHT = (Seeking, *_GRANTED)


class Flight:
    """A request, what the store answered, and from when on the answer can be read."""

    __slots__ = ("back", "ready_at", "refused", "reply", "request", "rvn", "told_at", "wait_ns")

    def __init__(self, request: Request, rvn: str) -> None:
        self.request, self.rvn = request, rvn
        self.wait_ns: int = getattr(request, "wait_ns", 0)
        self.back: int | None = None  # how long the answer to one that waits is on its way; None: it is lost
        self.reply: Reply | None = None
        self.ready_at = NEVER
        self.told_at = 0
        self.refused = False


class Run:
    """One attempt in the hands of a driver that takes no decision."""

    __slots__ = (
        "abandoned",
        "agent",
        "began_at",
        "dead",
        "flights",
        "handed",
        "listens",
        "sends",
        "serial",
        "sim",
        "state",
        "timer",
    )

    def __init__(self, agent: Agent, state: LeaseState) -> None:
        self.agent = agent
        self.sim = agent.sim
        self.state = state
        self.dead = False
        self.timer = 0
        self.abandoned = agent.abandoned
        self.flights: dict[str, Flight] = {}  # of writes that the store has not met
        self.handed = False
        self.listens = False  # it waits for a notification
        self.serial = self.sends = 0
        self.began_at = self.sim.now

    def valid(self) -> bool:
        """Whether its lease answers so now."""
        return lease.is_valid(self.state, self.agent.clock())

    def end(self) -> None:
        """The process is gone."""
        self.dead = True
        if self in self.sim.holders:
            self.sim.holders.remove(self)

    def step(self, event: Event) -> None:
        """Step the machine, check the step, and do what the machine wants."""
        before, clock, sim = self.state, self.agent.clock(), self.sim
        state, effects = lease.step(before, event, clock)
        self.state = state
        problem = watch.problem(before, event, state, clock)
        if problem is not None:
            sim.violate(problem)
        waits = NEVER
        self.listens = False
        for effect in effects:
            kind = type(effect)
            if kind is Wait:
                waits = effect.until  # type: ignore[union-attr]  # mypy does not narrow by type()
                self.listens = effect.record is not None  # type: ignore[union-attr]
                if type(state) is Seeking and waits > max(state.give_up_at, clock):
                    sim.violate("I7: an attempt waits beyond its timeout")
            elif kind is Abandon:
                self.abandoned.update(effect.rvns)  # type: ignore[union-attr]
            elif kind is not Risk and kind is not Stop:  # those two are for the body
                self._send(effect)  # type: ignore[arg-type]  # what is left are requests
        self._watch(before, clock)
        if type(state) is not type(before):
            self._changed(before, clock)
        until = min(waits, lease.due_at(state))
        if until <= clock and type(event) is Due and not effects and state == before:
            sim.violate("I8: what is due changes nothing, and is due again at once")
        self._schedule(until, clock)

    def _watch(self, before: LeaseState, clock: int) -> None:
        if type(self.state) is Seeking:
            self.sim.watch_wait(self)
        if type(self.state) in _GRANTED or type(before) in _GRANTED:
            self._watch_hold(before, clock)

    def _watch_hold(self, before: LeaseState, clock: int) -> None:
        sim, state = self.sim, self.state
        if type(state) is not Held and type(state) is not Confirming:
            sim.holders.remove(self)
            return
        if type(before) not in _GRANTED:
            sim.holders.append(self)
            grant = state.grant if type(state) is Confirming else state
            self.serial = sim.store.serials.get(grant.version, 0)  # type: ignore[union-attr]  # as above
        if not lease.is_valid(state, clock):
            return
        if self.handed and not lease.is_valid(before, clock):
            sim.violate("I5: a lease that had ended is valid again")
        for other in sim.holders:
            if other is not self and other.valid():
                sim.fail("I1: two leases are valid")
        if not self.handed:
            self.handed = True
            sim.at(0, self.use)

    def _changed(self, before: LeaseState, clock: int) -> None:
        """Go on after the end of an attempt or of a hold, and check what it claims."""
        sim, state = self.sim, self.state
        if type(before) is Seeking:
            self.agent.seen = before.seen
        if type(state) in _GRANTED:
            return
        if type(state) is Ended or (type(before) in _SOUGHT and type(state) is not Seeking):
            sim.at(int(sim.random() * sim.think_ns), self.go_on)
        if sim.mode is not Mode.STALE_READ and not sim.store.rolled_back:
            self._check_claims(before, clock)

    def _check_claims(self, before: LeaseState, clock: int) -> None:
        """Check what a step has claimed about the store: that the lock is lost, was given back, or that nothing can come any more."""
        sim, state = self.sim, self.state
        if type(state) is Lost and type(before) is Held and state.loss.reason in (LossReason.STOLEN, LossReason.BROKEN):
            record = sim.store.record
            if record is None or record.fencing_token <= state.loss.fencing_token:
                sim.violate("I6: a loss was told, and nobody else was granted")
        if type(state) is not Ended:
            return
        if type(before) is Releasing and state.outcome is Outcome.RELEASED:
            if not sim.store.free_of(before.version.fencing_token):
                sim.violate("S4: a release was reported done, and the record is still held")
        elif (type(before) is Seeking or (type(before) is Cleaning and before.until > clock)) and any(
            rvn not in self.abandoned and may_apply(flight.request, sim.store.record)
            for rvn, flight in self.flights.items()
        ):
            sim.violate("I5: an attempt is over, and a write of it may still be applied")

    def go_on(self, _: Any) -> None:
        """Begin anew, and give back what was lost."""
        if self.dead:
            return
        self.agent.begin(None)
        if type(self.state) is Lost:
            self.step(Free(self.sim.new_rvn()))

    def _schedule(self, until: int, clock: int) -> None:
        self.timer += 1
        if until < NEVER:
            self.sim.at(int((until - clock) / self.agent.rate) + 1, self.due, self.timer)

    def _stopped(self, action: Any, about: Any) -> bool:
        """Whether the client is gone or stands still; pause or crash it now and then."""
        if self.dead:
            return True
        sim, agent = self.sim, self.agent
        if sim.now < agent.paused_until:
            sim.at(agent.paused_until - sim.now, action, about)
            return True
        if sim.trouble:
            chance = sim.random()
            if chance < sim.trouble:
                if chance < sim.knobs.crash:
                    agent.crash()
                    return True
                agent.pause()
        return False

    def due(self, timer: int) -> None:
        """The instant has come that the machine named last."""
        if timer != self.timer or self._stopped(self.due, timer):
            return
        state = self.state
        if type(state) is Seeking:
            if state.in_flight is not None:
                return
            if self.sim.knobs.give_up and self.sim.random() < self.sim.knobs.give_up:
                self.step(GiveUp(self.sim.new_rvn()))
                return
        self.step(Due(self.sim.new_rvn(), self.sim.random()))

    def woken(self, timer: int) -> None:
        """A notification has come, in time or late."""
        if timer == self.timer and self.listens and not self._stopped(self.woken, timer):
            self.step(Woken(self.sim.new_rvn()))

    # -- requests

    def _send(self, request: Request) -> None:
        sim, agent, draw = self.sim, self.agent, self.sim.random
        rvn = rvn_of(request)
        flight = Flight(request, rvn)
        writes = type(request) is not Read
        self.sends += 1
        if self.sends > _CALLS_FIRST + (sim.now - self.began_at) // _CALL_NS:
            sim.violate("I8: more requests than the time allows")
        there, back = int(draw() * sim.delay_ns), int(draw() * sim.delay_ns)
        timings = agent.timings
        timeout = timings.acquire_timeout_ns if type(self.state) is Seeking else timings.timeout_ns
        end = int((timeout + flight.wait_ns) / agent.rate)
        if sim.store.refuses():
            flight.refused = True
            end = min(there + back, end)
        elif not ((sim.loss and draw() < sim.loss) or sim.store.unreachable(agent.number, sim.now)):
            if sim.doubled and writes and draw() < sim.doubled:
                sim.at(there + int(draw() * 2 * LEASE_S * NANOS), self.arrive_again, request)
            if writes:
                self.flights[rvn] = flight
            sim.at(there, self.arrive, flight)
            lost_back = (sim.loss and draw() < sim.loss) or sim.store.unreachable(agent.number, sim.now + there + back)
            if not lost_back and flight.wait_ns:
                flight.back = back
            elif not lost_back:
                flight.ready_at = sim.now + there + back
                end = min(there + back, end)
        flight.told_at = sim.now + end
        sim.at(end, self.hear, flight)

    def arrive(self, flight: Flight) -> None:
        """The request meets the store, whatever became of its sender; a claim that waits does so while the key is held."""
        if flight.wait_ns and self.sim.store.is_held():
            self.sim.store.waiting.append((self, flight))
            self.sim.at(flight.wait_ns, self.served, flight)
        else:
            self.served(flight)

    def served(self, flight: Flight) -> None:
        """The wait of a request has ended, with the key or without, and so the request meets the record."""
        sim = self.sim
        if flight.reply is not None:
            return
        if (self, flight) in sim.store.waiting:
            sim.store.waiting.remove((self, flight))
        self.flights.pop(flight.rvn, None)
        flight.reply = sim.store.meet(flight.request, self)
        if flight.back is not None:
            flight.ready_at = flight.told_at = sim.now + flight.back
            sim.at(flight.back, self.hear, flight)

    def arrive_again(self, request: Request) -> None:
        """A copy of the request meets the store, and nobody hears of it."""
        self.sim.store.meet(request, self)

    def hear(self, flight: Flight) -> None:
        """The driver has the answer, or its time is out; after a pause either may come first."""
        sim = self.sim
        in_flight = getattr(self.state, "in_flight", None)
        if in_flight is None or in_flight.rvn != flight.rvn or self._stopped(self.hear, flight):
            return
        late = sim.now > flight.told_at
        if flight.refused:
            self.step(Failure(flight.rvn, unknown=False, new_rvn=sim.new_rvn(), jitter=sim.random()))
        elif flight.reply is not None and flight.ready_at <= sim.now and not (late and sim.random() < 0.5):
            record = flight.reply.record
            abandoned = record is not None and record.rvn in self.abandoned
            self.step(Answer(flight.rvn, flight.reply, sim.new_rvn(), abandoned, sim.random()))
        else:
            self.step(Failure(flight.rvn, unknown=True, new_rvn=sim.new_rvn(), jitter=sim.random()))

    # -- what the holder does

    def use(self, _: Any) -> None:
        """Look at the lease, and have an effect a little later: a pause may come between the two."""
        if type(self.state) is not Held or self._stopped(self.use, None):
            return
        sim, state, agent = self.sim, self.state, self.agent
        if lease.is_valid(state, agent.clock()):
            if not self.holds_by_the_record(state):
                sim.fail("I1: a lease is valid, and the record is another's")
            sim.at(int(sim.random() * 0.05 * NANOS), self.effect, state.version.fencing_token)
        chance = sim.random()
        if chance < 0.1:
            self.step(Free(sim.new_rvn()))
            return
        if chance < 0.1 + sim.knobs.relet and state.in_flight is None:
            other = sim_timings(
                RELET_S if state.timings is agent.timings else agent.timings.lease_ns / NANOS, sim.knobs
            )
            self.step(Renew(sim.new_rvn(), other))
        sim.at(int(sim.random() * 0.5 * NANOS), self.use)

    def holds_by_the_record(self, state: Held) -> bool:
        """Whether the record is held under the lease's token, or an operator's break of it stands."""
        record = self.sim.store.record
        if record is None or not record.held:
            return False
        return record.fencing_token == state.version.fencing_token or record.broken is not None

    def effect(self, token: int) -> None:
        """What the holder does under the lock."""
        if not self._stopped(self.effect, token):
            self.sim.resources.use(token, self.serial)
