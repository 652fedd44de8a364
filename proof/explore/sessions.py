"""Exhaustive exploration of locks that a session keeps: the record of the lock and that of the session, on the shipped machine.

The owner has two machines of :mod:`dlock_core.lease`: one renews the session, the other holds the lock, and is moved under the session, or
back. Each of its requests may be late, and each answer lost; what is late may arrive at any time. A waiter, whose steps are atomic, asks
for the lock with a third machine, looks at the session by :func:`~dlock_core.lease.is_session_over`, and takes it over when its lease is
over. An operator may break the lock, and die between the two writes of that. Somebody may remove the session's row, or a failover bring
the lock's record of before the move back.

``python -m proof.explore.sessions``. Searched breadth first; worlds that behave alike are one, as :mod:`proof.explore.canonical` tells.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from dlock_core import lease
from dlock_core.kit import outcome
from dlock_core.record import BeatNote, Broken, LockRecord, Loss, LossReason, OwnerState, SessionRef, State
from dlock_core.states import (
    Abandon,
    Answer,
    Begin,
    Break,
    Cease,
    Due,
    Ended,
    Failure,
    Free,
    Held,
    LeaseState,
    Lost,
    New,
    Noted,
    Observation,
    Payload,
    Probe,
    Probed,
    Read,
    Releasing,
    Renew,
    Seeking,
    Terms,
    Wait,
)
from dlock_core.store import Claim, Release, Replace, Reply
from dlock_core.timings import NEVER, Timings
from proof.explore.canonical import aged, renamed, rvns_in
from proof.explore.visiting import Explored, explore_all, visit
from proof.explore.world import NOW, TICK, Rules, timings_of

__all__ = [
    "QUICK",
    "SCENARIOS",
    "Case",
    "World",
    "broken",
    "canonical",
    "explore",
    "start",
    "steps",
]

LOCK, SESSION, OWNER_TOKEN = "k", "s", 2
NOTE = BeatNote(LOCK, OWNER_TOKEN, "break", "op")
Request = Claim | Replace | Release | Read
_NUMBERS = count()


class Case(NamedTuple):
    """One world: leases in ticks, how long it goes on, and what may go wrong how often."""

    lock_lease: int = 2
    session_lease: int = 2
    waiter_lease: int = 2
    ticks: int = 4
    moved: bool = True
    """Whether the lock is under the session from the start; else it has a lease of its own."""
    faults: int = 1
    beats: int = 1
    writes: int = 1
    """How often the owner renews, moves, demotes or changes the lock itself."""
    ends: bool = False
    """Whether the owner may drop the lock, or overrun, or close."""
    breaks: bool = False
    other_note: bool = False
    wipes: bool = False
    rollback: bool = False
    audits: bool = False


SCENARIOS: dict[str, Case] = {
    "moved": Case(ticks=3, writes=0),
    "moved, and changed": Case(ticks=2, faults=0),
    "a move": Case(moved=False, ticks=2, beats=0),
    "a move under a shorter session": Case(moved=False, lock_lease=3, session_lease=2, ticks=4, beats=0),
    "a move, and the lock is given up": Case(moved=False, ticks=1, beats=0, ends=True),
    "back to a longer lease": Case(lock_lease=3, ticks=3, beats=0),
    "dropped": Case(ends=True, ticks=3, beats=0, writes=0),
    "broken": Case(breaks=True, ticks=4, writes=0, faults=0),
    "broken, another lock": Case(breaks=True, other_note=True, ticks=4, writes=0, faults=0),
    "the session's row is removed": Case(wipes=True, writes=0, faults=0),
    "rolled back, and audited": Case(moved=False, rollback=True, audits=True, ticks=3, faults=0),
    "moved, for longer": Case(),
    "a move, for longer": Case(moved=False, ticks=3),
    "a move, and the lock is given up, for longer": Case(moved=False, ticks=3, ends=True),
    "dropped, for longer": Case(ends=True, ticks=4, writes=0),
    "broken, with a fault": Case(breaks=True, ticks=4, writes=0),
}
"""Those from "moved, for longer" on take longer than a test should: ``make explore`` visits them."""
QUICK = tuple(SCENARIOS)[:11]


class Asked(NamedTuple):
    """A request of one of the owner's machines: on its way, or with the *reply* on its way back."""

    request: Request
    reply: Reply | None = None


