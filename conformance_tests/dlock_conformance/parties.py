"""Clients under test, seen through one blocking face whatever their colour: so that one text serves both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from dlock_conformance.harness import Colour, StoreHarness
from dlock_conformance.subject import Loop
from dlock_core import AsyncElection, AsyncLease, AsyncLockClient, AsyncOnce, Election, Lease, LockClient, Once
from dlock_core.errors import DLockError
from dlock_core.record import LockRecord, Loss
from dlock_core.store import AsyncLockStore, LockStore
from dlock_core.testing import AsyncFaultyStore, FaultyStore

__all__ = [
    "NOT_PROMISED",
    "WAYS",
    "Hold",
    "Parties",
    "Party",
    "Run",
    "Way",
]

T = TypeVar("T")

_THREADS = 16


class Way(StrEnum):
    """How parties have their locks.

    As such, as the terms of an election, as the runs of a job, each with a later slot, as the only permit of a semaphore, as the writer
    of a read/write lock, or kept by a session from the first renewal on.
    """

    LOCK = "lock"
    ELECTION = "election"
    JOB = "job"
    PERMIT = "permit"
    WRITE = "write"
    SESSION = "session"


WAYS = tuple(way for way in Way if way is not Way.WRITE)
"""All but the writer's, who goes the way of a permit."""

_TRIED = {"each_slot_of_a_job|a_run_that_died|shared": "the suite of the locks tries it"}
_OF_SHARED_LOCKS = {
    "fail_closed|abandoned_lock": "a shared lock is renewed",
    "held_by_one_and_then_by_the_next|data_goes_from_holder_to_holder": "the record of a shared lock has no place for data",
    "killed_process": "the process holds an exclusive lock, and a key is used in one way",
    **_TRIED,
}
NOT_PROMISED: dict[Way, dict[str, str]] = {
    Way.LOCK: {},
    Way.ELECTION: _TRIED,
    Way.JOB: {
        "fail_closed": "the run of a job has a lease",
        "held_by_one_and_then_by_the_next|data_goes_from_holder_to_holder": "the record of a job carries its slot and result only",
        "wait_ends_at_its_time_out|claim_that_arrives_late": "a job that another process runs is busy, and that is no error",
        **_TRIED,
    },
    Way.PERMIT: _OF_SHARED_LOCKS,
    Way.WRITE: _OF_SHARED_LOCKS,
    Way.SESSION: {"fail_closed|abandoned_lock": "a lock that a session keeps is renewed", **_TRIED},
}
"""The tests, by patterns of their names, that do not apply to locks that are had in a way, and why."""

_OPTIONS: dict[Way, dict[str, Any]] = {
    Way.PERMIT: {"permits": 1},
    Way.WRITE: {"mode": "write"},
    Way.SESSION: {"renewal": "session"},
}


class Run(NamedTuple):
    """What came of one try to run a job."""

    due: bool
    busy: bool
    last_slot: str | int | None
    result: bytes | None


async def _run_once(
    client: AsyncLockClient, key: str, slot: int, body: Callable[[int], bytes], options: dict[str, Any]
) -> Run:
    async with client.once(key, slot=slot, **options) as job:
        if job.lease is not None:
            await job.finish(await asyncio.to_thread(body, job.lease.fencing_token))
        return Run(job.due, job.busy, job.last_slot, job.result)


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
    def slot(self) -> int | None:
        """As the lease says."""
        return self._lease.slot

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

    def downgrade(self) -> Hold:
        """As the lease's."""
        return Hold(self._loop, self._loop.finished(self._lease.downgrade))

    def try_upgrade(self) -> Hold | None:
        """As the lease's."""
        lease = self._loop.finished(self._lease.try_upgrade)
        return None if lease is None else Hold(self._loop, lease)

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """As the lease's."""
        self._loop.finished(lambda: self._lease.on_lost(callback))


class _HoldOfRun(Hold):
    """The lease of a run of a job; its release is the finish."""

    def __init__(self, loop: Loop, job: Once | AsyncOnce) -> None:
        assert job.lease is not None
        super().__init__(loop, job.lease)
        self._job = job

    def release(self, **options: Any) -> None:
        """As the job's finish."""
        self._loop.finished(lambda: self._job.finish(**options))


