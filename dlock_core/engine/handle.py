"""A handle: one attempt at a key and what becomes of it; and the runtime that an engine needs besides its store."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from dlock_core.engine.progress import holder_in_words
from dlock_core.errors import AcquireTimeoutError, LeaseStateError, LockLostError, OutcomeUnknownError, StoreError
from dlock_core.members import shared_key
from dlock_core.record import Loss, LossReason
from dlock_core.states import Cleaning, Ended, LeaseState, Lost, Observation, Outcome, Payload, Releasing
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from dlock_core.engine.callers import Place
    from dlock_core.engine.membership import Membership
    from dlock_core.options import LockOptions
    from dlock_core.record import LockRecord

__all__ = [
    "LOSS_REASONS",
    "Handle",
    "Runtime",
    "Settable",
    "Signal",
    "View",
    "Watch",
    "closed_error",
    "interrupted_error",
    "lost_error",
    "refused_error",
    "unresolved_error",
    "waits_for_itself_error",
]


class Settable(Protocol):
    """What can be told that something happened."""

    def set(self) -> None:
        """Wake whoever waits."""
        ...


class Signal(Settable, Protocol):
    """Something one party waits for and another sets, once."""

    def wait(self, timeout_s: float) -> Awaitable[None]:
        """Return when set, or after *timeout_s*."""
        ...


class View(Protocol):
    """A lease in the hands of a caller."""

    _handle: Handle
    _closed: bool
    _caller: object
    _place: Place


class Runtime(Protocol):
    """What the engine needs besides a store."""

    now: Callable[[], int]
    wall_ms: Callable[[], int]
    caller_kind: str

    def caller(self) -> object:
        """Return what stands for the thread or task that calls; None outside of any task."""
        ...

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """What guards the handles: held for a moment, never while waiting."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait; ends early when the client is closed."""
        ...

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait, also while the client is being closed; not at all by a clock that somebody advances."""
        ...

    def signal(self) -> Signal:
        """Return a new signal."""
        ...

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run a callback of the user outside the engine."""
        ...

    def run_probe(self, question: Callable[[Any], Any], argument: Any, timeout_s: float) -> Awaitable[Any]:
        """Return what a function of the user answers; raise what it raises, and TimeoutError where it takes longer."""
        ...

    def arm(self) -> None:
        """See to it that :meth:`Renewals.collect` is called when the first handle of the timer queue is due, or earlier."""
        ...

    def retry(self) -> None:
        """Start the thread that could not be started, if there is one."""
        ...

    def is_inside(self) -> bool:
        """Whether this thread is inside of the mutex."""
        ...


class Watch:
    """One ``on_risk`` or ``on_wanted`` of a handle: fires once for each stretch of being so."""

    __slots__ = ("_callback", "_lease", "armed", "safe_ns")

    def __init__(self, callback: Callable[[Any], object], lease: Any, safe_ns: int | None) -> None:
        self._callback = callback
        # Weak: watched or not, a lease that its user drops must end.
        self._lease = weakref.ref(lease)
        self.safe_ns = safe_ns
        self.armed = True

    def fire(self, runtime: Runtime) -> None:
        """Call the callback, unless the lease was dropped."""
        lease = self._lease()
        if lease is not None:
            runtime.post(self._callback, lease)


