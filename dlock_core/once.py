"""What a job that runs once per slot adds to a lock: the mark in the record, and what it says about a slot. Pure.

A job is a lock. The record keeps, after each run, the slot that was finished (attributes ``once.…``) and its result (``data``). Claims,
takeovers and every release but that of a finished run keep this payload. So the record of the grant itself says whether the slot is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dlock_core.errors import ConfigurationError, RecordError
from dlock_core.states import Payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.record import LockRecord

Slot: TypeAlias = str | int
"""The name of one run of a job. Slots grow: text by its characters, as ISO dates do, or numbers."""

SlotSource: TypeAlias = "Slot | Callable[[], Slot]"

SLOT_MAX_CHARS = 256
_INTEGER_MAX = 2**63 - 1
_SLOT, _AT, _NOT_BEFORE = "once.slot", "once.at", "once.not_before"


class Schedule:
    """Slots that depend on the wall clock alone. They are asked for that of a client's clock, which a test may move by hand."""

    def at(self, wall_ms: int) -> Slot:
        """Return the slot that is due at *wall_ms*, since 1970."""
        raise NotImplementedError


class Finished(NamedTuple):
    """The last run that was finished. *not_before_ms*: until when, by the wall clock, others skip the job."""

    slot: Slot | None = None
    result: bytes | None = None
    not_before_ms: int = 0


NOTHING = Finished()


def finished_in(key: str, payload: Payload | LockRecord | None) -> Finished:
    """Return the mark in *payload*.

    Raises: RecordError: something else is stored there, which a job would wipe out.
    """
    if payload is None or (payload.data is None and not payload.attributes):
        return NOTHING
    attributes = dict(payload.attributes)
    slot, not_before_ms = attributes.get(_SLOT), attributes.get(_NOT_BEFORE, 0)
    if type(slot) not in (str, int) or type(not_before_ms) is not int:
        raise RecordError(
            f"lock {key!r} carries data or attributes that no job has left there; a job would wipe them out, so give it another key",
            key=key,
        )
    return Finished(slot, payload.data, not_before_ms)  # type: ignore[arg-type]  # checked above


def is_due(key: str, finished: Finished, slot: Slot, wall_ms: int) -> bool:
    """Whether *slot* is to be run after *finished*: it lies behind that, and the wall-clock time *wall_ms* is not too early.

    Raises: ConfigurationError: the slot is of another type than the one that was finished.
    """
    last = finished.slot
    if last is None:
        return True
    if type(last) is not type(slot):
        raise ConfigurationError(
            f"slot {slot!r} of job {key!r} cannot be compared with {last!r}, which was finished; "
            f"go on with {type(last).__name__}, or give the job another key"
        )
    return last < slot and wall_ms >= finished.not_before_ms  # type: ignore[operator]  # of one type


def later_slot(key: str, payload: Payload | LockRecord, slot: Slot) -> Slot | None:
    """Return the slot that *payload* shows as finished, if it is later than *slot*; what no job, or another one, has left shows none."""
    try:
        last = finished_in(key, payload).slot
    except RecordError:
        return None
    return last if type(last) is type(slot) and last > slot else None  # type: ignore[operator]  # of one type


def mark(slot: Slot, result: bytes | None, *, at_ms: int, not_before_ms: int) -> Payload:
    """Return the payload that says that *slot* was finished at *at_ms* with *result*."""
    attributes: list[tuple[str, str | int]] = [(_AT, at_ms)]
    if not_before_ms > at_ms:
        attributes.append((_NOT_BEFORE, not_before_ms))
    return Payload(result, (*attributes, (_SLOT, slot)))


def check_slot(key: str, source: object, wall_ms: int = 0) -> Slot:
    """Return the slot that *source* is, or returns, or as a schedule names for *wall_ms*.

    Raises: ConfigurationError: it is neither text nor a number, or too long, or has no UTF-8 form.
    """
    if isinstance(source, Schedule):
        slot: object = source.at(wall_ms)
    else:
        slot = source() if callable(source) else source
    if type(slot) is int and abs(slot) <= _INTEGER_MAX:
        return slot
    if type(slot) is str and 0 < len(slot) <= SLOT_MAX_CHARS:
        if any("\ud800" <= letter <= "\udfff" for letter in slot):  # it would lie after all dates that come
            raise ConfigurationError(f"slot {slot!r} of job {key!r} holds a lone surrogate; it has no UTF-8 form")
        return slot
    named = repr(slot) if type(slot) is not int else "of more than 64 bits"
    if type(slot) is str and slot:
        named = f"of {len(slot)} characters"
    raise ConfigurationError(
        f"slot {named} of job {key!r} is neither a text of 1 to {SLOT_MAX_CHARS} characters nor a number of 64 bits; "
        'name the run by its scheduled time, as "2026-11-22T03:00Z"'
    )
