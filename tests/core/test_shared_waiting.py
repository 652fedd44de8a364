"""Who waits for a place in a shared lock is woken by the store: by who leaves, and by who joins where there is more room.

Polls are ten minutes apart here, so nobody has a place in time unless it was woken.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from dlock_core import AcquireTimeoutError, AsyncLockClient, StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore, MemorySpace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from dlock_core import AsyncLease, StoreError
    from dlock_core.record import LockRecord
    from dlock_core.store import Replace, Reply

LONG_S = 30.0


class Store(AsyncMemoryStore):
    """Notes who waits, and writes over no record while it *refuses* to; says that it *queues*, where it is told so."""

    queues = False

    def __init__(self, space: MemorySpace, waits: asyncio.Semaphore) -> None:
        super().__init__(space)
        self.waits, self.count = waits, 0
        self.refuses = False

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Show how many wait, as a store with a queue does."""
        record = await super().read(key, timeout_s=timeout_s)
        return replace(record, waiters=1) if record is not None and self.queues else record

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait as the memory store does."""
        self.count += 1
        self.waits.release()
        await super().wait(record, ticket=ticket, timeout_s=timeout_s)

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Write, or fail."""
        if self.refuses:
            raise StoreUnavailableError("refused")
        return await super().replace(request, timeout_s=timeout_s)

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Write, or fail."""
        if self.refuses:
            raise StoreUnavailableError("refused")
        return await super().replace_many(requests, timeout_s=timeout_s)


class Clients:
    """Clients of one memory space, each with a store of its own."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack, self._space = stack, MemorySpace()
        self._kept: list[Any] = []  # a lease that nobody has any more is not renewed
        self.waits = asyncio.Semaphore(0)

    async def join(self, **options: Any) -> tuple[AsyncLockClient, Store]:
        """Return one more client, and its store."""
        store = Store(self._space, self.waits)
        chosen = {"lease_duration": 3600, "poll_period": 600, "timeout": LONG_S, **options}
        return await self._stack.enter_async_context(AsyncLockClient(store, **chosen)), store

    async def holding(self, count: int = 1, **wish: Any) -> list[AsyncLease]:
        """Return so many places in the lock ``k``, of one client."""
        client, _ = await self.join()
        leases = [await client.acquire("k", **wish) for _ in range(count)]
        self._kept += leases
        return leases

    async def waiting(self, **wish: Any) -> tuple[asyncio.Task[AsyncLease], Store]:
        """Return the task of a new client that waits for the lock ``k``, once it does, and the client's store."""
        client, store = await self.join()
        task = asyncio.create_task(client.acquire("k", **wish))
        self._kept.append(task)
        await self.waits.acquire()
        return task, store


def with_clients(test: Callable[[Clients], Awaitable[None]]) -> Callable[[], None]:
    """Run *test* with clients that are closed in the end."""

    @wraps(test)
    def run() -> None:
        async def live() -> None:
            async with asyncio.timeout(LONG_S), AsyncExitStack() as stack:
                clients = Clients(stack)
                await test(clients)

        asyncio.run(live())

    del run.__wrapped__  # pytest would ask for its argument
    return run


@with_clients
async def test_permit_that_comes_free_wakes_the_first(clients: Clients) -> None:
    """The one after it waits on, and was not even asked to look: the first has taken all the room there was."""
    leases = await clients.holding(2, permits=2)
    first, _ = await clients.waiting(permits=2)
    second, store = await clients.waiting(permits=2)

    await leases[0].release()
    lease = await first

    assert lease.slot == leases[0].slot
    assert len(store.space.waiters["k"]) == 1  # whoever is woken is taken off the queue
    second.cancel()


@with_clients
async def test_permits_that_come_free_together_are_had_together(clients: Clients) -> None:
    """Who leaves wakes one, which joins and wakes the next, for whom there is room as well."""
    [heavy] = await clients.holding(permits=3, weight=3)
    tasks = [(await clients.waiting(permits=3))[0] for _ in range(3)]

    await heavy.release()

    assert {(await task).slot for task in tasks} == {0, 1, 2}