class World(NamedTuple):
    """The two records, the owner's two machines, the waiter, and what may still happen."""

    lock: LockRecord | None
    session: LockRecord | None
    holder: LeaseState
    keeper: LeaseState
    holder_asked: Asked | None
    keeper_asked: Asked | None
    waiter: LeaseState
    seen: Observation | None
    absent_at: int | None
    late: tuple[Request, ...]
    ticks: int
    faults: int
    beats: int
    writes: int
    operator: str
    wipes: bool
    before_move: LockRecord | None


def explore(case: Case, worlds_max: int = 1_000_000) -> Explored:
    """Visit every world of *case*; *seen* are the kinds of steps.

    Raises: RuntimeError: there are more than *worlds_max*.
    """
    return visit(
        canonical(start(case)),
        lambda world: ((name, canonical(after)) for name, after in steps(world, case)),
        canonical=lambda world: world,
        broken=broken,
        at_end=lambda _: None,
        seen_in=lambda name, _: (name.partition(":")[0],),
        worlds_max=worlds_max,
    )


# ---- the beginning


def _timings(ticks: int) -> Timings:
    timings = timings_of(Rules(), ticks)
    return timings._replace(wait_ns=NEVER, handout_min_ns=0)


def _ref(case: Case) -> SessionRef:
    return SessionRef(SESSION, case.session_lease, OWNER_TOKEN)


def _held(key: str, timings: Timings, rvn: str) -> tuple[Held, LockRecord]:
    terms = Terms(key, f"#{key}", timings._replace(session=None))
    record = LockRecord(key, State.HELD, rvn, OWNER_TOKEN, "o", timings.lease_ms, session=timings.session)
    renew_at = NOW + TICK if timings.auto_renew else NEVER
    deadline = min(NOW + timings.usable_ns, NEVER)
    return Held(terms, record.version, NOW, timings, Payload(None, ()), deadline, renew_at, NEVER), record


def start(case: Case) -> World:
    """Return the world with which *case* begins."""
    own = _timings(case.lock_lease)
    keeper, session = _held(SESSION, _timings(case.session_lease)._replace(auto_renew=True), "#s")
    holder, lock = _held(LOCK, own.under(_ref(case)) if case.moved else own._replace(auto_renew=True), "#k")
    holder = holder._replace(terms=holder.terms._replace(timings=own))
    waiter = New(Terms(LOCK, "#w", _timings(case.waiter_lease)))
    return World(
        *(lock, session, holder, keeper, None, None, waiter, None, None, ()),
        *(case.ticks, case.faults, case.beats, case.writes, "-" if case.breaks else "no", case.wipes, None),
    )


# ---- what may happen


def steps(world: World, case: Case) -> Iterator[tuple[str, World]]:
    """Yield what may happen next in *world*: a name, and the world after it."""
    if case.audits and _is_lost_unheard(world):
        # At once: the period of audits is what bounds the harm, and has no place here.
        yield "the audit finds it", _fed(world, "holder", Cease(LossReason.STOLEN, world.lock, alone=True))
        return
    if world.ticks:
        yield "a tick passes", _passed(world._replace(ticks=world.ticks - 1))
    yield from _of_machine(world, "holder")
    yield from _of_machine(world, "keeper")
    yield from _of_owner(world, case)
    for place, request in enumerate(world.late):
        late = world.late[:place] + world.late[place + 1 :]
        yield "a late request arrives", _applied(world._replace(late=late), request)[0]
    yield from _of_waiter(world, case)
    yield from _of_operator(world, case)


def _is_lost_unheard(world: World) -> bool:
    """Whether another record stands than the one that the holder, which a session keeps and which awaits no answer, has written."""
    holder, standing = world.holder, world.lock
    if type(holder) is not Held or holder.timings.session is None or holder.in_flight is not None or holder.pending:
        return False
    return standing is None or not standing.held or standing.version != holder.version


