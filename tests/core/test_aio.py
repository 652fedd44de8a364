"""What only the asyncio client has: cancellation on loss, event loops, tasks, and stores that are served through threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    AsyncLockClient,
    LeaseStateError,
    LockClient,
    LockLostError,
    LossReason,
    StoreUnavailableError,
    aconnect,
    connect,
)
from dlock_core.engine.store_in_threads import CLAIM_THREADS, WAIT_THREADS, ThreadedStore
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect
from dlock_core.testing import FaultyStore
from tests.core.worlds import PATIENCE_S, async_only, eventually

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from dlock_core import AsyncLease
    from tests.core.worlds import World


async def forever() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()


async def lose(world: World, lease: AsyncLease) -> None:
    """Let the lease run out."""
    await world.jump(lease.remaining)


# ---- cancel_on_loss


@async_only
async def test_cancel_on_loss_ends_the_body_with_the_loss(world: World) -> None:
    """The body is cancelled where it waits, and what comes out of the block is LockLostError."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        cleaned = []

        async def body() -> None:
            async with client.lock("k"):
                try:
                    await forever()
                except asyncio.CancelledError as error:
                    cleaned.append(str(error))
                    raise

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(9)
        assert not task.done()
        await world.jump(1)

        with pytest.raises(LockLostError) as caught:
            await task
        assert caught.value.loss.reason is LossReason.EXPIRED
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert cleaned == ["lock 'k' was lost"]
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_leaves_the_task_able_to_go_on(world: World) -> None:
    """After the block nothing of the cancellation is left: the next wait of the task is not cancelled."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> str:
            with pytest.raises(LockLostError):
                async with client.lock("k"):
                    await forever()
            await asyncio.sleep(0)
            async with client.lock("k"):
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        assert await task == "went on"


@async_only
@pytest.mark.parametrize("call", ["ensure", "renew", "ensure_more"])
async def test_cancel_on_loss_noticed_by_the_body_itself_is_raised_once(world: World, call: str) -> None:
    """The call that finds the loss raises it; no cancellation strikes after the block."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def hold() -> None:
            async with client.lock("k") as lease:
                world.clock.advance(10)
                if call == "renew":
                    await lease.renew()
                await lease.ensure(*([5] if call == "ensure_more" else []))

        async def body() -> str:
            with pytest.raises(LockLostError):
                await hold()
            for _ in range(5):
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())

        assert await task == "went on"
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_ends_a_body_that_ignored_the_loss_it_found(world: World) -> None:
    """Swallowing the error of ``ensure`` does not keep the body running."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                world.clock.advance(10)
                with contextlib.suppress(LockLostError):
                    await lease.ensure()
                await forever()

        with pytest.raises(LockLostError):
            await asyncio.wait_for(body(), PATIENCE_S)


@async_only
async def test_cancel_on_loss_ends_a_block_that_is_entered_too_late(world: World) -> None:
    """A lease that was lost before its block began does not let it run."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            lease = await client.acquire("k")
            world.clock.advance(10)
            with contextlib.suppress(LockLostError):
                await lease.ensure()
            async with lease:
                await forever()

        with pytest.raises(LockLostError):
            await asyncio.wait_for(body(), PATIENCE_S)


@async_only
async def test_external_cancellation_stays_a_cancellation(world: World) -> None:
    """Whoever cancels the task sees it cancelled, with the lock released."""
    async with world.client(cancel_on_loss=True) as client:

        async def body() -> None:
            async with client.lock("k"):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        task.cancel("by the user")

        with pytest.raises(asyncio.CancelledError, match="by the user"):
            await task
        assert task.cancelled()
        assert not client.holds("k")
        assert world.store.requests["release"] == 1


@async_only
async def test_cancellation_from_both_sides_stays_a_cancellation(world: World) -> None:
    """A loss that comes together with an external cancellation does not hide it; it is a note on it."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                # Called between our cancellation and the next step of the task.
                lease.on_risk(lambda _: task.cancel("by the user"))
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert task.cancelled()
        assert "lock 'k' (token 1) was lost" in str(caught.value.__notes__)


@async_only
async def test_cancel_on_loss_within_a_timeout_is_the_loss(world: World) -> None:
    """``asyncio.timeout`` around the block does not take our cancellation for its own."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with asyncio.timeout(PATIENCE_S), client.lock("k"), asyncio.timeout(PATIENCE_S):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task


@async_only
@pytest.mark.parametrize("inside", [True, False])
async def test_timeout_around_or_within_the_block_is_a_timeout(world: World, inside: bool) -> None:
    """A deadline of the user's remains one, with the lock released."""
    async with world.client(cancel_on_loss=True) as client:

        async def body() -> None:
            async with asyncio.timeout(None if inside else 0.001), client.lock("k"):
                async with asyncio.timeout(0.001 if inside else None):
                    await forever()

        with pytest.raises(TimeoutError) as caught:
            await body()

        assert not isinstance(caught.value, AcquireTimeoutError)
        assert not client.holds("k")


