"""Removal of records that nobody has used for long: lists them, and has the store remove those that may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.engine.client_context import check_seconds
from dlock_core.errors import ConfigurationError, UnsupportedError
from dlock_core.record import LEASE_MAX_MS, State
from dlock_core.store import PRUNE_MAX, Capability

if TYPE_CHECKING:
    from dlock_core.engine.client_context import ClientContext
    from dlock_core.keywords import Seconds
    from dlock_core.record import LockRecord
    from dlock_core.store import AsyncLockStore

__all__ = ["OLDER_THAN_MIN_S", "Pruned", "prune"]

# No claim is on its way for so long after the answer that it rests on: the longest lease, and an hour.
OLDER_THAN_MIN_S = LEASE_MAX_MS // 1000 + 3600


class Pruned(NamedTuple):
    """What a prune did: how many records it has *removed*, or would remove, of how many that it has *seen*."""

    removed: int
    seen: int


async def prune(
    store: AsyncLockStore, context: ClientContext, older_than: Seconds, prefix: str, *, dry_run: bool
) -> Pruned:
    """Remove the records under *prefix* that are free, carry nothing, and were last written *older_than* seconds ago or earlier.

    Raises: ConfigurationError: *older_than* is too short. UnsupportedError: the store or its locks need the records.
    """
    older_than_s = _checked(store, context, older_than)
    seen = removed = 0
    page: list[LockRecord] = []
    options: dict[str, Any] = {
        "older_than_ms": int(older_than_s * 1000),
        "dry_run": dry_run,
        "timeout_s": context.store_timeout_s(),
    }
    async for record in store.scan(context.full_prefix(prefix), timeout_s=context.store_timeout_s()):
        seen += 1
        if _carries_nothing(record):
            page.append(record)
        if len(page) == PRUNE_MAX:
            removed += await store.prune(page, **options)  # type: ignore[attr-defined]  # a capability
            page = []
    if page:
        removed += await store.prune(page, **options)  # type: ignore[attr-defined]  # a capability
    return Pruned(removed, seen)


def _checked(store: AsyncLockStore, context: ClientContext, older_than: Seconds) -> float:
    """Return *older_than* in seconds, if the store and the options allow a prune by it."""
    older_than_s = check_seconds(older_than, "older_than", least=OLDER_THAN_MIN_S)
    if older_than_s < OLDER_THAN_MIN_S:
        raise ConfigurationError(
            f"older_than {older_than_s:g} s is less than {OLDER_THAN_MIN_S} s (25 h): a claim that is sent before a record goes must not "
            "arrive after it, and a lease may be 24 h; give 25 h or more"
        )
    if Capability.PRUNE not in store.capabilities:
        raise UnsupportedError(
            "this store keeps the record of each key for ever: without it the next fencing token could be smaller, or the store cannot "
            "tell how old it is; docs/growth.md says which stores can remove records"
        )
    if context.options.fail_closed:
        raise UnsupportedError(
            "records of locks without a lease (fail_closed) are not removed: a claim that arrives late would find its key absent, and "
            "hold it for ever for nobody"
        )
    return older_than_s


def _carries_nothing(record: LockRecord) -> bool:
    """Whether *record* is free and holds no more than the last token: data and attributes, such as the last slot of a job, stay."""
    held = record.state is State.HELD
    return (
        not held and record.data is None and not (record.attributes or record.session or record.beat or record.members)
    )