def _passed(world: World) -> World:
    return aged(world, 1, 6 * TICK)


def _with(world: World, changes: dict[str, Any]) -> World:
    return world._replace(**changes)


def _fresh() -> str:
    """Return an RVN that is nowhere yet; the canonical form gives it its name."""
    return f"#new {next(_NUMBERS)}"


def _fed(world: World, who: str, event: Any) -> World:
    """Feed *event* to a machine of the owner, and send what it asks for; what it tells is done at once, but for a note."""
    state, effects = lease.step(getattr(world, who), event, NOW)
    world = _with(world, {who: state})
    for effect in effects:
        if isinstance(effect, (Claim, Replace, Release, Read)):
            world = _with(world, {f"{who}_asked": Asked(effect)})
        elif isinstance(effect, Noted) and NOTE in effect.notes and _is_kept(world):
            # In one step, before the next beat is sent: see :meth:`dlock_core.engine.keeper.Keepers.hear`.
            world = _fed(world, "holder", Cease(LossReason.BROKEN, alone=True))
    return world


def _is_kept(world: World) -> bool:
    return type(world.holder) is Held and lease.is_kept(world.holder)


def _of_machine(world: World, who: str) -> Iterator[tuple[str, World]]:
    """What becomes of the request that one of the owner's machines has sent."""
    asked: Asked | None = getattr(world, f"{who}_asked")
    if asked is None:
        return
    answered = _with(world, {f"{who}_asked": None})
    rvn = asked.request.rvn if isinstance(asked.request, Read) else asked.request.record.rvn
    if asked.reply is not None:
        yield (
            f"the {who} hears: {asked.reply.applied}",
            _fed(answered, who, lease.heard(rvn, asked.reply, _fresh())),
        )
        if world.faults:
            fewer = answered._replace(faults=world.faults - 1)
            yield f"an answer to the {who} is lost", _fed(fewer, who, Failure(rvn, unknown=True, new_rvn=_fresh()))
        return
    after, reply = _applied(world, asked.request)
    yield f"a request of the {who} arrives", _with(after, {f"{who}_asked": Asked(asked.request, reply)})
    if world.faults and not isinstance(asked.request, Read):
        fewer = answered._replace(faults=world.faults - 1, late=(*world.late, asked.request))
        yield f"a request of the {who} is late", _fed(fewer, who, Failure(rvn, unknown=True, new_rvn=_fresh()))


def _of_owner(world: World, case: Case) -> Iterator[tuple[str, World]]:
    holder, keeper = world.holder, world.keeper
    has_time = type(keeper) is Held and keeper.in_flight is None and lease.is_valid(keeper, NOW)
    if type(keeper) is Held and has_time and (world.beats or keeper.at_risk):
        beats = max(0, world.beats - 1)
        yield "the session is renewed", _fed(world._replace(beats=beats), "keeper", Renew(_fresh()))
    for who, state in (("holder", holder), ("keeper", keeper)):
        if lease.due_at(state) <= NOW and _has_work(state):
            yield f"the {who} does what is due", _fed(world, who, Due(_fresh()))
    if _is_kept(world) and not lease.is_valid(keeper, NOW):
        yield "the lock ends with its session", _fed(world, "holder", Cease(LossReason.EXPIRED))
    if type(holder) is Held and holder.in_flight is None and _owner_valid(world):
        yield from _writes(world, case, holder)
    if case.ends:
        yield from _ends(world)


def _has_work(state: LeaseState) -> bool:
    """Whether what is due is more than a renewal that nothing speaks for: renewals have steps of their own."""
    if type(state) is not Held:
        return True
    return not lease.is_valid(state, NOW) or (state.at_risk and state.in_flight is None)


