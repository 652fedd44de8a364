"""Several locks in one atomic step of the store, in both colours from one text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    Capability,
    LeaseStateError,
    OutcomeUnknownError,
    StoreUnavailableError,
    aconnect,
)
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.record import State
from dlock_core.testing import AsyncFaultyStore, FaultyStore
from dlock_sqlite import SqliteStore
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dlock_core import Claim, Reply
    from tests.core.worlds import World

LEASE_S = 20.0


class _Interrupted(BaseException):
    """As a signal handler raises it, or the end of a task."""


class _Several:
    """What may befall a claim of several keys: *fault* is what, and *after* is called behind it."""

    capabilities = frozenset({Capability.ATOMIC_MULTI})
    requests: Any
    store: Any

    def __init__(self, space: Any, fault: str = "", after: Callable[[], object] | None = None) -> None:
        super().__init__(self.inner(space))  # type: ignore[attr-defined, call-arg]  # of what it is mixed into
        self._fault, self._after = fault, after
        self.asked: list[Sequence[Claim]] = []

    def _begin(self, requests: Sequence[Claim]) -> None:
        self.requests["claim_many"] += 1
        self.asked.append(requests)
        if self._fault == "unsent":
            raise StoreUnavailableError("not sent")
        if self._fault == "vanished":
            raise OutcomeUnknownError("no reply")

    def _end(self, replies: Sequence[Reply]) -> Sequence[Reply]:
        if self._after is not None:
            self._after()
        if self._fault == "lost":
            raise OutcomeUnknownError("no reply")
        return replies


class _SyncSeveral(_Several, FaultyStore):
    inner = MemoryStore

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        self._begin(requests)
        return self._end(self.store.claim_many(requests, timeout_s=timeout_s))


class _AsyncSeveral(_Several, AsyncFaultyStore):
    inner = AsyncMemoryStore

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        self._begin(requests)
        return self._end(await self.store.claim_many(requests, timeout_s=timeout_s))


def several(world: World, fault: str = "", after: Callable[[], object] | None = None) -> Any:
    """Return a store of *world* that claims several keys in one step."""
    return (_SyncSeveral if world.colour == "sync" else _AsyncSeveral)(world.space, fault, after)


def states(world: World) -> dict[str, str]:
    """Return what stands."""
    return {key: record.state.value for key, record in sorted(world.space.records.items())}


@both_colours
async def test_all_free_keys_are_one_request(world: World) -> None:
    """And then they are leases like all others: renewed, and each released for itself."""
    store = several(world)
    async with world.client(store, lease_duration=LEASE_S) as client:
        async with client.lock_all(["b", "a", "c"]) as leases:
            assert store.requests == {"claim_many": 1}
            assert [(key, lease.fencing_token, lease.is_valid) for key, lease in leases.items()] == [
                ("a", 1, True),
                ("b", 1, True),
                ("c", 1, True),
            ]
            assert len({claim.record.rvn for claim in store.asked[0]}) == 3
            await world.live(3 * LEASE_S)
            assert all(lease.is_valid for lease in leases.values())
        assert states(world) == dict.fromkeys("abc", "free")
        assert not client._engine.driver.unresolved()


@both_colours
async def test_a_held_key_has_them_taken_one_after_the_other(world: World) -> None:
    """Nothing is held of a request that was refused, and whoever waits for one key holds those before it."""
    store = several(world)
    async with world.client(lease_duration=LEASE_S) as other, world.client(store, lease_duration=LEASE_S) as client:
        held = await other.acquire("b")

        async def use() -> dict[str, int]:
            async with client.lock_all(["a", "b", "c"]) as leases:
                return {key: lease.fencing_token for key, lease in leases.items()}

        using = world.spawn(use())
        await world.until(lambda: client.holds("a"))
        await world.live(1)
        assert states(world) == {"a": "held", "b": "held"}
        await held.release()
        await world.live(LEASE_S)

        assert await using.result() == {"a": 1, "b": 2, "c": 1}
        assert store.requests["claim_many"] == 1
        assert states(world) == dict.fromkeys("abc", "free")


@both_colours
async def test_one_try_of_keys_of_which_one_is_held_names_its_holder(world: World) -> None:
    """As without the one step."""
    async with world.client() as other, world.client(several(world)) as client:
        held = await other.acquire("b")

        with pytest.raises(AcquireTimeoutError) as caught:
            async with client.lock_all(["a", "b"], timeout=0):
                pytest.fail("entered")

        assert (caught.value.key, caught.value.holder and caught.value.holder.fencing_token) == ("b", 1)
        assert held.is_valid
        assert states(world) == {"a": "free", "b": "held"}
        assert not client._engine.driver.unresolved()


@both_colours
async def test_a_lost_answer_is_found_by_a_read_of_each_key(world: World) -> None:
    """It was applied: each finds its own write, with its first token."""
    store = several(world, "lost")
    async with world.client(store, lease_duration=LEASE_S) as client:
        async with client.lock_all(["a", "b", "c"], timeout=0) as leases:
            assert [lease.fencing_token for lease in leases.values()] == [1, 1, 1]
            assert store.requests == {"claim_many": 1, "read": 3}
        assert states(world) == dict.fromkeys("abc", "free")


@both_colours
async def test_a_request_that_got_lost_is_made_good_key_by_key(world: World) -> None:
    """It was not applied: each read shows that, and each key is claimed on the condition that it is absent still."""
    store = several(world, "vanished")
    async with world.client(store, lease_duration=LEASE_S) as client:
        async with client.lock_all(["a", "b"]) as leases:
            assert [lease.fencing_token for lease in leases.values()] == [1, 1]
            assert store.requests == {"claim_many": 1, "read": 2, "claim": 2}
            # What was lost arrives after all.
            world.space.claim_many(store.asked[0])
            assert all(lease.is_valid for lease in leases.values())
        assert states(world) == dict.fromkeys("ab", "free")


@both_colours
async def test_a_request_that_arrives_after_the_caller_has_left_is_cleaned_up(world: World) -> None:
    """Nobody waits for it any more: what it wrote is freed before its lease ends."""
    store = several(world, "vanished")
    async with world.client(store, lease_duration=LEASE_S) as client, world.client(lease_duration=LEASE_S) as other:
        world.space.claim_many([])
        held = await other.acquire("a")
        with pytest.raises(AcquireTimeoutError):
            async with client.lock_all(["a", "b", "c"], timeout=0):
                pytest.fail("entered")
        await held.release()
        world.space.claim_many(store.asked[0])
        assert states(world) == dict.fromkeys("abc", "held")
        await world.live(LEASE_S / 2)

        assert states(world) == dict.fromkeys("abc", "free")


@both_colours
async def test_a_late_duplicate_takes_no_lock_from_its_holder(world: World) -> None:
    """One key is held, so it is refused for all of them."""
    store = several(world)
    async with world.client(store, lease_duration=LEASE_S) as client, client.lock_all(["a", "b"]) as leases:
        await leases["b"].release()
        world.space.claim_many(store.asked[0])

        assert states(world) == {"a": "held", "b": "free"}
        await world.live(LEASE_S)
        assert leases["a"].is_valid


@both_colours
async def test_a_request_that_was_not_sent_costs_nothing(world: World) -> None:
    """The keys are taken as if the store could not do it."""
    store = several(world, "unsent")
    async with world.client(store) as client:
        async with client.lock_all(["a", "b"]) as leases:
            assert len(leases) == 2
        assert store.requests == {"claim_many": 1, "claim": 2, "release": 2}


@both_colours
@pytest.mark.parametrize(("count", "asked"), [(1, 0), (2, 1), (64, 1), (65, 0)])
async def test_from_two_to_sixty_four_keys_are_asked_for_at_once(world: World, count: int, asked: int) -> None:
    """One is a claim, and more than the port allows are taken in their order."""
    store = several(world)
    async with world.client(store) as client, client.lock_all([f"{number:03}" for number in range(count)]):
        assert store.requests["claim_many"] == asked
        assert store.requests["claim"] == (0 if asked else count)


@both_colours
async def test_locks_without_a_lease_are_not_asked_for_at_once(world: World) -> None:
    """Their claims expect what was seen: a late duplicate would hold them for ever."""
    store = several(world)
    async with world.client(store, fail_closed=True) as client, client.lock_all(["a", "b"]):
        assert store.requests == {"claim": 2}


@both_colours
async def test_what_this_client_holds_already_is_joined(world: World) -> None:
    """One step would wait for itself."""
    store = several(world)
    async with world.client(store, reentrant=True) as client, client.lock("b") as outer:
        async with client.lock_all(["a", "b"]) as leases:
            assert leases["b"].fencing_token == outer.fencing_token
        assert outer.is_valid
        assert store.requests["claim_many"] == 0


@both_colours
async def test_a_late_answer_is_confirmed_for_each_key(world: World) -> None:
    """So little of the leases is left that they are renewed before the block begins."""
    store = several(world, after=lambda: world.clock.advance(0.6 * LEASE_S))
    async with world.client(store, lease_duration=LEASE_S) as client, client.lock_all(["a", "b"]) as leases:
        assert store.requests == {"claim_many": 1, "replace": 2}
        assert all(lease.remaining > 0.8 * LEASE_S for lease in leases.values())


@both_colours
async def test_an_interrupt_before_the_answer_is_cleaned_up(world: World) -> None:
    """The caller has gone, and the store has applied it."""
    applied: list[dict[str, str]] = []

    def interrupt() -> None:
        applied.append(states(world))
        raise _Interrupted

    async with world.client(several(world, after=interrupt), lease_duration=LEASE_S) as client:
        with pytest.raises(_Interrupted):
            async with client.lock_all(["a", "b"]):
                pytest.fail("entered")
        assert applied == [dict.fromkeys("ab", "held")]
        await world.live(LEASE_S / 4)

        assert states(world) == dict.fromkeys("ab", "free")
        assert {record.state for record in world.space.records.values()} == {State.FREE}


@both_colours
async def test_a_failure_at_one_key_gives_back_those_that_follow(world: World) -> None:
    """They were granted in the same step, and nobody gets them."""
    store = several(world, after=lambda: world.clock.advance(0.6 * LEASE_S))
    async with world.client(store, lease_duration=LEASE_S) as client:
        store.fail("replace", 8)
        with pytest.raises((AcquireTimeoutError, StoreUnavailableError)):
            async with client.lock_all(["a", "b", "c"], timeout=0):
                pytest.fail("entered")
        await world.live(LEASE_S / 4)

        assert states(world) == dict.fromkeys("abc", "free")


@both_colours
async def test_a_client_closed_meanwhile_hands_nothing_out(world: World) -> None:
    """What was granted after that is given back."""
    store = several(world, after=lambda: setattr(client._engine, "closed", True))
    async with world.client(store, lease_duration=LEASE_S) as client:
        with pytest.raises(LeaseStateError, match="closed"):
            async with client.lock_all(["a", "b"]):
                pytest.fail("entered")
        await world.live(LEASE_S / 4)
        assert states(world) == dict.fromkeys("ab", "free")


@both_colours
@pytest.mark.parametrize("fault", ["", "lost", "unsent"])
async def test_each_key_is_told_of_once(world: World, fault: str) -> None:
    """Asked for, granted, released: whether it came by one step or not."""
    told: list[tuple[str, str]] = []
    store = several(world, fault)
    options: dict[str, Any] = {"on_event": lambda event: told.append((event.key, event.kind.value))}
    async with world.client(store, **options) as client:
        async with client.lock_all(["a", "b"]):
            pass
        await world.until(lambda: len(told) >= 6)

    assert sorted(told) == sorted((key, kind) for key in "ab" for kind in ("requested", "granted", "released"))
    assert [kind for key, kind in told if key == "a"] == ["requested", "granted", "released"]


def test_a_store_for_threads_claims_several_keys_for_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one call, on a thread."""
    asked: list[int] = []
    claim_many = SqliteStore.claim_many

    def counted(self: SqliteStore, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        asked.append(len(requests))
        return claim_many(self, requests, timeout_s=timeout_s)

    monkeypatch.setattr(SqliteStore, "claim_many", counted)

    async def use() -> None:
        async with await aconnect(f"sqlite:///{tmp_path}/locks.db") as client, client.lock_all(["a", "b"]) as leases:
            assert [lease.fencing_token for lease in leases.values()] == [1, 1]

    asyncio.run(use())
    assert asked == [2]


@both_colours
async def test_closed_client_claims_nothing(world: World) -> None:
    """Nobody would have it."""
    store = several(world)
    async with world.client(store) as client:
        pass
    with pytest.raises(LeaseStateError, match="closed"):
        async with client.lock_all(["a", "b"]):
            pass
    assert not store.requests