@with_clients
async def test_all_readers_come_after_a_writer(clients: Clients) -> None:
    """They share a token, since they read together."""
    [writer] = await clients.holding(mode="write")
    tasks = [(await clients.waiting(mode="read"))[0] for _ in range(4)]

    await writer.release()

    assert len({(await task).fencing_token for task in tasks}) == 1


@with_clients
async def test_writer_comes_after_the_last_reader(clients: Clients) -> None:
    """The first of two readers that leave wakes it for a look."""
    readers = await clients.holding(2, mode="read")
    writer, store = await clients.waiting(mode="write")

    for reader in readers:
        await reader.release()

    assert (await writer).fencing_token > readers[0].fencing_token
    assert store.count <= 2


@with_clients
async def test_readers_go_on_where_a_writer_gives_up(clients: Clients) -> None:
    """A new reader waits behind the writer that waits; that one's end is told to it."""
    await clients.holding(mode="read")
    writer, _ = await clients.waiting(mode="write", timeout=1)
    reader, _ = await clients.waiting(mode="read")

    with pytest.raises(AcquireTimeoutError):
        await writer

    assert (await reader).is_valid


@with_clients
async def test_place_of_who_has_died_is_had_when_its_session_is_over(clients: Clients) -> None:
    """Nobody tells of that: who waits looks at the session again, eight times in a lease of it."""
    client, store = await clients.join(lease_duration=0.5)
    lost = await client.acquire("k", permits=1)
    task, _ = await clients.waiting(permits=1)

    store.refuses = True

    assert (await task).slot == 0
    assert not lost.is_valid


async def pauses_of(clients: Clients, wakes: int, **wish: Any) -> list[float]:
    """Return the pauses, in units of 10 ms, that one who asks for the held lock ``k`` makes when it is woken so often for nothing."""
    client, store = await clients.join()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds * 100)

    client._engine.runtime.sleep = sleep  # type: ignore[method-assign]  # noted, and not slept
    waiting = asyncio.create_task(client.acquire("k", **wish))
    for _ in range(wakes):
        await clients.waits.acquire()
        await asyncio.sleep(0)  # it is in the queue now
        store.space._wake("k")
    await clients.waits.acquire()
    waiting.cancel()
    return pauses


@with_clients
async def test_who_is_woken_for_nothing_looks_more_slowly(clients: Clients) -> None:
    """A store that keeps no queue wakes one waiter of each client: a herd must leave time for who holds. The first look comes at once.

    So does each fourth one after it: those who come anew would always be before one that never looked at once again.
    """
    await clients.holding(permits=1)

    pauses = await pauses_of(clients, 9, permits=1)

    assert [0.5 * most <= pause <= most for most, pause in zip((1, 2, 4, 1, 2, 4), pauses, strict=True)] == [True] * 6


@with_clients
async def test_who_is_woken_by_a_store_with_a_queue_looks_at_once(clients: Clients) -> None:
    """It wakes one of all clients, and no herd."""
    await clients.holding(permits=1)

    with patch.object(Store, "queues", new=True):
        assert await pauses_of(clients, 9, permits=1) == []


@with_clients
async def test_writer_now_and_then_lets_a_reader_look_before_it(clients: Clients) -> None:
    """It has its session already, and would win each race with a reader, though readers go before the next writer."""
    await clients.holding(mode="write")

    with patch("dlock_core.engine.sharing.jitter", lambda: 0.2):
        assert await pauses_of(clients, 1, mode="write") == [pytest.approx(0.9)]
        assert await pauses_of(clients, 1, mode="read") == []
    with patch("dlock_core.engine.sharing.jitter", lambda: 0.3):
        assert await pauses_of(clients, 1, mode="write") == []


@with_clients
async def test_wake_up_that_gets_no_answer_delays_nobody_for_long(clients: Clients) -> None:
    """The first of three readers cannot wake the next; it has its place all the same."""
    [writer] = await clients.holding(mode="write")
    task, store = await clients.waiting(mode="read")

    store.refuses = True
    await writer.release()
    lease = await task
    store.refuses = False

    assert lease.is_valid
