"""Who waits in the memory store, and what wakes them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dlock_core import (
    AsyncLockClient,
    Claim,
    Expect,
    LockClient,
    LockRecord,
    Release,
    Replace,
    Reply,
    Version,
)
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from tests.core.memory_support import T, claimed, held, release, tomb
from tests.core.worlds import eventually


class Waiter:
    """A thread that waits for the key of *record*, and notes when it returned."""

    # It waits longer than a test has patience.
    def __init__(self, store: MemoryStore, record: LockRecord, timeout_s: float = 10 * T) -> None:
        before = len(store.space.waiters.get(record.key, ()))
        self.thread = threading.Thread(target=lambda: store.wait(record, ticket="t", timeout_s=timeout_s), daemon=True)
        self.thread.start()
        eventually(lambda: len(store.space.waiters.get(record.key, ())) > before or not self.thread.is_alive())

    @property
    def returned(self) -> bool:
        """Whether it came back."""
        return not self.thread.is_alive()


def test_release_wakes_the_waiter_that_has_waited_longest_and_no_other() -> None:
    """One release is worth one claim (clause N3)."""
    store = MemoryStore()
    record = claimed(store)
    first, second = Waiter(store, record), Waiter(store, record)

    release(store, record)

    eventually(lambda: first.returned)
    assert not second.returned
    again = claimed(store, "b")
    release(store, again, "s")
    eventually(lambda: second.returned)
    assert store.space.waiters == {}


def test_wait_for_a_key_that_is_free_or_unknown_returns_at_once() -> None:
    """A release that came before the call is not waited for (clause N1)."""
    store = MemoryStore()
    record = claimed(store)
    release(store, record)

    store.wait(record, ticket="t", timeout_s=T)
    store.wait(held("x", key="unknown"), ticket="t", timeout_s=T)

    assert store.space.waiters == {}


def test_wait_returns_when_its_time_is_over() -> None:
    """At the time-out at the latest, with its place given up (clause N2)."""
    store = MemoryStore()
    record = claimed(store)

    store.wait(record, ticket="t", timeout_s=0.001)

    assert store.space.waiters == {}


def test_break_that_frees_wakes_a_waiter() -> None:
    """However a key comes to be free, somebody is told."""
    store = MemoryStore()
    record = claimed(store)
    waiter = Waiter(store, record)

    store.replace(Replace(tomb("b", 2), record.version), timeout_s=T)

    eventually(lambda: waiter.returned)


def test_release_that_is_refused_wakes_nobody() -> None:
    """Nothing has come free."""
    store = MemoryStore()
    record = claimed(store)
    waiter = Waiter(store, record)

    assert not release(store, held("not-this")).applied

    assert len(store.space.waiters["k"]) == 1
    assert not waiter.returned
    release(store, record)
    eventually(lambda: waiter.returned)


def test_renewal_wakes_nobody() -> None:
    """A key that stays held is nothing to wake for."""
    store = MemoryStore()
    record = claimed(store)
    waiter = Waiter(store, record)

    reply = store.replace(Replace(held("b"), record.version), timeout_s=T)

    assert reply.record is not None
    assert not waiter.returned
    release(store, reply.record)
    eventually(lambda: waiter.returned)


@pytest.mark.parametrize("ticks", range(6))
def test_f16_waiting_task_cancelled_with_its_wake_up_unused_passes_it_on(ticks: int) -> None:
    """Whenever the cancellation strikes, it leaves the task, and the next waiter is woken (clause N3)."""

    async def use() -> None:
        space = MemorySpace()
        sync, store = MemoryStore(space), AsyncMemoryStore(space)
        record = claimed(sync)
        first = asyncio.ensure_future(store.wait(record, ticket="a", timeout_s=T))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(store.wait(record, ticket="b", timeout_s=T))
        await asyncio.sleep(0)

        release(sync, record)
        for _ in range(ticks):
            await asyncio.sleep(0)
        was_done = first.done()
        first.cancel()
        [outcome] = await asyncio.gather(first, return_exceptions=True)

        if was_done:
            assert outcome is None
            assert not second.done()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        else:
            assert isinstance(outcome, asyncio.CancelledError)
            async with asyncio.timeout(T):
                await second
        assert space.waiters == {}

    asyncio.run(use())


def test_release_by_a_thread_wakes_a_task() -> None:
    """Both colours wait in one queue."""

    async def use() -> None:
        space = MemorySpace()
        sync, store = MemoryStore(space), AsyncMemoryStore(space)
        record = claimed(sync)
        waiting = asyncio.ensure_future(store.wait(record, ticket="a", timeout_s=T))
        await asyncio.sleep(0)

        thread = threading.Thread(target=release, args=(sync, record))
        thread.start()
        async with asyncio.timeout(T):
            await waiting
        thread.join()

    asyncio.run(use())


def test_release_after_the_loop_of_a_waiter_has_ended_harms_nobody() -> None:
    """A loop that was closed with a waiter in the queue does not break the releasing thread."""
    space = MemorySpace()
    sync = MemoryStore(space)
    record = claimed(sync)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(AsyncMemoryStore(space).wait(record, ticket="a", timeout_s=T))
    loop.run_until_complete(asyncio.sleep(0))
    wakes = space.waiters["k"].copy()
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.close()

    space.waiters["k"] = wakes  # as if it had been closed with the task still waiting

    assert release(sync, record).applied


def test_wait_of_a_task_ends_with_its_time() -> None:
    """The time-out is the wait's own, and no error."""

    async def use() -> None:
        store = AsyncMemoryStore()
        record = claimed(store.store)
        await store.wait(record, ticket="t", timeout_s=0.001)
        assert store.space.waiters == {}

    asyncio.run(use())