@async_only
async def test_timeout_and_loss_together_are_a_timeout(world: World) -> None:
    """Both cancelled the body: the outer one has its way, and the loss is told by the lease."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        leases = []

        async def body() -> None:
            async with asyncio.timeout(PATIENCE_S) as timeout, client.lock("k") as lease:
                leases.append(lease)
                world.clock.advance(10)
                timeout.reschedule(0)
                await forever()

        with pytest.raises((TimeoutError, LockLostError)):
            await asyncio.ensure_future(body())

        assert leases[0].loss is not None


@async_only
async def test_cancel_on_loss_within_a_task_group_fails_the_group(world: World) -> None:
    """The loss is the task's error; its siblings are cancelled, as by any error."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        siblings = []

        async def holder() -> None:
            async with client.lock("k"):
                await forever()

        async def sibling() -> None:
            try:
                await forever()
            finally:
                siblings.append("cancelled")

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(holder())
                tasks.create_task(sibling())

        task = asyncio.ensure_future(group())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert [type(error) for error in caught.value.exceptions] == [LockLostError]
        assert siblings == ["cancelled"]


@async_only
async def test_cancel_on_loss_with_a_task_group_inside_ends_its_tasks(world: World) -> None:
    """Work spread over tasks within the block ends with the lock."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        ended = []

        async def work(name: str) -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        async def body() -> None:
            async with client.lock("k"), asyncio.TaskGroup() as tasks:
                tasks.create_task(work("a"))
                tasks.create_task(work("b"))

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert sorted(ended) == ["a", "b"]


@async_only
async def test_cancel_on_loss_in_a_task_being_cancelled_is_still_the_loss(world: World) -> None:
    """A lock taken while cleaning up after a cancellation tells its own loss."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        outcome: list[object] = []

        async def body() -> None:
            try:
                await forever()
            finally:
                try:
                    async with client.lock("k"):
                        await forever()
                except BaseException as error:
                    outcome.append(type(error))
                    raise

        task = asyncio.ensure_future(body())
        await world.jump(0)
        task.cancel()
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert outcome == [LockLostError]


@async_only
async def test_cancel_on_loss_of_two_locks_of_one_body_is_one_loss(world: World) -> None:
    """Nested blocks that are lost together both end; nothing of a cancellation is left."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> str:
            with pytest.raises(LockLostError):
                async with client.lock("a"), client.lock("b"):
                    await forever()
            with pytest.raises(LockLostError):
                async with client.lock_all(["a", "b"]):
                    await forever()
            await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)
        await world.jump(10)

        assert await task == "went on"
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_of_a_body_that_swallows_the_cancellation_is_told_at_the_end(world: World) -> None:
    """A body cannot talk itself out of the loss."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k"):
                with contextlib.suppress(asyncio.CancelledError):
                    await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_after_an_explicit_release_within_is_the_loss(world: World) -> None:
    """A body that releases while it is being cancelled still ends with the loss, and not with a cancellation that nobody sent."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                try:
                    await forever()
                finally:
                    with contextlib.suppress(LockLostError):
                        await lease.release()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert not task.cancelled()


@async_only
async def test_loss_after_the_block_cancels_nobody(world: World) -> None:
    """The task that held the lock is left alone from the end of its block on."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        lease = await client.acquire("outer")

        async def body() -> str:
            async with client.lock("k"):
                pass
            world.clock.advance(20)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return "undisturbed"

        assert await asyncio.ensure_future(body()) == "undisturbed"
        assert not lease.is_valid


# ---- callbacks


@async_only
async def test_coroutine_callbacks_become_tasks(world: World) -> None:
    """A coroutine function may be a callback; it runs as a task, and its error is logged."""
    async with world.client(auto_renew=False, lease_duration=10) as client:
        lease = await client.acquire("k")
        told: list[Any] = []

        async def callback(loss: object) -> None:
            await asyncio.sleep(0)
            told.append(loss)
            raise ValueError("logged")

        lease.on_lost(callback)
        lease.on_risk(callback)
        await world.jump(10)

        assert lease.loss in told
        assert len(told) == 2


@async_only
async def test_callback_may_close_the_client(world: World) -> None:
    """Closing from within a callback waits for everything but itself."""
    client = await world.client(auto_renew=False, lease_duration=10)
    lease = await client.acquire("k")
    closed = asyncio.Event()

    async def close(_: object) -> None:
        await client.close()
        closed.set()

    lease.on_lost(close)
    await world.jump(10)
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()

    with pytest.raises(LeaseStateError, match="closed"):
        await client.acquire("k")


# ---- loops


