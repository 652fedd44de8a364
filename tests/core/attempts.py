"""One attempt at the key ``k``, stepped by hand: the test says when, and what the store answers."""

from __future__ import annotations

from typing import Any

from dlock_core import lease
from dlock_core.options import ClientOptions
from dlock_core.record import Broken, LockRecord, LossReason, State, Version
from dlock_core.states import (
    Answer,
    Begin,
    Cleaning,
    Due,
    Effect,
    Event,
    Failure,
    Free,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    New,
    Observation,
    Payload,
    Progress,
    Read,
    Releasing,
    Renew,
    Risk,
    Seeking,
    Stop,
    Terms,
    Wait,
    Woken,
)
from dlock_core.store import Claim, Release, Replace, Reply
from dlock_core.timings import EARLY, Early, Timings, Traits, derive_timings

__all__ = ["LEASE", "SECOND", "Attempt", "broken", "free", "held", "holding", "timings"]

SECOND = 1_000_000_000
LEASE = 10.0


def timings(early: Early = EARLY, /, **options: Any) -> Timings:
    """Return the timings of a lease of 10 s: used for 9.8 s, renewed every 2.5 s, asked after 1.67 s."""
    traits = Traits(**{name: options.pop(name) for name in Traits._fields if name in options})
    settings = {"lease_duration": LEASE, "max_lease_duration": 3600} | options
    return derive_timings(ClientOptions(**settings), "me", traits, early)


def held(rvn: str, token: int = 1, *, lease: float | None = LEASE, owner: str = "other") -> LockRecord:
    """Return a record that somebody holds."""
    return LockRecord("k", State.HELD, rvn, token, owner, None if lease is None else round(lease * 1000))


def free(rvn: str, token: int = 1) -> LockRecord:
    """Return a tombstone."""
    return LockRecord("k", State.FREE, rvn, token, "", None)


def broken(rvn: str, token: int) -> LockRecord:
    """Return a record in the quarantine of an operator's break."""
    return LockRecord("k", State.HELD, rvn, token, "operator", 10_000, broken=Broken("operator", 0))


class Attempt:
    """Steps the machine. Each event brings its own fresh RVN: f1, f2, ..."""

    def __init__(self, terms_timings: Timings | None = None) -> None:
        self.state: LeaseState = New(Terms("k", "ticket", terms_timings or timings()))
        self.effects: tuple[Effect, ...] = ()
        self.now = 0
        self._events = 0

    def at(self, seconds: float) -> Attempt:
        """Set the clock."""
        self.now = round(seconds * SECOND)
        return self

    def send(self, event: Event) -> Attempt:
        """Step the machine."""
        self.state, self.effects = lease.step(self.state, event, self.now)
        return self

    @property
    def new_rvn(self) -> str:
        """The next RVN that was never used."""
        self._events += 1
        return f"f{self._events}"

    def begin(self, give_up: float = 30.0, seen: Observation | None = None) -> Attempt:
        """Start."""
        return self.send(Begin(self.new_rvn, round(give_up * SECOND), seen))

    def answer(self, record: LockRecord | None, *, applied: bool = False, abandoned: bool = False) -> Attempt:
        """Answer the request that is under way."""
        return self.send(Answer(self.in_flight, Reply(applied, record), self.new_rvn, abandoned))

    def grant(self, token: int | None = None) -> Attempt:
        """Say that the write under way was applied; a claim is given *token*."""
        record = self.request.record
        if token is not None:
            record = LockRecord(
                "k", record.state, record.rvn, token, record.owner, record.lease_ms, record.data, record.attributes
            )
        return self.answer(record, applied=True)

    def unknown(self) -> Attempt:
        """Say that nobody knows what became of the request under way."""
        return self.send(Failure(self.in_flight, unknown=True, new_rvn=self.new_rvn))

    def not_applied(self) -> Attempt:
        """Say that the request under way was certainly not applied."""
        return self.send(Failure(self.in_flight, unknown=False, new_rvn=self.new_rvn))

    def due(self) -> Attempt:
        """Say that the time has come."""
        return self.send(Due(self.new_rvn))

    def woken(self) -> Attempt:
        """Say that the store notified."""
        return self.send(Woken(self.new_rvn))

    def renew(self, new_timings: Timings | None = None, payload: Payload | None = None) -> Attempt:
        """Ask for a renewal."""
        return self.send(Renew(self.new_rvn, new_timings, payload))

    def progress(self) -> Attempt:
        """Say that the body works."""
        return self.send(Progress())

    def free(self, payload: Payload | None = None) -> Attempt:
        """Give the key back."""
        return self.send(Free(self.new_rvn, payload))

    def give_up(self) -> Attempt:
        """Abandon the attempt."""
        return self.send(GiveUp(self.new_rvn))

    @property
    def in_flight(self) -> str:
        """The id of the request under way."""
        in_flight = getattr(self.state, "in_flight", None)
        assert in_flight is not None, f"nothing was asked: {self.state}"
        return str(in_flight.rvn)

    @property
    def request(self) -> Any:
        """The request that the last step sent."""
        sent = [effect for effect in self.effects if isinstance(effect, (Claim, Replace, Release, Read))]
        assert len(sent) == 1, f"not one request: {self.effects}"
        return sent[0]

    @property
    def asks(self) -> type[Any]:
        """The kind of the request that the last step sent."""
        return type(self.request)

    @property
    def wait_s(self) -> float | None:
        """Until when the last step waits, in seconds; None if it does not."""
        waits = [effect.until for effect in self.effects if isinstance(effect, Wait)]
        return waits[0] / SECOND if waits else None

    @property
    def risks(self) -> list[bool]:
        """What the last step told about the risk."""
        return [effect.at_risk for effect in self.effects if isinstance(effect, Risk)]

    @property
    def stops(self) -> list[LossReason]:
        """Why the last step told the holder to stop."""
        return [effect.reason for effect in self.effects if isinstance(effect, Stop)]

    @property
    def valid(self) -> bool:
        """Whether the holder may act now."""
        return lease.is_valid(self.state, self.now)

    @property
    def due_at(self) -> float:
        """When the state wants to be woken, in seconds."""
        return lease.due_at(self.state) / SECOND

    # The state, as the type that a test expects.

    @property
    def seeking(self) -> Seeking:
        """The state of one who seeks."""
        assert isinstance(self.state, Seeking)
        return self.state

    @property
    def holder(self) -> Held:
        """The state of one who holds."""
        assert isinstance(self.state, Held)
        return self.state

    @property
    def lost(self) -> Lost:
        """The state of one who lost."""
        assert isinstance(self.state, Lost)
        return self.state

    @property
    def releasing(self) -> Releasing:
        """The state of one who gives back."""
        assert isinstance(self.state, Releasing)
        return self.state

    @property
    def cleaning(self) -> Cleaning:
        """The state of one who cleans up."""
        assert isinstance(self.state, Cleaning)
        return self.state

    @property
    def version(self) -> Version:
        """The version held."""
        return self.holder.version


def holding(terms_timings: Timings | None = None, token: int = 1) -> Attempt:
    """Return an attempt that was granted *token* at once, at 0 s."""
    return Attempt(terms_timings).begin().grant(token)
