"""The queue of those who wait for a lock, in ZooKeeper: the record wakes the first of them, and each wakes the one behind by going.

A waiter has a place, an ephemeral node. Places are in the order in which their owners came, and decide nothing: a client alone holds back,
for a moment, where it has freed a lock that others wait for. A place ends with its client's session; the lock has none.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError

from dlock_core.kit import BeginsAnew, watch_forks
from dlock_zookeeper import _wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlock_core.kit import Exchange
    from dlock_zookeeper._links import ThreadLink

# How long a waiter that was woken may take to claim.
_TURN_S = 0.3
# For how long a lock is held where a look at the queue would cost a share of it.
_SHORT_S = 0.01
_MANY = 4096


@dataclass(slots=True)
class _Place:
    """A place that stands, or may."""

    left_at: float  # from when on nobody waits there, whatever has become of who did
    made: bool = False  # it stands, as was seen last
    behind: bool = False  # another was before it, as was seen last
    watches: str = ""  # the node whose news are for it


class Queue(BeginsAnew):
    """The places of the waiters of one client; any of its threads may use it at any time."""

    def __init__(self, root: str, link: ThreadLink) -> None:
        self._root, self._link = root, link
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without a place: they are the parent's, and so is their session."""
        self._client = token_hex(8)
        # Since which transaction of the ensemble the attempt behind a ticket waits: it comes back to the same place.
        self._since: OrderedDict[str, int] = OrderedDict()
        self._places: dict[str, _Place] = {}
        # Which places the news of a node are for.
        self._watched: dict[str, set[str]] = {}
        # Since when this client holds a key; 0 where its claim came from the queue.
        self._held_since: OrderedDict[str, float] = OrderedDict()
        # The RVN with which this client has freed a key that others wait for, and until when it holds back.
        self._freed: dict[str, tuple[str, float]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether *name* is a place."""
        return name in self._places

    def own(self, key: str, ticket: str | None) -> str | None:
        """Return the place of an attempt, if it has one."""
        since = None if ticket is None else self._since.get(ticket)
        place = None if since is None else self._place(key, since, ticket)
        return place if place in self._places else None

    def attend(self, key: str, ticket: str, until: float) -> str:
        """Return the place of an attempt that begins to wait, or waits again, for no longer than *until*."""
        since = self._since.setdefault(ticket, self._link.zxid)
        _bound(self._since)
        place = self._place(key, since, ticket)
        self._places.setdefault(place, _Place(until)).left_at = until
        return place

    def _place(self, key: str, since: int, ticket: str | None) -> str:
        return _wire.place_of(self._root, key, f"{since:016x}-{self._client}-{ticket}")

    def enter(self, place: str, path: str) -> Exchange[bool]:
        """Take the place; return whether it is the first. The next news for it are of the record at *path*, else of the place before."""
        queue, _, own = place.rpartition("/")
        known = self._places.get(place, _Place(0.0))
        while True:
            try:
                [*_, names] = yield _wire.entering(place, queue, makes=not known.made)
            except NoNodeError:
                yield _wire.making(queue)
                continue
            known.made = own in names
            if not known.made:  # it ended with a session
                continue
            if forgotten := self._forgotten(queue, names):
                yield _wire.leaving(forgotten)
                continue
            before = max((name for name in names if name < own), default=None)
            self._watch(place, known, path if before is None else f"{queue}/{before}")
            if before is None:
                return True
            known.behind = True
            [stands] = yield _wire.watching(f"{queue}/{before}")
            if stands is not None:
                return False

    def _forgotten(self, queue: str, names: Iterable[str]) -> list[str]:
        """Return the places of this client in *queue* that it has given up, which data that were restored from a copy brought back."""
        mine = (f"{queue}/{name}" for name in names if f"-{self._client}-" in name)
        return [place for place in mine if place not in self._places]

    def _watch(self, place: str, known: _Place, path: str) -> None:
        """Have news of *path* be for *place*, and no others; of no node, with an empty path."""
        if path != known.watches:
            self._watched.get(known.watches, set()).discard(place)
        known.watches = path
        if path:
            self._watched.setdefault(path, set()).add(place)

    def is_behind(self, place: str) -> bool:
        """Whether another was before *place* when it was looked last."""
        known = self._places.get(place)
        return known is not None and known.behind

    def comes_forward(self, place: str) -> bool:
        """Note that nobody is before *place* any more; whether somebody was."""
        known = self._places.get(place)
        was = known is not None and known.behind
        if known is not None:
            known.behind = False
        return was

    def woken_by(self, path: str) -> set[str]:
        """Return the places that news of *path* are for."""
        return self._watched.pop(path, set())

    def cut_off(self) -> None:
        """Note that there will be no news of what was watched; who waits asks again."""
        self._watched.clear()

    def claimed(self, key: str, own: str | None) -> None:
        """Note that a claim was granted, of an attempt with its *own* place or without."""
        self._held_since[key] = 0.0 if own is not None else time.monotonic()
        _bound(self._held_since)

    def may_be_wanted(self, key: str) -> bool:
        """Whether a release should look if others wait: somebody did lately, or it was held for so long that the look costs little."""
        return time.monotonic() - self._held_since.pop(key, 0.0) > _SHORT_S

    def lets_pass(self, key: str, rvn: str) -> None:
        """Note that this client frees *key*, which others wait for, with *rvn*: it holds back."""
        now = time.monotonic()
        self._freed = {each: kept for each, kept in list(self._freed.items()) if kept[1] > now}
        self._freed[key] = rvn, now + _TURN_S

    def kept(self, key: str) -> str | None:
        """Return the RVN with which this client has freed *key*, if it still holds back."""
        rvn, until = self._freed.get(key, (None, 0.0))
        return rvn if time.monotonic() < until else None

    def keep(self, place: str) -> None:
        """Keep the place for a moment, though nobody waits there now."""
        if (known := self._places.get(place)) is not None:
            known.left_at = time.monotonic()

    def leave(self, *places: str) -> Exchange[None]:
        """Give *places* up; where ZooKeeper does not hear of it, later."""
        for place in places:
            self.keep(place)
        left = {place: known.left_at for place in places if (known := self._places.get(place)) is not None}
        yield _wire.leaving(list(left))
        for place, left_at in left.items():
            if (known := self._places.get(place)) is not None and known.left_at == left_at:
                self.drop(place)

    def upkeep(self, *, ends: bool) -> Exchange[None]:
        """Give up the places that nobody has come back to, or where the waiting *ends*, all."""
        over = time.monotonic() - _TURN_S
        if left := [place for place, known in list(self._places.items()) if ends or known.left_at < over]:
            yield from self.leave(*left)

    def drop(self, place: str) -> None:
        """Forget a place that has ended."""
        if (known := self._places.pop(place, None)) is not None:
            self._watch(place, known, "")


def _bound(known: OrderedDict[str, Any]) -> None:
    if len(known) > _MANY:
        known.popitem(last=False)
