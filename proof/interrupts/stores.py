"""What an operation stands on: the store, as in tests but where several keys are claimed in one step, and the kind of lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlock_core import AsyncLockStore, Capability, Claim, LockStore, Reply
from dlock_core.testing import AsyncFaultyStore, FaultyStore

__all__ = ["AT_ONCE", "KEPT", "PERMIT", "READER", "WRITER", "afaulty", "faulty", "held_by", "options_of", "plain"]

AT_ONCE = "lock_all at once"
PERMIT = "permit: "
"""How the name of an operation begins that works on the one permit of a semaphore."""
READER, WRITER = "reader: ", "writer: "
"""How the name of an operation begins that works on a reader's lease, or a writer's."""
KEPT = "kept: "
"""How the name of an operation begins that works on a lock that a session keeps, once it was renewed."""
_CAPABILITIES = frozenset({Capability.ATOMIC_MULTI})


class _Several(FaultyStore):
    capabilities = _CAPABILITIES
    store: Any

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        replies: Sequence[Reply] = self.store.claim_many(requests, timeout_s=timeout_s)
        return replies


class _AsyncSeveral(AsyncFaultyStore):
    capabilities = _CAPABILITIES
    store: Any

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        replies: Sequence[Reply] = await self.store.claim_many(requests, timeout_s=timeout_s)
        return replies


def faulty(store: LockStore, operation: str) -> FaultyStore:
    """Return the store of a client that does *operation*."""
    several = operation == AT_ONCE and store.capabilities >= _CAPABILITIES
    return _Several(store) if several else FaultyStore(store)


def afaulty(store: AsyncLockStore, operation: str) -> AsyncFaultyStore:
    """As :func:`faulty`, for tasks."""
    several = operation == AT_ONCE and store.capabilities >= _CAPABILITIES
    return _AsyncSeveral(store) if several else AsyncFaultyStore(store)


def options_of(operation: str) -> dict[str, Any]:
    """Return the options by which the lock of *operation* is asked for: those that nobody else can have it beside."""
    if operation.startswith(KEPT):
        return {"renewal": "session"}
    if operation.startswith((READER, WRITER)):
        return {"mode": "write"}
    return {"permits": 1} if operation.startswith(PERMIT) else {}


def held_by(operation: str) -> dict[str, Any]:
    """Return the options of the lock that the caller holds before *operation*."""
    return {"mode": "read"} if operation.startswith(READER) else options_of(operation)


def plain(operation: str) -> str:
    """Return what *operation* does, whatever the kind of its lock."""
    return operation.rpartition(": ")[2]
