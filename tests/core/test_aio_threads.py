"""A store for threads that serves the asyncio client."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AsyncLockClient,
    LeaseStateError,
    LockClient,
    StoreUnavailableError,
)
from dlock_core.engine.store_in_threads import CLAIM_THREADS, WAIT_THREADS, ThreadedStore
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect
from dlock_core.testing import FaultyStore
from tests.core.worlds import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Coroutine


class _Gate(MemoryStore):
    """A store whose claims wait at a gate."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.open = threading.Event()
        self.begun = 0
        self._count = threading.Lock()

    def claim(self, request: Any, *, timeout_s: float) -> Any:
        with self._count:
            self.begun += 1
        assert self.open.wait(PATIENCE_S)
        return super().claim(request, timeout_s=timeout_s)


def test_store_for_threads_serves_asyncio() -> None:
    """A sync-only store works in an async client, with the loop free meanwhile; it stays its owner's to close."""

    class Provisioned(FaultyStore):
        """Notes that it was provisioned."""

        provisions = 0

        def provision(self) -> None:
            self.provisions += 1

    async def use() -> None:
        store = Provisioned()
        async with AsyncLockClient(store, lease_duration=20) as client:
            async with client.lock("k", data=b"x") as lease:
                assert await lease.ensure(20.5) == 1
                await lease.renew()
                assert [record.key async for record in client.scan()] == ["k"]
                record = await client.get("k")
                assert record is not None
                assert record.data == b"x"
                assert await client.try_acquire("k") is None
            await client.provision()
            assert store.provisions == 1
            assert (await client.guarantees()).store == "memory"
        assert store.read("k", timeout_s=1) is not None
        assert not [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith(("dlock-claim", "dlock-keep")) and not _ending(thread)
        ]

    asyncio.run(use())


