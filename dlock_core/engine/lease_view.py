"""What both leases are, colourless: the view of one handle, the checks before a call, and the rules of leaving a block."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dlock_core.engine.callers import calling_place
from dlock_core.engine.client_context import check_bytes, check_seconds, forked_error
from dlock_core.engine.handle import Watch
from dlock_core.engine.process import generation
from dlock_core.engine.raised import closed_error
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import ConfigurationError, DLockError, LeaseStateError, LockLostError
from dlock_core.record import Loss
from dlock_core.states import Held, Payload
from dlock_core.timings import NANOS, NEVER, Timings, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.keywords import Seconds

__all__ = ["KEEP", "Keep", "LeaseView", "raise_first"]

_log = guarded_logger("dlock.client")
_T = TypeVar("_T")


class Keep:
    """The type of :data:`KEEP`."""

    def __repr__(self) -> str:
        """Say the public name."""
        return "KEEP"


KEEP = Keep()
"""As the *data* of ``renew`` and ``release``: leave what is stored as it is."""


class LeaseView:
    """What both leases are: the view of one handle. Nothing here does I/O.

    It is made before the key is asked for, so that at each instant in which the lock is held something shows whether anybody has it.
    """

    __slots__ = ("__weakref__", "_caller", "_closed", "_context", "_engine", "_handle", "_is_job", "_place", "key")

    def __init__(self, context: ClientContext, engine: Engine, key: str) -> None:
        self.key = key
        self._context = context
        self._engine = engine
        self._handle: Handle  # from the moment in which the key is asked for
        self._closed = False
        self._is_job = False
        self._caller = engine.runtime.caller()
        self._place = calling_place()

    @property
    def owner(self) -> str:
        """The label for people that the record carries."""
        return self._handle.state.terms.timings.owner

    @property
    def fencing_token(self) -> int:
        """The token of this grant: greater than that of every earlier grant of the key, and constant. Hand it to what you write to.

        0 where the store's ``guarantees()`` say ``token = none``: then nothing can be fenced.
        """
        return self._handle.token

    @property
    def slot(self) -> int | None:
        """Which of the permits this is, from 0: no other valid holder has it. Fence each slot by itself; None but for a semaphore."""
        membership = self._handle.membership
        return None if membership is None else membership.member.slot

    @property
    def lease_duration(self) -> float:
        """The lease that counts now, in seconds, without ``lock_delay``; infinite for a fail-closed lock."""
        timings = self._handle.timings
        return float("inf") if timings.lease_ms is None else timings.own_lease_ns / NANOS

    @property
    def data(self) -> bytes | None:
        """The data that the record carries, as of this lease's last write."""
        return self._handle.payload.data

    @property
    def attributes(self) -> dict[str, Any]:
        """The extra attributes that the record carries."""
        return dict(self._handle.payload.attributes)

    @property
    def is_valid(self) -> bool:
        """Whether the lock is held now, by this process's clock. No I/O; false from the deadline on, even if no thread ran."""
        return (
            not self._closed
            and self._context.generation == generation()
            and self._handle.is_valid(self._engine.runtime.now())
        )

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, if no renewal came; 0.0 once lost or released, infinite for a fail-closed lock."""
        if not self.is_valid:
            return 0.0
        end = self._handle.remaining_until
        return float("inf") if end >= NEVER else max(0.0, (end - self._engine.runtime.now()) / NANOS)

    def progress(self) -> None:
        """Say that the work goes on, where the work is: with ``stall_timeout`` the lock is lost so long after the last call. No I/O.

        Raises: LockLostError; LeaseStateError after the release or in a forked child.
        """
        self._alive()
        self._engine.progress(self._handle)

    def watch(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield *items*, and call :meth:`progress` at each, before it is handed out, and at their end."""
        for item in items:
            self.progress()
            yield item
        self.progress()

    @property
    def wanted(self) -> bool:
        """Whether somebody waited for the key when it was last renewed, where the store tells; false before the first renewal. No I/O.

        A hint, and never a right of who waits: the lock is yours until you release it.
        """
        return self._handle.wanted and self.is_valid

    def on_wanted(self, callback: Callable[[Self], object], /) -> None:
        """Have *callback* called when a renewal finds that somebody waits for the key; at once if the last one did.

        Once for each such stretch: armed again by a renewal that finds nobody. It may finish its item and release.
        """
        self._check_callback(callback)
        driver, handle, watch = self._engine.driver, self._handle, Watch(callback, self, None)
        with driver.runtime.mutex:
            handle.wanted_watches = (*handle.wanted_watches, watch)
            if type(handle.state) is Held and handle.wanted and watch.armed:
                driver.fire(watch)
        driver.tell()

    def on_lost(self, callback: Callable[[Loss], object], /) -> None:
        """Have *callback* called with the loss, on the client's thread for callbacks; at once if the lock is lost already.

        Of the asyncio client it is a callback of the loop, and a coroutine function becomes a task.
        """
        self._check_callback(callback)
        with self._engine.runtime.mutex:
            loss = self._handle.loss
            if loss is None:
                self._handle.lost_callbacks = (*self._handle.lost_callbacks, callback)
                return
        self._engine.runtime.post(callback, loss)

    def on_risk(self, callback: Callable[[Self], object], /, *, safe_time: Seconds | None = None) -> None:
        """Have *callback* called when the lock comes to be at risk: a renewal failed, or none succeeded for *safe_time* seconds.

        Once for each such stretch: armed again when the lease recovers. A loss that comes first calls it too.
        """
        self._check_callback(callback)
        safe_ns = None if safe_time is None else nanoseconds(check_seconds(safe_time, "safe_time"))
        self._engine.watch(self._handle, Watch(callback, self, safe_ns))

    @property
    def loss(self) -> Loss | None:
        """Why the lock was lost; None while it is not, and until the loss is noticed: :attr:`is_valid` decides."""
        return self._handle.loss

    def __repr__(self) -> str:
        """Name the key, the token and what state the lease is in."""
        state = type(self._handle.state).__name__.lower()
        return f"<{type(self).__name__} {self.key!r} token {self.fencing_token} {state}>"

    def __reduce__(self) -> Any:
        """Refuse: a lease belongs to one process."""
        raise LeaseStateError(
            f"the lease of lock {self.key!r} cannot be pickled or copied; send its fencing_token ({self.fencing_token}) instead"
        )

    def __del__(self) -> None:
        """Warn of a lease that nobody can release any more. No I/O: it is not renewed from now on, and lapses if it can."""
        try:
            handle, closed = self._handle, self._closed
        except AttributeError:  # never made
            return
        if generation is None:  # the interpreter ends, and has emptied its modules
            return
        if closed or self._context.generation != generation() or not handle.is_valid(self._engine.runtime.now()):
            return
        if handle.is_in_hand(beside=self):
            return
        fate = f"lapses in {self.remaining:.1f} s"
        if handle.options.fail_closed:
            fate = "has no lease to end: it stays held until its client is closed, or somebody breaks it with 'dlock break'"
        handle.note_parting()
        # A handler of warnings may keep this lease; it stays dropped.
        self._closed = handle.dropped = True
        _log.warning(
            "the lease of lock %r was dropped unreleased; it is not renewed any more and %s",
            handle.name,
            fate,
        )
        warnings.warn(
            f"unreleased lease of lock {self.key!r}; it {fate}",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def _leave_to_scheduler(self) -> None:
        """Have the scheduler release it; the caller is interrupted."""
        handle: Handle | None = getattr(self, "_handle", None)
        if handle is not None and not self._closed and self._context.generation == generation():
            handle.note_parting()
            self._closed = True
            if self._engine.part(handle, self):
                self._engine.discard(handle)

    def _written(self, data: bytes | None | Keep) -> Payload | None:
        """Return the payload that *data* asks for; None keeps what is stored.

        Raises: ConfigurationError: it is not bytes, or too long, or the record is that of a job.
        """
        if isinstance(data, Keep):
            return None
        if self._is_job:
            raise ConfigurationError(
                f"lock {self.key!r} is a job, whose record has room for its last slot and result alone; give the result to finish()"
            )
        if data is not None:
            self._context.check_supported("data")
        if data is not None and self._handle.is_session:
            raise ConfigurationError(f"lock {self.key!r} is a shared one, whose record has no place for data")
        check_bytes(data, f"data for lock {self.key!r}")
        return Payload(data, self._handle.payload.attributes)

    def _check_callback(self, callback: object) -> None:
        self._check_process()
        if not callable(callback):
            raise ConfigurationError(
                f"{callback!r} cannot be called; give the function itself, and not what it returns"
            )
        if self._engine.runtime.caller_kind == "thread" and inspect.iscoroutinefunction(callback):
            raise ConfigurationError(
                f"{callback!r} is a coroutine function; give a plain function, it is called on a thread"
            )

    def _check_process(self) -> None:
        # Before any mutex: in a forked child it may be held for ever.
        if self._context.generation != generation():
            raise forked_error(f"the lease of lock {self.key!r}")

    def _begin_body(self) -> None:
        """Take note that a block works under this lease from now on: closing the client gives the lock back only after its end.

        Raises: LeaseStateError: the client was closed before, which has given the lock back. LockLostError: the lock was lost before, as
            where the process stood still since the grant; the block must not begin.
        """
        with self._engine.runtime.mutex:
            if self._engine.closed:
                raise closed_error()
            self._handle.body_of = self._engine.runtime.caller()
        try:
            self._engine.check(self._handle)
        except LockLostError:
            self._leave_to_scheduler()
            raise

    def _alive(self) -> None:
        self._check_process()
        if self._closed:
            raise LeaseStateError(f"the lease of lock {self.key!r} was released; acquire it anew")
        self._engine.runtime.retry()

    def _wanted(self, min_remaining: Any) -> tuple[int, Timings | None]:
        """Return *min_remaining* in ns, and the timings under which so much can be had; None where the present ones give it.

        Raises: ConfigurationError: it is not a duration, or no lease can give so much.
        """
        wanted = nanoseconds(check_seconds(min_remaining, "min_remaining"))
        timings = self._handle.timings
        if wanted < timings.usable_ns:
            return wanted, None
        # A twentieth more than the least, for the way of the renewal itself.
        return wanted, self._leased(wanted / NANOS * timings.own_lease_ns / timings.usable_ns * 1.05)

    def _leased(self, lease_duration: Any) -> Timings | None:
        """Return this lease's timings with another duration; None for none.

        Raises: ConfigurationError: it does not fit, or the lock is fail-closed.
        """
        if lease_duration is None:
            return None
        if self._handle.options.fail_closed:
            raise ConfigurationError(f"lock {self.key!r} is fail-closed: it has no lease to change")
        return self._context.with_lease(self._handle.options, lease_duration)

    def _leaving(self, body_error: BaseException | None, error: Exception) -> Exception | None:
        """Return what leaves the block where the release raised *error*: never anything in place of the body's own exception."""
        if body_error is not None:
            told = isinstance(body_error, DLockError) and str(error) == str(body_error)  # as where ensure() raised it
            if not told:
                body_error.add_note(str(error))
        elif isinstance(error, (LockLostError, LeaseStateError)):
            return error
        else:
            _log.warning(
                "the release of lock %r was not confirmed; it is followed up, and lapses at worst: %s",
                self._handle.name,
                error,
            )
        return None


def raise_first(errors: list[DLockError]) -> None:
    """Raise the first of *errors*, with the others as its notes; do nothing if there are none."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]