class Handle:
    """One attempt at a key and what becomes of it: the machine's state, and who wants to hear of changes."""

    __slots__ = (
        "asked_at",
        "body_of",
        "busy",
        "changes",
        "dropped",
        "due",
        "granted_at",
        "has_waited",
        "is_closing",
        "key",
        "looked_at",
        "lost_callbacks",
        "lost_signals",
        "membership",
        "options",
        "payload",
        "seen",
        "signals",
        "state",
        "stop_reason",
        "stop_signals",
        "tell_at",
        "token",
        "trouble",
        "views",
        "wanted",
        "wanted_watches",
        "watches",
    )

    def __init__(self, key: str, options: LockOptions, state: LeaseState, asked_at: int) -> None:
        self.key = key
        # What it is for, where it is the session of a member of a shared lock.
        self.membership: Membership | None = None
        self.asked_at = self.granted_at = asked_at
        self.tell_at = asked_at + NANOS
        self.has_waited = False
        self.options = options
        self.state = state
        self.due = NEVER
        self.busy = True
        self.dropped = False
        # The leases by which callers hold it, weakly: what nobody has in hand is not renewed.
        self.views: list[weakref.ref[View]] = []
        self.changes = 0
        self.looked_at = -1  # at which of the changes the keys that come next were looked at
        self.token = 0
        # In words: an error would keep frames alive, and with them a lease that was dropped.
        self.trouble = ""
        self.payload = Payload(None, ())
        self.seen: Observation | None = None
        self.lost_signals: list[Settable] = []
        self.stop_signals: list[Settable] = []
        self.stop_reason: LossReason | None = None
        # The thread or task whose block leads, or runs a job; and whether it was told to stop since its client is being closed.
        self.body_of: object = None
        self.is_closing = False
        self.signals: list[Signal] = []
        self.lost_callbacks: list[Callable[[Loss], object]] = []
        self.watches: list[Watch] = []
        self.wanted = False  # by the answer to the last renewal
        self.wanted_watches: list[Watch] = []

    def attach(self, view: View) -> None:
        """Let *view* be one of the leases by which callers hold this."""
        view._handle = self  # the view is made for it
        self.views.append(weakref.ref(view))

    def detach(self, view: View) -> bool:
        """Take *view* off; whether no lease is left by which anybody holds this."""
        with suppress(ValueError):  # it was taken off before
            self.views.remove(weakref.ref(view))
        return not self.is_in_hand()

    def is_in_hand(self, *, beside: View | None = None) -> bool:
        """Whether a caller has a lease of this, *beside* the one that is given, that is neither released nor dropped."""
        views = [found() for found in self.views]
        return any(view is not None and view is not beside and not view._closed for view in views)

    def lease_of(self, caller: object) -> View | None:
        """Return a lease by which *caller*, a thread or task, has this in hand; None if it has none."""
        views = [found() for found in self.views]
        mine = (view for view in views if view is not None and not view._closed and view._caller == caller)
        return None if caller is None else next(mine, None)

    @property
    def is_dropped(self) -> bool:
        """Whether the callers have dropped their leases and released none."""
        return self.dropped or (bool(self.views) and all(found() is None for found in self.views))

    @property
    def name(self) -> str:
        """The key that people know it by: of a session, that of the shared lock."""
        return shared_key(self.key)

    @property
    def is_session(self) -> bool:
        """Whether this is the session of a member of a shared lock, or of who is about to be one."""
        return self.name != self.key

    def told(self, loss: Loss) -> Loss:
        """Return *loss* as the callers know the lock: a session is lost as the shared lock that it keeps."""
        return Loss(self.name, self.token, loss.reason, None) if self.is_session else loss

    def wrote(self, record: LockRecord) -> bool:
        """Whether the held *record* is of this grant."""
        return (record.fencing_token, record.owner) == (self.token, self.state.terms.timings.owner)

    @property
    def loss(self) -> Loss | None:
        """What is known of a loss."""
        state = self.state
        loss = state.loss if isinstance(state, (Lost, Releasing, Ended)) else None
        return None if loss is None else self.told(loss)

    @property
    def must_stop(self) -> bool:
        """Whether the holder was told to stop, or the lock is lost."""
        return self.is_closing or self.stop_reason is not None or self.loss is not None


LOSS_REASONS = {
    LossReason.EXPIRED: "its lease ran out and was not renewed",
    LossReason.STOLEN: "another holder took it over",
    LossReason.BROKEN: "an operator broke it",
    LossReason.UNREACHABLE: "the store could not be reached before its lease ran out",
    LossReason.OVERRUN: "it was held longer than max_hold",
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
    owner, record = "", loss.record
    if record is not None and record.held:
        owner = f"; now it is {holder_in_words(record)}, with token {record.fencing_token}"
        if record.broken is not None:
            owner = f"; {record.broken.by!r} did, and nobody gets it before one lease is over"
    what = f"lock {handle.name!r} (token {loss.fencing_token}) was lost: {LOSS_REASONS[loss.reason]}{owner}"
    message = f"{what}; what was done since may clash with another holder's work"
    return LockLostError(message, loss=loss)


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


def waits_for_itself_error(key: str, holder: View, asking: View, kind: str) -> LeaseStateError:
    """Return the error of a thread or task (*kind*) that waits for what it holds itself, and so would wait for ever."""
    return LeaseStateError(
        f"lock {key!r} is held by this {kind} since {holder._place}, so the acquire at {asking._place} would wait for itself for ever; "
        "release it first, or give reentrant=True in both places; "
        f"if another {kind} is to release it, give handover=True in the first place"
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
    waited = waited_ns / NANOS
    timings = state.terms.timings
    timeout = waited if timings.wait_ns == NEVER else timings.wait_ns / NANOS
    unknown = type(state) is not Ended
    absent = (
        "there is no such lock, and only_if_exists was asked for"
        if timings.must_exist
        else "nobody is known to hold it"
    )
    who = absent if holder is None else f"{holder_in_words(holder)}{_own_holder(own, holder, runtime)}"
    turnover = f" (record changed {handle.changes - 1} times while waiting)" if handle.changes > 1 else ""
    within = f"within {timeout:.1f} s" if timings.wait_ns else "in one try"
    doubt = "; a write got no answer and is being cleaned up" if unknown else ""
    message = f"could not acquire lock {handle.name!r} {within}: {who}{turnover}{doubt}"
    return AcquireTimeoutError(message, key=handle.name, timeout=timeout, holder=holder, outcome_unknown=unknown)


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
    return OutcomeUnknownError(
        f"lock {shared_key(state.terms.key)!r} has no lease, and it is not known whether it was released (token {token}, record version "
        f"{', '.join(rvns)}); look with 'dlock show {shared_key(state.terms.key)}', and free it with 'dlock break'",
        key=shared_key(state.terms.key),
    )
