"""Exhaustive exploration of shared locks: a few attempts at one record of members, on the shipped :mod:`dlock_core.members`.

Sessions are abstract here, since they are locks that the other worlds explore: one has at most one holder at any instant, and ends for its
holder before anybody finds it free. What may go wrong is what may go wrong with the record: a write's answer is lost, or the write
arrives late, after others, or never; a holder dies at any point; a session's key is used again by the next.

``python -m proof.explore.members``. Searched breadth first, over states that are told apart by what they mean: version numbers by the
order of their first use.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dlock_core import members
from dlock_core.kit import outcome
from dlock_core.members import PERMIT, READ, WANT, WRITE, Wish
from dlock_core.record import LockRecord, Member, SessionRef
from dlock_core.store import Claim, Release, Replace
from proof.explore.visiting import Explored, explore_all, visit

__all__ = ["SCENARIOS", "Rules", "World", "broken", "explore", "start", "steps"]

KEY = "k"
_LEASE_MS = 1000
Request = Claim | Replace | Release


class Rules(NamedTuple):
    """One world: what each attempt wants, in turn for each client, and how often things may go wrong."""

    clients: tuple[tuple[Wish, ...], ...]
    ends: int = 1
    """How many sessions end early."""
    troubles: int = 1
    """How many answers are lost, or writes arrive late."""
    sleeps: bool = True
    """Whether a client may lose its session in an attempt and go on, as a process does that was stopped."""
    rise: int = 0
    """What the store adds to a token that a replace raises, since it has a floor of its own."""


def _permit(permits: int, weight: int = 1) -> Wish:
    return Wish(KEY, PERMIT, "", "", permits, weight)


_READ, _WRITE = Wish(KEY, READ, "", ""), Wish(KEY, WRITE, "", "")
# From the place before it, without a gap.
_DOWNGRADE, _UPGRADE = _READ._replace(beside="its own"), _WRITE._replace(beside="its own")
SCENARIOS: dict[str, Rules] = {
    "one permit": Rules(((_permit(1), _permit(1)), (_permit(1),))),
    "two permits": Rules(((_permit(2),), (_permit(2),), (_permit(2),)), sleeps=False),
    "weights": Rules(((_permit(3, 2),), (_permit(3), _permit(3, 3)), (_permit(3, 2),)), troubles=0),
    "a writer that reads later": Rules(((_WRITE, _READ), (_WRITE,))),
    "a writer that goes on as a reader": Rules(((_WRITE, _DOWNGRADE), (_WRITE,))),
    "readers that go on as writers": Rules(((_READ, _UPGRADE), (_READ, _UPGRADE))),
    "a store with a floor": Rules(((_READ,), (_READ, _WRITE)), rise=2),
    "readers and a writer": Rules(((_READ,), (_READ,), (_WRITE,))),
    "readers and writers": Rules(((_READ,), (_WRITE, _WRITE), (_READ,)), ends=0),
}
"""The last two take longer than a test should: ``make explore`` visits them."""


class Attempt(NamedTuple):
    """What a client is at: *number* is that of its session, *token* that of its place once it has one.

    *held* is the place that it has already, where it tries to go on in the other mode. *in_doubt* says that the record which was seen
    last is the one that an unanswered write expects.
    """

    place: int
    member_id: str = ""
    phase: str = "idle"
    shown: LockRecord | None = None
    over: frozenset[str] = frozenset()
    number: int | None = None
    alive: bool = False
    token: int = 0
    slot: int | None = None
    in_doubt: bool = False
    held: Attempt | None = None


class World(NamedTuple):
    """The record, who has each session, the attempts, writes that may arrive late, and the greatest tokens that places had."""

    record: LockRecord | None
    sessions: tuple[str | None, ...]
    attempts: tuple[Attempt, ...]
    late: tuple[Request, ...]
    ends: int
    troubles: int
    tops: tuple[tuple[str, int], ...]
    writes: int
    ids: int
    rise: int


def explore(rules: Rules, worlds_max: int = 500_000) -> Explored:
    """Visit every world of *rules*; *seen* are the modes in which somebody had a place.

    Raises: RuntimeError: there are more than *worlds_max*.
    """

    def modes(_: str, world: World) -> Iterator[str]:
        return (_wish(rules, each, at).mode for each, at in enumerate(world.attempts) if at.phase == "in")

    def stuck(world: World) -> str | None:
        waits = any(at.place < len(rules.clients[client]) for client, at in enumerate(world.attempts))
        return "somebody waits, and nothing can happen" if waits else None

    # For each client the first one that wants the same in the same order.
    alike = tuple(map(rules.clients.index, rules.clients))
    return visit(
        start(rules),
        partial(steps, rules=rules),
        canonical=partial(_canonical, alike=alike),
        broken=partial(broken, rules=rules),
        at_end=stuck,
        seen_in=modes,
        worlds_max=worlds_max,
    )


def start(rules: Rules) -> World:
    """Return the world with which *rules* begin."""
    return World(
        None,
        (None,) * (len(rules.clients) + 1),
        tuple(Attempt(0) for _ in rules.clients),
        (),
        rules.ends,
        rules.troubles,
        (),
        0,
        0,
        rules.rise,
    )


def _wish(rules: Rules, client: int, attempt: Attempt) -> Wish:
    wish = rules.clients[client][min(attempt.place, len(rules.clients[client]) - 1)]
    return wish._replace(
        member_id=attempt.member_id,
        session=None if attempt.number is None else _session(attempt.number),
        beside=attempt.held.member_id if attempt.held is not None and wish.mode == READ else wish.beside,
        reads_already=attempt.held is not None,
    )


# ---- what may happen


def steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """Yield what may happen next in *world*: a name, and the world after it."""
    for client, attempt in enumerate(world.attempts):
        if attempt.place == len(rules.clients[client]):
            continue
        wish, following = _wish(rules, client, attempt), (*rules.clients[client], None)[attempt.place + 1]
        for step, after in _of_client(world, client, attempt, wish, following):
            yield f"{client} {wish.mode}: {step}", after
        if rules.sleeps and world.ends and attempt.phase == "decides" and attempt.alive and attempt.held is None:
            awake = _freed(_with(world, client, attempt._replace(alive=False)), attempt.number)
            yield f"{client} {wish.mode}: has slept through its session", awake._replace(ends=world.ends - 1)
    for position, request in enumerate(world.late):
        late = world.late[:position] + world.late[position + 1 :]
        yield f"a late {type(request).__name__} arrives", _applied(world._replace(late=late), request)[0]


def _of_client(
    world: World, client: int, attempt: Attempt, wish: Wish, following: Wish | None
) -> Iterator[tuple[str, World]]:
    match attempt.phase:
        case "idle" if wish.beside is not None:
            yield "has nothing to go on from", _with(world, client, Attempt(attempt.place + 1))
        case "idle":
            yield "reads", _begun(world, client, Attempt(attempt.place))
        case "decides":
            yield from _decides(world, client, attempt, wish)
        case "in" if attempt.held is not None:
            yield from _leaves(world, client, attempt.held, attempt._replace(over=frozenset(), held=None))
        case "in":
            yield from _leaves(world, client, attempt, Attempt(attempt.place + 1))
            if following is not None and following.beside is not None:
                over = frozenset([attempt.member_id] if following.mode == WRITE else [])
                yield "goes on", _begun(world, client, Attempt(attempt.place + 1, over=over, held=attempt))
        case _:
            return
    own = {each.number for each in (attempt, attempt.held) if each is not None and each.alive}
    if own and world.ends:
        dead = _with(world, client, Attempt(attempt.place + 1))
        yield "dies", _freed(dead, *own)._replace(ends=world.ends - 1)


def _begun(world: World, client: int, attempt: Attempt) -> World:
    begun = attempt._replace(phase="decides", shown=world.record, member_id=f"{world.ids + 1:016x}")
    return _with(world, client, begun)._replace(ids=world.ids + 1)


def _freed(world: World, *numbers: int | None) -> World:
    """Return *world* where nobody has these sessions."""
    return world._replace(
        sessions=tuple(None if number in numbers else has for number, has in enumerate(world.sessions))
    )


def _leaves(world: World, client: int, place: Attempt, after: Attempt) -> Iterator[tuple[str, World]]:
    """Yield how the client leaves *place*, and is at *after*."""
    leaving = members.leave(world.record, place.member_id, _rvn(world), hides=False)
    if leaving is None:
        yield "has left", _freed(_with(world, client, after), place.number)
    else:
        yield "leaves", _freed(_with(_applied(world, leaving)[0], client, after), place.number)
    if leaving is not None and world.troubles:
        # Its write never comes; the end of the session is what frees the place.
        fewer = world._replace(troubles=world.troubles - 1)
        yield "leaves unheard", _freed(_with(fewer, client, after), place.number)


def _decides(world: World, client: int, attempt: Attempt, wish: Wish) -> Iterator[tuple[str, World]]:
    shown = attempt.shown
    member = None if shown is None else members.member_of(shown, wish.member_id)
    if shown is not None and member is not None and member.mode == wish.mode:
        if not attempt.alive:
            yield "finds its place lost", _with(world, client, Attempt(attempt.place + 1))
            return
        token = members.token_of(shown, member)
        entered = _with(
            world, client, attempt._replace(phase="in", token=token, slot=member.slot, shown=None, in_doubt=False)
        )
        yield "finds its place", entered._replace(tops=_topped(world.tops, wish.mode, member.slot, token))
        return
    if attempt.held is not None:
        if shown is None or members.member_of(shown, attempt.held.member_id) is None:
            yield "is taken out", _with(world, client, attempt._replace(phase="evicted"))
            return
        if wish.mode == WRITE and attempt.in_doubt:
            # It is no reader any more: what arrives late takes the place of that.
            ended = _freed(_with(world, client, Attempt(attempt.place + 1)), attempt.number, attempt.held.number)
            yield "gives both up", ended
        else:
            yield "gives it up", _freed(_with(world, client, attempt.held), attempt.number)
    yield from _joins_or_waits(world, client, attempt, wish, member)


def _joins_or_waits(
    world: World, client: int, attempt: Attempt, wish: Wish, member: Member | None
) -> Iterator[tuple[str, World]]:
    shown = attempt.shown
    refs = members.in_the_way(wish, shown, attempt.over)
    if refs is None:
        yield from _writes(world, client, attempt, wish)
        return
    found = _over(world, shown) - attempt.over
    if found:
        yield "finds members over", _with(world, client, attempt._replace(over=attempt.over | found))
    if world.record != shown:
        yield "reads again", _with(world, client, attempt._replace(shown=world.record, in_doubt=False))
    if attempt.held is not None:
        return
    if wish.mode == WRITE and member is None:
        yield from _writes(world, client, attempt, wish._replace(mode=WANT))
    if attempt.number is not None and member is None:
        # What it may have written by now is of a member that is over; what it writes next is of another.
        own = attempt.number if attempt.alive else None
        yield "gives its session up", _freed(_anew(world, client, attempt), own)


def _topped(tops: tuple[tuple[str, int], ...], mode: str, slot: int | None, token: int) -> tuple[tuple[str, int], ...]:
    """Return the greatest tokens of places after one more; one that does not fence what was there before it is remembered as such."""
    greatest = dict(tops)
    place = mode if slot is None else f"slot {slot}"
    before = (
        max(greatest.get(READ, 0), greatest.get(WRITE, 0))
        if mode == WRITE
        else greatest.get(WRITE if mode == READ else place, 0)
    )
    if token <= before or token < greatest.get(place, 0):
        greatest["broken"] = token
    greatest[place] = token
    return tuple(sorted(greatest.items()))


def _over(world: World, shown: LockRecord | None) -> frozenset[str]:
    """Return the members whose sessions nobody has."""
    if shown is None or shown.members is None:
        return frozenset()
    refs = shown.members.sessions
    return frozenset(
        each.member_id for each in shown.members.members if world.sessions[_number(refs[each.session])] is None
    )


def _session(number: int) -> SessionRef:
    return SessionRef(members.session_key(KEY, number), _LEASE_MS, 1)


def _number(ref: SessionRef) -> int:
    return int(ref.key.rpartition("/")[2])


def _anew(world: World, client: int, attempt: Attempt) -> World:
    """Return *world* where the attempt goes on without its session, as another member."""
    over, member_id = attempt.over | {attempt.member_id}, f"{world.ids + 1:016x}"
    anew = attempt._replace(over=over, member_id=member_id, number=None, alive=False)
    return _with(world, client, anew)._replace(ids=world.ids + 1)


def _opened(world: World, client: int) -> World | None:
    """Return *world* where the attempt has a session that is free, in the place of one that it has lost; None if there is none."""
    attempt = world.attempts[client]
    number = next((each for each, has in enumerate(world.sessions) if has is None), None)
    if attempt.alive or number is None:
        return world if attempt.alive else None
    if attempt.number is not None:
        world = _anew(world, client, attempt)
        attempt = world.attempts[client]
    sessions = (*world.sessions[:number], attempt.member_id, *world.sessions[number + 1 :])
    return _with(world, client, attempt._replace(number=number, alive=True))._replace(sessions=sessions)


def _writes(world: World, client: int, attempt: Attempt, wish: Wish) -> Iterator[tuple[str, World]]:
    opened = _opened(world, client)
    if opened is None:
        return
    world, attempt = opened, opened.attempts[client]
    assert attempt.number is not None  # it has just been opened
    wish = wish._replace(member_id=attempt.member_id, session=_session(attempt.number))
    if wish.mode != WANT and members.in_the_way(wish, attempt.shown, attempt.over) is not None:
        yield "opens another session", world
        return
    request = members.join(wish, attempt.shown, attempt.over, _rvn(world))
    after, record = _applied(world, request)
    yield f"writes {wish.mode}", _with(after, client, attempt._replace(shown=record, in_doubt=False))
    if world.troubles:
        fewer = after._replace(troubles=world.troubles - 1)
        # It looks for what became of it; the write was applied, or is on its way still.
        yield (
            f"writes {wish.mode}, answer lost",
            _with(fewer, client, attempt._replace(shown=after.record, in_doubt=False)),
        )
        waiting = world._replace(troubles=world.troubles - 1, late=(*world.late, request), writes=world.writes + 1)
        unseen = attempt._replace(shown=world.record, in_doubt=world.record == attempt.shown)
        yield f"writes {wish.mode}, late", _with(waiting, client, unseen)


def _applied(world: World, request: Request) -> tuple[World, LockRecord | None]:
    """Return the world after *request*, and the record that its answer shows."""
    token = request.record.fencing_token
    if isinstance(request, Replace) and token != request.expected.fencing_token:
        request = request._replace(record=replace(request.record, fencing_token=token + world.rise))
    reply = outcome(world.record, request)
    written = world._replace(writes=world.writes + 1)
    return (written._replace(record=reply.record) if reply.applied else written), reply.record


def _with(world: World, client: int, attempt: Attempt) -> World:
    attempts = (*world.attempts[:client], attempt, *world.attempts[client + 1 :])
    return world._replace(attempts=attempts)


def _rvn(world: World) -> str:
    return str(world.writes + 1)


# ---- what must hold


def broken(world: World, rules: Rules) -> str | None:
    """Return which rule *world* breaks."""
    if any(attempt.phase == "evicted" for attempt in world.attempts):
        return "a member was taken out whose session was held"
    places = [attempt if attempt.phase == "in" else attempt.held for attempt in world.attempts]
    holding = [(place, _wish(rules, client, place)) for client, place in enumerate(places) if place is not None]
    modes = [wish.mode for _, wish in holding]
    permits = [(attempt, wish) for attempt, wish in holding if wish.mode == PERMIT]
    if permits and sum(wish.weight for _, wish in permits) > permits[0][1].permits:
        return f"{len(permits)} hold {permits[0][1].permits} permits"
    if WRITE in modes and len(modes) > 1:
        return "a writer beside another holder"
    slots = [attempt.slot for attempt, _ in permits]
    if len(set(slots)) < len(slots):
        return "two holders of one slot"
    readers = {attempt.token for attempt, wish in holding if wish.mode == READ}
    if len(readers) > 1:
        return "two tokens of one phase"
    if "broken" in dict(world.tops):
        return "a token that does not fence an earlier holder"
    return None


def _place_among(world: World, client: tuple[int, Attempt]) -> tuple[Any, ...]:
    """Return what puts a client in its order among those that are alike: nothing that a name of its own is in."""
    kind, at = client
    number = -1 if at.number is None else at.number
    shown = (-1, False) if at.shown is None else (at.shown.fencing_token, at.shown == world.record)
    held = -1 if at.held is None or at.held.number is None else at.held.number
    return kind, at.place, at.phase, number, at.alive, at.token, at.in_doubt, *shown, len(at.over), held


def _canonical(world: World, alike: tuple[int, ...]) -> Hashable:
    """Return what *world* means: version numbers and members by the order in which they are met, clients that are *alike* in any order."""
    rvns: dict[str, int] = {}
    ids: dict[str, int] = {}
    # Where this does not tell two clients apart, a world may be visited once for each order of them.
    attempts = [at for _, at in sorted(zip(alike, world.attempts, strict=True), key=partial(_place_among, world))]

    def record(each: LockRecord | None) -> object:
        if each is None:
            return None
        listed = () if each.members is None else each.members.members
        who = tuple((ids.setdefault(member.member_id, len(ids)), member[1:]) for member in listed)
        refs = None if each.members is None else each.members.sessions
        return each.state, rvns.setdefault(each.rvn, len(rvns)), each.fencing_token, who, refs

    def request(each: Request) -> object:
        expected = each.expect if isinstance(each, Claim) else each.expected
        version = (
            rvns.setdefault(getattr(expected, "rvn", ""), len(rvns)),
            getattr(expected, "fencing_token", str(expected)),
        )
        return type(each), record(each.record), version

    shown = record(world.record), tuple(record(at.shown) for at in attempts), tuple(map(request, world.late))

    def at_what(at: Attempt | None) -> object:
        # A member that stands nowhere any more will never be met again.
        over = () if at is None else frozenset(ids[each] for each in at.over if each in ids)
        return at and (ids.setdefault(at.member_id, len(ids)), at.place, at.phase, over, *at[5:-1], at_what(at.held))

    return (
        shown,
        tuple(None if has is None else ids.setdefault(has, len(ids)) for has in world.sessions),
        tuple(map(at_what, attempts)),
        world.ends,
        world.troubles,
        world.tops,
    )


if __name__ == "__main__":
    sys.exit(any(found.violation for found, _ in explore_all(SCENARIOS, explore).values()))
