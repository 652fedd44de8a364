"""Clients under test, seen through one blocking face whatever their colour: so that one text serves both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from dlock_conformance.harness import Colour, StoreHarness
from dlock_conformance.subject import Loop
from dlock_core import AsyncLease, AsyncLockClient, Lease, LockClient
from dlock_core.errors import DLockError
from dlock_core.record import LockRecord, Loss
from dlock_core.store import AsyncLockStore, LockStore
from dlock_core.testing import AsyncFaultyStore, FaultyStore

__all__ = ["Hold", "Parties", "Party"]

T = TypeVar("T")

_THREADS = 16


class Hold:
    """A lease, blocking in both colours."""

    def __init__(self, loop: Loop, lease: Lease | AsyncLease) -> None:
        self._loop, self._lease = loop, lease
        self.key = lease.key
        self.token: int = lease.fencing_token

    @property
    def is_valid(self) -> bool:
        """As the lease says now."""
        return self._lease.is_valid

    @property
    def remaining(self) -> float:
        """As the lease says now."""
        return self._lease.remaining

    @property
    def loss(self) -> Loss | None:
        """As the lease says now."""
        return self._lease.loss

    @property
    def data(self) -> bytes | None:
        """As the lease says now."""
        return self._lease.data

    def ensure(self, min_remaining: float = 0) -> int:
        """As the lease's."""
        token: int = self._loop.finished(lambda: self._lease.ensure(min_remaining))
        return token

    def renew(self, **options: Any) -> None:
        """As the lease's."""
        self._loop.finished(lambda: self._lease.renew(**options))

    def release(self, **options: Any) -> None:
        """As the lease's."""
        self._loop.finished(lambda: self._lease.release(**options))

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """As the lease's."""
        self._loop.finished(lambda: self._lease.on_lost(callback))


class Party:
    """A client with a store object of its own, and the faults that can be put between the two."""

    def __init__(
        self, loop: Loop, client: LockClient | AsyncLockClient, faults: FaultyStore | AsyncFaultyStore | None
    ) -> None:
        self._loop, self._client, self._faults = loop, client, faults
        self._holds: list[Hold] = []

    @property
    def faults(self) -> FaultyStore | AsyncFaultyStore:
        """What can go wrong between this client and the store, after the store has done its part."""
        assert self._faults is not None, "this party was made without faults"
        return self._faults

    def acquire(self, key: str, **options: Any) -> Hold:
        """As the client's."""
        return self._kept(self._loop.finished(lambda: self._client.acquire(key, **options)))

    def try_acquire(self, key: str, **options: Any) -> Hold | None:
        """As the client's."""
        lease: Lease | AsyncLease | None = self._loop.finished(lambda: self._client.try_acquire(key, **options))
        return None if lease is None else self._kept(lease)

    def cancelled_acquire(self, key: str, *, after_s: float, **options: Any) -> bool:
        """Begin to acquire, in a task that is cancelled *after_s*; say whether that came in time. Async only."""
        return self._loop.run(_cancelled(self._client, key, after_s, options))

    def get(self, key: str) -> LockRecord | None:
        """As the client's."""
        record: LockRecord | None = self._loop.finished(lambda: self._client.get(key))
        return record

    def break_lock(self, key: str, **options: Any) -> bool:
        """As the client's."""
        broken: bool = self._loop.finished(lambda: self._client.break_lock(key, **options))
        return broken

    def deliver(self) -> None:
        """Have what was delayed arrive."""
        self._loop.finished(self.faults.deliver)

    def close(self) -> None:
        """Give back what this party still holds, and close the client."""
        for hold in self._holds:
            with suppress(DLockError):
                hold.release()
        self._loop.finished(self._client.close)

    def _kept(self, lease: Lease | AsyncLease) -> Hold:
        hold = Hold(self._loop, lease)
        self._holds.append(hold)
        return hold


class Parties:
    """All clients of one test, and what they have open."""

    def __init__(self, harness: StoreHarness, colour: Colour) -> None:
        self.harness = harness
        self.colour = colour
        self._loop = Loop()
        self._parties: list[Party] = []
        self._stores: list[LockStore | AsyncLockStore] = []
        self._threads = ThreadPoolExecutor(_THREADS)
        self._prefix = f"conformance-client/{secrets.token_hex(8)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for party in self._parties:
                party.close()
            for store in self._stores:
                self._loop.finished(store.close)
        finally:
            self._threads.shutdown()
            self._loop.close()

    def key(self, end: str = "lock") -> str:
        """Return a key of this test's own."""
        return f"{self._prefix}/{end}"

    def join(self, *, faulty: bool = False, **options: Any) -> Party:
        """Return one more client, on a store object of its own; *faulty*: with faults between the two."""
        store, is_async = self._open()
        if faulty:
            store = AsyncFaultyStore(store) if is_async else FaultyStore(store)  # type: ignore[arg-type]  # by its colour
        if self.colour is Colour.SYNC:
            client: LockClient | AsyncLockClient = LockClient(store, **self._options(options))  # type: ignore[arg-type]
        else:
            client = self._loop.run(_opened(AsyncLockClient(store, **self._options(options))))
        party = Party(self._loop, client, store if isinstance(store, (FaultyStore, AsyncFaultyStore)) else None)
        self._parties.append(party)
        return party

    def meanwhile(self, work: Callable[[], T]) -> Future[T]:
        """Have *work* done in another thread."""
        return self._threads.submit(work)

    def _open(self) -> tuple[LockStore | AsyncLockStore, bool]:
        native = self.colour is Colour.ASYNC and (self.harness.aopen_store is not None or self.harness.has_async_face)
        store: LockStore | AsyncLockStore = self._loop.run(self.harness.aopen()) if native else self.harness.open()
        self._stores.append(store)
        return store, native

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"lease_duration": self.harness.lease_s, "allow_unsafe": self.harness.allow_unsafe, **options}


async def _opened(client: AsyncLockClient) -> AsyncLockClient:
    return await client


async def _cancelled(client: Any, key: str, after_s: float, options: dict[str, Any]) -> bool:
    task = asyncio.create_task(client.acquire(key, **options))
    await asyncio.sleep(after_s)
    in_time = not task.done()
    task.cancel()
    done = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(done, AsyncLease):
        await done.release()
    return in_time
