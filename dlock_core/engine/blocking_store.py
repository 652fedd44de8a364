"""A store for threads in the shape of an async one, whose coroutines never suspend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dlock_core.errors import StoreError
    from dlock_core.record import LockRecord
    from dlock_core.store import Capability, Claim, Guarantees, LockStore, Release, Replace, Reply


class BlockingStore:
    """The async face of *store*: each verb is done at once, on the thread that awaits it."""

    def __init__(self, store: LockStore) -> None:
        self.store = store
        self.capabilities: frozenset[Capability] = store.capabilities
        self.batch_limit: int = getattr(store, "batch_limit", 1)
        if hasattr(store, "wait_keeping_place"):
            self.wait_keeping_place = self._wait_keeping_place

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Claim."""
        return self.store.claim(request, timeout_s=timeout_s)

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace."""
        return self.store.replace(request, timeout_s=timeout_s)

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Release."""
        return self.store.release(request, timeout_s=timeout_s)

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read."""
        return self.store.read(key, timeout_s=timeout_s)

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """Scan."""
        for record in self.store.scan(prefix, timeout_s=timeout_s):
            yield record

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Replace many; asked only of a store that can."""
        return self.store.replace_many(requests, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Claim many; asked only of a store that can."""
        return self.store.claim_many(requests, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait; asked only of a store that can."""
        self.store.wait(record, ticket=ticket, timeout_s=timeout_s)  # type: ignore[attr-defined]

    async def _wait_keeping_place(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        self.store.wait_keeping_place(record, ticket=ticket, timeout_s=timeout_s)  # type: ignore[attr-defined]

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim when the key is free; asked only of a store that can."""
        return self.store.claim_when_free(request, wait_s=wait_s, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Read with the age; asked only of a store that can."""
        return self.store.read_age(key, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]

    async def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """Prune; asked only of a store that can."""
        return self.store.prune(records, older_than_ms=older_than_ms, dry_run=dry_run, timeout_s=timeout_s)  # type: ignore[attr-defined, no-any-return]

    async def guarantees(self) -> Guarantees:
        """Say what the store promises."""
        return self.store.guarantees()

    async def provision(self) -> None:
        """Provision."""
        self.store.provision()

    async def close(self) -> None:
        """Close."""
        self.store.close()