def _writes(world: World, case: Case, holder: Held) -> Iterator[tuple[str, World]]:
    if not world.writes:
        return
    fewer = world._replace(writes=world.writes - 1)
    own, keeper = _timings(case.lock_lease)._replace(auto_renew=True), world.keeper
    if holder.timings.session is not None:
        yield "the lock gets a lease of its own", _fed(fewer, "holder", Renew(_fresh(), own))
        return
    if not holder.pending:
        # As :class:`dlock_core.engine.keeper.Keepers` does: under a session that is confirmed, with more than half of its use left.
        half = type(keeper) is Held and keeper.deadline - NOW > keeper.timings.usable_ns // 2
        if half and lease.is_valid(keeper, NOW):
            moving = fewer._replace(before_move=world.lock) if case.rollback else fewer
            yield "the lock is moved", _fed(moving, "holder", Renew(_fresh(), own.under(_ref(case))))
    yield "the lock is renewed", _fed(fewer, "holder", Renew(_fresh()))


def _ends(world: World) -> Iterator[tuple[str, World]]:
    holder, keeper = world.holder, world.keeper
    if type(holder) is Held and lease.is_kept(holder):
        yield "the lease is dropped", _fed(world, "holder", Cease(LossReason.EXPIRED, alone=True))
    if type(holder) is Held:
        yield "the lock is released", _fed(world, "holder", Free(_fresh()))
    if type(keeper) is Held and keeper.in_flight is None and type(holder) is not Held:
        yield "the session is given back", _fed(world, "keeper", Free(_fresh()))


def _of_operator(world: World, case: Case) -> Iterator[tuple[str, World]]:
    session, lock = world.session, world.lock
    note = NOTE._replace(key="other") if case.other_note else NOTE
    if world.operator == "-" and lock is not None and lock.session is not None and lock.fencing_token == OWNER_TOKEN:
        request = lease.note_request(session, note, lock.session.fencing_token, _fresh())
        if isinstance(request, Replace):
            noted = _applied(world._replace(operator="noted"), request)[0]
            yield "the operator leaves a note", noted
    if world.operator == "noted" and not case.other_note:
        request_to_break = lease.break_request(Break(LOCK, OWNER_TOKEN, Broken("op", 1)), lock, _fresh())
        if request_to_break is not None:
            yield "the operator breaks the lock", _applied(world._replace(operator="done"), request_to_break)[0]
    if world.wipes and session is not None and session.held:
        yield "the session's row is removed", world._replace(session=None, wipes=False)
    kept = lock is not None and lock.session is not None
    if case.rollback and world.before_move is not None and kept and type(world.holder) is Held:
        yield "a failover loses the move", world._replace(lock=world.before_move, before_move=None)


# ---- the waiter, whose steps are atomic


def _of_waiter(world: World, case: Case) -> Iterator[tuple[str, World]]:
    waiter = world.waiter
    if type(waiter) is New:
        yield "the waiter asks", _driven(world, case, Begin(_fresh(), NEVER))
    elif type(waiter) is Seeking:
        yield "the waiter looks", _driven(world, case, Due(_fresh()))
    elif type(waiter) is Held and not lease.is_valid(waiter, NOW):
        yield "the waiter's lease ends", _driven(world, case, Due(_fresh()))


def _driven(world: World, case: Case, event: Any) -> World:
    while event is not None:
        state, effects = lease.step(world.waiter, event, NOW)
        world, event = world._replace(waiter=state), None
        for effect in effects:
            if isinstance(effect, (Claim, Replace, Read)):
                world, reply = _applied(world, effect)
                rvn = effect.rvn if isinstance(effect, Read) else effect.record.rvn
                event = Answer(rvn, reply, _fresh())
            elif isinstance(effect, Probe) and effect.record.session is not None:
                world, is_over = _looked(world, effect.record.session, case)
                owner = OwnerState.DEAD if is_over else OwnerState.ALIVE
                event = Probed(effect.rvn, owner, _fresh())
            else:
                assert isinstance(effect, (Wait, Abandon))  # it waits, until it looks again
    return world


