"""A store for threads, served to asyncio: each verb runs on a thread of a bounded pool."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.store import Capability, wait_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, LockStore, Release, Replace, Reply

_T = TypeVar("_T")

CLAIM_THREADS = 16
KEEP_THREADS = 8
WAIT_THREADS = 64
_SCAN_PAGE = 100
_PROMPT = 0.95


class _Job:
    """A call that may be given up while it still sits in the pool's queue: then it never begins, and so never sends.

    The time that it spends in the queue counts against *timeout_s*, which is None for a call without a time-out.
    """

    def __init__(self, call: Callable[..., Any], timeout_s: float | None) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self._queued_at = time.monotonic()
        self._mutex = threading.Lock()
        self._begun = False
        self._abandoned = False

    def __call__(self) -> Any:
        given_s = self._timeout_s
        if given_s is None:
            self._begin()
            return self._call()
        left_s = given_s - (time.monotonic() - self._queued_at)
        if left_s <= 0:
            self.abandon()
        self._begin()
        # A call that barely queued keeps its full time-out: a store may sort calls by it.
        return self._call(timeout_s=given_s if left_s > given_s * _PROMPT else left_s)

    def _begin(self) -> None:
        with self._mutex:
            if self._abandoned:
                raise StoreUnavailableError("the call was given up before it was sent")
            self._begun = True

    def abandon(self) -> bool:
        """Give it up; False if it has begun."""
        with self._mutex:
            self._abandoned = not self._begun
            return self._abandoned


class ThreadedStore:
    """The async face of *store*. Waiting for notifications has threads of its own, so that it never keeps a claim from being sent."""

    def __init__(self, store: LockStore) -> None:
        self.store = store
        self.default_prefix: str = getattr(store, "default_prefix", "")
        self.batch_limit: int = getattr(store, "batch_limit", 1)
        # What keeps or frees a lock never queues behind claims that hang.
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="dlock-claim")
        self._keeps = ThreadPoolExecutor(KEEP_THREADS, thread_name_prefix="dlock-keep")
        self._waits = ThreadPoolExecutor(WAIT_THREADS, thread_name_prefix="dlock-wait")
        self._places = threading.Semaphore(WAIT_THREADS)
        self._closed = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the store, which may learn of some when it is asked for its guarantees."""
        return self.store.capabilities

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Claim."""
        return await self._run(partial(self.store.claim, request), timeout_s)

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace."""
        return await self._run(partial(self.store.replace, request), timeout_s, self._keeps)

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Release."""
        return await self._run(partial(self.store.release, request), timeout_s, self._keeps)

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read."""
        return await self._run(partial(self.store.read, key), timeout_s)

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """Scan, a page at a time."""
        records = iter(self.store.scan(prefix, timeout_s=timeout_s))  # a list would begin anew with each page
        while page := await self._run(lambda: list(itertools.islice(records, _SCAN_PAGE))):
            for record in page:
                yield record

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Replace many; asked only of a store that can."""
        call: Callable[[], Sequence[Reply | StoreError]] = partial(
            self.store.replace_many,  # type: ignore[attr-defined]  # the capability is declared
            requests,
        )
        return await self._run(call, timeout_s, self._keeps)

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Claim many; asked only of a store that can."""
        return await self._run(partial(self.store.claim_many, requests), timeout_s)  # type: ignore[attr-defined]

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait; asked only of a store that can. With all threads taken, it is a pause: the next poll finds out."""
        assert Capability.NOTIFY in self.capabilities  # the engine asks nothing else
        await self._wait(self.store.wait, record, ticket, timeout_s)  # type: ignore[attr-defined]

    async def wait_keeping_place(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait, and keep the place for the next wait, where the store can do that."""
        await self._wait(wait_of(self.store, returns=True), record, ticket, timeout_s)

    async def _wait(self, wait: Callable[..., None], record: LockRecord, ticket: str, timeout_s: float) -> None:
        if not self._places.acquire(blocking=False):
            await asyncio.sleep(timeout_s)
            return
        # Its place is free when its thread is, which a cancelled waiter leaves behind.
        await self._run(partial(wait, record, ticket=ticket), timeout_s, self._waits, self._left)

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim when the key is free; asked only of a store that can. With all threads taken, the wait is a pause."""
        if not self._places.acquire(blocking=False):
            await asyncio.sleep(wait_s)
            return await self.claim(request, timeout_s=timeout_s)
        call = partial(self.store.claim_when_free, request, wait_s=wait_s)  # type: ignore[attr-defined]
        return await self._run(call, timeout_s, self._waits, self._left)

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Read with the age; asked only of a store that can."""
        return await self._run(partial(self.store.read_age, key), timeout_s)  # type: ignore[attr-defined]

    async def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """Prune; asked only of a store that can."""
        call = partial(self.store.prune, records, older_than_ms=older_than_ms, dry_run=dry_run)  # type: ignore[attr-defined]
        return await self._run(call, timeout_s)

    async def guarantees(self) -> Guarantees:
        """Say what the store promises."""
        return await self._run(self.store.guarantees)

    async def provision(self) -> None:
        """Provision."""
        await self._run(self.store.provision)

    async def close(self) -> None:
        """Close the store and end the threads; it may be repeated."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._run(self.store.close)
        finally:
            self.end_threads()

    def end_threads(self) -> None:
        """End the pools; what still runs ends with its own time-out."""
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._keeps.shutdown(wait=False, cancel_futures=True)
        self._waits.shutdown(wait=False, cancel_futures=True)

    def _left(self, _: object) -> None:
        self._places.release()

    async def _run(
        self,
        call: Callable[..., _T],
        timeout_s: float | None = None,
        pool: ThreadPoolExecutor | None = None,
        ended: Callable[[object], object] | None = None,
    ) -> _T:
        """Run *call* on a thread of *pool*, and *ended* when it is off that thread, or gets none; without a free one in time, never."""
        job = _Job(call, timeout_s)
        try:
            sent: Future[_T] = (pool or self._claims).submit(Context().run, job)
        except RuntimeError as error:
            if ended is not None:
                ended(None)
            raise _refusal(job, error) from error
        if ended is not None:
            sent.add_done_callback(ended)
        answer = asyncio.wrap_future(sent)
        try:
            await asyncio.wait((answer,), timeout=timeout_s)
            if not answer.done() and not job.abandon():
                await asyncio.wait((answer,))  # it was begun, and ends with its own time-out
        except asyncio.CancelledError:
            job.abandon()
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # nobody else asks for it, and the loop would complain
            raise
        if not answer.done():
            answer.cancel()
            raise StoreUnavailableError(f"no thread was free for the request within {timeout_s:g} s; nothing was sent")
        if answer.cancelled():
            raise StoreUnavailableError("the store was closed before the request was sent")
        return answer.result()


def _refusal(job: _Job, error: RuntimeError) -> StoreError:
    """Return what *error* of a pool, which was to have *job* made, means to the caller."""
    # Where no thread can be started a call stays in the queue of its pool, and the next thread would make it.
    is_given_up = job.abandon()
    if not str(error).startswith("can't "):
        return StoreUnavailableError("the store was closed; open a new one")
    what = f"the process gets no more threads: {error}"
    if is_given_up:
        return StoreUnavailableError(f"{what}; nothing was sent")
    return OutcomeUnknownError(f"{what}; another one may have made the request")