class Party:
    """A client with a store object of its own, and the faults that can be put between the two."""

    def __init__(
        self,
        loop: Loop,
        client: LockClient | AsyncLockClient,
        faults: FaultyStore | AsyncFaultyStore | None,
        *,
        way: Way,
        slots: Iterator[int],
    ) -> None:
        self._loop, self._client, self._faults = loop, client, faults
        self._way, self._slots = way, slots
        self._holds: list[Hold] = []

    @property
    def faults(self) -> FaultyStore | AsyncFaultyStore:
        """What can go wrong between this client and the store, after the store has done its part."""
        assert self._faults is not None, "this party was made without faults"
        return self._faults

    def acquire(self, key: str, **options: Any) -> Hold:
        """As the client's; or the term of a campaign, or the run of a job."""
        return self._kept(self._loop.finished(lambda: self._acquiring(key, options)))

    def try_acquire(self, key: str, **options: Any) -> Hold | None:
        """As :meth:`acquire`, but without waiting."""
        found: Lease | AsyncLease | Once | AsyncOnce | None
        match self._way:
            case Way.ELECTION:
                found = self._loop.finished(lambda: self._election(key, options).try_campaign())
            case Way.JOB:
                found = self._loop.finished(lambda: self._begin_run(key, {**options, "timeout": 0}))
            case _:
                found = self._loop.finished(
                    lambda: self._client.try_acquire(key, **_OPTIONS.get(self._way, {}), **options)
                )
        busy = isinstance(found, (Once, AsyncOnce)) and found.busy
        return None if found is None or busy else self._kept(found)

    def cancelled_acquire(self, key: str, *, after_s: float, **options: Any) -> bool:
        """Begin to acquire, in a task that is cancelled *after_s*; say whether that came in time. Async only."""
        return self._loop.run(_cancelled(lambda: self._acquiring(key, options), after_s))

    def get(self, key: str) -> LockRecord | None:
        """As the client's."""
        record: LockRecord | None = self._loop.finished(lambda: self._client.get(key))
        return record

    def break_lock(self, key: str, **options: Any) -> bool:
        """As the client's."""
        broken: bool = self._loop.finished(lambda: self._client.break_lock(key, **options))
        return broken

    def once(self, key: str, slot: int, body: Callable[[int], bytes], **options: Any) -> Run:
        """Run *body*, which is given the fencing token, if *slot* of the job *key* is due; say what came of it."""
        client = self._client
        if isinstance(client, LockClient):
            with client.once(key, slot=slot, **options) as job:
                if job.lease is not None:
                    job.finish(body(job.lease.fencing_token))
                return Run(job.due, job.busy, job.last_slot, job.result)
        run: Run = self._loop.run(_run_once(client, key, slot, body, options))
        return run

    def deliver(self) -> None:
        """Have what was delayed arrive."""
        self._loop.finished(self.faults.deliver)

    def close(self) -> None:
        """Give back what this party still holds, and close the client."""
        for hold in self._holds:
            with suppress(DLockError):
                hold.release()
        self._loop.finished(self._client.close)

    def _acquiring(self, key: str, options: dict[str, Any]) -> Any:
        match self._way:
            case Way.ELECTION:
                return self._election(key, options).campaign()
            case Way.JOB:
                return self._begin_run(key, {"timeout": None, **options})
            case _:
                return self._client.acquire(key, **_OPTIONS.get(self._way, {}), **options)

    def _begin_run(self, key: str, options: dict[str, Any]) -> Any:
        client = self._client
        if isinstance(client, AsyncLockClient):
            return _arun_begun(client, key, self._slots, options)
        while True:
            job = client.once(key, slot=next(self._slots), **options).__enter__()
            if job.due or job.busy:  # else a later slot was finished meanwhile
                return job

    def _election(self, key: str, options: dict[str, Any]) -> Election | AsyncElection:
        named = {"value" if name == "data" else name: value for name, value in options.items()}
        return self._client.election(key, **named)

    def _kept(self, found: Lease | AsyncLease | Once | AsyncOnce) -> Hold:
        hold = _HoldOfRun(self._loop, found) if isinstance(found, (Once, AsyncOnce)) else Hold(self._loop, found)
        self._holds.append(hold)
        return hold


class Parties:
    """All clients of one test, and what they have open. *way*: how they have their locks."""

    def __init__(self, harness: StoreHarness, colour: Colour, *, way: Way = Way.LOCK) -> None:
        self.harness = harness
        self._way, self._slots = way, count(1)
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
        faults = store if isinstance(store, (FaultyStore, AsyncFaultyStore)) else None
        party = Party(self._loop, client, faults, way=self._way, slots=self._slots)
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
        return {
            "prefix": "",
            "lease_duration": self.harness.lease_s,
            # Where records may come back, nothing here takes them back.
            "allow_unsafe": {*self.harness.allow_unsafe, "session-rollback"},
            **options,
        }


async def _arun_begun(client: AsyncLockClient, key: str, slots: Iterator[int], options: dict[str, Any]) -> AsyncOnce:
    while True:
        job = await client.once(key, slot=next(slots), **options).__aenter__()
        if job.due or job.busy:
            return job


async def _opened(client: AsyncLockClient) -> AsyncLockClient:
    return await client


async def _cancelled(acquire: Callable[[], Coroutine[Any, Any, object]], after_s: float) -> bool:
    task = asyncio.create_task(acquire())
    await asyncio.sleep(after_s)
    in_time = not task.done()
    task.cancel()
    done = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(done, AsyncLease):
        await done.release()
    if isinstance(done, AsyncOnce):
        await done.finish()
    return in_time