def test_waiting_client_is_woken_at_once() -> None:
    """A lone waiter holds the key soon after the release: far sooner than its slow poll."""
    space = MemorySpace()
    with LockClient(MemoryStore(space)) as a, LockClient(MemoryStore(space)) as b:
        lease = a.acquire("k")
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(b.acquire("k", timeout=T)))
        thread.start()
        eventually(lambda: bool(space.waiters))

        lease.release()
        thread.join(1.5)  # the slow poll comes after 2 s

        assert len(got) == 1
        got[0].release()


def test_claim_of_a_waiting_client_waits_in_the_store() -> None:
    """It is granted by the release itself, with no claim after a wake-up, which somebody else might come ahead of."""
    asked: list[str] = []

    class Asked(MemoryStore):
        def claim(self, request: Claim, *, timeout_s: float) -> Reply:
            asked.append("claim")
            return super().claim(request, timeout_s=timeout_s)

        def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
            asked.append("claim_when_free")
            return super().claim_when_free(request, wait_s=wait_s, timeout_s=timeout_s)

    space = MemorySpace()
    with LockClient(MemoryStore(space)) as a, LockClient(Asked(space)) as b, ThreadPoolExecutor() as pool:
        lease = a.acquire("k")
        waits = pool.submit(b.acquire, "k", timeout=T)
        eventually(lambda: bool(space.waiters))

        lease.release()
        got = waits.result(T)

        assert got.fencing_token == 2
        assert asked == ["claim", "claim_when_free"]
        got.release()


@pytest.mark.parametrize("granted", [False, True])
def test_claim_that_was_cancelled_while_it_waited_is_followed_up_only_if_it_was_granted(*, granted: bool) -> None:
    """The store knows that it was not applied: closing the client, which a person may wait for, waits for nothing."""
    space = MemorySpace()

    async def scene() -> int:
        async with AsyncLockClient(AsyncMemoryStore(space)) as a, AsyncLockClient(AsyncMemoryStore(space)) as b:
            lease = await a.acquire("k")
            waits = asyncio.create_task(b.acquire("k", timeout=T))
            await asyncio.sleep(0)
            assert space.waiters
            if granted:
                await lease.release()  # and the task has not heard of it
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            return len(b._engine.driver.unresolved())

    assert asyncio.run(scene()) == granted


def test_condition_compares_the_token_too() -> None:
    """The same RVN under another token is another version: a claim applied twice does not make the old holder's writes good (F1)."""
    store = MemoryStore()
    first = claimed(store, "same")
    release(store, first)
    second = claimed(store, "same")
    assert second.version == Version("same", 2)

    assert not store.replace(Replace(held("b"), first.version), timeout_s=T).applied
    assert not release(store, first, "s").applied
    assert store.read("k", timeout_s=T) == second


@pytest.mark.parametrize("verb", ["claim", "claim of a free key", "claim of several", "replace", "release"])
def test_verb_inside_another_verb_of_its_thread_is_seen_by_that_one(verb: str) -> None:
    """A signal handler may call the store while its own thread is inside a verb: one of the two writes, and nothing waits."""
    inner: list[Reply] = []

    def handler() -> int:
        if armed and not inner:
            inner.append(Reply(applied=False, record=None))  # once
            inner[0] = call("inner")
        return 0

    def call(rvn: str) -> Reply:
        if verb == "claim of several":
            return store.claim_many([Claim(held(rvn, key=key), Expect.ANY) for key in "ak"], timeout_s=T)[1]
        if verb.startswith("claim"):
            return store.claim(Claim(held(rvn), Expect.ANY), timeout_s=T)
        if verb == "replace":
            return store.replace(Replace(held(rvn), Version("first", 1)), timeout_s=T)
        return store.release(Release(tomb(rvn), Version("first", 1)), timeout_s=T)

    armed = False
    store = MemoryStore(MemorySpace(handler))
    if verb not in ("claim", "claim of several"):
        store.claim(Claim(held("first"), Expect.ANY), timeout_s=T)
    if verb == "claim of a free key":
        store.release(Release(tomb("free"), Version("first", 1)), timeout_s=T)
    armed = True

    outer = call("outer")

    assert inner[0].applied
    assert not outer.applied
    record = store.read("k", timeout_s=T)
    assert record is not None
    assert record.rvn == "inner"
