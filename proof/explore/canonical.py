"""Canonical forms: two worlds that behave alike are one.

RVNs are renamed by first occurrence, tokens count from the store's, instants beyond the longest lease are not told apart, and fields that
no later step can read are reset. The generic walk goes over named tuples and records; nothing here knows the protocol beyond which fields
are dead.
"""

from __future__ import annotations

import dataclasses
import functools
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dlock_core import lease
from dlock_core.record import LockRecord, State
from dlock_core.states import Cleaning, Confirming, Held, Lost, Outcome, Read, Releasing, Seeking, Sent, Verb
from dlock_core.store import Claim, Expect
from dlock_core.timings import NEVER, Timings
from proof.explore.world import KEY, NOW, TICK, Client, Removal, Request, Slot, expects_absence, rvn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")

__all__ = [
    "TOKEN",
    "Store",
    "aged",
    "broken",
    "cleared",
    "may_apply",
    "orphaned",
    "rebased",
    "renamed",
    "rvns_in",
    "swept",
    "tidied",
    "unowned",
    "valid_tokens",
]

TOKEN = 50
"""What the store's token is called; the others count from it. A token of 1 is the least that a claim may be given, no count."""

# Of these only the order to the present matters, of those also the age, up to the longest lease.
_AHEAD = {
    "leaves_at",
    "deadline",
    "renew_at",
    "hold_until",
    "until",
    "retry_at",
    "give_up_at",
    "failing_since",
    "ends_at",
}
_BEHIND = {"absent_at", "sent_at", "seen_at", "written_at"}
_TRIES_MAX = 2
_WITHOUT_RVNS = frozenset((int, bool, type(None), Timings))
_RECORD_FIELDS = tuple(each.name for each in dataclasses.fields(LockRecord) if each.compare)
_FIELDS_OF = attrgetter(*_RECORD_FIELDS)


class Store(NamedTuple):
    """What the store holds: the record, since when, whether its writer is *dead*, and, where refusals may be stale, the one before.

    *removed*: nothing stands, and the record that stood here last was removed.
    """

    record: LockRecord | None = None
    previous: LockRecord | None = None
    written_at: int = NOW
    dead: bool = False
    removed: bool = False


def _rebuilt(value: Any, leaf: Callable[[str, Any], Any], field: str = "") -> Any:
    """Return *value* with each leaf replaced by what *leaf* says; a part in which nothing changes is the same object."""
    kind = type(value)
    if kind is LockRecord:
        before: tuple[Any, ...] = _FIELDS_OF(value)
        after = [_rebuilt(each, leaf, name) for each, name in zip(before, _RECORD_FIELDS, strict=True)]
        return LockRecord(*after) if any(map(is_not, before, after)) else value
    if kind is Timings or not isinstance(value, tuple):
        return leaf(field, value)
    if not value:
        return value
    if kind is tuple:
        after = [_rebuilt(each, leaf, field) for each in value]
        return tuple(after) if any(map(is_not, value, after)) else value
    names: tuple[str, ...] = value._fields  # type: ignore[attr-defined]  # a named tuple
    after = [_rebuilt(each, leaf, name) for each, name in zip(value, names, strict=True)]
    return kind(*after) if any(map(is_not, value, after)) else value


def rvns_in(value: Any) -> tuple[str, ...]:
    """Return the RVNs in *value*, by first occurrence."""
    found: dict[str, None] = {}
    for part in value:
        if type(part) not in _WITHOUT_RVNS:
            found.update(_in_part(part))
    return tuple(found)


@functools.lru_cache(100_000)
def _in_part(part: Any) -> dict[str, None]:
    found: dict[str, None] = {}
    _gather((part,), found)
    return found


def _gather(values: tuple[Any, ...], found: dict[str, None]) -> None:
    for each in values:
        kind = type(each)
        if kind is str:
            if each.startswith("#"):
                found[each] = None
        elif kind is LockRecord:
            _gather(_FIELDS_OF(each), found)
        elif kind not in _WITHOUT_RVNS and isinstance(each, tuple):
            _gather(each, found)


