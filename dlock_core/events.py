"""Events: what happens to a client's locks, for metrics, traces and audits; handed to the function that the option ``on_event`` names."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["EventKind", "LockEvent"]


class EventKind(StrEnum):
    """What happened to a lock."""

    REQUESTED = "requested"
    WAITING = "waiting"
    GRANTED = "granted"
    TAKEN_OVER = "taken over"
    REFUSED = "refused"
    RENEWED = "renewed"
    AT_RISK = "at risk"
    LOST = "lost"
    RELEASED = "released"
    BROKEN = "broken"


class LockEvent(NamedTuple):
    """One event of one lock.

    Each acquire begins with ``requested``, then ``waiting`` if it has to wait, then ``granted``, ``taken over`` (from a holder that
    died) or ``refused`` (it ended without the lock); after a grant come ``renewed``, ``at risk`` and ``lost``, and last ``released``.
    All of them have the same *attempt*. ``broken`` is the ``break_lock`` of this client.

    *key* has the client's prefix, as in the log. *fencing_token* is 0 before the grant. *holder* is the owner of the record that stands in
    the way (``waiting``, ``refused``), or that took the lock (``lost``). *error* says why, in words.

    *duration* is in seconds: how long it was waited for (``waiting``, ``granted``, ``taken over``, ``refused``), how long the renewal took
    (``renewed``), how long the lock still lasts (``at risk``), or how long it was held (``lost``, ``released``).
    """

    kind: EventKind
    key: str
    attempt: str
    fencing_token: int = 0
    duration: float = 0.0
    holder: str | None = None
    error: str | None = None
