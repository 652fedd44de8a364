"""A small world around the shipped machine: clients of one key that are slow, deaf, doubled or impatient, in whole ticks.

Nothing of the protocol is modelled here: each decision is a call of :func:`dlock_core.lease.step`. What is modelled is what the machine
cannot choose: when a request reaches the store, whether its reply comes back, what a user asks for, and time. All instants are relative to
``NOW``, which never moves; a tick makes everything else older (``canonical.py``). An RVN is a string that starts with ``#``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dlock_core import lease
from dlock_core.errors import LeaseStateError
from dlock_core.options import ClientOptions
from dlock_core.record import LockRecord, LossReason, OwnerState, State, Version
from dlock_core.states import (
    Abandon,
    Answer,
    Begin,
    Cleaning,
    Confirming,
    Due,
    Effect,
    Ended,
    Event,
    Failure,
    Free,
    GiveUp,
    Held,
    LeaseState,
    Lost,
    New,
    Observation,
    Outcome,
    Probe,
    Probed,
    Read,
    Releasing,
    Renew,
    Risk,
    Seeking,
    Terms,
    Wait,
    Woken,
)
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_core.timings import NEVER, Early, Timings, Traits, derive_timings
from proof import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "KEY",
    "NEW_RVN",
    "NOW",
    "TICK",
    "Client",
    "Ghost",
    "Move",
    "Request",
    "Rules",
    "Slot",
    "moves",
    "newcomer",
    "rvn_of",
    "timings_of",
]

TICK = 1_000_000
NOW = 1_000 * TICK
NEW_RVN = "#new"
KEY = "k"


class Removal(NamedTuple):
    """The operator's request to remove *record*, which was listed, if it stands unchanged and nobody wrote it for long enough."""

    record: LockRecord


Request: TypeAlias = Claim | Replace | Release | Read | Removal


class Rules(NamedTuple):
    """The size of a world, and what may happen in it. Leases are in ticks; None is a fail-closed lock.

    *deaths*: whether a client may die, once. *probes*: owners are asked for, and who answers knows the truth, or does not.
    *aged*: the store tells ages, by a clock that may have stepped as far as it is trusted not to.
    *late*: the operator does not break locks, but removes free records that nobody wrote for longer than so many ticks. A claim that
    expects an absent key lands within as many ticks of the answer that it rests on, or never.
    """

    leases: tuple[int | None, ...] = (2, 2)
    ticks: int = 4
    faults: int = 1
    attempts: int = 1
    abandons: int = 0
    relet: int | None = None  # the lease that a holder may change to
    relets: int = 1
    breaks: int = 0
    frees_now: bool = False
    stale: bool = False
    notify: bool = False
    in_server: bool = False  # claims wait in the store; one that is on its way for long is one that waits
    copies: bool = True
    heartbeat: bool = True
    solo: bool = False  # only the first client tries again, abandons, relets and dies
    deaths: int = 0
    probes: bool = False
    aged: bool = False
    late: int | None = None

    @property
    def span_ns(self) -> int:
        """Beyond this age instants are not told apart."""
        return (max((lease or 0) for lease in (*self.leases, self.relet, self.late)) + 1) * TICK


class Slot(NamedTuple):
    """One attempt of a client: the machine's state, and its one request: on the way (*request*) or answered and on the way back (*reply*).

    *stage*: 0 not handed out, 1 valid, 2 no longer valid. *doubled*: the request was applied once, and is on its way again.
    *probed*: the version whose owner is being asked for; *owner*: the answer, on its way back. *age*: that of the reply's record, in ms.
    """

    number: int
    state: LeaseState
    until: int = NOW
    request: Request | None = None
    reply: Reply | None = None
    stage: int = 0
    doubled: bool = False
    probed: Version | None = None
    owner: OwnerState | None = None
    age: int | None = None


class Ghost(NamedTuple):
    """A request that nobody waits for and that may still be applied.

    *copy*: it was doubled on its way, so its sender knows nothing of it. *sent_at* counts only where records are removed.
    """

    number: int
    request: Request
    copy: bool = False
    sent_at: int = NEVER