def renamed(value: T, names: dict[str, str]) -> T:
    """Return *value* with its RVNs renamed."""
    others = {name: other for name, other in names.items() if name != other}
    if not others:
        return value
    result: T = _renamed(value, others)
    return result


def _renamed(value: Any, others: dict[str, str]) -> Any:
    """Do as :func:`_rebuilt`, for strings alone, which are few."""
    kind = type(value)
    if kind is str:
        return others.get(value, value)
    if kind in _WITHOUT_RVNS:
        return value
    if kind is LockRecord:
        before: tuple[Any, ...] = _FIELDS_OF(value)
        after = [_renamed(each, others) for each in before]
        return LockRecord(*after) if any(map(is_not, before, after)) else value
    if not isinstance(value, tuple) or not value:
        return value
    after = [_renamed(each, others) for each in value]
    if not any(map(is_not, value, after)):
        return value
    return tuple(after) if kind is tuple else kind(*after)


def aged(value: T, ticks: int, span_ns: int) -> T:
    """Return *value* that much later, which is with its instants that much further in the past."""

    def leaf(field: str, each: Any) -> Any:
        if type(each) is not int or (field not in _AHEAD and field not in _BEHIND):
            return each
        if each >= NEVER // 2:
            return NEVER
        return max(each - ticks * TICK, NOW if field in _AHEAD else NOW - span_ns)

    result: T = _rebuilt(value, leaf)
    return result


def rebased(value: T, rise: int) -> T:
    """Return *value* with its tokens counted from a store's token that is *rise* higher."""

    def leaf(field: str, each: Any) -> Any:
        return each - rise if field == "fencing_token" and each > 1 else each

    result: T = _rebuilt(value, leaf)
    return result


# ---- dead fields ----------------------------------------------------------------------------------------------------------------------


def tidied(client: Client) -> Client:
    """Reset what no later step reads."""
    slots, ghosts, abandoned = tuple(map(_tidy_slot, client.slots)), client.ghosts, client.abandoned
    if len(ghosts) > 1:
        ghosts = tuple(sorted(ghosts, key=lambda ghost: (ghost.number, ghost.copy, _shape(ghost.request))))
    if len(abandoned) > 1:
        order = {rvn: place for place, rvn in enumerate(rvns_in((slots, ghosts)))}
        abandoned = tuple(sorted(abandoned, key=lambda rvn: order.get(rvn, len(order))))
    return client._replace(
        slots=slots, ghosts=ghosts, abandoned=abandoned, cache=client.cache if client.attempts else None
    )


def _shape(request: Request) -> str:
    return repr(renamed(request, dict.fromkeys(rvns_in(request), "#")))


def _tidy_slot(slot: Slot) -> Slot:
    state = slot.state
    waiting = type(state) is Seeking or type(state) is Confirming
    idle = waiting and getattr(state, "in_flight", None) is None
    # An answer that is on the way back tells what the request was.
    answered = slot.reply is not None
    return slot._replace(
        state=_tidy_state(state),
        until=slot.until if idle else NOW,
        request=None if answered else slot.request,
        doubled=slot.doubled and not answered,
    )


def _tidy_state(state: Any) -> Any:
    if type(state) is Seeking:
        return _tidy_seeking(state)
    if type(state) is Held:
        return state._replace(in_flight=_in_flight(state.in_flight))
    if type(state) is Confirming:
        return Confirming(_tidy_state(state.grant), _tidy_seeking(state.seeking))
    if type(state) is Releasing:
        pending = tuple(sent._replace(sent_at=NOW, expected=Expect.ANY) for sent in state.pending)
        in_flight = None if state.in_flight is None else _in_flight(state.in_flight._replace(sent_at=NOW))
        loss = None if state.loss is None else dataclasses.replace(state.loss, record=None)
        return state._replace(tries=min(state.tries, _TRIES_MAX), in_flight=in_flight, pending=pending, loss=loss)
    if type(state) is Cleaning:
        pending = tuple(sent._replace(sent_at=NOW) for sent in state.pending)
        in_flight = None if state.in_flight is None else _in_flight(state.in_flight._replace(sent_at=NOW))
        return state._replace(
            outcome=Outcome.ABANDONED,
            holder=None,
            tries=min(state.tries, _TRIES_MAX),
            pending=pending,
            in_flight=in_flight,
        )
    if type(state) is Lost:
        return state._replace(loss=dataclasses.replace(state.loss, record=None))
    return state