def _looked(world: World, ref: SessionRef, case: Case) -> tuple[World, bool]:
    """Return whether the session *ref* is over, as :class:`dlock_core.engine.sessions.Sessions` finds out; taking it over is atomic."""
    record = world.session
    if record is None and world.absent_at is None:
        world = world._replace(absent_at=NOW)
    elif record is not None:
        world = world._replace(absent_at=None)
    is_over = lease.is_session_over(ref, record, NOW, world.absent_at)
    if is_over is not None or record is None:
        return world, bool(is_over)
    seen = world.seen
    if seen is None or seen.version != lease.observed_version(record):
        seen = lease.observe(record, NOW)
    world = world._replace(seen=seen)
    if seen.seen_at + seen.lease_ns > NOW:
        return world, False
    taken = LockRecord(SESSION, State.GONE, _fresh(), record.fencing_token + 1, "w", None)
    return world._replace(session=taken), True


def _applied(world: World, request: Request) -> tuple[World, Reply]:
    key = request.key if isinstance(request, Read) else request.record.key
    name = "lock" if key == LOCK else "session"
    standing = getattr(world, name)
    if isinstance(request, Read):
        return world, Reply(applied=False, record=standing)
    reply = outcome(standing, request)
    return (_with(world, {name: reply.record}) if reply.applied else world), reply


# ---- what must hold


def _owner_valid(world: World) -> bool:
    holder = world.holder
    valid = type(holder) is Held and lease.is_valid(holder, NOW)
    return valid and (not _is_kept(world) or lease.is_valid(world.keeper, NOW))


def broken(world: World) -> str | None:
    """Return which rule *world* breaks."""
    waiter, lock, session = world.waiter, world.lock, world.session
    if _owner_valid(world) and lease.is_valid(waiter, NOW):
        return "two leases are valid (I1)"
    if type(waiter) is Held and waiter.version.fencing_token <= OWNER_TOKEN:
        return "a token that does not fence the owner"
    is_owners = session is not None and session.held and session.fencing_token == OWNER_TOKEN
    if type(world.keeper) is Lost and world.keeper.loss.reason is LossReason.STOLEN and is_owners:
        return "a note is the loss of the session (Q7)"
    hangs = lock is not None and lock.held and lock.session is not None and session is not None and session.held
    if hangs and lease.is_valid(world.keeper, NOW) and not world.late and _has_forgotten(world.holder):
        return "a lock hangs on a live session, and nobody will give it back (I11)"
    return None


def _has_forgotten(holder: LeaseState) -> bool:
    return type(holder) is Ended or (type(holder) is Lost and holder.leaves_at >= NEVER)


# ---- worlds that behave alike


def canonical(world: World) -> World:
    """Return *world* with its versions named anew, and without what no later step reads: worlds that behave alike are one."""
    world = world._replace(
        holder=_tidy(world.holder), keeper=_tidy(world.keeper), waiter=_tidy(world.waiter), late=_living(world)
    )
    if type(world.waiter) is not Seeking:
        world = world._replace(seen=None, absent_at=None)
    return renamed(world, {rvn: f"#{place}" for place, rvn in enumerate(rvns_in(world))})


def _living(world: World) -> tuple[Request, ...]:
    """Return the late requests that may ever be applied: a version that is gone never comes back."""
    under_way = [
        each.request for each in (world.holder_asked, world.keeper_asked) if each is not None and each.reply is None
    ]
    coming = {each.record.rvn for each in (*world.late, *under_way) if not isinstance(each, Read)}
    standing = {each.rvn for each in (world.lock, world.session) if each is not None}
    return tuple(
        each for each in world.late if getattr(getattr(each, "expected", None), "rvn", "") in coming | standing
    )


def _tidy(state: LeaseState) -> LeaseState:
    """Reset what no later step reads."""
    if type(state) is Seeking:
        shown = state.shown and LockRecord(LOCK, state.shown.state, "shown", 1, "", None)
        return state._replace(polls=0, immediate_retries=0, failing_since=None, shown=shown)
    if type(state) is Ended:
        return state._replace(holder=None, loss=None)
    if type(state) is Lost:
        return state._replace(loss=Loss(state.loss.key, state.loss.fencing_token, state.loss.reason, None))
    if type(state) is Releasing:
        return state._replace(tries=min(state.tries, 2), loss=None)
    return state


if __name__ == "__main__":
    sys.exit(any(found.violation for found, _ in explore_all(SCENARIOS, explore).values()))
