"""The memory store: spaces, tokens and records."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    Capability,
    Claim,
    Expect,
    Release,
    Replace,
    State,
    StoreUnavailableError,
    aconnect,
    connect,
)
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.record import TOKEN_MAX
from tests.core.memory_support import T, claimed, held, release, tomb

if TYPE_CHECKING:
    from collections.abc import Callable


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
            Capability.PRUNE,
            Capability.CLAIM_WAIT,
            Capability.ATOMIC_MULTI,
        }
    )


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
        lambda: store.claim_many([Claim(held("b"), Expect.ANY)], timeout_s=T),
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
