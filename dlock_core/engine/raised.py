"""What calls on locks raise, in words that name the key, the numbers and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.engine.progress import holder_in_words
from dlock_core.errors import AcquireTimeoutError, LeaseStateError, LockLostError, OutcomeUnknownError, StoreError
from dlock_core.members import shared_key
from dlock_core.record import Loss, LossReason
from dlock_core.states import Cleaning, Ended, LeaseState, Outcome, Releasing
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from dlock_core.engine.handle import Handle, Runtime, View
    from dlock_core.record import LockRecord
    from dlock_core.timings import Timings


LOSS_REASONS = {
    LossReason.EXPIRED: "its lease ran out and was not renewed",
    LossReason.STOLEN: "another holder took it over",
    LossReason.BROKEN: "an operator broke it",
    LossReason.UNREACHABLE: "its renewals failed until its lease ran out",
    LossReason.OVERRUN: "it was held longer than max_hold, or at_most_for of a job, allows",
    LossReason.STALLED: "its holder made no progress for stall_timeout",
}


def closed_error(key: str | None = None) -> LeaseStateError:
    """Return the error of a call on a closed client."""
    what = "the client was closed" if key is None else f"the client was closed while lock {key!r} was asked for"
    return LeaseStateError(f"{what}; make a new one with connect()")


def lost_error(handle: Handle, loss: Loss | None = None) -> Exception:
    """Return what a call on a lease that is not held any more raises; *loss* is that of the handle if not given."""
    loss = loss or handle.loss
    if loss is None:
        return LeaseStateError(f"the lease of lock {handle.name!r} was released; acquire it anew")
    owner, record, reason = "", loss.record, LOSS_REASONS[loss.reason]
    if record is None and loss.reason is LossReason.STOLEN:
        reason = "its record was removed, so another may hold it"
    if loss.reason is LossReason.UNREACHABLE and handle.trouble:
        reason = f"{reason} ({handle.trouble})"
    if record is not None and record.held:
        if loss.reason is LossReason.STOLEN and 0 < record.fencing_token <= loss.fencing_token:
            reason = (
                "the store shows an earlier state of it, as after a failover that lost writes, so another may hold it"
            )
        owner = f"; now it is {holder_in_words(record)}, with token {record.fencing_token}"
        if record.broken is not None:
            owner = f"; {record.broken.by!r} did, and nobody gets it before one lease is over"
    what = f"lock {handle.name!r} (token {loss.fencing_token}) was lost: {reason}{owner}"
    message = f"{what}; what was done since may clash with another holder's work"
    return LockLostError(message, loss=loss)


def unseen_error(handle: Handle, what: str) -> OutcomeUnknownError:
    """Return what a call raises whose *what* the store has answered, without a proof that it was applied, or of a loss."""
    why = f": {handle.trouble}" if handle.trouble else ""
    return OutcomeUnknownError(f"the {what} of lock {handle.name!r} was not seen applied{why}", key=handle.name)


def given_back_error(handle: Handle) -> LeaseStateError:
    """Return what ends a use of a lock that a close of its client has given back meanwhile."""
    return LeaseStateError(
        f"lock {handle.name!r} (token {handle.token}) was given back when its client was closed elsewhere, before this use of it ended; "
        "what was done since may clash with another holder's work; end the work first (lease.stopping tells it), or close later"
    )


def interrupted_error(handle: Handle) -> Exception:
    """Return what leaves a block that was cancelled because its lock was lost, or was about to be."""
    if handle.is_closing and handle.loss is None:
        return LeaseStateError(
            f"the client was closed while the block of lock {handle.name!r} ran; the block was cancelled"
        )
    if handle.loss is not None or handle.stop_reason is None:
        return lost_error(handle)
    grace_s = handle.state.terms.timings.stop_grace_ns / NANOS
    return LockLostError(
        f"lock {handle.name!r} (token {handle.token}) was about to be lost: {LOSS_REASONS[handle.stop_reason]}; "
        f"its block was cancelled {grace_s:g} s before that, and ended in time",
        loss=Loss(handle.name, handle.token, handle.stop_reason, None),
    )


_CHANGES: dict[tuple[str, str] | None, str] = {
    ("read", "write"): ", or have its lease changed by try_upgrade()",
    ("write", "read"): ", or have its lease changed by downgrade()",
}


def waits_for_itself_error(
    key: str, holder: View, asking: View, kind: str, *, modes: tuple[str, str] | None = None
) -> LeaseStateError:
    """Return the error of a thread or task (*kind*) that waits for what it holds itself, and so would wait for ever.

    *modes* are those in which a shared lock is held and asked for.
    """
    can_join = modes is None and not (holder._is_job or asking._is_job)
    instead = ", or give reentrant=True in both places" if can_join else _CHANGES.get(modes, "")
    return LeaseStateError(
        f"lock {key!r} is held by this {kind} since {holder._place}, so the acquire at {asking._place} would wait for itself for ever; "
        f"release it first{instead}; if another {kind} is to release it, give handover=True in the first place"
    )


def refused_error(
    handle: Handle, waited_ns: int, error: StoreError | None, own: Handle | None, runtime: Runtime
) -> Exception:
    """Return what an acquire raises that ended without the lock.

    *error* is the store's last one, *own* the handle by which this client holds the key.
    """
    state = handle.state
    assert isinstance(state, (Ended, Cleaning, Releasing))  # our own mistake otherwise
    unreachable = isinstance(state, (Ended, Cleaning)) and state.outcome is Outcome.UNREACHABLE
    if unreachable and error is not None:
        return _unreachable_error(handle, error)
    holder = state.holder if isinstance(state, (Ended, Cleaning)) else None
    if holder is not None and not holder.held:
        holder = None
    timings = state.terms.timings
    timeout, within = waiting_time(timings, waited_ns)
    unknown = type(state) is not Ended
    absent = (
        "there is no such lock, and only_if_exists was asked for"
        if timings.must_exist
        else "nobody is known to hold it"
    )
    who = absent if holder is None else f"{holder_in_words(holder)}{_own_holder(own, holder, runtime)}"
    times = "once" if handle.changes == 1 else f"{handle.changes} times"
    turnover = f" (record changed {times} while waiting)" if handle.changes > 0 else ""
    doubt = "; a write got no answer and is being cleaned up" if unknown else ""
    message = f"could not acquire lock {handle.name!r} {within}: {who}{turnover}{doubt}"
    return AcquireTimeoutError(message, key=handle.name, timeout=timeout, holder=holder, outcome_unknown=unknown)


def waiting_time(timings: Timings, waited_ns: int) -> tuple[float, str]:
    """Return the seconds in which an acquire was to have its lock, or that it waited until its tries were over, and the words for them."""
    if not timings.wait_ns:
        return 0.0, "in one try"
    is_timed = timings.wait_ns != NEVER and (timings.retries_max == NEVER or waited_ns >= timings.wait_ns)
    timeout = (timings.wait_ns if is_timed else waited_ns) / NANOS
    return timeout, f"within {timeout:.1f} s" if round(timeout, 1) else f"within {timeout * 1000:.2g} ms"


def _own_holder(own: Handle | None, holder: LockRecord, runtime: Runtime) -> str:
    """Say which thread or task of this client *holder* is, if it is one."""
    if own is None or not own.wrote(holder):
        return ""
    lease, kind = own.lease_of(runtime.caller()), runtime.caller_kind
    if lease is None:
        return f", another {kind} of this client"
    return f", this {kind}, since {lease._place} (reentrant=True in both places joins it)"


def _unreachable_error(handle: Handle, error: StoreError) -> StoreError:
    if type(handle.state) is Ended or isinstance(error, OutcomeUnknownError):
        return error
    # The last request was certainly not applied, an earlier one may have been.
    unresolved = OutcomeUnknownError(
        f"a claim of lock {handle.name!r} got no answer and is being cleaned up; since then: {error}", key=handle.name
    )
    unresolved.__cause__ = error
    return unresolved


def unresolved_error(state: LeaseState) -> OutcomeUnknownError:
    """Return what tells of a lock without a lease whose release was not acknowledged."""
    writes = [sent.rvn for sent in getattr(state, "pending", ())]
    rvns = [state.version.rvn, *writes] if isinstance(state, Releasing) else writes
    token = state.version.fencing_token if isinstance(state, Releasing) else "unknown"
    key = shared_key(state.terms.key)
    return OutcomeUnknownError(
        f"lock {key!r} has no lease, and it is not known whether it was released (token {token}, record version {', '.join(rvns)}); look "
        "with 'dlock show', and free it with 'dlock break'",
        key=key,
    )
