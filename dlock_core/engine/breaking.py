"""Breaking another's lock: an operator's way out, by the same conditional write that renews."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from dlock_core.engine.driver import new_rvn
from dlock_core.engine.texts import shown
from dlock_core.errors import ConfigurationError, OutcomeUnknownError
from dlock_core.events import EventKind, LockEvent
from dlock_core.lease import BREAK_TRIES_MAX, break_step, note_request
from dlock_core.members import WANT
from dlock_core.record import RESERVED, TOKEN_MAX, BeatNote, Broken
from dlock_core.states import Break
from dlock_core.store import tokens_exhausted

if TYPE_CHECKING:
    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.driver import Driver
    from dlock_core.record import Members, SessionRef
    from dlock_core.store import AsyncLockStore, Replace


async def break_lock(
    driver: Driver, context: ClientContext, key: str, fencing_token: int, rvn: str | None, *, free_now: bool
) -> bool:
    """Break the grant *fencing_token* of *key*, with *rvn* only that version of it; False if it does not stand any more.

    Raises: ConfigurationError: *fencing_token* cannot be a token. OutcomeUnknownError: the holder renewed between each read and write.
    """
    full_key = context.full_key(key)
    given: object = fencing_token
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ConfigurationError(
            f"fencing_token {shown(given)} is not a whole number, 0 or more; the record of lock {key!r} shows it"
        )
    attempt = Break(full_key, fencing_token, _by(driver, context), rvn, free_now)
    is_broken = await break_grant(driver.store, attempt, context.store_timeout_s())
    if is_broken and driver.hook is not None:
        driver.later(driver.hook.posting(LockEvent(EventKind.BROKEN, full_key, "", fencing_token)))
        driver.tell()
    return is_broken


async def break_session(driver: Driver, context: ClientContext, session: str) -> bool:
    """Break the session of the full key *session*; False if it is over, or was broken before.

    Raises: ConfigurationError: that is the key of no session. OutcomeUnknownError: as :func:`break_lock`.
    """
    if type(session) is not str or RESERVED not in session:
        raise ConfigurationError(
            f"{shown(session)} is not the key of a session; 'dlock ls --sessions' lists them, and get(key).session.key is that of a lock"
        )
    timeout_s = context.store_timeout_s()
    record = await driver.store.read(session, timeout_s=timeout_s)
    if record is None or not record.held or record.broken is not None:
        return False
    return await break_grant(driver.store, Break(session, record.fencing_token, _by(driver, context)), timeout_s)


def _by(driver: Driver, context: ClientContext) -> Broken:
    return Broken(context.owner, driver.runtime.wall_ms())


async def _break_sessions(
    store: AsyncLockStore, members: Members, attempt: Break, timeout_s: float
) -> tuple[int, bool]:
    """Break the session of each of *members* first: its renewal tells the member, who never reads the record again (Q6).

    A writer that waits holds nothing, and goes on waiting: it must not join later by a session that others see broken.

    Return the longest lease that one of them has by now, which may be longer than when its member joined, and whether one was broken.
    """
    longest_ms, was_broken = 0, False
    for ref in (members.sessions[each.session] for each in members.members if each.mode != WANT):
        session = await store.read(ref.key, timeout_s=timeout_s)
        if session is None or not session.held:
            continue
        longest_ms = max(longest_ms, session.lease_ms or 0)
        if session.broken is None:
            one = Break(ref.key, session.fencing_token, attempt.by, None, attempt.free_now)
            was_broken |= await break_grant(store, one, timeout_s)
    return longest_ms, was_broken


async def _leave_note(store: AsyncLockStore, ref: SessionRef, attempt: Break, timeout_s: float) -> None:
    """Tell the holder, who never reads the record again, by a note in that of its session; only then may the record be broken (Q6).

    Raises: OutcomeUnknownError: the session was renewed between each read and write, or has no room for a note.
    """
    note = BeatNote(attempt.key, attempt.fencing_token, "break", attempt.by.by)
    for _ in range(BREAK_TRIES_MAX):
        request = note_request(await store.read(ref.key, timeout_s=timeout_s), note, ref.fencing_token, new_rvn())
        if isinstance(request, bool):
            return
        if await _is_applied(store, request, timeout_s):
            return
    raise OutcomeUnknownError(
        f"the session of lock {attempt.key!r} was renewed {BREAK_TRIES_MAX} times while a note was left in it; try again",
        key=attempt.key,
    )


async def break_grant(store: AsyncLockStore, attempt: Break, timeout_s: float) -> bool:
    """Do *attempt*; False if that grant does not stand any more, and no member of it has been broken."""
    was_broken, longest_ms = False, 0
    while True:
        record = await store.read(attempt.key, timeout_s=timeout_s)
        if (
            record is not None
            and record.held
            and record.fencing_token == attempt.fencing_token
            and attempt.rvn in (None, record.rvn)
        ):
            if record.fencing_token == TOKEN_MAX:
                raise tokens_exhausted(record.key)  # a break raises the token
            if record.members is not None:
                longest_ms, evicts = await _break_sessions(store, record.members, attempt, timeout_s)
                was_broken |= evicts
            elif record.session is not None:
                await _leave_note(store, record.session, attempt, timeout_s)
        decision = break_step(attempt, record, new_rvn(), longest_ms)
        if isinstance(decision, bool):
            return decision or was_broken  # somebody may have joined meanwhile, and then the sessions alone are broken
        attempt, request = decision
        if await _is_applied(store, request, timeout_s):
            return True


async def _is_applied(store: AsyncLockStore, request: Replace, timeout_s: float) -> bool:
    """Send *request*; False also where its outcome is unknown: the next read tells."""
    with suppress(OutcomeUnknownError):
        return (await store.replace(request, timeout_s=timeout_s)).applied
    return False
