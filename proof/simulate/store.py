"""The simulated store, in its modes, and the two resources that holders use; what must hold of them is checked at each write and effect."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from dlock_core.record import LockRecord, State, Version
from dlock_core.states import Read
from dlock_core.store import Claim, Reply
from dlock_core.timings import NANOS
from proof.explore.canonical import TOKEN
from proof.explore.store_model import perform
from proof.simulate.knobs import Mode

if TYPE_CHECKING:
    from proof.explore.world import Request
    from proof.simulate.attempt import Flight, Run
    from proof.simulate.schedule import Sim

__all__ = ["Resources", "SimStore"]

_MILLI = NANOS // 1000
_STALE = 0.1
_FAILOVER = 0.03
_THROTTLE = 0.7
_UNNOTICED = 0.5
_SPAN_NS = 3 * NANOS  # bursts and partitions come once in this time
_BURST_NS = int(0.6 * NANOS)


class SimStore:
    """One key. Breaking what it has acknowledged is what the mode ``failover`` is for, and told by *rolled_back*."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.knobs = sim.knobs
        self.record: LockRecord | None = None
        self.floor, self.removed = TOKEN, 0  # the least first token of a key; how often its record was removed
        self.history: list[LockRecord | None] = [None]
        self.written_at = 0
        self.writes: list[tuple[int, LockRecord]] = []
        self.serials: dict[Version, int] = {}  # of each version that was granted: which grant it was
        self.tokens: set[int] = set()
        self.versions: set[Version] = set()
        self.grants = self.takeovers = self.failovers = 0
        self.grantee: Run | None = None
        self.delays: list[float] = []  # of each takeover: how old the record was, in leases
        self.waiting: list[tuple[Run, Flight]] = []  # the claims that wait, and whose they are
        self.rolled_back = self.reissued = False
        self.fastest = max(sim.knobs.rates)

    def digest(self) -> str:
        """Return a name for all that was written, and when."""
        told = "\n".join(f"{at} {record.state} {record.fencing_token} {record.rvn}" for at, record in self.writes)
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    def refuses(self) -> bool:
        """Whether it is overloaded, and does not take this request."""
        knobs, sim = self.knobs, self.sim
        if knobs.mode is not Mode.THROTTLED:
            return False
        inside = (sim.now + int(knobs.phase * _SPAN_NS)) % _SPAN_NS < _BURST_NS
        return inside and sim.random() < _THROTTLE

    def unreachable(self, number: int, at: int) -> bool:
        """Whether client *number* cannot reach it at the instant *at*."""
        knobs = self.knobs
        if knobs.mode is not Mode.PARTITIONED or number == 0:
            return False
        return (at + int(knobs.phase * _SPAN_NS)) % _SPAN_NS < knobs.cut * NANOS

    def meet(self, request: Request, run: Run | None) -> Reply:
        """Let *request* of *run* (None: the operator) meet the record."""
        mode = self.knobs.mode
        if mode is Mode.FAILOVER:
            self._fail_over()
        elif self.knobs.stale and len(self.history) > 1:
            stale = self._stale(request)
            if stale is not None:
                return stale
        applied, record = perform(self.record, request, self.floor)
        if applied and record is not None:
            self._written(request, record, run)
        return Reply(applied, record)

    def remove(self, version: Version) -> None:
        """Remove the record if it has that *version*, of which it was free; the next token is greater all the same."""
        if self.record is not None and self.record.version == version:
            self.floor = self.floor_above(self.record)
            self.record = None
            self.history.append(None)
            self.removed += 1

    @staticmethod
    def floor_above(record: LockRecord) -> int:
        """Return the least token of a claim that follows the removal of *record*."""
        return record.fencing_token + 1

    def _stale(self, request: Request) -> Reply | None:
        reads = type(request) is Read
        if (reads and self.knobs.mode is not Mode.STALE_READ) or self.sim.random() >= _STALE:
            return None
        applied, record = perform(self.history[-2], request, self.floor)
        # What a former primary would accept is no acknowledged write: only its refusals and reads come back.
        return None if applied or (record is None and not reads) else Reply(applied=False, record=record)

    def _fail_over(self) -> None:
        lost = self.knobs.lost_writes
        if self.sim.random() >= _FAILOVER or len(self.history) <= lost:
            return
        del self.history[-lost:]
        self.record = self.history[-1]
        self.rolled_back = True
        self.failovers += 1

    def _written(self, request: Request, record: LockRecord, run: Run | None) -> None:
        old, now = self.record, self.sim.now
        rise = record.fencing_token - (0 if old is None else old.fencing_token)
        problem = self._relation(request, record, run, rise)
        if problem is not None:
            self.sim.fail(problem)
        if rise > 0:
            self._granted(request, record, run)
        self.versions.add(record.version)
        self.writes.append((now, record))
        self.history.append(record)
        self.record, self.written_at = record, now
        if self.knobs.notifies:
            self.sim.notify()
        if self.waiting and record.state is not State.HELD:
            self._serve()
        if self.knobs.prunes and record.state is not State.HELD:
            self.sim.remove_later(record.version)

    def _granted(self, request: Request, record: LockRecord, run: Run | None) -> None:
        sim, token, old = self.sim, record.fencing_token, self.record
        if token in self.tokens:
            self.reissued = True
            sim.fail("I2: a token was granted twice")
        self.tokens.add(token)
        self.grantee = run
        if run is None:
            return  # an operator's break: the old holder stays valid for the rest of its lease
        self.grants += 1
        self.serials[record.version] = self.grants
        if type(request) is not Claim and old is not None and old.lease_ms is not None:
            self.takeovers += 1
            self.delays.append((sim.now - self.written_at) / (old.lease_ms * _MILLI))
        if sim.someone_valid():
            sim.fail("I1: a grant while another lease is valid")

    def _relation(self, request: Any, new: LockRecord, run: Run | None, rise: int) -> str | None:
        """I2 and I3: what may follow what in the record."""
        old = self.record
        if new.version in self.versions:
            return "I3: a version was written twice"
        if old is None:
            return None if type(request) is Claim else "I3: something other than a claim made the record"
        if new.rvn == old.rvn:
            return "I3: a write kept the RVN"
        if type(request) is Claim:
            return None if rise == 1 else f"I2: a claim changed the token by {rise}"
        if rise == 0:
            return None if run is self.grantee else "I3: a renewal or a release of a grant that is not the writer's"
        if rise != 1:
            return f"I2: the token changed by {rise}"
        if run is None or old.rvn in run.abandoned or old.lease_ms is None:
            return None
        if (self.sim.now - self.written_at) * self.fastest < old.lease_ms * _MILLI - 1:
            return "I3: a takeover before the record's lease had passed"
        return None

    def _serve(self) -> None:
        """Let the claim meet the free key that has waited longest; that of a process which is gone, if that was not noticed (K4)."""
        while self.waiting:
            run, flight = self.waiting.pop(0)
            if not run.dead or self.sim.random() < _UNNOTICED:
                self.sim.at(0, run.served, flight)
                return
            flight.reply = Reply(applied=False, record=None)

    def is_held(self) -> bool:
        """Whether the record says so."""
        return self.record is not None and self.record.state is State.HELD

    def free_of(self, token: int) -> bool:
        """Whether the grant *token* is not held any more."""
        record = self.record
        return record is None or record.state is not State.HELD or record.fencing_token != token


class Resources:
    """What holders use: one resource that compares the token in the same step as the effect, one that takes everything."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.fence = self.last = self.fenced_last = 0
        self.effects = self.unfenced = self.refused = self.unfenceable = 0

    def use(self, token: int, serial: int) -> None:
        """Have an effect of grant number *serial* on both."""
        self.effects += 1
        self.unfenced += serial < self.last
        self.last = max(serial, self.last)
        if token < self.fence:
            self.refused += 1
            return
        if serial < self.fenced_last:
            self.unfenceable += 1
            store = self.sim.store
            if not store.reissued:
                self.sim.violate("I4: an effect of an earlier grant after one of a later, though no token was lost")
        self.fence, self.fenced_last = token, max(serial, self.fenced_last)