def test_hazard_29_client_used_in_another_loop_is_refused() -> None:
    """A lease and its client belong to the loop that made them; elsewhere each call says so, and nothing is sent."""
    space = MemorySpace()

    async def open_one() -> tuple[AsyncLockClient, AsyncLease]:
        client = await AsyncLockClient(AsyncMemoryStore(space), lease_duration=1000)
        return client, await client.acquire("k")

    with asyncio.Runner() as first, asyncio.Runner() as second:
        client, lease = first.run(open_one())
        before = dict(space.records)
        calls: list[Any] = [
            lambda: client.acquire("other"),
            lambda: client.get("k"),
            lease.ensure,
            lease.renew,
            lease.release,
            client.close,
        ]

        async def elsewhere(call: Any) -> None:
            with pytest.raises(LeaseStateError, match="another event loop"):
                await call()

        for call in calls:
            second.run(elsewhere(call))
        with pytest.raises(LeaseStateError, match="another event loop"):
            client.holds("k")
        assert space.records == before
        first.run(client.close())


@async_only
async def test_close_leaves_no_task_and_no_timer(world: World) -> None:
    """After close the loop has nothing of ours left, however many locks were held and lost."""
    before = asyncio.all_tasks()
    async with world.client(lease_duration=4) as client:
        leases = [await client.acquire(f"k{number}") for number in range(50)]
        leases[0].on_lost(print)
        await world.live(6)
        waiting = asyncio.ensure_future(client.acquire("k1"))
        await world.jump(0)
    with pytest.raises(LeaseStateError):
        await waiting

    assert asyncio.all_tasks() == before
    assert world.clock._timers == {}


def test_closed_client_is_collected() -> None:
    """Nothing global keeps a closed client, its store or its leases."""
    import weakref

    async def use() -> weakref.ref[Any]:
        async with AsyncLockClient(AsyncMemoryStore()) as client:
            async with client.lock("k"):
                pass
            return weakref.ref(client)

    gone = asyncio.run(use())
    gc.collect()

    assert gone() is None


def test_blocking_client_works_inside_a_running_loop() -> None:
    """It needs no loop and minds none."""

    async def use() -> int:
        with connect("memory://in-a-loop") as client, client.lock("k") as lease:
            return lease.ensure(19)

    assert asyncio.run(use()) == 1


def test_both_colours_exclude_each_other_on_one_space() -> None:
    """Threads and tasks of one process share ``memory://name``."""

    async def use() -> None:
        with connect("memory://shared") as blocking:
            async with aconnect("memory://shared") as client:
                async with client.lock("k"):
                    assert await asyncio.to_thread(blocking.try_acquire, "k") is None
                waiting = asyncio.ensure_future(client.acquire("k", timeout=PATIENCE_S))
                await waiting
                taking = asyncio.ensure_future(asyncio.to_thread(blocking.acquire, "k", timeout=PATIENCE_S))
                await (await waiting).release()
                lease = await taking
                lease.release()

    asyncio.run(use())


def test_aconnect_is_no_coroutine_and_opens_by_await_or_with() -> None:
    """Options are checked at once, the store is opened later, and both ways of opening give the client."""

    async def use() -> None:
        client = aconnect("memory://twice")
        assert isinstance(client, AsyncLockClient)
        assert await client is client
        async with client as same:
            assert same is client
        with pytest.raises(LeaseStateError, match="closed"):
            await client

    asyncio.run(use())


def test_client_awaited_by_several_tasks_at_once_is_opened_once() -> None:
    """A second store and a second engine would be nobody's to close, and go on to renew their locks."""

    class Slow(AsyncMemoryStore):
        """Takes a turn of the loop to say what it promises."""

        async def guarantees(self) -> Any:
            await asyncio.sleep(0)
            return await super().guarantees()

    async def use(client: AsyncLockClient, key: str) -> AsyncLease:
        await client
        return await client.acquire(key)

    async def main() -> None:
        store = Slow()
        client = AsyncLockClient(store, lease_duration=20)
        leases = await asyncio.gather(*(use(client, f"k{number}") for number in range(5)))
        await client.close()

        assert [lease.is_valid for lease in leases] == [False] * 5
        assert [record.held for record in store.space.records.values()] == [False] * 5

    asyncio.run(main())


@async_only
async def test_tasks_of_one_client_exclude_each_other(world: World) -> None:
    """Each acquire is an attempt of its own; a task has no lock that another one asks for."""
    async with world.client(AsyncMemoryStore(world.space)) as client:
        inside, total = 0, 0

        async def work() -> None:
            nonlocal inside, total
            for _ in range(20):
                async with client.lock("k"):
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1
                    total += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(work())

        assert total == 160


# ---- a store for threads


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
        async with AsyncLockClient(store, lease_duration=1) as client:
            held = await client.acquire("k")
            waiting = [asyncio.ensure_future(client.acquire("k")) for _ in range(WAIT_THREADS + 10)]
            await asyncio.to_thread(eventually, lambda: len(store.space.waiters.get("k", ())) == WAIT_THREADS)
            other = await client.acquire("other", timeout=0)
            await other.release()
            assert store.claims <= WAIT_THREADS + 20  # who finds no thread pauses
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await held.release()
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
