"""A handle: one attempt at a key and what becomes of it; and the runtime that an engine needs besides its store."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from dlock_core.errors import AcquireTimeoutError, LeaseStateError, LockLostError, OutcomeUnknownError, StoreError
from dlock_core.record import Loss, LossReason
from dlock_core.states import Cleaning, Ended, LeaseState, Lost, Observation, Outcome, Payload, Releasing
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from dlock_core.options import LockOptions

__all__ = [
    "Handle",
    "Runtime",
    "Settable",
    "Signal",
    "View",
    "Watch",
    "closed_error",
    "lost_error",
    "refused_error",
    "unresolved_error",
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


class Runtime(Protocol):
    """What the engine needs besides a store."""

    now: Callable[[], int]
    wall_ms: Callable[[], int]

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
    """One ``on_risk`` of a handle: fires once for each stretch at risk."""

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
        "busy",
        "changes",
        "dropped",
        "due",
        "key",
        "lost_callbacks",
        "lost_signals",
        "options",
        "payload",
        "seen",
        "signals",
        "state",
        "token",
        "trouble",
        "views",
        "watches",
    )

    def __init__(self, key: str, options: LockOptions, state: LeaseState) -> None:
        self.key = key
        self.options = options
        self.state = state
        self.due = NEVER
        self.busy = True
        self.dropped = False
        # The leases by which callers hold it, weakly: what nobody has in hand is not renewed.
        self.views: list[weakref.ref[View]] = []
        self.changes = 0
        self.token = 0
        # In words: an error would keep frames alive, and with them a lease that was dropped.
        self.trouble = ""
        self.payload = Payload(None, ())
        self.seen: Observation | None = None
        self.lost_signals: list[Settable] = []
        self.signals: list[Signal] = []
        self.lost_callbacks: list[Callable[[Loss], object]] = []
        self.watches: list[Watch] = []

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

    @property
    def is_dropped(self) -> bool:
        """Whether the callers have dropped their leases and released none."""
        return self.dropped or (bool(self.views) and all(found() is None for found in self.views))

    @property
    def loss(self) -> Loss | None:
        """What is known of a loss."""
        state = self.state
        return state.loss if isinstance(state, (Lost, Releasing, Ended)) else None


def closed_error(key: str | None = None) -> LeaseStateError:
    """Return the error of a call on a closed client."""
    what = "the client was closed" if key is None else f"the client was closed while lock {key!r} was asked for"
    return LeaseStateError(f"{what}; make a new one with connect()")


def lost_error(handle: Handle) -> Exception:
    """Return what a call on a lease that is not held any more raises."""
    loss = handle.loss
    if loss is None:
        return LeaseStateError(f"the lease of lock {handle.key!r} was released; acquire it anew")
    words = {
        LossReason.EXPIRED: "its lease ran out and was not renewed",
        LossReason.STOLEN: "another holder took it over",
        LossReason.BROKEN: "an operator broke it",
        LossReason.UNREACHABLE: "the store could not be reached before its lease ran out",
        LossReason.OVERRUN: "it was held longer than max_hold",
    }
    owner = (
        f"; now {loss.record.owner!r} stands there with token {loss.record.fencing_token}"
        if loss.record is not None and loss.record.held
        else ""
    )
    what = f"lock {handle.key!r} (token {loss.fencing_token}) was lost: {words[loss.reason]}{owner}"
    message = f"{what}; what was done since may clash with another holder's work"
    return LockLostError(message, loss=loss)


def refused_error(handle: Handle, waited_ns: int, error: StoreError | None) -> Exception:
    """Return what an acquire raises that ended without the lock; *error* is the store's last."""
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
    who = absent if holder is None else f"held by {holder.owner!r}"
    if holder is not None and holder.owner == timings.owner and not handle.options.reentrant:
        who += ", this client's own owner name (code that holds it and asks again waits for itself; reentrant=True joins it)"
    turnover = f" (record changed {handle.changes - 1} times while waiting)" if handle.changes > 1 else ""
    within = f"within {timeout:.1f} s" if timings.wait_ns else "in one try"
    doubt = "; a write got no answer and is being cleaned up" if unknown else ""
    message = f"could not acquire lock {handle.key!r} {within}: {who}{turnover}{doubt}"
    return AcquireTimeoutError(message, key=handle.key, timeout=timeout, holder=holder, outcome_unknown=unknown)


def _unreachable_error(handle: Handle, error: StoreError) -> StoreError:
    if type(handle.state) is Ended or isinstance(error, OutcomeUnknownError):
        return error
    # The last request was certainly not applied, an earlier one may have been.
    unresolved = OutcomeUnknownError(
        f"a claim of lock {handle.key!r} got no answer and is being cleaned up; since then: {error}", key=handle.key
    )
    unresolved.__cause__ = error
    return unresolved


def unresolved_error(state: LeaseState) -> OutcomeUnknownError:
    """Return what tells of a lock without a lease whose release was not acknowledged."""
    writes = [sent.rvn for sent in getattr(state, "pending", ())]
    rvns = [state.version.rvn, *writes] if isinstance(state, Releasing) else writes
    token = state.version.fencing_token if isinstance(state, Releasing) else "unknown"
    return OutcomeUnknownError(
        f"lock {state.terms.key!r} has no lease, and it is not known whether it was released (token {token}, record version "
        f"{', '.join(rvns)}); look with 'dlock show {state.terms.key}', and free it with 'dlock break'",
        key=state.terms.key,
    )
