"""How the log follows one lock: its wait, its grant, its risk, its loss, its release."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from dlock_core.engine.event_hook import log_fields
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.events import EventKind
from dlock_core.members import members_in_words
from dlock_core.states import Seeking, Verb
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from dlock_core.engine.handle import Handle
    from dlock_core.record import LockRecord, Loss
    from dlock_core.states import LeaseState

_log = guarded_logger("dlock.engine")

# A store that notifies is asked again after so long.
_PAUSE_NS = 2 * NANOS
# How often a wait is told where no lease says it.
_WITHOUT_LEASE_NS = 20 * NANOS


def tell_wait(handle: Handle, until: int, now: int) -> None:
    """Log that the caller waits: after a second, and then once a lease. A long wait, *until* an instant, is told before it begins."""
    state = handle.state
    if type(state) is not Seeking or (now < handle.tell_at and until <= handle.tell_at + _PAUSE_NS):
        return
    lease_ns = state.terms.timings.lease_ns if state.seen is None else state.seen.lease_ns
    handle.tell_at = max(now, handle.tell_at) + (lease_ns if lease_ns < NEVER else _WITHOUT_LEASE_NS)
    if not _log.isEnabledFor(logging.INFO):
        return
    why = "nobody holds it, but it cannot be had yet"
    if state.failing_since is not None:
        why = f"the store does not answer ({handle.trouble})"
    elif state.shown is not None and state.shown.held:
        why = f"{holder_in_words(state.shown)}, token {state.shown.fencing_token}"
    waited_s = (now - handle.asked_at) / NANOS
    fields = log_fields(EventKind.WAITING, handle, waited_s, record=state.shown, error=handle.trouble or None)
    _log.info("waiting for lock %r, for %.1f s now: %s", handle.name, waited_s, why, extra=fields)


def holder_in_words(record: LockRecord) -> str:
    """Say who holds the lock of a *record* that is held, since when by the holder's wall clock, and how many wait, as far as it tells."""
    if record.broken is not None:
        return f"held by nobody: {record.broken.by!r} broke it, and one lease after that it is free"
    if record.members is not None:
        return f"held by {members_in_words(record.members)}"
    since = ""
    if record.times is not None:
        granted_at_s, written_at_s = record.times
        renewed = "" if written_at_s == granted_at_s else f", renewed {at_in_words(written_at_s)}"
        since = f" since {at_in_words(granted_at_s)}{renewed}"
    waiting = f", {record.waiters} waiting for it" if record.waiters else ""
    kept = "" if record.session is None else f", kept by session {record.session.key!r}"
    return f"held by {record.owner!r}{since}{kept}{waiting}"


def at_in_words(at_s: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return the instant *at_s*, in seconds since 1970, in this *form*; one that no calendar has, as the number."""
    try:
        return time.strftime(form, time.gmtime(at_s))
    except (OSError, OverflowError, ValueError):  # the record is another's, and says what it likes
        return f"{at_s} s after 1970"


def is_told(*, taken: bool = False) -> bool:
    """Whether the log wants to hear of a grant or release: of one that was *taken* over sooner than of another."""
    return _log.logger.isEnabledFor(logging.INFO if taken else logging.DEBUG)


def is_takeover(before: LeaseState, abandoned: Collection[str]) -> bool:
    """Whether the grant that ended the state *before* was taken from a holder that died, and not from what an *abandoned* write left."""
    sent = before.in_flight if type(before) is Seeking else None
    return sent is not None and sent.verb is Verb.TAKE and getattr(sent.expected, "rvn", None) not in abandoned


def tell_grant(handle: Handle, taken: bool) -> None:  # noqa: FBT001  # called by position
    """Log a grant, and how long it was waited for."""
    level, how = (logging.INFO, "taken over from a dead holder") if taken else (logging.DEBUG, "acquired")
    owner, waited_s = handle.state.terms.timings.owner, (handle.granted_at - handle.asked_at) / NANOS
    fields = log_fields(EventKind.TAKEN_OVER if taken else EventKind.GRANTED, handle, waited_s)
    _log.log(
        level, f"lock %r {how} by %r, token %d, after %.3f s", handle.name, owner, handle.token, waited_s, extra=fields
    )


def tell_release(handle: Handle, now: int) -> None:
    """Log a release, and how long the lock was held."""
    held_s = (now - handle.granted_at) / NANOS
    fields = log_fields(EventKind.RELEASED, handle, held_s)
    _log.debug("%s released, token %d, held for %.3f s", in_short(handle), handle.token, held_s, extra=fields)


def tell_risk(handle: Handle, left_s: float, trouble: str) -> None:
    """Log that a renewal failed, and how long the lock still lasts."""
    why = f" ({trouble})" if trouble else ""
    fields = log_fields(EventKind.AT_RISK, handle, left_s, error=trouble or None)
    _log.warning("%s is at risk: a renewal failed, %.1f s left%s", in_short(handle), left_s, why, extra=fields)


def tell_loss(handle: Handle, loss: Loss, now: int) -> None:
    """Log a loss and its reason."""
    reason, held_s = loss.reason.value, (now - handle.granted_at) / NANOS
    fields = log_fields(EventKind.LOST, handle, held_s, record=loss.record, error=reason)
    _log.warning("%s is lost (%s), token %d", in_short(handle), reason, loss.fencing_token, extra=fields)


def in_short(handle: Handle) -> str:
    """Name what *handle* holds: a lock, a session that keeps locks, or the session of a waiter, who does not have the lock yet."""
    if handle.keeps is not None:
        return f"session {handle.key!r}"
    waits = handle.is_session and handle.membership is None
    return f"the session of a waiter for lock {handle.name!r}" if waits else f"lock {handle.name!r}"