class Client(NamedTuple):
    """A client: its attempts that are not over, what it abandoned and observed, and what it may still do."""

    timings: Timings | None  # None: the operator
    slots: tuple[Slot, ...] = ()
    ghosts: tuple[Ghost, ...] = ()
    abandoned: tuple[str, ...] = ()
    cache: Observation | None = None
    begun: int = 0
    attempts: int = 0
    abandons: int = 0
    relets: int = 0
    grantee: int | None = None  # the attempt to which the current token was granted
    deaths: int = 0
    dead: bool = False
    late_ns: int | None = (
        None  # within this time of being sent a claim of an absent key is applied; None: records are never removed
    )


class Move(NamedTuple):
    """A step of one client without the store. *lost*, *released*, *closed*: token or number to be checked against the store.

    *transition*: what the machine did, in the words of :func:`proof.watch.transition_name`.
    """

    label: str
    cost: int
    client: Client
    notes: tuple[str, ...] = ()
    violation: str | None = None
    lost: int | None = None
    released: int | None = None
    closed: int | None = None
    died: bool = False  # and the record that stands is its own
    transition: str = ""


def timings_of(rules: Rules, lease: int | None) -> Timings:
    """Return timings whose every duration is whole ticks, without any margin: what is safe here is safe with one."""
    options = ClientOptions(
        lease_duration=(lease or 1) / 1000, drift_bound=0.0, fail_closed=lease is None, auto_renew=rules.heartbeat
    )
    traits = Traits(notify=rules.notify, refusals_linearizable=not rules.stale, server_wait=rules.in_server)
    timings = derive_timings(options, "o", traits, Early(probes=rules.probes, server_clock=rules.aged))
    return timings._replace(period_ns=TICK, timeout_ns=TICK, backoff_ns=0, patience_ns=NEVER, poll_max_ns=TICK)


def newcomer(rules: Rules, number: int) -> Client:
    """Return a client that has not begun."""
    if rules.solo and number:
        rules = rules._replace(attempts=1, abandons=0, relet=None, deaths=0)
    lease = rules.leases[number]
    return Client(
        timings_of(rules, lease),
        attempts=rules.attempts,
        abandons=rules.abandons,
        relets=rules.relets if rules.relet else 0,
        deaths=rules.deaths,
        late_ns=None if rules.late is None else rules.late * TICK,
    )


def rvn_of(request: Request) -> str:
    """Return what *request* writes, or the id of a read."""
    return request.rvn if type(request) is Read else request.record.rvn  # type: ignore[union-attr]  # mypy does not narrow by type()


def ghost_of(client: Client, slot: Slot, *, copy: bool = False) -> Ghost:
    """Return the request of *slot* as one that nobody waits for."""
    assert slot.request is not None
    in_flight = getattr(slot.state, "in_flight", None) if expects_absence(client, slot.request) else None
    return Ghost(slot.number, slot.request, copy, NEVER if in_flight is None else in_flight.sent_at)


def expects_absence(client: Client, request: Request | None) -> bool:
    """Whether *request* could be applied once more after a removal of the record that refuses it."""
    return client.late_ns is not None and type(request) is Claim and request.expect is Expect.ABSENT


def is_too_late(client: Client, request: Request | None, sent_at: int) -> bool:
    """Whether *request* was sent so long ago that it does not land any more."""
    return client.late_ns is not None and expects_absence(client, request) and NOW - sent_at > client.late_ns


def without_late(client: Client) -> Client:
    """Return *client* without the ghosts that do not land any more."""
    ghosts = tuple(ghost for ghost in client.ghosts if not is_too_late(client, ghost.request, ghost.sent_at))
    return client if len(ghosts) == len(client.ghosts) else client._replace(ghosts=ghosts)


def knows_of_absence(client: Client) -> bool:
    """Whether an answer that shows an absent key is on its way back, in a world that removes records: it is used before time passes."""
    return client.late_ns is not None and any(
        slot.reply is not None and slot.reply.record is None for slot in client.slots
    )


# ---- what a client can do by itself ---------------------------------------------------------------------------------------------------


def moves(client: Client, rules: Rules) -> Iterator[Move]:
    """Yield each step that *client* can take without the store."""
    for index, slot in enumerate(client.slots):
        for label, cost, event, ghosts in _events(client, slot, rules):
            yield _advance(client, index, (f"{slot.number}.{label}", cost), event, ghosts)
    busy = any(type(slot.state) in (Seeking, Confirming, Held) for slot in client.slots)
    if client.timings is not None and client.attempts and not busy:
        number = client.begun
        starting_slot = Slot(number, New(Terms(KEY, "t", client.timings)))
        starting = client._replace(slots=(*client.slots, starting_slot), begun=number + 1, attempts=client.attempts - 1)
        yield _advance(starting, len(client.slots), (f"{number}.begin", 0), Begin(NEW_RVN, NEVER, client.cache), ())
    if client.deaths and client.slots:
        yield _die(client)


