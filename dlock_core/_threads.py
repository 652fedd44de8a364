"""A store for threads, served to asyncio: each verb runs on a thread of a bounded pool."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.errors import StoreUnavailableError
from dlock_core.store import Capability

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from dlock_core.errors import StoreError
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, LockStore, Release, Replace, Reply

__all__ = ["ThreadedStore"]

_T = TypeVar("_T")

CLAIM_THREADS = 16
KEEP_THREADS = 8
WAIT_THREADS = 64
_SCAN_PAGE = 100


class _Job:
    """A call that may be given up while it still sits in the pool's queue: then it never begins, and so never sends."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._mutex = threading.Lock()
        self._begun = False
        self.abandoned = False

    def __call__(self) -> Any:
        with self._mutex:
            if self.abandoned:
                raise StoreUnavailableError("the call was given up before it was sent")
            self._begun = True
        return self._call()

    def abandon(self) -> None:
        with self._mutex:
            if not self._begun:
                self.abandoned = True


class ThreadedStore:
    """The async face of *store*. Waiting for notifications has threads of its own, so that it never keeps a claim from being sent."""

    def __init__(self, store: LockStore) -> None:
        self.store = store
        self.capabilities = store.capabilities
        self.batch_limit: int = getattr(store, "batch_limit", 1)
        # What keeps or frees a lock never queues behind claims that hang.
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="dlock-claim")
        self._keeps = ThreadPoolExecutor(KEEP_THREADS, thread_name_prefix="dlock-keep")
        self._waits = ThreadPoolExecutor(WAIT_THREADS, thread_name_prefix="dlock-wait")
        self._waiting = 0

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Claim."""
        return await self._run(partial(self.store.claim, request, timeout_s=timeout_s))

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace."""
        return await self._run(partial(self.store.replace, request, timeout_s=timeout_s), self._keeps)

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Release."""
        return await self._run(partial(self.store.release, request, timeout_s=timeout_s), self._keeps)

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read."""
        return await self._run(partial(self.store.read, key, timeout_s=timeout_s))

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """Scan, a page at a time."""
        records = self.store.scan(prefix, timeout_s=timeout_s)
        while page := await self._run(lambda: list(itertools.islice(records, _SCAN_PAGE))):
            for record in page:
                yield record

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Replace many; asked only of a store that can."""
        call: Callable[[], Sequence[Reply | StoreError]] = partial(
            self.store.replace_many,  # type: ignore[attr-defined]  # the capability is declared
            requests,
            timeout_s=timeout_s,
        )
        return await self._run(call, self._keeps)

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait; asked only of a store that can. With all threads taken, it is a pause: the next poll finds out."""
        assert Capability.NOTIFY in self.capabilities  # the engine asks nothing else
        if self._waiting >= WAIT_THREADS:
            await asyncio.sleep(timeout_s)
            return
        self._waiting += 1
        try:
            call = partial(self.store.wait, record, ticket=ticket, timeout_s=timeout_s)  # type: ignore[attr-defined]
            await self._run(call, self._waits)
        finally:
            self._waiting -= 1

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Read with the age; asked only of a store that can."""
        return await self._run(partial(self.store.read_age, key, timeout_s=timeout_s))  # type: ignore[attr-defined]

    async def guarantees(self) -> Guarantees:
        """Say what the store promises."""
        return await self._run(self.store.guarantees)

    async def provision(self) -> None:
        """Provision."""
        await self._run(self.store.provision)

    async def close(self) -> None:
        """Close the store and end the threads."""
        try:
            await self._run(self.store.close)
        finally:
            self.end_threads()

    def end_threads(self) -> None:
        """End the pools; what still runs ends with its own time-out."""
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._keeps.shutdown(wait=False, cancel_futures=True)
        self._waits.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[[], _T], pool: ThreadPoolExecutor | None = None) -> _T:
        job = _Job(call)
        try:
            result: _T = await asyncio.get_running_loop().run_in_executor(pool or self._claims, job)
        except asyncio.CancelledError:
            job.abandon()
            raise
        return result
