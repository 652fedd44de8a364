"""A handle: one attempt at a key and what becomes of it; and the runtime that an engine needs besides its store."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dlock_core.lease import is_valid, timings_of
from dlock_core.members import shared_key
from dlock_core.record import RESERVED, Loss, LossReason
from dlock_core.states import NOTHING, Ended, Held, LeaseState, Lost, Observation, Payload, Releasing
from dlock_core.timings import NEVER, Timings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from dlock_core.engine.callers import Place
    from dlock_core.engine.keeper import Keeper
    from dlock_core.engine.lines import Line
    from dlock_core.engine.membership import Membership
    from dlock_core.options import LockOptions
    from dlock_core.record import LockRecord


class Settable(Protocol):
    """An event that is set when something has happened."""

    def set(self) -> None:
        """Wake whoever waits."""


_S = TypeVar("_S", bound=Settable)


class Signal(Settable, Protocol):
    """Something one party waits for and another sets, once."""

    def wait(self, timeout_s: float) -> Awaitable[None]:
        """Return when set, or after *timeout_s*."""


class View(Protocol):
    """A lease in the hands of a caller."""

    _handle: Handle
    _closed: bool
    _caller: object
    _is_job: bool

    @property
    def _place(self) -> Place | None: ...


class Runtime(Protocol):
    """What the engine needs besides a store."""

    now: Callable[[], int]
    wall_ms: Callable[[], int]
    caller_kind: str

    def caller(self) -> object:
        """Return what stands for the thread or task that calls; None outside of any task."""

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """What guards the handles: held for a moment, never while waiting."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait; ends early when the client is closed."""

    def pause(self, seconds: float) -> Awaitable[None]:
        """Wait, also while the client is being closed; not at all by a clock that somebody advances."""

    def signal(self) -> Signal:
        """Return a new signal."""

    def turn(self) -> Signal:
        """Return a new signal for which to wait as :meth:`sleep` does."""

    def post(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Run a callback of the user outside the engine."""

    def run_probe(self, question: Callable[[Any], Any], argument: Any, timeout_s: float) -> Awaitable[Any]:
        """Return what a function of the user answers; raise what it raises, and TimeoutError where it takes longer."""

    def arm(self) -> None:
        """See to it that :meth:`Renewals.collect` is called when the first handle of the timer queue is due, or earlier."""

    def retry(self) -> None:
        """Start the thread that could not be started, if there is one."""

    def is_inside(self) -> bool:
        """Whether this thread is inside of the mutex."""


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


@dataclass(slots=True, eq=False, repr=False)
class Handle:
    """One attempt at a key and what becomes of it: the machine's state, and who wants to hear of changes."""

    key: str
    options: LockOptions
    state: LeaseState
    asked_at: int
    granted_at: int
    tell_at: int
    line: Line | None = None  # while it waits
    # What it is for, where it is the session of a member of a shared lock.
    membership: Membership | None = None
    # The session that keeps this lock, or may do so by a write without a known outcome; and what is kept, where this is a session.
    keeper: Keeper | None = None
    keeps: Keeper | None = None
    has_waited: bool = False
    due: int = NEVER
    busy: bool = True
    dropped: bool = False
    # The leases by which callers hold it, weakly: what nobody has in hand is not renewed.
    views: list[weakref.ref[View]] = field(default_factory=list)
    changes: int = -1  # of the record while it waits; the first version that it meets is none
    looked_at: int = -2  # at which of the changes the keys that come next were looked at
    token: int = 0
    # In words: an error would keep frames alive, and with them a lease that was dropped.
    trouble: str = ""
    payload: Payload = NOTHING
    seen: Observation | None = None
    stop_reason: LossReason | None = None
    # The thread or task whose block leads, or runs a job; and whether it was told to stop since its client is being closed.
    body_of: object = None
    is_closing: bool = False
    # A shared lock whose mode is being changed: a write of its own takes this member out of the record.
    is_converting: bool = False
    wanted: bool = False  # by the answer to the last renewal
    # Whom to tell of changes. Of many locks that are held most have nobody: a tuple that is replaced costs those nothing.
    signals: tuple[Signal, ...] = ()
    lost_signals: tuple[Settable, ...] = ()
    stop_signals: tuple[Settable, ...] = ()
    lost_callbacks: tuple[Callable[[Loss], object], ...] = ()
    watches: tuple[Watch, ...] = ()
    wanted_watches: tuple[Watch, ...] = ()

    def attach(self, view: View) -> None:
        """Let *view* be one of the leases by which callers hold this."""
        self.views.append(weakref.ref(view))
        view._handle = self  # last: whoever is interrupted before has a view of nothing, and none of a part of this

    def detach(self, view: View) -> bool:
        """Take *view* off; whether no lease is left by which anybody holds this."""
        try:  # noqa: SIM105  # a context manager costs as much as all the rest
            self.views.remove(weakref.ref(view))
        except ValueError:  # it was taken off before
            pass
        return not self.is_in_hand()

    def note_parting(self) -> None:
        """Have the session that keeps this, which nothing else renews, look at its next beat whether anybody has it in hand."""
        if self.keeper is not None:
            self.keeper.parted.append(self)

    def is_in_hand(self, *, beside: View | None = None) -> bool:
        """Whether a caller has a lease of this, *beside* the one that is given, that is neither released nor dropped."""
        for found in self.views:
            view = found()
            if view is not None and view is not beside and not view._closed:
                return True
        return False

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
        """The key that people know it by: of the session of a member, that of the shared lock."""
        return shared_key(self.key) if self.keeps is None else self.key

    @property
    def is_session(self) -> bool:
        """Whether this is a session: of locks, of a member of a shared lock, or of who is about to be one."""
        return RESERVED in self.key

    def is_valid(self, now: int) -> bool:
        """Whether the lock is held at *now*, and so is the session that keeps it."""
        return is_valid(self.state, now) and (self.keeper is None or self.keeper.is_valid(now))

    @property
    def deadline(self) -> int:
        """When the lease ends, its own or that of its session, if no renewal comes; 0 where it is not held."""
        state = self.state
        if type(state) is not Held:
            return 0
        return state.deadline if self.keeper is None else min(state.deadline, self.keeper.deadline)

    @property
    def remaining_until(self) -> int:
        """When the lock ends, if no renewal comes; 0 where it is not held."""
        state = self.state
        return min(self.deadline, state.hold_until) if type(state) is Held else 0

    @property
    def renewal(self) -> Handle:
        """The handle whose renewals keep the lock: this one, or that of its session."""
        state = self.state
        kept = type(state) is Held and state.timings.session is not None
        return self if self.keeper is None or not kept else self.keeper.handle

    @property
    def renewed_at(self) -> int:
        """When the request was sent that renewed the lock last; 0 where it is not held."""
        state = self.renewal.state
        return state.sent_at if type(state) is Held else 0

    @property
    def with_kept(self) -> list[Handle]:
        """This, and what it keeps as a session: all that is renewed, or at risk, with it."""
        return [self] if self.keeps is None else [self, *self.keeps.kept]

    @property
    def timings(self) -> Timings:
        """The timings of the lease that counts now."""
        renewal = self.renewal
        return timings_of(renewal.state)

    def older_in_words(self, record: LockRecord | None) -> str:
        """Say that *record*, which stands, is older than this grant, if it is: that proves no loss, and yet nothing is renewed."""
        if record is None or not 0 < record.fencing_token < self.token:
            return ""
        return (
            f"the store shows an older record of it, with token {record.fencing_token}, as where records were made anew or restored "
            f"from a copy: another may hold it, and token_floor has to be above {self.token}"
        )

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
        if type(state) is not Lost and type(state) is not Releasing and type(state) is not Ended:
            return None
        return None if state.loss is None else self.told(state.loss)

    @property
    def is_given_back(self) -> bool:
        """Whether a close of the client, made elsewhere, has released the lock, or is about to."""
        return self.is_closing and self.loss is None and type(self.state) in (Releasing, Ended)

    @property
    def must_stop(self) -> bool:
        """Whether the holder was told to stop, or the lock is lost."""
        return self.is_closing or self.stop_reason is not None or self.loss is not None

    def signal_loss(self, event: _S) -> _S:
        """Return *event*: set if the lock is lost, else to be set then. The caller holds the mutex."""
        if self.loss is None:
            self.lost_signals = (*self.lost_signals, event)
        else:
            event.set()
        return event

    def signal_stop(self, event: _S) -> _S:
        """Return *event*: set if the holder must stop, else to be set then. The caller holds the mutex."""
        if self.must_stop:
            event.set()
        else:
            self.stop_signals = (*self.stop_signals, event)
        return event
