"""The queue of those who wait for a lock, in etcd: a release wakes the first of them alone.

A waiter has a place, in the order in which they came, and a bell. A claim that comes from the queue learns whose place is the next, and the
release after it rings there in its own transaction. A place decides nothing but which claims are refused for a moment. It has a lease of
etcd's, which ends soon after its client; the lock has none.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dlock_core.errors import RecordError
from dlock_etcd import _schema, _wire
from dlock_etcd._errors import TROUBLE, lease_ended, lease_stands

if TYPE_CHECKING:
    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord
    from dlock_etcd._wire import Place

# The shortest lease that a cluster with the usual time-outs grants.
_LEASE_S = 2
# How long a waiter that was woken may take to claim.
_TURN_S = 0.3
_MANY = 4096
_log = logging.getLogger("dlock.etcd")


class Queue:
    """The places of the waiters of one client. *verbs* are its verbs."""

    def __init__(self, verbs: Any) -> None:
        self._verbs, self._keys = verbs, verbs.keys
        self._client = secrets.token_hex(8)
        self.bells: bytes = self._keys.bells(self._client)
        # Since which revision of the cluster the attempt behind a ticket waits: it comes back to the same place.
        self._since: OrderedDict[str, int] = OrderedDict()
        # The places that stand, or may, by bell, and from when on nobody waits there, whatever has become of who did.
        self._places: dict[str, tuple[Place, float]] = {}
        # Who comes next, where this client holds a key that others wait for.
        self._following: OrderedDict[str, Place] = OrderedDict()
        self._lease = 0
        # The lease that is asked for, as yet without an answer: all who come meanwhile ask for the same.
        self._asked_for = 0
        # Whose request for a place has had no answer: the place may come after it was given up.
        self._unanswered: set[str] = set()

    def begin_anew(self) -> None:
        """Let the places that stand end: a server that was restored from a copy has some of which nobody knows any more."""
        self._lease = 0

    def own(self, key: str, ticket: str | None) -> Place | None:
        """Return the place of an attempt, if it has waited."""
        if ticket is None:
            return None
        standing, _ = self._places.get(f"{self.bells.decode()}{ticket}", (None, 0.0))
        if standing is not None and standing.key == key:
            return standing
        since = self._since.get(ticket)
        return None if since is None else self._place(key, since, ticket)

    def _place(self, key: str, since: int, ticket: str) -> Place:
        place: Place = self._keys.place(key, f"{since:016x}-{self._client}-{ticket}")
        return place

    def attend(self, key: str, ticket: str, until: float) -> str:
        """Return the bell of an attempt that begins to wait, or waits again, for no longer than *until*."""
        own = self.own(key, ticket)
        if own is None:
            since = self._since[ticket] = self._verbs.revision
            _bound(self._since)
            own = self._place(key, since, ticket)
        self._places[own.bell] = own, until
        return own.bell

    def served(self, key: str, ticket: str | None, own: Place | None, answer: Any) -> None:
        """Note that a claim was granted, which took its *own* place away, and who comes next."""
        self._following.pop(key, None)
        if own is not None:
            self._places.pop(own.bell, None)
            self._since.pop(str(ticket), None)
            self.note(key, answer)

    def note(self, key: str, answer: Any) -> bool:
        """Note who comes next, as the *answer* to a step that holds the key shows; whether somebody does."""
        following = _wire.following(self._keys, key, answer)
        if following is not None:
            self._following[key] = following
            _bound(self._following)
        return following is not None

    def next(self, key: str) -> Place | None:
        """Return the place of who comes next, once, as far as it is known."""
        return self._following.pop(key, None)

    def enter(self, bell: str, seen: LockRecord) -> Exchange[bool]:
        """Take the place; return whether there is nothing to wait for: the key is free, or held in another version than *seen*."""
        own, _ = self._places[bell]
        lease = yield from self._leased()
        try:
            answer = yield from self._entered(own, lease)
        except TROUBLE as error:
            if not lease_ended(error):
                raise
            if self._lease == lease:
                self._lease = 0
            answer = yield from self._entered(own, (yield from self._leased()))
        shown = _wire.shown(answer.responses)
        try:
            record = shown.record(own.key)
        except RecordError:
            return True  # the claim says so
        if record is not None and record.held:
            return record.version != seen.version
        return not shown.is_kept

    def _leased(self) -> Exchange[int]:
        """Return the lease of the places, which may have ended; never 0, with which a place would stand for ever."""
        if lease := self._lease:
            return lease
        wanted = self._asked_for = self._asked_for or secrets.randbits(62) + 1
        try:
            yield _schema.request("Lease", "LeaseGrant", ttl=_LEASE_S, id=wanted)
        except TROUBLE as error:
            if not lease_stands(error):
                raise
        if self._asked_for == wanted:
            self._lease, self._asked_for = wanted, 0
        return wanted

    def _entered(self, own: Place, lease: int) -> Exchange[Any]:
        self._unanswered.add(own.bell)
        answer = yield from self._verbs.transacted(_wire.enter(self._keys, own, lease))
        self._unanswered.discard(own.bell)
        return answer

    def keep(self, bell: str) -> None:
        """Keep the place for a moment, though nobody waits there now."""
        if bell in self._places:
            self._places[bell] = self._places[bell][0], time.monotonic()

    def leave(self, bell: str, *, passes_on: bool = True) -> Exchange[None]:
        """Give the place up, and pass on a turn that it had, unless that was used; where etcd does not hear of it, later."""
        self.keep(bell)
        yield from self._give_up(bell, self._places.get(bell), passes_on=passes_on)

    def _give_up(self, bell: str, left: tuple[Place, float] | None, *, passes_on: bool) -> Exchange[None]:
        """Give up the place that was *left*, unless its waiter has come back."""
        if bell in self._unanswered:  # what still comes ends with the lease, which nothing keeps any more
            self._unanswered.discard(bell)
            self._lease = 0
        if left is not None and self._places.get(bell) == left:
            answer = yield from self._verbs.transacted(_wire.leave(self._keys, left[0]))
            if self._places.get(bell) == left:
                del self._places[bell]
            yield from self.ring(_wire.passed_to(self._keys, left[0].key, answer) if passes_on else None)

    def ring(self, place: Place | None) -> Exchange[None]:
        """Wake the waiter at *place*, which otherwise looks for itself, a little later."""
        if place is not None:
            try:
                yield from self._verbs.transacted(_wire.ring(place))
            except TROUBLE as error:
                _log.debug("a waiter was not woken: %s", error)

    def upkeep(self, *, ends: bool = False) -> Exchange[None]:
        """Keep the places of all who wait, and give up those that nobody has come back to; at once where the waiting *ends*."""
        if self._lease and not ends:  # first: where many places are given up, the time may be over before it is kept
            yield _schema.request("Lease", "LeaseKeepAlive", id=self._lease)
        over = time.monotonic() - (0 if ends else _TURN_S)
        for bell, (place, left_at) in list(self._places.items()):
            if left_at < over:
                yield from self._give_up(bell, (place, left_at), passes_on=True)


def _bound(known: OrderedDict[str, Any]) -> None:
    if len(known) > _MANY:
        known.popitem(last=False)
