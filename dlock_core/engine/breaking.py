"""Breaking another's lock: an operator's way out, by the same conditional write that renews."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from dlock_core.engine.driver import new_rvn
from dlock_core.errors import ConfigurationError, OutcomeUnknownError
from dlock_core.events import EventKind, LockEvent
from dlock_core.lease import break_step
from dlock_core.states import Break

if TYPE_CHECKING:
    from dlock_core.engine.driver import Driver
    from dlock_core.record import Broken
    from dlock_core.store import AsyncLockStore

__all__ = ["break_lock"]


async def break_lock(
    driver: Driver,
    key: str,
    *,
    fencing_token: int,
    rvn: str | None,
    by: Broken,
    free_now: bool,
    timeout_s: float,
) -> bool:
    """Break the grant *fencing_token* of *key*, with *rvn* only that version of it; False if it does not stand any more.

    Raises: ConfigurationError: *fencing_token* cannot be a token. OutcomeUnknownError: the holder renewed between each read and write.
    """
    given: object = fencing_token
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ConfigurationError(
            f"fencing_token {fencing_token!r} is not a whole number, 0 or more; get({key!r}) shows it"
        )
    is_broken = await _break(driver.store, Break(key, fencing_token, by, rvn, free_now), timeout_s)
    if is_broken and driver.hook is not None:
        driver.later(driver.hook.posting(LockEvent(EventKind.BROKEN, key, "", fencing_token)))
        driver.tell()
    return is_broken


async def _break(store: AsyncLockStore, attempt: Break, timeout_s: float) -> bool:
    while True:
        record = await store.read(attempt.key, timeout_s=timeout_s)
        decision = break_step(attempt, record, new_rvn())
        if isinstance(decision, bool):
            return decision
        attempt, request = decision
        # Where the outcome is unknown, the next read tells.
        with suppress(OutcomeUnknownError):
            if (await store.replace(request, timeout_s=timeout_s)).applied:
                return True
