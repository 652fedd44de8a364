"""A change of the mode of a shared lock: a writer goes on as a reader, or a sole reader as the writer, and nobody comes in between.

The new member joins by an attempt as any other, which knows the old one: see :mod:`dlock_core.members` for why a reader joins beside the
writer that it was, and a writer in the place of the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dlock_core.engine.sharing import Attempt
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import LeaseStateError, StoreError
from dlock_core.members import READ, WRITE
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.engine.lease_view import LeaseView

_log = guarded_logger("dlock.engine")


async def convert(engine: Engine, old: LeaseView, view: LeaseView, mode: Literal["read", "write"]) -> None:
    """Obtain for *view* the lock that *old* holds, in the other *mode*, and end *old*. Nobody comes in between, and it waits for no holder.

    Raises: as :func:`share`, and *old* holds the lock still, unless it was lost, or it cannot be known whether the writer that it was to be
        stands in its place; LeaseStateError: it has not the mode to change from.
    """
    handle = old._handle
    engine.check(handle)
    membership = handle.membership
    if membership is None or membership.member.mode != (READ if mode == WRITE else WRITE):
        needs, call = ("read_lock", "try_upgrade") if mode == WRITE else ("write_lock", "downgrade")
        raise LeaseStateError(f"lock {handle.name!r} was not obtained by {needs}(), so {call}() has nothing to change")
    timings = handle.timings
    # Before the lease of the new session can end, which may stand in the record unknown to us, the old lease is over. The floor is that of
    # the old session's own token: the record's is above the one that was asked for.
    timings = timings._replace(wait_ns=min(timings.usable_ns, timings.patience_ns), retries_max=NEVER, token_floor=1)
    attempt = Attempt(engine, view, membership.key, handle.options.with_(mode=mode), timings, own=handle)
    handle.is_converting = True
    try:
        await attempt.begin()
        joined = view._handle.membership
        assert joined is not None  # it has just joined
        handle.membership = membership._replace(record=joined.record)
        await _end(engine, handle, old)
    except BaseException:
        if mode == WRITE and attempt.may_stand:
            old._leave_to_scheduler()
        view._leave_to_scheduler()
        raise
    finally:
        handle.is_converting = False


async def _end(engine: Engine, handle: Handle, old: LeaseView) -> None:
    try:
        await engine.release(handle, None, old)
    except StoreError as error:
        _log.warning("lock %r is held as before, too, until a write or its lease ends that: %s", handle.name, error)