def _ending(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_loop_goes_on_while_a_store_for_threads_takes_its_time() -> None:
    """A verb that blocks its thread does not block the loop."""

    async def use() -> None:
        store = _Gate(MemorySpace())
        async with AsyncLockClient(store) as client:
            acquiring = asyncio.ensure_future(client.acquire("k"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not acquiring.done()
            store.open.set()
            lease = await acquiring
            await lease.release()

    asyncio.run(use())


def test_calls_cancelled_in_a_full_pool_are_never_sent() -> None:
    """A job that was given up while it sat in the queue must not send later (F7)."""

    async def use() -> None:
        store = _Gate(MemorySpace())
        async with AsyncLockClient(store, lease_duration=1) as client:
            busy = [asyncio.ensure_future(client.acquire(f"busy{n}")) for n in range(CLAIM_THREADS)]
            await asyncio.to_thread(eventually, lambda: store.begun == CLAIM_THREADS)
            queued = [asyncio.ensure_future(client.acquire(f"queued{n}")) for n in range(50)]
            await asyncio.sleep(0)
            for task in queued:
                task.cancel()
            outcomes = await asyncio.gather(*queued, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}

            store.open.set()
            for lease in await asyncio.gather(*busy):
                await lease.release()

            assert store.begun == CLAIM_THREADS
            assert not [key for key in store.space.records if key.startswith("queued")]

    asyncio.run(use())


def test_call_cancelled_while_it_is_being_sent_is_cleaned_up() -> None:
    """The thread goes on alone; what it wrote is found and freed."""

    async def use() -> None:
        store = _Gate(MemorySpace())
        async with AsyncLockClient(store, lease_duration=2) as client:
            acquiring = asyncio.ensure_future(client.acquire("k"))
            await asyncio.to_thread(eventually, lambda: store.begun == 1)
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
            store.open.set()

            def freed() -> bool:
                record = store.space.records.get("k")
                return record is not None and not record.held

            await asyncio.to_thread(eventually, freed)

    asyncio.run(use())


def test_waits_for_notice_never_use_up_the_threads_of_the_verbs() -> None:
    """More waiters than threads, and a release still reaches the store at once."""

    class Counting(MemoryStore):
        """Counts its claims."""

        claims = 0

        def claim(self, request: Any, *, timeout_s: float) -> Any:
            self.claims += 1
            return super().claim(request, timeout_s=timeout_s)

    async def use() -> None:
        store = Counting()
        # Nobody polls meanwhile: each claim beyond the first ones comes of a wait that did not last.
        async with AsyncLockClient(store, poll_period=2 * PATIENCE_S, lease_duration=2 * PATIENCE_S) as client:
            keys = [f"k{number}" for number in range(WAIT_THREADS + 10)]
            held = [await client.acquire(key) for key in keys]
            waiting = [asyncio.ensure_future(client.acquire(key)) for key in keys]
            await asyncio.to_thread(eventually, lambda: sum(map(len, store.space.waiters.values())) == WAIT_THREADS)
            other = await client.acquire("other", timeout=0)
            await other.release()
            assert store.claims <= 2 * WAIT_THREADS + 30  # who finds no thread pauses
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for each in held:
                await each.release()
            for wakes in store.space.waiters.values():
                for wake in list(wakes):
                    wake()
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("dlock-wait")]
        assert all(_ending(thread) for thread in ours)

    asyncio.run(use())


class _Stuck(_Gate):
    """A store whose waits hang as its claims do."""

    def wait(self, record: Any, *, ticket: str, timeout_s: float) -> None:
        with self._count:
            self.begun += 1
        assert self.open.wait(PATIENCE_S)


def test_request_that_finds_no_thread_in_its_time_ends_with_it() -> None:
    """Each verb ends within its time-out (clause S13), whatever hangs in all the threads: nothing was sent then, and nothing is later."""

    async def use() -> None:
        store = _Gate(MemorySpace())
        threaded = ThreadedStore(store)
        busy = [
            asyncio.ensure_future(threaded.claim(any_claim(f"busy{n}"), timeout_s=30)) for n in range(CLAIM_THREADS)
        ]
        await asyncio.to_thread(eventually, lambda: store.begun == CLAIM_THREADS)
        try:
            async with asyncio.timeout(5):
                with pytest.raises(StoreUnavailableError, match="no thread was free"):
                    await threaded.claim(any_claim("queued"), timeout_s=0.02)
        finally:
            store.open.set()
            await asyncio.gather(*busy)
            await threaded.close()
        assert "queued" not in store.space.records

    asyncio.run(use())


def test_wait_after_many_that_were_cancelled_takes_no_longer_than_its_time() -> None:
    """A cancelled waiter leaves its thread behind for a while: the next one must not queue for that."""

    async def use() -> None:
        store = _Stuck(MemorySpace())
        threaded = ThreadedStore(store)
        record = any_claim("k").record
        waiting = [asyncio.ensure_future(threaded.wait(record, ticket="t", timeout_s=30)) for _ in range(WAIT_THREADS)]
        await asyncio.to_thread(eventually, lambda: store.begun == WAIT_THREADS)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        try:
            async with asyncio.timeout(5):
                await threaded.wait(record, ticket="t", timeout_s=0.02)
        finally:
            store.open.set()
            await threaded.close()

    asyncio.run(use())


def test_acquire_that_is_queued_for_a_thread_when_the_client_closes_is_told_that() -> None:
    """Not by a cancellation, which nobody has asked for."""

    async def use() -> None:
        store = _Gate(MemorySpace())
        client = await AsyncLockClient(store, lease_duration=20)
        busy = [asyncio.ensure_future(client.acquire(f"busy{n}")) for n in range(CLAIM_THREADS)]
        await asyncio.to_thread(eventually, lambda: store.begun == CLAIM_THREADS)
        queued = asyncio.ensure_future(client.acquire("queued"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(LeaseStateError, match="closed"):
            await queued
        store.open.set()
        outcomes = await asyncio.gather(*busy, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {LeaseStateError}

    asyncio.run(use())


def any_claim(key: str) -> Claim:
    """Return a claim of *key*."""
    return Claim(LockRecord(key, State.HELD, key, 1, "somebody", 20_000), Expect.ANY)


def test_threads_of_a_store_that_is_gone_do_not_keep_the_loop() -> None:
    """A store that fails in its thread fails in the task, with its own error."""

    async def use() -> None:
        store = FaultyStore()
        async with AsyncLockClient(store) as client:
            with store.outage(), pytest.raises(StoreUnavailableError):
                await client.acquire("k", timeout=0)

    asyncio.run(use())


def test_async_store_calls_start_no_thread() -> None:
    """The asyncio client on an async store is tasks alone."""

    async def use() -> set[threading.Thread]:
        async with AsyncLockClient(AsyncMemoryStore(), lease_duration=1) as client, client.lock("k") as lease:
            await lease.ensure(0.97)
            await lease.renew()
            assert await client.try_acquire("k") is None
            return set(threading.enumerate())

    before = set(threading.enumerate())

    assert asyncio.run(use()) <= before


def test_clients_of_many_threads_each_with_a_loop_share_a_space() -> None:
    """Each thread has its loop and its client; the space excludes them all."""
    space, total = MemorySpace(), [0]

    async def work() -> None:
        async with AsyncLockClient(AsyncMemoryStore(space)) as client:
            for _ in range(25):
                async with client.lock("k", timeout=60):
                    seen = total[0]
                    await asyncio.sleep(0)
                    total[0] = seen + 1

    def run(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run, work()) for _ in range(4)]:
            future.result(60)

    assert total == [100]


def test_blocking_and_asyncio_leases_have_equal_errors() -> None:
    """The same mistake has the same message in both colours."""
    messages = []
    with LockClient(MemoryStore()) as client:
        lease = client.acquire("k")
        lease.release()
        with pytest.raises(LeaseStateError) as caught:
            lease.ensure()
        messages.append(str(caught.value))

    async def use() -> None:
        async with AsyncLockClient(AsyncMemoryStore()) as client:
            lease = await client.acquire("k")
            await lease.release()
            with pytest.raises(LeaseStateError) as caught:
                await lease.ensure()
            messages.append(str(caught.value))

    asyncio.run(use())

    assert len(set(messages)) == 1
