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
from dlock_etcd._errors import TROUBLE, lease_ended

if TYPE_CHECKING:
    from dlock_core.kit import Exchange
    from dlock_etcd._wire import Place

__all__ = ["TICK_S", "Queue"]

# The shortest lease that a cluster with the usual time-outs grants.
_LEASE_S = 2
TICK_S = 0.5
# How long a waiter that was woken may take to claim.
_TURN_S = 0.3
_TICKETS_MAX = 4096
_IDLE_TICKS = 10
_log = logging.getLogger("dlock.etcd")


class Queue:
    """The places of the waiters of one client. *verbs* are its verbs."""

    def __init__(self, verbs: Any) -> None:
        self._verbs, self._keys = verbs, verbs.keys
        self._client = secrets.token_hex(8)
        self.bells: bytes = self._keys.bells(self._client)
        # Since which revision of the cluster the attempt behind a ticket waits: it comes back to the same place.
        self._since: OrderedDict[str, int] = OrderedDict()
        # Each place that stands, or may, by key, and since when nobody waits there; None while somebody does.
        self._places: dict[tuple[str, Place], float | None] = {}
        # Who comes next, where this client holds a key that others wait for.
        self._following: OrderedDict[str, Place] = OrderedDict()
        self._lease = self._idle = 0

    def own(self, key: str, ticket: str | None) -> Place | None:
        """Return the place of an attempt, if it has waited."""
        since = None if ticket is None else self._since.get(ticket)
        return None if since is None else self._keys.place(key, f"{since:016x}-{self._client}-{ticket}")

    def attend(self, key: str, ticket: str) -> Place:
        """Return the place of an attempt that begins to wait, or waits again."""
        self._since.setdefault(ticket, self._verbs.revision)
        if len(self._since) > _TICKETS_MAX:
            self._since.popitem(last=False)
        own = self.own(key, ticket)
        assert own is not None
        self._places[key, own] = None
        return own

    def served(self, key: str, ticket: str | None, own: Place | None, answer: Any) -> None:
        """Note that a claim was granted, which took its *own* place away, and who comes next."""
        self._following.pop(key, None)
        if own is not None:
            self._places.pop((key, own), None)
            self._since.pop(str(ticket), None)
            if following := _wire.following(self._keys, key, answer):
                self._following[key] = following
                if len(self._following) > _TICKETS_MAX:
                    self._following.popitem(last=False)

    def next(self, key: str) -> Place | None:
        """Return the place of who comes next, once, as far as it is known."""
        return self._following.pop(key, None)

    def enter(self, key: str, own: Place) -> Exchange[bool]:
        """Take the place; return whether a claim is worth trying at once."""
        while True:
            if not self._lease:
                granted = yield from self._verbs.asked(_schema.lease(_LEASE_S))
                self._lease = self._lease or granted.id
            lease = self._lease
            try:
                answer = yield from self._verbs.transacted(_wire.enter(self._keys, key, own, lease))
                break
            except TROUBLE as error:
                if not lease_ended(error):
                    raise
                if self._lease == lease:
                    self._lease = 0
        shown = _wire.shown(answer.responses)
        try:
            record = shown.record(key)
        except RecordError:
            return True  # the claim says so
        return not shown.is_kept and (record is None or not record.held)

    def keep(self, key: str, own: Place) -> None:
        """Keep the place for a moment, though nobody waits there now."""
        if (key, own) in self._places:
            self._places[key, own] = time.monotonic()

    def leave(self, key: str, own: Place) -> Exchange[None]:
        """Give the place up, and pass on a turn that it had; where etcd does not hear of it, later."""
        self.keep(key, own)
        answer = yield from self._verbs.transacted(_wire.leave(self._keys, key, own))
        if self._places.get((key, own)) is not None:
            self._places.pop((key, own), None)
        yield from self.ring(_wire.passed_to(self._keys, key, answer))

    def ring(self, place: Place | None) -> Exchange[None]:
        """Wake the waiter at *place*, which otherwise looks for itself, a little later."""
        if place is not None:
            try:
                yield from self._verbs.transacted(_wire.ring(place))
            except TROUBLE as error:
                _log.debug("a waiter was not woken: %s", error)

    def upkeep(self) -> Exchange[bool]:
        """Keep the places of those who wait, and give up those that nobody has come back to; whether there is more to keep."""
        over = time.monotonic() - _TURN_S
        for (key, own), since in list(self._places.items()):
            if since is not None and since < over:
                yield from self.leave(key, own)
        self._idle = 0 if self._places else self._idle + 1
        if self._idle >= _IDLE_TICKS:
            self._lease = self._idle = 0
            return False
        if self._lease and (yield from self._verbs.asked(_schema.keep_alive(self._lease))).ttl <= 0:
            self._lease = 0
        return True
