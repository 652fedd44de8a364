"""The memory store: spaces, waking waiters, and what the conformance suite cannot ask of every store."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    Capability,
    Claim,
    Expect,
    LockRecord,
    Release,
    Replace,
    Reply,
    State,
    StoreUnavailableError,
    Version,
    aconnect,
    connect,
)
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.record import TOKEN_MAX
from tests.core.worlds import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

T = PATIENCE_S


def held(rvn: str, token: int = 1, key: str = "k", **fields: Any) -> LockRecord:
    """Return a held record."""
    return LockRecord(key, State.HELD, rvn, token, "owner", 20_000, **fields)


def tomb(rvn: str, token: int = 1, state: State = State.FREE, key: str = "k") -> LockRecord:
    """Return a tombstone."""
    return LockRecord(key, state, rvn, token, "", None)


def claimed(store: MemoryStore, rvn: str = "a", key: str = "k") -> LockRecord:
    """Claim *key* and return the record as written."""
    reply = store.claim(Claim(held(rvn, key=key), Expect.ANY), timeout_s=T)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def release(store: MemoryStore, record: LockRecord, rvn: str = "r") -> Reply:
    """Release *record*."""
    return store.release(Release(tomb(rvn, record.fencing_token, key=record.key), record.version), timeout_s=T)


# ---- spaces


def test_url_without_a_name_is_one_space_for_the_process() -> None:
    """Two clients of ``memory://`` exclude each other; each name is a space of its own."""
    with connect("memory://") as a, connect("memory://") as b, connect("memory://other") as other:
        with a.lock("of-the-process"):
            assert b.try_acquire("of-the-process") is None
            lease = other.try_acquire("of-the-process")
            assert lease is not None
        tokens = [record.fencing_token for record in b.scan("of-the-process")]
        assert tokens == [1]


def test_space_outlives_its_clients() -> None:
    """A token never goes back while the process lives."""
    tokens = []
    for _ in range(3):
        with connect("memory://outlives") as client, client.lock("k") as lease:
            tokens.append(lease.fencing_token)

    assert tokens == [1, 2, 3]


def test_store_without_a_space_has_one_of_its_own() -> None:
    """A test's store is nobody else's."""
    a, b = MemoryStore(), MemoryStore()

    claimed(a)

    assert b.read("k", timeout_s=T) is None


def test_both_colours_of_a_name_are_one_space() -> None:
    """Threads and tasks share what is named alike."""

    async def use() -> int:
        async with aconnect("memory://colours") as client, client.lock("k") as lease:
            return lease.fencing_token

    with connect("memory://colours") as client, client.lock("k") as lease:
        assert lease.fencing_token == 1
    assert asyncio.run(use()) == 2


def test_what_is_promised_is_what_a_dictionary_can() -> None:
    """Ordered tokens, nothing durable, one process."""
    guarantees = MemoryStore().guarantees()

    assert (guarantees.store, guarantees.durable, guarantees.deletes, guarantees.refusal_linearizable) == (
        "memory",
        False,
        False,
        True,
    )
    assert "one process" in guarantees.notes[0]
    assert (
        MemoryStore.capabilities
        == AsyncMemoryStore.capabilities
        == {
            Capability.BATCH_RENEW,
            Capability.NOTIFY,
            Capability.SERVER_CLOCK,
        }
    )


# ---- tokens and records


def test_token_at_its_end_refuses_to_grant_for_ever() -> None:
    """The last token is not followed by a smaller one, and nothing is written."""
    store = MemoryStore()
    last = store.claim(Claim(held("a", TOKEN_MAX), Expect.ANY), timeout_s=T).record
    assert last is not None
    release(store, last)

    with pytest.raises(StoreUnavailableError, match=f"reached its end, {TOKEN_MAX}"):
        store.claim(Claim(held("b"), Expect.ANY), timeout_s=T)

    assert store.read("k", timeout_s=T) == tomb("r", TOKEN_MAX)


def test_token_is_at_least_what_the_claim_asks_for() -> None:
    """A floor given from outside is kept, and a smaller one does not lower the token."""
    store = MemoryStore()
    first = store.claim(Claim(held("a", 100), Expect.ANY), timeout_s=T).record
    assert first is not None
    assert first.fencing_token == 100
    release(store, first)

    second = store.claim(Claim(held("b", 5), Expect.ANY), timeout_s=T).record

    assert second is not None
    assert second.fencing_token == 101


