"""The port's conditions, written once: what a step does to the record that stands.

A store that reads, decides and writes inside one transaction or mutex needs nothing else: load the record, call :func:`outcome`, save the
record of the reply if it was applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dlock_core.errors import OutcomeUnknownError, RecordError
from dlock_core.kit.codec import CONTEXT_OF, UNREADABLE, read_payload
from dlock_core.record import TOKEN_MAX, LockRecord, NewerRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply, tokens_exhausted

if TYPE_CHECKING:
    from dlock_core.record import Attributes, Version

_HELD, _GONE = State.HELD, State.GONE


def outcome(standing: LockRecord | None, request: Claim | Replace | Release, *, floor: int = 1) -> Reply:
    """Decide *request* against the record that stands (clauses S2 to S8).

    An applied reply carries the record to be saved; a refusal carries *standing*. *floor* is the least token that the store itself gives.

    Raises: StoreUnavailableError: the key has no greater token left; nothing is granted any more.
    """
    if isinstance(request, Claim):
        return _claim(standing, request, floor)
    if not matches(standing, request.expected):
        return Reply(applied=False, record=standing)
    record = request.record
    return Reply(applied=True, record=written(record, record.fencing_token, standing if request.keep_payload else None))


def matches(standing: LockRecord | None, expected: Version) -> bool:
    """Whether *standing* is held in the *expected* version, and of a format that this program may write over."""
    return (
        standing is not None
        and standing.state is _HELD
        and standing.rvn == expected.rvn
        and standing.fencing_token == expected.fencing_token
        and type(standing) is not NewerRecord
    )


def wakes(request: Claim | Replace | Release) -> bool:
    """Whether one waiter is woken when *request* is applied: it frees the key, or makes room in a shared lock (clauses S5 and S6)."""
    return request.record.state is not _HELD or (type(request) is Replace and request.wakes)


def is_urgent(request: Claim | Replace | Release) -> bool:
    """Whether *request* keeps a lock or gives it back: it waits for no claim. A takeover, whose token is greater, is one more claim."""
    if isinstance(request, Replace):
        return request.record.fencing_token == request.expected.fencing_token
    return isinstance(request, Release)


def kept_for_first(free: LockRecord, lease_ms: int) -> LockRecord:
    """Return the record of a *free* key that is kept for the first who waits, as a refusal shows it: held, for longer than a turn takes."""
    return replace(free, state=_HELD, owner="(free, kept for the first who waits)", lease_ms=lease_ms)


def _claim(standing: LockRecord | None, request: Claim, floor: int) -> Reply:
    record, expect = request.record, request.expect
    least = max(record.fencing_token, floor)
    if standing is None:
        if request.must_exist or (expect is not Expect.ANY and expect is not Expect.ABSENT):
            return Reply(applied=False, record=None)
        return Reply(applied=True, record=written(record, _within(least, record.key), None))
    if (
        standing.state is _HELD
        or (expect is not Expect.ANY and expect != standing.version)
        or (request.must_exist and standing.state is _GONE)
    ):
        return Reply(applied=False, record=standing)
    token = _within(max(standing.fencing_token + 1, least), record.key)
    keeps = request.keep_payload and standing.state is not _GONE
    return Reply(applied=True, record=written(record, token, standing if keeps else None))


def _within(token: int, key: str) -> int:
    if token > TOKEN_MAX:  # also where a pruned record had the last one, and the floor is above it
        raise tokens_exhausted(key)
    return token


def written(record: LockRecord, token: int, kept: LockRecord | None) -> LockRecord:
    """Return *record* as it is stored: with *token*, and with the data and attributes of *kept* where that is given (clause S4)."""
    payload = record if kept is None else kept
    return _changed(record, token, payload.data, payload.attributes)


def kept(record: LockRecord, token: int, payload: bytes) -> LockRecord:
    """Return *record* as a step has written it with *token* that kept the *payload*, as the store has it (clause S4).

    Raises: OutcomeUnknownError: the payload is damaged. An error that says that nothing was written would leave a held record behind.
    """
    try:
        return _changed(record, token, *read_payload(payload))
    except (RecordError, *UNREADABLE) as error:
        problem = f"lock {record.key!r} was written, but its payload is damaged ({error})"
        raise OutcomeUnknownError(problem, key=record.key) from error


def _changed(record: LockRecord, token: int, data: bytes | None, attributes: Attributes) -> LockRecord:
    if token == record.fencing_token and data is record.data and attributes == record.attributes:
        return record
    named = (record.key, record.state, record.rvn, token, record.owner, record.lease_ms)
    return LockRecord(*named, data, attributes, *CONTEXT_OF(record))
