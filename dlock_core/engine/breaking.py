"""Breaking another's lock: an operator's way out, by the same conditional step that renews."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.engine.driver import new_rvn
from dlock_core.errors import ConfigurationError, OutcomeUnknownError
from dlock_core.lease import break_request

if TYPE_CHECKING:
    from dlock_core.record import Broken
    from dlock_core.store import AsyncLockStore

__all__ = ["break_lock"]

BREAK_TRIES_MAX = 10


async def break_lock(
    store: AsyncLockStore,
    key: str,
    *,
    fencing_token: int,
    rvn: str | None,
    by: Broken,
    free_now: bool,
    timeout_s: float,
) -> bool:
    """Break the grant *fencing_token* of *key*, with *rvn* only under that number; False if it does not stand any more.

    Raises: ConfigurationError: *fencing_token* can be none.
    """
    given: object = fencing_token
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ConfigurationError(
            f"fencing_token {fencing_token!r} is not a whole number, 0 or more; get({key!r}) shows it"
        )
    sent: list[str] = []
    for _ in range(BREAK_TRIES_MAX):
        record = await store.read(key, timeout_s=timeout_s)
        if record is not None and record.rvn in sent:
            return True
        if rvn is not None and (record is None or record.rvn != rvn):
            return False
        request = break_request(record, fencing_token=fencing_token, new_rvn=new_rvn(), by=by, free_now=free_now)
        if request is None:
            return False
        sent.append(request.record.rvn)
        try:
            reply = await store.replace(request, timeout_s=timeout_s)
        except OutcomeUnknownError:
            continue  # the next read tells
        if reply.applied:
            return True
    raise OutcomeUnknownError(
        f"lock {key!r} was renewed {BREAK_TRIES_MAX} times while it was being broken; try again", key=key
    )