@pytest.mark.parametrize("state", [State.FREE, State.GONE])
@pytest.mark.parametrize("attributes", [(), (("n", 1),)], ids=["data", "data-and-attributes"])
def test_f9_payload_is_kept_through_a_release_and_not_through_a_deletion(state: State, attributes: Any) -> None:
    """What was deleted on release is not seen again."""
    store = MemoryStore()
    record = store.claim(Claim(held("a", data=b"x", attributes=attributes), Expect.ANY), timeout_s=T).record
    assert record is not None
    store.release(Release(tomb("r", 1, state), record.version, keep_payload=state is State.FREE), timeout_s=T)

    again = store.claim(Claim(held("b"), Expect.ANY, keep_payload=True), timeout_s=T).record

    assert again is not None
    assert (again.data, again.attributes) == ((b"x", attributes) if state is State.FREE else (None, ()))


def test_closed_store_refuses_every_verb_and_leaves_its_space() -> None:
    """Closing is of the store, not of what others share (clause S22)."""
    space = MemorySpace()
    store, other = MemoryStore(space), MemoryStore(space)
    record = claimed(store)
    store.close()
    store.close()

    calls: list[Callable[[], object]] = [
        lambda: claimed(store),
        lambda: release(store, record),
        lambda: store.replace(Replace(held("b"), record.version), timeout_s=T),
        lambda: store.replace_many([Replace(held("b"), record.version)], timeout_s=T),
        lambda: store.read("k", timeout_s=T),
        lambda: list(store.scan("", timeout_s=T)),
        lambda: store.wait(record, ticket="t", timeout_s=T),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="memory store was closed"):
            call()
    assert other.read("k", timeout_s=T) == record


def test_races_for_one_key_have_one_winner_each() -> None:
    """However many threads claim at once, the store grants one of them (clause S1)."""
    store, rounds, threads = MemoryStore(), 200, 8
    start = threading.Barrier(threads)
    wins: list[list[str]] = [[] for _ in range(rounds)]

    def race(name: str) -> None:
        for number in range(rounds):
            start.wait(T)
            reply = store.claim(Claim(held(f"{name}{number}", key=f"k{number}"), Expect.ANY), timeout_s=T)
            if reply.applied:
                wins[number].append(name)

    racers = [threading.Thread(target=race, args=(f"t{n}-",)) for n in range(threads)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(T)

    assert [len(winners) for winners in wins] == [1] * rounds


# ---- waiting


class Waiter:
    """A thread that waits for the key of *record*, and notes when it returned."""

    def __init__(self, store: MemoryStore, record: LockRecord, timeout_s: float = T) -> None:
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
        record = claimed(store._sync)
        await store.wait(record, ticket="t", timeout_s=0.001)
        assert store.space.waiters == {}

    asyncio.run(use())


def test_waiting_client_is_woken_at_once() -> None:
    """A lone waiter holds the key soon after the release: far sooner than its slow poll."""
    space = MemorySpace()
    from dlock_core.client import LockClient

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


@pytest.mark.parametrize("verb", ["claim", "claim of a free key", "replace", "release"])
def test_verb_inside_another_verb_of_its_thread_is_seen_by_that_one(verb: str) -> None:
    """A signal handler may call the store while its own thread is inside a verb: one of the two writes, and nothing waits."""
    inner: list[Reply] = []

    def handler() -> int:
        if armed and not inner:
            inner.append(Reply(applied=False, record=None))  # once
            inner[0] = call("inner")
        return 0

    def call(rvn: str) -> Reply:
        if verb.startswith("claim"):
            return store.claim(Claim(held(rvn), Expect.ANY), timeout_s=T)
        if verb == "replace":
            return store.replace(Replace(held(rvn), Version("first", 1)), timeout_s=T)
        return store.release(Release(tomb(rvn), Version("first", 1)), timeout_s=T)

    armed = False
    store = MemoryStore(MemorySpace(handler))
    if verb != "claim":
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