def _die(client: Client) -> Move:
    """End the process: nothing of it goes on but what was sent, of which the store knows nothing yet."""
    under_way = tuple(
        ghost_of(client, slot, copy=slot.doubled)
        for slot in client.slots
        if slot.request is not None and type(slot.request) is not Read
    )
    held = any(type(slot.state) in (Confirming, Held) for slot in client.slots)
    ghosts = client.ghosts + under_way
    dead = Client(client.timings, ghosts=ghosts, grantee=client.grantee, dead=True, late_ns=client.late_ns)
    notes = ("owner died",) if held else ("died without the lock",)
    return Move("die", 0, dead, notes, died=client.grantee is not None)


def _events(client: Client, slot: Slot, rules: Rules) -> Iterator[tuple[str, int, Event, tuple[Ghost, ...]]]:
    """Yield (label, faults, event, what stays on the way) for each event that *slot* may meet now."""
    state, request = slot.state, slot.request
    in_flight = getattr(state, "in_flight", None)
    rvn = "" if in_flight is None else in_flight.rvn
    if request is not None:
        ghosts = () if type(request) is Read else (ghost_of(client, slot, copy=slot.doubled),)
        yield "timeout", 1, Failure(rvn, unknown=True, new_rvn=NEW_RVN), ghosts
        if ghosts and not slot.doubled:
            yield "refused-service", 1, Failure(rvn, unknown=False, new_rvn=NEW_RVN), ()
    elif slot.reply is not None:
        record = slot.reply.record
        abandoned = record is not None and record.rvn in client.abandoned
        yield "answer", 0, Answer(rvn, slot.reply, NEW_RVN, abandoned, age_ms=slot.age), ()
        yield "lost-reply", 1, Failure(rvn, unknown=True, new_rvn=NEW_RVN), ()
    elif slot.owner is not None:
        yield "told", 0, Probed(rvn, slot.owner, NEW_RVN), ()
    yield from _own_events(client, slot, rules)


def _own_events(client: Client, slot: Slot, rules: Rules) -> Iterator[tuple[str, int, Event, tuple[Ghost, ...]]]:
    state = slot.state
    waiting = type(state) is Seeking or type(state) is Confirming
    if waiting and state.in_flight is None:  # type: ignore[union-attr]
        if slot.until <= NOW:
            yield "due", 0, Due(NEW_RVN), ()
        if rules.notify and type(state) is Seeking:
            yield "woken", 0, Woken(NEW_RVN), ()
    elif not waiting and lease.due_at(state) <= NOW:
        yield "due", 0, Due(NEW_RVN), ()
    if waiting and client.abandons:
        yield "give-up", 0, GiveUp(NEW_RVN), ()
    if type(state) is Lost or type(state) is Held:
        yield "free", 0, Free(NEW_RVN), ()
    if type(state) is Held and state.in_flight is None and client.relets and rules.relet:
        yield "relet", 0, Renew(NEW_RVN, timings_of(rules, rules.relet)), ()


def _advance(client: Client, index: int, choice: tuple[str, int], event: Event, ghosts: tuple[Ghost, ...]) -> Move:
    slot = client.slots[index]
    try:
        state, effects = lease.step(slot.state, event, NOW)
    except LeaseStateError as error:
        return Move(*choice, client, violation=f"a legal event was refused: {error}")
    if type(event) in (Answer, Failure) or _forgotten(slot, state):
        if type(event) not in (Answer, Failure) and slot.request is not None and type(slot.request) is not Read:
            # Nobody waits for it any more, and the store does not know that.
            ghosts = (ghost_of(client, slot, copy=slot.doubled),)
        slot = slot._replace(request=None, reply=None, doubled=False, probed=None, owner=None, age=None)
    problem = watch.problem(slot.state, event, state, NOW)
    notes = tuple(watch.notes(slot.state, event, state, effects, NOW))
    client = _book(client, event, slot.state)
    after, abandoned = _perform(slot._replace(state=state), effects)
    stage = 1 if lease.is_valid(state, NOW) else (2 if slot.stage else 0)
    if slot.stage == 2 and stage == 1:
        problem = "I5: a lease that had ended is valid again"
    after = after._replace(stage=stage)
    slots = (*client.slots[:index], *(() if type(state) is Ended else (after,)), *client.slots[index + 1 :])
    client = client._replace(slots=slots, ghosts=client.ghosts + ghosts, abandoned=client.abandoned + abandoned)
    transition = watch.transition_name(type(slot.state), type(event), type(state))
    return Move(*choice, client, notes, problem, *_claims_made(slot, state), transition=transition)


