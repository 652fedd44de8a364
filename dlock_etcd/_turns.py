"""The transactions by which waiters come and go and are woken, and what their answers mean: pure, as ``_wire`` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_etcd._schema import Op, Put, Txn
from dlock_etcd._wire import behind, first_place, outcome_of, removed, shown, shows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_etcd._wire import Keys, Place


def enter(keys: Keys, own: Place, lease: int) -> Any:
    """Return the transaction that gives a waiter its keys, for as long as *lease* lives, and shows whether a place is before its own."""
    taken = [Op(put=Put(key=each, lease=lease)) for each in (own.place, own.bell.encode())]
    return Txn(success=[*shows(keys, own.key), first_place(keys.places(own.key), own.place), *taken])


def leave(keys: Keys, own: Place) -> Any:
    """Return the transaction that takes the keys of a waiter away, and shows whom its turn passes to."""
    start = keys.places(own.key)
    return Txn(success=[*removed(own.bell, own.place), *shows(keys, own.key), first_place(start, behind(start))])


def ring(place: Place) -> Any:
    """Return the transaction that wakes the waiter at *place*."""
    return Txn(success=removed(place.bell))


def following(keys: Keys, key: str, answer: Any, told: Place | None = None) -> Place | None:
    """Return the place that the answer to an applied step shows: of who comes next, unless it is *told* and was woken by the step."""
    _, responses = outcome_of(answer)
    first = _place(keys, key, responses[2:3])
    return None if told is not None and first == told and responses[-1].delete.deleted else first


def passed_to(keys: Keys, key: str, answer: Any) -> Place | None:
    """Return the place of who is to be woken since another left, who had been: nobody while the key is held."""
    bell, _, *seen, first = answer.responses
    head = shown(seen).head
    is_held = head is not None and head.value.split(b" ", 2)[1:2] == [b"held"]
    return None if bell.delete.deleted or is_held else _place(keys, key, [first])


def rung(answer: Any) -> list[str]:
    """Return the bells that a watch tells of."""
    return [event.kv.key.decode() for event in answer.events]


def _place(keys: Keys, key: str, shows: Sequence[Any]) -> Place | None:
    cut = len(keys.places(key))
    names = [kv.key[cut:].decode() for response in shows for kv in response.range.kvs]
    return keys.place(key, names[0]) if names else None
