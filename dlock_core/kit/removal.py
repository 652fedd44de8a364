"""The condition of a prune, written once: which record may be removed, for a store that reads, decides and deletes in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.record import State

if TYPE_CHECKING:
    from dlock_core.record import LockRecord


def may_be_removed(standing: LockRecord | None, listed: LockRecord, age_ms: int, older_than_ms: int) -> bool:
    """Whether *standing*, which was written *age_ms* ago, may be removed: free, as it was *listed*, and old enough (clause P1)."""
    return (
        standing is not None
        and standing.state is not State.HELD
        and standing.version == listed.version
        and age_ms >= older_than_ms
    )
