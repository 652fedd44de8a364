"""The asyncio client in its loop: callbacks, other loops, other threads."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AsyncLockClient,
    LeaseStateError,
    aconnect,
    connect,
)
from dlock_core.memory import AsyncMemoryStore, MemorySpace
from tests.core.worlds import PATIENCE_S, async_only

if TYPE_CHECKING:
    from dlock_core import AsyncLease, AsyncOnce
    from tests.core.worlds import World


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


def _plain(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop)


@async_only
@pytest.mark.parametrize("factory", [_plain, getattr(asyncio, "eager_task_factory", _plain)])
async def test_task_factory_of_the_user_makes_the_tasks_that_renew(world: World, factory: Any) -> None:
    """Many take a loop and a coroutine alone, as all did before Python 3.11; others start a task at once, within the call that makes it."""
    loop = asyncio.get_running_loop()
    async with world.client(lease_duration=9) as client:
        lease = await client.acquire("k")
        told: list[Any] = []

        async def callback(lease: object) -> None:
            told.append(lease)

        lease.on_risk(callback)
        world.store.fail("replace", 1)
        loop.set_task_factory(factory)
        try:
            await world.live(30)
        finally:
            loop.set_task_factory(None)

        assert lease.is_valid
        assert told == [lease]


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


def test_hazard_29_client_used_in_another_loop_is_refused() -> None:
    """A lease and its client belong to the loop that made them; elsewhere each call says so, and nothing is sent."""
    space = MemorySpace()

    async def open_one() -> tuple[AsyncLockClient, AsyncLease, AsyncOnce]:
        client = await AsyncLockClient(AsyncMemoryStore(space), lease_duration=1000)
        return client, await client.acquire("k"), await client.once("job", slot=1).__aenter__()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        client, lease, job = first.run(open_one())
        before = dict(space.records)
        calls: list[Any] = [
            lambda: client.acquire("other"),
            lambda: client.get("k"),
            lease.ensure,
            lease.renew,
            lease.release,
            job.finish,
            lambda: job.__aexit__(None, None, None),
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
        first.run(job.finish())
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
    """It needs no loop and minds none; that the loop stands still meanwhile is told once."""

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


def test_client_without_an_event_loop_of_asyncio_says_what_it_needs() -> None:
    """As under trio, which the tests of a program for anyio run it on, too. Nothing is opened."""
    with pytest.raises(LeaseStateError, match=r"no event loop of asyncio runs here, .* under trio use connect"):
        aconnect("memory://nowhere").__await__().send(None)


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