def _tidy_seeking(state: Seeking) -> Seeking:
    shown = state.shown
    if shown is not None:
        # Only its state is ever looked at again.
        shown = LockRecord(KEY, shown.state, "shown", TOKEN, "", None)
    return state._replace(
        in_flight=_in_flight(state.in_flight), shown=shown, polls=0, immediate_retries=0, failing_since=None
    )


def _in_flight(in_flight: Sent | None) -> Sent | None:
    return in_flight._replace(sent_at=NOW) if in_flight is not None and in_flight.verb is Verb.READ else in_flight


# ---- what a change of the store makes dead --------------------------------------------------------------------------------------------


def swept(client: Client, store: Store) -> Client:
    """Drop the requests that can only be refused, for ever, and the abandoned RVNs that can not be met any more."""
    record = store.record
    under_way = [*(ghost.request for ghost in client.ghosts), *(slot.request for slot in client.slots if slot.request)]
    # What could be written once more: a version may come back if a request that writes it is applied twice. A claim has a new token
    # each time.
    writes = {rvn_of(request) for request in under_way if type(request) is not Claim and may_apply(request, record)}
    ghosts = tuple(
        ghost
        for ghost in client.ghosts
        if expects_absence(client, ghost.request) or may_apply(ghost.request, record, writes - {rvn_of(ghost.request)})
    )
    standing = {record.rvn for record in (store.record, store.previous) if record is not None}
    alive = standing | set(rvns_in((client.slots, ghosts)))
    return client._replace(
        ghosts=ghosts, abandoned=tuple(rvn for rvn in dict.fromkeys(client.abandoned) if rvn in alive)
    )


def may_apply(request: Request, record: LockRecord | None, writes: Collection[str] = ()) -> bool:
    """Whether the store would apply *request* now, or after one of *writes* was applied once more."""
    if isinstance(request, Read):
        return False
    if isinstance(request, Removal):
        return True  # what it does to another version is what a world that removes records looks at
    expected = request.expect if isinstance(request, Claim) else request.expected
    if expected is Expect.ANY:
        return True
    if expected is Expect.ABSENT:
        return record is None
    return expected.rvn in writes or (record is not None and record.version == expected)


# ---- what is compared -----------------------------------------------------------------------------------------------------------------


def cleared(client: Client) -> Client:
    """Return *client* after a grant to somebody else."""
    return client._replace(grantee=None)


def orphaned(store: Store) -> Store:
    """Return *store* after the death of whoever wrote the record: of one that is not held nobody asks for the owner."""
    return store._replace(dead=store.record is not None and store.record.state is State.HELD)


def broken(store: Store) -> bool:
    """Whether an operator's break stands."""
    return store.record is not None and store.record.broken is not None


def valid_tokens(client: Client) -> tuple[int, ...]:
    """Return the tokens of the leases that answer ``is_valid`` with true."""
    return tuple(
        slot.state.version.fencing_token
        for slot in client.slots
        if type(slot.state) is Held and lease.is_valid(slot.state, NOW)
    )


def unowned(client: Client, store: Store) -> bool:
    """Whether the record that stands was granted to *client*, and no attempt of it would ever give it back."""
    record = store.record
    if client.grantee is None or record is None or record.state is not State.HELD or record.rvn in client.abandoned:
        return False
    owners = [slot for slot in client.slots if slot.number == client.grantee]
    return not owners or (
        type(owners[0].state) is Cleaning and all(sent.rvn != record.rvn for sent in owners[0].state.pending)
    )
