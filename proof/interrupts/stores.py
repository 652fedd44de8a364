"""The stores of the trials: as in tests, but for the operation that claims several keys in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlock_core import AsyncLockStore, Capability, Claim, LockStore, Reply
from dlock_core.testing import AsyncFaultyStore, FaultyStore

__all__ = ["AT_ONCE", "afaulty", "faulty"]

AT_ONCE = "lock_all at once"
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