def _forgotten(slot: Slot, after: LeaseState) -> bool:
    """Whether the request under way is not waited for any more."""
    before, in_flight = getattr(slot.state, "in_flight", None), getattr(after, "in_flight", None)
    return before is not None and (in_flight is None or in_flight.rvn != before.rvn)


def _perform(slot: Slot, effects: tuple[Effect, ...]) -> tuple[Slot, tuple[str, ...]]:
    abandoned: tuple[str, ...] = ()
    for effect in effects:
        match effect:
            case Wait():
                slot = slot._replace(until=effect.until)
            case Abandon():
                abandoned += effect.rvns
            case Claim() | Replace() | Release() | Read():
                if slot.request is not None:
                    raise AssertionError(f"a second request {effect} beside {slot.request}")
                slot = slot._replace(request=effect)
            case Probe():
                slot = slot._replace(probed=effect.record.version)
            case Risk():
                pass
    return slot, abandoned


def _book(client: Client, event: Event, before: LeaseState) -> Client:
    """Count what the client has used up, and keep what it has observed."""
    if type(event) is GiveUp:
        client = client._replace(abandons=client.abandons - 1)
    elif type(event) is Renew:
        client = client._replace(relets=client.relets - 1)
    seen = before.seen if type(before) is Seeking else None
    return client if seen is None else client._replace(cache=seen)


def _claims_made(slot: Slot, state: LeaseState) -> tuple[int | None, int | None, int | None]:
    """Return what the step has claimed about the world: (token proved lost, token given back, number of an attempt that is over)."""
    before = slot.state
    lost = released = closed = None
    if type(state) is Lost and type(before) is Held and state.loss.reason in (LossReason.STOLEN, LossReason.BROKEN):
        lost = state.loss.fencing_token
    if type(state) is Ended:
        if type(before) is Releasing and state.outcome is Outcome.RELEASED:
            released = before.version.fencing_token
        for_ever = state.terms.timings.lease_ms is None
        if type(before) is Seeking or (type(before) is Cleaning and (for_ever or before.until > NOW)):
            closed = slot.number
    return lost, released, closed


def held_record(record: LockRecord | None) -> bool:
    """Whether *record* is held."""
    return record is not None and record.state is State.HELD


def restaged(client: Client) -> Client:
    """Return *client* with the stage of each attempt told anew: a lease ends by the passing of time alone."""
    slots = tuple(
        slot._replace(stage=2) if slot.stage == 1 and not lease.is_valid(slot.state, NOW) else slot
        for slot in client.slots
    )
    return client._replace(slots=slots)


def in_words(client: Client) -> str:
    """Return *client* for people."""
    words = []
    for slot in client.slots:
        version = getattr(slot.state, "version", None)
        text = f"{slot.number}:{type(slot.state).__name__}" + (
            "" if version is None else f"({version.rvn}, {version.fencing_token})"
        )
        if slot.request is not None:
            text += f" >{type(slot.request).__name__}({rvn_of(slot.request)})"
        elif slot.probed is not None:
            text += f" >Probe({slot.probed.rvn})"
        elif slot.owner is not None:
            text += f" <{slot.owner}"
        elif slot.reply is not None:
            record = slot.reply.record
            text += f" <{'yes' if slot.reply.applied else 'no'}({'-' if record is None else record.rvn})"
        if slot.stage == 1:
            text += " valid"
        words.append(text)
    words += [f"ghost {type(ghost.request).__name__}({rvn_of(ghost.request)})" for ghost in client.ghosts]
    words += [f"abandoned {rvn}" for rvn in client.abandoned]
    return ", ".join(words) or ("dead" if client.dead else "idle")
