"""The event hook: hands events to a function of the user, on a thread of its own, so that nothing that it does is in the way."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from dlock_core.clock import NANOS, now_ns
from dlock_core.engine.user_calls import CALLBACK_LIMIT_S, Feed, guarded_logger
from dlock_core.events import EventKind, LockEvent
from dlock_core.states import New, Seeking

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from dlock_core.engine.driver import Driver
    from dlock_core.engine.handle import Handle
    from dlock_core.record import LockRecord

    Hook = Callable[[LockEvent], object]

_log = guarded_logger("dlock.client")
_DRAIN_LOOKS = 25
# An attempt at a shared lock tells these of itself, and not of the session that it gets for it.
_OF_AN_ATTEMPT = (EventKind.REQUESTED, EventKind.WAITING, EventKind.GRANTED, EventKind.TAKEN_OVER, EventKind.REFUSED)


class EventHook:
    """Calls *hook* with one event after the other, in the context variables of the thread or task in which it arose.

    A hook that raises is logged. One that hangs is logged, too; events wait meanwhile, and the oldest of too many are forgotten.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._calls = Feed()
        self._began: int | None = None
        self._is_told = False

    @property
    def is_idle(self) -> bool:
        """Whether the hook has had all events."""
        return self._calls.is_idle

    def close(self) -> None:
        """End the thread when the hook has had all events."""
        self._calls.close()

    def posting(self, event: LockEvent) -> Callable[[], None]:
        """Return what hands *event* over; the context of the caller is kept for it."""
        return partial(self._post, copy_context(), event)

    def _post(self, context: Context, event: LockEvent) -> None:
        began = self._began
        if began is not None and not self._is_told and now_ns() - began > CALLBACK_LIMIT_S * NANOS:
            self._is_told = True
            _log.warning(
                "the event hook %r still runs after %g s; locks go on, and events wait for it: hand slow work to a thread of your own",
                self._hook,
                CALLBACK_LIMIT_S,
            )
        self._calls.post(self._call, (context, event))

    def _call(self, arisen: tuple[Context, LockEvent]) -> None:
        context, event = arisen
        self._began = now_ns()
        try:
            context.run(self._hook, event)
        except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
            _log.exception(
                "the event hook %r raised at %r of lock %r; locks go on: catch in the hook what it may raise",
                self._hook,
                event.kind.value,
                event.key,
            )
        finally:
            self._began, self._is_told = None, False


def note_event(
    driver: Driver,
    kind: EventKind,
    handle: Handle,
    since: int,
    until: int | None = None,
    *,
    record: LockRecord | None = None,
    error: str | None = None,
) -> None:
    """Note the event *kind* of *handle* for the hook, if there is one; its duration goes from *since* to *until*, or to now.

    *record* is the one of the holder that is in the way. The hook has the event when :meth:`Driver.tell` is called.
    """
    if driver.hook is None:
        return
    # A session is no lock that anybody asked for; that of a member is lost, and given back, as the shared lock.
    if not handle.is_session or (handle.membership is not None and kind not in _OF_AN_ATTEMPT):
        duration = ((driver.runtime.now() if until is None else until) - since) / NANOS
        driver.later(driver.hook.posting(_event_of(kind, handle, duration, record, error)))


def log_fields(
    kind: EventKind, handle: Handle, duration_s: float, *, record: LockRecord | None = None, error: str | None = None
) -> dict[str, object]:
    """Return the event *kind* of *handle* as the extra fields of a log record: each field of :class:`LockEvent`, after ``dlock_``."""
    event = _event_of(kind, handle, duration_s, record, error)
    return {f"dlock_{name}": value for name, value in event._asdict().items()}


def _event_of(
    kind: EventKind, handle: Handle, duration_s: float, record: LockRecord | None, error: str | None
) -> LockEvent:
    holder = record.owner if record is not None and record.held else None
    ticket = handle.state.terms.ticket if handle.membership is None else handle.membership.member.member_id
    return LockEvent(kind, handle.name, ticket, handle.token, duration_s, holder, error)


def note_shared(
    driver: Driver,
    kind: EventKind,
    key: str,
    member_id: str,
    duration_ns: int,
    *,
    token: int = 0,
    record: LockRecord | None = None,
    error: str | None = None,
) -> None:
    """Note the event *kind* of an attempt at the shared lock *key*, as :func:`note_event` does of others."""
    if driver.hook is not None:
        holder = record.owner if record is not None and record.held else None
        event = LockEvent(kind, key, member_id, token, duration_ns / NANOS, holder, error)
        driver.later(driver.hook.posting(event))
        driver.tell()


def note_wait(driver: Driver, handle: Handle) -> None:
    """Note the first wait of an attempt."""
    state = handle.state
    if driver.hook is not None and not handle.has_waited and type(state) in (New, Seeking):
        handle.has_waited = True
        shown = getattr(state, "shown", None)
        note_event(driver, EventKind.WAITING, handle, handle.asked_at, record=shown, error=handle.trouble or None)
        driver.tell()


async def drain(driver: Driver) -> None:
    """Let the hook have the last events, if it is quick, and end its thread."""
    for _ in range(_DRAIN_LOOKS):
        if driver.hook is None or driver.hook.is_idle:
            break
        await driver.runtime.pause(CALLBACK_LIMIT_S / _DRAIN_LOOKS)
    if driver.hook is not None:
        driver.hook.close()
