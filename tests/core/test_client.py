"""The client's methods, in both colours from one text."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import logging
import pickle
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    KEEP,
    AcquireTimeoutError,
    AsyncLockClient,
    ConfigurationError,
    DLockError,
    Grade,
    LeaseStateError,
    LockLostError,
    LossReason,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TokenOrder,
    UnsafeStoreError,
    UnsupportedError,
    aconnect,
    connect,
)
from dlock_core.client import Lease, LockClient
from dlock_core.engine.handle import unresolved_error
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.record import NO_TOKEN
from dlock_core.testing import FakeClock
from dlock_core.timings import NANOS
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dlock_core import LockRecord
    from dlock_core.store import Claim, Reply
    from tests.core.worlds import World

SECRET = "S3CRETw0rd"


# ---- asking for a lock


@both_colours
async def test_lock_yields_the_lease_and_releases_it(world: World) -> None:
    """The block holds the key, and after it the key is free with its token kept."""
    async with world.client(owner="a") as client:
        async with client.lock("billing/42", lease_duration=10) as lease:
            assert (lease.key, lease.owner, lease.fencing_token) == ("billing/42", "a", 1)
            assert lease.is_valid
            assert lease.lease_duration == 10
            assert client.holds("billing/42")
            record = await client.get("billing/42")
            assert record is not None
            assert (record.state, record.owner, record.lease_ms) == ("held", "a", 10_000)

        assert not lease.is_valid
        assert lease.remaining == 0.0
        assert not client.holds("billing/42")
        record = await client.get("billing/42")
        assert record is not None
        assert (record.state, record.fencing_token, record.owner, record.lease_ms) == ("free", 1, "", None)


@both_colours
async def test_lock_does_nothing_until_it_is_entered(world: World) -> None:
    """Asking for a lock is not holding it."""
    async with world.client() as client:
        client.lock("k")

        assert not world.store.requests


@both_colours
async def test_lock_entered_twice_is_refused(world: World) -> None:
    """A lock is for one block; the second use is a mistake, told as such."""
    async with world.client() as client:
        lock = client.lock("k")
        async with lock:
            pass

        with pytest.raises(LeaseStateError, match="used before"):
            async with lock:
                pass
        locks = client.lock_all(["k"])
        async with locks:
            pass
        with pytest.raises(LeaseStateError, match="used before"):
            async with locks:
                pass


@both_colours
async def test_acquire_of_a_free_key_costs_one_request(world: World) -> None:
    """An uncontended cycle is one claim and one release."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        assert world.store.requests == {"claim": 1, "release": 1}


@both_colours
async def test_tokens_rise_with_each_grant(world: World) -> None:
    """Each grant of a key has a greater token, whoever obtains it and however the last one ended."""
    async with world.client() as a, world.client() as b:
        tokens = []
        for client in (a, b, a):
            async with client.lock("k") as lease:
                tokens.append(lease.fencing_token)

        assert tokens == [1, 2, 3]


@both_colours
async def test_f11_tokens_begin_at_the_floor(world: World) -> None:
    """A client that came from another store goes on above its tokens; one without the floor then goes on above these."""
    async with world.client(token_floor=500) as client, world.client() as other:
        first = await client.acquire("k")
        await first.release()
        second = await other.acquire("k")

        assert (first.fencing_token, second.fencing_token) == (500, 501)
        await second.release()


@both_colours
async def test_acquire_is_a_context_manager_itself(world: World) -> None:
    """What ``acquire`` returns releases at the end of its block."""
    async with world.client() as client:
        lease = await client.acquire("k")
        async with lease as same:
            assert raw(same) is raw(lease)
            assert client.holds("k")

        assert not client.holds("k")


@both_colours
async def test_acquire_of_a_held_key_raises_with_all_facts(world: World) -> None:
    """Who waited in vain learns which key, how long, and who holds it."""
    async with world.client(owner="a") as a, world.client(owner="b") as b:
        held = await a.acquire("billing/42")

        with pytest.raises(AcquireTimeoutError) as caught:
            await b.acquire("billing/42", timeout=0)

        error = caught.value
        assert (error.key, error.timeout, error.outcome_unknown) == ("billing/42", 0.0, False)
        assert error.holder is not None
        assert (error.holder.owner, error.holder.fencing_token) == ("a", held.fencing_token)
        assert str(error) == "could not acquire lock 'billing/42' in one try: held by 'a'"
        assert isinstance(error, TimeoutError)


@both_colours
async def test_acquire_waits_until_the_key_is_released(world: World) -> None:
    """A waiter obtains the key once it is free, with a greater token."""
    async with world.client(owner="a") as a, world.client(owner="b") as b:
        held = await a.acquire("k")
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.until(lambda: world.store.requests["claim"] == 2)
        await held.release()

        for _ in range(30):
            if waiting.done:
                break
            await world.live(0.5)
        lease = await waiting.result()

        assert lease.fencing_token == 2
        assert b.holds("k")


@both_colours
async def test_acquire_gives_up_when_its_time_is_over(world: World) -> None:
    """The timeout bounds the wait, though the holder stays alive."""
    async with world.client(owner="a") as a, world.client(owner="b") as b:
        held = await a.acquire("k")
        waiting = world.spawn(b.acquire("k", timeout=7))
        await world.until(lambda: world.store.requests["claim"] == 2)

        await world.live(6.75)
        assert not waiting.done
        await world.live(0.5)
        with pytest.raises(AcquireTimeoutError, match=r"within 7\.0 s: held by 'a' \(record changed \d+ times"):
            await waiting.result()

        assert held.is_valid


@both_colours
async def test_try_acquire_of_a_held_key_returns_none_after_one_request(world: World) -> None:
    """A try never waits, and costs one request."""
    async with world.client() as a, world.client() as b:
        held = await a.acquire("k")

        assert await b.try_acquire("k") is None

        assert world.store.requests == {"claim": 2}
        assert held.is_valid


@both_colours
async def test_try_acquire_of_a_free_key_returns_the_lease(world: World) -> None:
    """A try of a free key is an acquire."""
    async with world.client() as client:
        lease = await client.try_acquire("k", lease_duration=5)

        assert lease is not None
        assert lease.lease_duration == 5
        await lease.release()


@both_colours
async def test_try_acquire_with_a_timeout_is_refused(world: World) -> None:
    """A try that waits would be something else."""
    async with world.client() as client:
        with pytest.raises(ConfigurationError, match=r"never waits.*acquire\(\)"):
            await client.try_acquire("k", timeout=1)


@both_colours
async def test_try_acquire_on_none_fails_loudly_in_a_with(world: World) -> None:
    """There is no truth value that a ``with`` could overlook: a block never runs without the lock."""
    async with world.client() as a, world.client() as b:
        held = await a.acquire("k")

        with pytest.raises((TypeError, AttributeError)):
            async with await b.try_acquire("k"):  # type: ignore[union-attr]  # the mistake in question
                pytest.fail("the block ran without the lock")

        assert held.is_valid
        assert "__bool__" not in dir(type(raw(held)))


@both_colours
async def test_try_acquire_repeated_over_a_lease_takes_over_from_a_dead_holder(world: World) -> None:
    """Tries that never wait still find out that a holder is dead (hazard 13)."""
    async with world.client(auto_renew=False, lease_duration=10) as a, world.client(owner="b") as b:
        dead = await a.acquire("k")
        assert await b.try_acquire("k") is None
        await world.jump(9.9)
        assert await b.try_acquire("k") is None
        await world.jump(0.2)

        lease = await b.try_acquire("k")

        assert lease is not None
        assert lease.fencing_token == dead.fencing_token + 1
        assert not dead.is_valid


@both_colours
async def test_waiter_never_takes_over_from_a_holder_that_renews(world: World) -> None:
    """However long it waits, a living holder keeps the key."""
    async with world.client(lease_duration=4) as a, world.client() as b:
        held = await a.acquire("k")
        waiting = world.spawn(b.acquire("k", timeout=30))
        await world.until(lambda: world.store.requests["claim"] == 2)

        await world.live(31)

        with pytest.raises(AcquireTimeoutError):
            await waiting.result()
        assert held.is_valid


@both_colours
async def test_waiter_takes_over_one_lease_after_it_saw_the_last_renewal(world: World) -> None:
    """A dead holder's key is free a lease after it was last seen alive, and the holder knows before that it is not valid."""
    async with world.client(auto_renew=False, lease_duration=10) as a, world.client() as b:
        dead = await a.acquire("k")
        await world.jump(5)
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.until(lambda: world.store.requests["claim"] == 2)

        await world.live(9.5)
        assert not waiting.done
        assert not dead.is_valid
        await world.live(1)
        lease = await waiting.result()

        assert lease.fencing_token == 2


# ---- several keys


@both_colours
async def test_lock_all_holds_all_keys_in_one_order(world: World) -> None:
    """Every client takes the keys in the order of their bytes, so that no two wait for each other."""
    async with world.client() as client:
        async with client.lock_all(["b", "Z", "ä", "a"]) as leases:
            assert list(leases) == ["Z", "a", "b", "ä"]
            assert all(lease.is_valid and lease.key == key for key, lease in leases.items())
            assert [client.holds(key) for key in "abZä"] == [True] * 4

        assert [client.holds(key) for key in "abZä"] == [False] * 4
        assert world.store.requests["release"] == 4


@both_colours
async def test_lock_all_holds_none_if_one_cannot_be_had(world: World) -> None:
    """All or none: what was won is given back at once."""
    async with world.client(owner="a") as a, world.client() as b:
        held = await a.acquire("b")

        with pytest.raises(AcquireTimeoutError) as caught:
            async with b.lock_all(["a", "b", "c"], timeout=0):
                pytest.fail("entered")

        assert caught.value.key == "b"
        states = {record.key: record.state.value async for record in b.scan()}
        assert states == {"a": "free", "b": "held"}
        assert held.is_valid


@both_colours
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "at least one key"),
        (["a", "b", "a"], "'a' is asked for twice"),
        ("abc", r"write \['abc'\]"),
        ([""], "at least one character"),
    ],
)
async def test_lock_all_of_bad_keys_is_refused_at_once(world: World, keys: Any, message: str) -> None:
    """What could only wait for itself, or is no list of keys, is refused before any request."""
    async with world.client() as client:
        with pytest.raises(ConfigurationError, match=message):
            client.lock_all(keys)

        assert not world.store.requests


@both_colours
async def test_lock_all_renews_what_it_won_while_it_waits_for_the_rest(world: World) -> None:
    """A key won first is still held when the last one comes, a lease later and more."""
    async with world.client() as a, world.client(lease_duration=4) as b:
        held = await a.acquire("z")

        async def use_both() -> dict[str, int]:
            async with b.lock_all(["a", "z"]) as leases:
                assert all(lease.remaining >= 1.9 for lease in leases.values())
                return {key: lease.fencing_token for key, lease in leases.items()}

        using = world.spawn(use_both())
        await world.until(lambda: b.holds("a"))
        await world.live(12)
        assert b.holds("a")
        await held.release()
        for _ in range(40):
            if using.done:
                break
            await world.live(0.5)

        assert await using.result() == {"a": 1, "z": 2}


@both_colours
async def test_lock_all_of_a_lock_lost_within_raises_its_loss(world: World) -> None:
    """A block over several keys ends in LockLostError if one of them was lost; the others are released."""
    async with world.client(lease_duration=10, auto_renew=False) as client:

        async def body() -> None:
            async with client.lock_all(["a", "b"]) as leases:
                await leases["b"].renew(lease_duration=60)
                await world.jump(11)

        with pytest.raises(LockLostError) as caught:
            await body()

        assert caught.value.loss.key == "a"
        record = await client.get("b")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_lock_all_joins_what_this_client_holds_reentrantly(world: World) -> None:
    """It does not wait for itself, and leaves what it joined to the outer block."""
    async with world.client(reentrant=True) as client:
        async with client.lock("b") as outer:
            async with client.lock_all(["a", "b"], timeout=0) as leases:
                assert leases["b"].fencing_token == outer.fencing_token
            assert outer.is_valid
            assert not client.holds("a")

        assert world.store.requests == {"claim": 2, "release": 2}


@both_colours
async def test_lock_all_that_fails_leaves_what_it_joined_to_the_outer_block(world: World) -> None:
    """All or none is of what it took itself."""
    async with world.client(reentrant=True) as client, world.client() as other:
        held = await other.acquire("c")
        async with client.lock("a") as outer:
            with pytest.raises(AcquireTimeoutError):
                async with client.lock_all(["a", "b", "c"], timeout=0):
                    pytest.fail("entered")
            assert outer.is_valid
            assert not client.holds("b")
        assert held.is_valid


@both_colours
async def test_lock_all_with_a_bound_on_the_body_is_entered(world: World) -> None:
    """``max_hold`` may be shorter than what the leases have left."""
    async with world.client(lease_duration=20, max_hold=2) as client, client.lock_all(["a", "b"]) as leases:
        assert all(1.9 < lease.remaining <= 2 for lease in leases.values())


@both_colours
async def test_lock_all_starts_again_when_a_key_was_lost_while_it_waited(world: World) -> None:
    """One that was broken meanwhile is obtained anew, within the same time."""
    async with world.client(lease_duration=4) as client, world.client(lease_duration=4) as other:
        held = await other.acquire("z", fail_closed=True)

        async def use_both() -> dict[str, int]:
            async with client.lock_all(["a", "z"], timeout=60) as leases:
                return {key: lease.fencing_token for key, lease in leases.items()}

        using = world.spawn(use_both())
        await world.until(lambda: client.holds("a"))
        assert await other.break_lock("a", fencing_token=1, now=True)
        await world.live(2)
        await held.release()
        for _ in range(60):
            if using.done:
                break
            await world.live(0.5)

        tokens = await using.result()
        assert tokens["a"] >= 3


@both_colours
async def test_lock_all_whose_key_was_lost_as_the_time_ran_out_is_a_timeout(world: World) -> None:
    """The wait was in vain, and why is its cause; nothing of it stays held."""

    def before(verb: str, request: Any) -> None:
        if verb == "claim" and request.record.key == "z":
            record = world.space.records["a"]
            world.space.records["a"] = dataclasses.replace(record, rvn="stolen", fencing_token=2, owner="thief")
            world.clock.advance(6)

    async with world.client(world.hooked_store(before), lease_duration=8) as client, world.client() as other:
        with pytest.raises(
            AcquireTimeoutError, match=r"could not hold 2 locks together within 6\.0 s: lock 'a'"
        ) as caught:
            async with client.lock_all(["a", "z"], timeout=5):
                pytest.fail("entered")

        assert isinstance(caught.value.__cause__, LockLostError)
        assert {record.key: record.state.value async for record in other.scan()} == {"a": "held", "z": "free"}


@both_colours
async def test_lock_all_with_a_key_that_an_outer_block_lost_raises_that_loss(world: World) -> None:
    """Waiting would be for itself; what it took besides is given back."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:
        outer = await client.acquire("b")
        await world.jump(10)

        with pytest.raises(LockLostError) as caught:
            async with client.lock_all(["a", "b"]):
                pytest.fail("entered")

        assert caught.value.loss.key == "b"
        assert not client.holds("a")
        with pytest.raises(LockLostError):
            await outer.release()


@both_colours
async def test_lock_all_that_fails_follows_up_what_it_could_not_release(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error is told; a release without an answer is made later."""
    async with world.client(lease_duration=10) as client, world.client() as other:
        held = await other.acquire("b")
        world.store.fail("release", 2)

        with pytest.raises(AcquireTimeoutError):
            async with client.lock_all(["a", "b"], timeout=0):
                pytest.fail("entered")
        await world.live(3)

        assert "the release of lock 'a' was not confirmed; it is followed up" in caplog.text
        record = await other.get("a")
        assert record is not None
        assert record.state == "free"
        await held.release()


@both_colours
async def test_lock_all_of_which_several_are_lost_tells_of_each(world: World) -> None:
    """The first loss leaves, with the others as its notes."""
    async with world.client(lease_duration=10, auto_renew=False) as client:

        async def body() -> None:
            async with client.lock_all(["a", "b", "c"]):
                await world.jump(10)

        with pytest.raises(LockLostError) as caught:
            await body()

        assert {"lock 'a' (token 1)" in note or "lock 'b' (token 1)" in note for note in caught.value.__notes__} == {
            True
        }
        assert len(caught.value.__notes__) == 2


@both_colours
async def test_lock_all_of_dead_holders_keys_waits_one_lease_for_all_of_them(world: World) -> None:
    """All keys are observed from the beginning, so that they come free together."""
    async with world.client(auto_renew=False, lease_duration=10) as dead, world.client(lease_duration=10) as client:
        for key in "abc":
            raw(await dead.acquire(key))._closed = True

        async def use_all() -> list[int]:
            async with client.lock_all(["a", "b", "c"], timeout=60) as leases:
                return [lease.fencing_token for lease in leases.values()]

        using = world.spawn(use_all())
        await world.until(lambda: world.store.requests["read"] >= 2)
        await world.live(11)

        assert using.done
        assert await using.result() == [2, 2, 2]


# ---- looking at locks and breaking them


@both_colours
async def test_holds_makes_no_request(world: World) -> None:
    """Whether this client holds a key is known without the store."""
    async with world.client() as a, world.client() as b:
        held = await a.acquire("k")
        before = sum(world.store.requests.values())

        assert (a.holds("k"), b.holds("k"), a.holds("other")) == (True, False, False)

        assert sum(world.store.requests.values()) == before
        assert held.is_valid


@both_colours
async def test_holds_turns_false_at_the_deadline(world: World) -> None:
    """A lock whose lease ran out is not held, whether or not anybody noticed."""
    async with world.client(auto_renew=False, lease_duration=10) as client:
        lease = await client.acquire("k")
        world.clock.advance(9.81)

        assert not client.holds("k")
        assert not lease.is_valid


@both_colours
async def test_get_shows_the_record_and_none_for_an_unknown_key(world: World) -> None:
    """A look at a key gives a value that cannot be released by mistake."""
    async with world.client(owner="a") as client:
        assert await client.get("k") is None

        async with client.lock("k", data=b"x", attributes={"n": 1, "a": "b"}):
            record = await client.get("k")

        assert record is not None
        assert (record.key, record.held, record.data) == ("k", True, b"x")
        assert record.attributes == (("a", "b"), ("n", 1))
        assert not hasattr(record, "release")


@both_colours
async def test_prefix_stands_before_every_key_of_the_store_and_of_none_of_the_callers(world: World) -> None:
    """A client's prefix is seen in the store, and by nobody who uses that client."""
    async with world.client(prefix="app/") as client, world.client() as other, client.lock("k") as lease:
        assert lease.key == "k"
        seen = await client.get("k")
        assert seen is not None
        assert seen.key == "k"
        assert [record.key async for record in client.scan()] == ["k"]
        assert [record.key async for record in client.scan("app")] == []
        assert [record.key async for record in other.scan()] == ["app/k"]
        assert client.holds("k")
        assert not other.holds("app/k")


@both_colours
async def test_scan_gives_the_records_with_the_prefix(world: World) -> None:
    """Operators list keys by prefix; nothing in it is a wildcard."""
    async with world.client() as client:
        for key in ("a/1", "a/2", "a%", "b/1"):
            async with client.lock(key):
                pass

        assert [record.key async for record in client.scan("a/")] == ["a/1", "a/2"]
        assert [record.key async for record in client.scan("a%")] == ["a%"]
        assert len([record.key async for record in client.scan()]) == 4


@both_colours
async def test_scan_refuses_what_no_key_begins_with(world: World) -> None:
    """Before the store is asked, which could make nothing of it."""
    async with world.client() as client:
        for prefix in ("a\ud800", "a\n", "x" * 1025, None):
            with pytest.raises(ConfigurationError):
                [record async for record in client.scan(prefix)]  # type: ignore[arg-type]

        assert [record async for record in client.scan("")] == []


@both_colours
async def test_break_closes_the_key_for_one_lease_and_raises_the_token(world: World) -> None:
    """By the time anybody else can hold a broken key, its holder has stopped; it is told that it was broken."""
    async with world.client(owner="a", lease_duration=8) as a, world.client(owner="op") as operator:
        lease = await a.acquire("k")

        assert await operator.break_lock("k", fencing_token=lease.fencing_token)

        record = await operator.get("k")
        assert record is not None
        assert (record.state, record.fencing_token) == ("held", 2)
        assert record.broken is not None
        assert record.broken.by == "op"
        assert await operator.try_acquire("k") is None
        await world.live(2.5)
        assert lease.loss is not None
        assert (lease.loss.reason, lease.loss.fencing_token) == (LossReason.BROKEN, 1)
        await world.jump(8)
        again = await operator.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3


@both_colours
async def test_break_refuses_what_can_be_no_token(world: World) -> None:
    """Above all True, which compares equal to the first token: nobody has looked at the grant that it would break."""
    async with world.client() as client:
        lease = await client.acquire("k")
        for token in (True, "1", 1.0, -1, None):
            with pytest.raises(ConfigurationError, match=r"fencing_token.*whole number"):
                await client.break_lock("k", fencing_token=token)  # type: ignore[arg-type]

        await lease.renew()
        await lease.release()


@both_colours
async def test_break_now_frees_the_key_at_once(world: World) -> None:
    """With *now* nobody waits, and the holder learns of it at its next renewal."""
    async with world.client(lease_duration=8) as a, world.client() as operator:
        lease = await a.acquire("k")

        assert await operator.break_lock("k", fencing_token=1, now=True)

        again = await operator.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3
        await world.live(2.5)
        assert lease.loss is not None
        assert lease.loss.reason in (LossReason.BROKEN, LossReason.STOLEN)


@both_colours
async def test_break_of_a_grant_that_does_not_stand_changes_nothing(world: World) -> None:
    """The token names the grant that is meant: another, an unknown key and a free one are left alone."""
    async with world.client() as client:
        lease = await client.acquire("k")

        assert not await client.break_lock("k", fencing_token=2)
        assert not await client.break_lock("other", fencing_token=1)
        await lease.ensure(60)
        await lease.release()
        assert not await client.break_lock("k", fencing_token=1)


@both_colours
async def test_break_of_a_record_that_has_changed_changes_nothing(world: World) -> None:
    """With an RVN exactly the record that was seen is meant, and a renewal makes another of it."""
    async with world.client() as client:
        lease = await client.acquire("k")
        seen = await client.get("k")
        await lease.renew()
        now = await client.get("k")
        assert seen is not None
        assert now is not None

        assert not await client.break_lock("k", fencing_token=1, rvn=seen.rvn)
        assert await client.get("k") == now
        assert not await client.break_lock("k", fencing_token=2, rvn=now.rvn)
        assert not await client.break_lock("other", fencing_token=1, rvn=now.rvn)
        assert not await client.break_lock("k", fencing_token=NO_TOKEN, rvn=now.rvn)
        assert await client.break_lock("k", fencing_token=1, rvn=now.rvn)


@both_colours
async def test_break_by_rvn_that_meets_a_renewal_changes_nothing(world: World) -> None:
    """The record is compared in the write itself, and what came between is not broken in its stead."""
    leases: list[Any] = []

    def renew(verb: str, _: Any) -> None:
        if verb == "replace" and leases:
            world.space.records["k"] = dataclasses.replace(world.space.records["k"], rvn="f" * 32)

    async with world.client() as client, world.client(world.hooked_store(renew)) as operator:
        leases.append(await client.acquire("k"))
        seen = await client.get("k")
        assert seen is not None

        assert not await operator.break_lock("k", fencing_token=1, rvn=seen.rvn)


@both_colours
async def test_break_whose_answer_was_lost_still_breaks_once(world: World) -> None:
    """A break that was applied unheard is recognised, and the token rises by one."""
    async with world.client() as a, world.client() as operator:
        lease = await a.acquire("k")
        world.store.lose_reply("replace")

        assert await operator.break_lock("k", fencing_token=1)

        record = await operator.get("k")
        assert record is not None
        assert record.fencing_token == lease.fencing_token + 1


@both_colours
async def test_guarantees_say_what_the_store_promises(world: World) -> None:
    """What may be relied on can be asked for."""
    async with world.client() as client:
        guarantees = await client.guarantees()
        await client.provision()
        await client.provision()

    assert (guarantees.store, guarantees.grade, guarantees.token) == ("memory", Grade.A, TokenOrder.ORDERED)


# ---- closing


@both_colours
async def test_close_releases_all_that_is_held(world: World) -> None:
    """A closed client holds nothing, and its leases say so."""
    async with world.client() as client, world.client() as other:
        leases = [await client.acquire(key) for key in "abc"]

        await client.close()
        await client.close()

        assert [lease.is_valid for lease in leases] == [False] * 3
        assert {record.state.value async for record in other.scan()} == {"free"}
        await leases[0].release()
        with pytest.raises(LeaseStateError):
            await leases[1].ensure()


@both_colours
async def test_close_within_a_block_makes_its_end_silent(world: World) -> None:
    """The lease was given back before the block ended, by whoever closed the client."""
    async with world.client() as client, client.lock("k") as lease:
        await client.close()

        assert not lease.is_valid


@both_colours
async def test_close_goes_on_after_an_error_and_raises_them_all(world: World) -> None:
    """One release without an answer does not keep the others from being released."""
    async with world.client() as other:
        client = world.client()
        await client.__aenter__()
        leases = [await client.acquire(key) for key in "abc"]
        world.store.fail("release", 2)

        with pytest.raises(ExceptionGroup) as caught:
            await client.close()

        assert all(isinstance(error, StoreUnavailableError) for error in caught.value.exceptions)
        states = [record.state.value async for record in other.scan()]
        assert sorted(states) in (["free", "free", "free"], ["free", "free", "held"])
        assert not any(lease.is_valid for lease in leases)
        await client.close()


@async_only
async def test_close_looks_after_what_is_unresolved_for_one_request_time_out(world: World) -> None:
    """However many attempts were given up: each look may take its whole time where the store hangs."""
    hangs = [False]

    def before(verb: str, request: Any) -> None:
        if hangs[0]:
            world.clock.advance(3)  # a little less than its time-out
            raise OutcomeUnknownError("no answer")

    client = await world.client(world.hooked_store(before), lease_duration=20)
    hangs[0] = True
    for number in range(5):
        with pytest.raises(StoreError):
            await client.acquire(f"k{number}", timeout=0)
    began = world.clock.now()
    await client.close()

    assert (world.clock.now() - began) / NANOS < 7  # a request time-out, and a request that was under way by then


def test_close_with_a_store_that_hangs_takes_a_few_request_time_outs_for_all() -> None:
    """However many locks are held: what was not given back lapses, and is named."""
    tries = []
    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, lease_duration=20, auto_renew=False)
        leases = [client.acquire(f"k{number}") for number in range(10)]

        def hang(request: Any, *, timeout_s: float) -> Any:
            if threading.current_thread() is threading.main_thread():
                tries.append(request.record.key)
                clock.advance(timeout_s)
            raise OutcomeUnknownError("no answer", key=request.record.key)

        store.release = hang  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as caught:
            client.close()

        assert len(tries) < 5
        assert {getattr(error, "key", "") for error in caught.value.exceptions} == {lease.key for lease in leases}
        assert not any(lease.is_valid for lease in leases)


def test_close_without_time_names_a_lock_without_a_lease_as_held() -> None:
    """It never lapses: an operator has to know its token."""
    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, fail_closed=True)
        lease = client.acquire("k")

        def fail(request: Any, *, timeout_s: float) -> Any:
            raise OutcomeUnknownError("no answer", key=request.record.key)

        store.release = fail  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as caught:
            client._close(until=clock.now())

        assert ["lapses" in str(error) for error in caught.value.exceptions] == [False]
        assert f"token {lease.fencing_token}" in str(caught.value.exceptions[0])


def test_close_while_another_thread_ends_a_clean_up_closes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still followed changes while it is told: the renewals go on until then, and other threads end as they like."""

    def fail(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("no answer")

    with FakeClock() as clock:
        store = MemoryStore()
        client = clock.client(store, lease_duration=20, fail_closed=True)
        store.claim = store.read = fail  # type: ignore[assignment, method-assign]
        for number in range(3):
            with pytest.raises(StoreError):
                client.acquire(f"k{number}", timeout=0)
        following, told = client._engine.driver.following, unresolved_error

        def slowly(state: Any) -> Any:
            following.difference_update([handle for handle in following if handle.state is not state])
            return told(state)

        monkeypatch.setattr("dlock_core.engine.engine.unresolved_error", slowly)
        with pytest.raises(ExceptionGroup):
            client.close()

        assert client._runtime._closed


@both_colours
async def test_close_as_a_block_ends_keeps_the_exception_of_the_body(world: World) -> None:
    """What fails in closing is a note on what the body raised, never in its place."""
    leases = []

    async def body() -> None:
        async with world.client() as client:
            leases.append(await client.acquire("k"))
            world.store.fail("release", 9)
            raise KeyError("body")

    with pytest.raises(KeyError) as caught:
        await body()

    assert any("closing the client failed too" in note for note in caught.value.__notes__)
    assert not leases[0].is_valid


@both_colours
async def test_closed_client_refuses_every_call(world: World) -> None:
    """After close nothing reaches the store, and each call says what to do."""
    async with world.client() as client:
        pass

    async def scan() -> None:
        async for _ in client.scan():
            pass

    calls = [
        lambda: client.acquire("k"),
        lambda: client.try_acquire("k"),
        lambda: client.get("k"),
        lambda: client.break_lock("k", fencing_token=1),
        client.guarantees,
        client.provision,
        scan,
    ]
    for call in calls:
        with pytest.raises(LeaseStateError, match=r"closed.*connect\(\)"):
            await call()
    with pytest.raises(LeaseStateError, match="closed"):
        async with client:
            pass
    assert not world.store.requests
    assert not client.holds("k")


@both_colours
async def test_close_ends_a_wait_for_a_lock(world: World) -> None:
    """Who waits in a client that is closed is told, and leaves nothing behind."""
    async with world.client() as a:
        held = await a.acquire("k")
        b = world.client()
        await b.__aenter__()
        waiting = world.spawn(b.acquire("k"))
        await world.until(lambda: world.store.requests["claim"] == 2)

        await b.close()

        with pytest.raises(LeaseStateError, match="closed while lock 'k'"):
            await waiting.result()
        await held.release()
        again = await a.try_acquire("k")
        assert again is not None


@pytest.mark.parametrize("kind", [LockClient, AsyncLockClient])
@pytest.mark.parametrize("store", ["memory://", object()], ids=["url", "other"])
def test_client_of_what_is_no_store_says_what_takes_it(kind: type[LockClient], store: Any) -> None:
    """A URL goes to ``connect()``, a driver's client to a store."""
    with pytest.raises(ConfigurationError, match=r"is no store.*connect\(\)"):
        kind(store)


def test_close_leaves_nothing_to_look_for_of_a_wait() -> None:
    """A claim that was not sent any more is not taken for one under way, for which a second close would look."""
    clock, claims = FakeClock(), 0

    class Closing(MemoryStore):
        """Waits its time out, and meanwhile its client is closed."""

        def claim(self, request: Claim, *, timeout_s: float) -> Reply:
            nonlocal claims
            claims += 1
            return super().claim(request, timeout_s=timeout_s)

        def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
            assert (record.key, ticket != "") == ("k", True)
            b.close()
            clock.advance(timeout_s)

    held = MemoryStore()
    with clock.client(held) as a, a.lock("k"):
        b = clock.client(Closing(held.space))
        with pytest.raises(LeaseStateError, match="closed while lock 'k'"):
            b.acquire("k")

        assert claims == 1
        assert not b._engine.driver.following


# ---- options at work


@both_colours
async def test_data_and_attributes_are_written_and_kept_through_renewals(world: World) -> None:
    """What the record carries is what was asked for, and a renewal leaves it alone."""
    async with world.client(lease_duration=4) as client:
        lease = await client.acquire("k", data=b"\x00x", attributes={"b": True, "a": b"1", "c": -5})
        await world.live(5)

        record = await client.get("k")
        assert record is not None
        assert record.data == lease.data == b"\x00x"
        assert dict(record.attributes) == lease.attributes == {"a": b"1", "b": True, "c": -5}
        assert world.store.requests["replace"] >= 4
        await lease.release()
        record = await client.get("k")
        assert record is not None
        assert record.data == b"\x00x"


@both_colours
async def test_replace_data_false_keeps_what_the_record_had(world: World) -> None:
    """A holder that does not replace finds what the last one left, and so does the record."""
    async with world.client() as client:
        async with client.lock("k", data=b"old", attributes={"by": "a"}):
            pass

        async with client.lock("k", data=b"new", replace_data=False) as lease:
            assert (lease.data, lease.attributes) == (b"old", {"by": "a"})
            await lease.ensure(60)
            record = await client.get("k")
            assert record is not None
            assert record.data == b"old"
        async with client.lock("fresh", data=b"new", replace_data=False) as lease:
            assert lease.data == b"new"
        async with client.lock("k") as lease:
            assert (lease.data, lease.attributes) == (None, {})


@both_colours
async def test_release_data_replaces_what_stays_behind(world: World) -> None:
    """The last word of a holder is kept in the free record; KEEP, the default, leaves what there was."""
    async with world.client() as client:
        for given, left in ((b"done", b"done"), (None, None), (KEEP, b"first")):
            lease = await client.acquire("k", data=b"first", attributes={"a": 1})
            await lease.release(data=given)

            record = await client.get("k")
            assert record is not None
            assert record.data == left
            assert record.attributes == (("a", 1),)


@both_colours
@pytest.mark.parametrize("data", ["text", bytearray(b"x"), b"x" * 65_537, 5])
async def test_bad_data_is_refused_before_anything_is_sent(world: World, data: Any) -> None:
    """A wrong payload changes nothing: the lease is as it was, also after a refused release."""
    async with world.client() as client:
        lease = await client.acquire("k")

        with pytest.raises(ConfigurationError, match="data"):
            await client.acquire("other", data=data)
        with pytest.raises(ConfigurationError, match=r"data for lock 'k' is .*65536"):
            await lease.renew(data=data)
        with pytest.raises(ConfigurationError, match="data for lock 'k'"):
            await lease.release(data=data)

        assert lease.is_valid
        assert world.store.requests == {"claim": 1}


@both_colours
async def test_only_if_exists_takes_nothing_that_is_not_there(world: World) -> None:
    """A key that never was, or was deleted on release, is not created; one that is there is taken."""
    async with world.client() as client:
        assert await client.try_acquire("k", only_if_exists=True) is None
        assert await client.get("k") is None

        async with client.lock("k"):
            pass
        async with client.lock("k", only_if_exists=True, delete_on_release=True) as lease:
            assert lease.fencing_token == 2
        assert await client.try_acquire("k", only_if_exists=True) is None


@both_colours
async def test_hazard_08_delete_on_release_hides_the_key_and_keeps_its_token(world: World) -> None:
    """A deleted lock is not seen any more, and its next grant still has a greater token."""
    async with world.client() as client:
        async with client.lock("k", data=b"x", delete_on_release=True):
            pass

        assert await client.get("k") is None
        assert [record async for record in client.scan()] == []
        async with client.lock("k", replace_data=False) as lease:
            assert lease.fencing_token == 2
            assert lease.data is None


@both_colours
async def test_fail_closed_lock_is_held_until_it_is_released(world: World) -> None:
    """Without a lease nothing lapses: no renewal, no takeover, for as long as it takes."""
    async with world.client() as a, world.client() as b:
        lease = await a.acquire("k", fail_closed=True)
        assert lease.remaining == lease.lease_duration == float("inf")
        await world.live(400, step=50)

        assert lease.is_valid
        assert await b.try_acquire("k") is None
        assert world.store.requests["replace"] == 0
        with pytest.raises(ConfigurationError, match=r"fail-closed.*no lease"):
            await lease.renew(lease_duration=5)
        await lease.renew(data=b"still here")
        assert await lease.ensure(1000) == 1
        await lease.release()
        again = await b.try_acquire("k")
        assert again is not None


@both_colours
async def test_fail_closed_lock_of_a_dead_holder_is_freed_by_breaking_only(world: World) -> None:
    """An operator frees it, by its token."""
    async with world.client() as a, world.client() as b:
        lease = await a.acquire("k", fail_closed=True)

        assert await b.break_lock("k", fencing_token=lease.fencing_token)

        again = await b.try_acquire("k")
        assert again is not None
        assert again.fencing_token == 3


@both_colours
async def test_max_hold_ends_the_hold_though_renewals_succeed(world: World) -> None:
    """A body that overruns is told as of any loss, with a reason of its own."""
    async with world.client(lease_duration=4, max_hold=10) as client:
        told: list[Any] = []
        lease = await client.acquire("k")
        lease.on_lost(told.append)

        await world.live(9.75)
        assert lease.is_valid
        assert lease.remaining <= 0.26
        await world.live(0.5)

        assert not lease.is_valid
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.OVERRUN
        await world.until(lambda: len(told) == 1)
        with pytest.raises(LockLostError, match="longer than max_hold"):
            await lease.release()
        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_cancel_on_loss_is_refused_where_nothing_can_be_cancelled(world: World) -> None:
    """A thread cannot be cancelled, so the blocking client refuses the option, and says what there is instead."""
    if world.colour == "async":
        async with world.client(cancel_on_loss=True) as client, client.lock("k"):
            return
    with pytest.raises(UnsupportedError, match=r"asyncio.*on_lost, lost or ensure"):
        world.client(cancel_on_loss=True)
    async with world.client() as client:
        with pytest.raises(UnsupportedError, match="cancel_on_loss"):
            await client.acquire("k", cancel_on_loss=True)
        assert not world.store.requests


# ---- reentrancy


@both_colours
async def test_reentrant_lock_is_counted_and_keeps_its_token(world: World) -> None:
    """The same client enters again without a request; the key is free when the last view has left."""
    async with world.client(reentrant=True) as client:
        async with client.lock("k") as outer:
            async with client.lock("k", timeout=0) as inner:
                assert inner.fencing_token == outer.fencing_token
            assert not inner.is_valid
            assert outer.is_valid
            assert client.holds("k")

        assert not client.holds("k")
        assert world.store.requests == {"claim": 1, "release": 1}


@both_colours
async def test_reentrant_view_released_twice_counts_once(world: World) -> None:
    """Each view gives back its own share."""
    async with world.client(reentrant=True) as client:
        outer, inner = await client.acquire("k"), await client.acquire("k")

        await inner.release()
        await inner.release()

        assert outer.is_valid
        with pytest.raises(LeaseStateError, match="was released"):
            await inner.ensure()
        await outer.release()
        assert not client.holds("k")


@both_colours
async def test_reentrancy_joins_only_what_opted_in_and_only_in_the_same_client(world: World) -> None:
    """A lock that was not taken as reentrant, and one of another client, are simply held."""
    async with world.client() as a, world.client() as b:
        plain = await a.acquire("plain")
        shared = await a.acquire("shared", reentrant=True)

        assert await a.try_acquire("plain", reentrant=True) is None
        assert await a.try_acquire("shared") is None
        assert await b.try_acquire("shared", reentrant=True) is None
        assert plain.is_valid
        assert shared.is_valid


@both_colours
async def test_acquire_that_waits_for_its_own_client_says_how_to_join(world: World) -> None:
    """Code that asks again for what it holds would wait for ever, and see a name that it may not know for its own."""
    async with world.client() as client, world.client() as other:
        lease = await client.acquire("k")

        with pytest.raises(AcquireTimeoutError, match=r"this client's own owner name .*reentrant=True joins it"):
            await client.acquire("k", timeout=0)
        with pytest.raises(AcquireTimeoutError) as caught:
            await other.acquire("k", timeout=0)
        assert lease.is_valid

    assert "reentrant" not in str(caught.value)


@both_colours
async def test_reentrant_acquire_of_a_lost_lock_raises_its_loss(world: World) -> None:
    """Queueing would be waiting for oneself; every view is told, the inner one at the end of its block too."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:

        async def inner() -> None:
            async with client.lock("k"):
                await world.jump(10)

        async def outer() -> None:
            async with client.lock("k"):
                with pytest.raises(LockLostError):
                    await inner()
                with pytest.raises(LockLostError) as caught:
                    await client.acquire("k")
                assert caught.value.loss.reason is LossReason.EXPIRED

        with pytest.raises(LockLostError):
            await outer()
        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 2


# ---- what may not be done with a client or a lease


@both_colours
async def test_client_and_lease_refuse_to_be_pickled_or_copied(world: World) -> None:
    """Connections and ownership stay in their process; the errors say what to send instead."""
    async with world.client() as client:
        lease = await client.acquire("k")
        client_itself = getattr(client, "_inner", client)

        for dump in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LeaseStateError, match="URL"):
                dump(client_itself)
            with pytest.raises(LeaseStateError, match=r"fencing_token \(1\)"):
                dump(raw(lease))


@both_colours
async def test_hazard_31_dropped_lease_warns_and_lapses(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A leak ends itself: no I/O in the finalizer, no renewal after it, and others obtain the key a lease later."""
    async with world.client(lease_duration=8) as client, world.client() as other:
        lease = await client.acquire("k")
        lease.on_risk(print)
        requests = sum(world.store.requests.values())

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del lease
            gc.collect()

        assert [str(one.message) for one in caught] == ["unreleased lease of lock 'k'; it lapses in 7.8 s"]
        assert caught[0].category is ResourceWarning
        assert "the lease of lock 'k' was dropped unreleased" in caplog.text
        assert sum(world.store.requests.values()) == requests
        assert await other.try_acquire("k") is None
        await world.live(8.25)
        assert world.store.requests["replace"] == 0
        assert not client.holds("k")
        assert not getattr(client, "_inner", client)._engine.driver.held
        assert "lock 'k' is lost (expired)" in caplog.text
        again = await other.try_acquire("k")
        assert again is not None


@both_colours
async def test_dropped_view_of_a_reentrant_lock_leaves_the_others(world: World) -> None:
    """One view that nobody can release any more does not keep the key for ever."""
    async with world.client(reentrant=True) as client:
        outer, inner = await client.acquire("k"), await client.acquire("k")

        del inner
        gc.collect()
        assert outer.is_valid
        await outer.release()

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_released_and_lost_leases_are_dropped_silently(world: World) -> None:
    """Only what still counts is a leak."""
    async with world.client(lease_duration=8, auto_renew=False) as client:
        released, lost = await client.acquire("a"), await client.acquire("b")
        await released.release()
        await world.jump(8)
        assert lost.loss is not None

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del released, lost
            gc.collect()

        assert caught == []


@both_colours
async def test_repr_names_the_lock_and_hides_what_it_carries(world: World) -> None:
    """What is logged by accident tells the key, the token and the state, and no data."""
    async with world.client(owner="a", data=SECRET.encode()) as client:
        lease = await client.acquire("billing/42")

        assert repr(lease).endswith("Lease 'billing/42' token 1 held>")
        assert repr(client).endswith("LockClient no URL owner 'a'>")
        assert SECRET not in repr(lease) + repr(client)
        await lease.release()
        assert repr(lease).endswith("Lease 'billing/42' token 1 ended>")


def test_repr_of_a_client_with_a_url_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is shown without its secrets."""
    with connect("memory://repr-test") as client:
        assert "memory://repr-test" in repr(client)
        assert "**" in repr(client.options)


@both_colours
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "at least one character"),
        (b"bytes", "not a text"),
        (None, "not a text"),
        (5, "not a text"),
        ("a\nb", r"control character '\\n' at position 1"),
        ("\x7f", "control character"),
        ("a\ud800", "lone surrogate at position 1"),
        ("x" * 1025, r"has 1025 bytes.*1 to 1024"),
        ("é" * 513, r"has 1026 bytes"),
    ],
    ids=["empty", "bytes", "none", "int", "newline", "delete", "surrogate", "long", "long-utf8"],
)
async def test_bad_key_is_refused_by_every_method(world: World, key: Any, message: str) -> None:
    """A key that some store could not hold exactly is held by none; nothing is sent."""
    async with world.client() as client:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.acquire(key),
            lambda: client.try_acquire(key),
            lambda: client.get(key),
            lambda: client.break_lock(key, fencing_token=1),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match=message):
                await call()
        with pytest.raises(ConfigurationError, match=message):
            client.holds(key)
        with pytest.raises(ConfigurationError, match=message):
            async with client.lock(key):
                pass

        assert not world.store.requests


@both_colours
@pytest.mark.parametrize("key", ["é", "e\u0301", "K", "k", " k", "k ", "%", "a/../b", "💥", "x" * 1024])
async def test_keys_are_exact(world: World, key: str) -> None:
    """Nothing is folded, trimmed, normalised or cut: each spelling is a key of its own."""
    async with world.client() as client, client.lock(key):
        assert [record.key async for record in client.scan()] == [key]


@both_colours
async def test_unknown_option_of_a_call_is_refused(world: World) -> None:
    """A misspelt option would otherwise be a lock with other terms than its caller believes."""
    async with world.client() as client:
        with pytest.raises(ConfigurationError, match=r"unknown lock option 'leaseduration'.*lease_duration"):
            await client.acquire("k", leaseduration=5)  # type: ignore[call-arg]  # the mistake in question
        with pytest.raises(ConfigurationError, match="unknown lock option 'owner'"):
            async with client.lock("k", owner="me"):  # type: ignore[call-arg]  # an option of the client
                pass


@both_colours
async def test_call_options_are_checked_again_after_an_equal_call_was_good(world: World) -> None:
    """1 and True are equal, and one of them is no duration: what was checked for one call does not let another pass."""
    async with world.client() as client:
        async with client.lock("k", lease_duration=1, reentrant=True):
            pass

        for options in ({"reentrant": 1, "lease_duration": True}, {"lease_duration": True}, {"reentrant": 1}):
            with pytest.raises(ConfigurationError):
                await client.acquire("k", **options)


def test_store_for_asyncio_is_refused_by_the_blocking_client() -> None:
    """An async-only store in a blocking client is told apart at once."""
    with pytest.raises(UnsupportedError, match=r"AsyncMemoryStore is a store for asyncio; use AsyncLockClient"):
        LockClient(AsyncMemoryStore())  # type: ignore[arg-type]  # the mistake in question


@both_colours
@pytest.mark.parametrize(("declared", "message"), [(("atomic_multi",), "declares"), ((), "does not declare")])
async def test_store_whose_capabilities_do_not_agree_with_its_methods_is_refused(
    world: World, declared: tuple[str, ...], message: str
) -> None:
    """A capability is present when the client is built, or never asked for."""
    from dlock_core import Capability

    kind = MemoryStore if world.colour == "sync" else AsyncMemoryStore
    capabilities = frozenset(map(Capability, declared)) | ({*kind.capabilities} if declared else set())
    lying = type("LyingStore", (kind,), {"capabilities": capabilities})

    with pytest.raises(UnsupportedError, match=rf"LyingStore .*{message}.*clause S19"):
        world.client(lying())


def test_store_handed_over_stays_open_and_one_that_connect_opened_is_closed() -> None:
    """Who opens closes."""
    store = MemoryStore()
    with LockClient(store), LockClient(store):
        pass
    assert store.read("k", timeout_s=1) is None

    with connect("memory://who-closes") as client:
        inner = client._store
    with pytest.raises(StoreUnavailableError, match="closed"):
        inner.read("k", timeout_s=1)


class _Unsafe:
    """A store with an unsafe trait, whose closing fails."""

    capabilities: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        self.closed = 0
        self._inner = MemoryStore()
        for name in ("claim", "replace", "release", "read", "scan", "provision"):
            setattr(self, name, getattr(self._inner, name))

    def guarantees(self) -> Any:
        return dataclasses.replace(self._inner.guarantees(), unsafe=(("no-replica", "it may grant twice"),))

    def close(self) -> None:
        self.closed += 1
        raise StoreUnavailableError("it does not want to close")


class _AsyncUnsafe(_Unsafe):
    def __init__(self) -> None:
        super().__init__()
        inner = AsyncMemoryStore()
        for name in ("claim", "replace", "release", "read", "scan", "provision"):
            setattr(self, name, getattr(inner, name))

    async def guarantees(self) -> Any:
        return super().guarantees()

    async def close(self) -> None:  # type: ignore[override]  # the twin
        super().close()


@both_colours
async def test_unsafe_store_is_refused_unless_it_is_accepted_by_name(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A topology that can grant twice is no surprise: the error names what to write, and the log says that it was accepted."""

    async def use(**options: Any) -> None:
        store = (_Unsafe if world.colour == "sync" else _AsyncUnsafe)()
        async with world.client(store, **options) as client, client.lock("k"):
            pass

    for allowed in (set(), {"something-else"}):
        with pytest.raises(
            UnsafeStoreError, match=r"memory store refused: it may grant twice; .*put 'no-replica' into allow_unsafe"
        ) as caught:
            await use(allow_unsafe=allowed)
        assert caught.value.name == "no-replica"

    await use(allow_unsafe={"no-replica", "something-else"})
    assert "accepted trait 'no-replica'" in caplog.text


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_store_that_connect_opened_is_closed_when_it_is_refused_and_its_error_told(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``connect`` opens it closes, whatever comes between; an error of that is told by ``close``, or is a note."""
    stores: list[_Unsafe] = []

    class Backend:
        options = type("Options", (), {"from_url": staticmethod(lambda url, **settings: url)})

        def open(self, options: object) -> Any:
            stores.append(_Unsafe())
            return stores[-1]

        def aopen(self, options: object) -> Any:
            async def opened() -> Any:
                stores.append(_AsyncUnsafe())
                return stores[-1]

            return opened()

    for module in ("engine.client_context", "aio"):
        monkeypatch.setattr(f"dlock_core.{module}.backend_for", lambda url: Backend())

    def use(*, fails: bool, **options: Any) -> None:
        if colour == "sync":
            with connect("odd://", **options):
                if fails:
                    raise KeyError("body")
            return

        async def on_a_loop() -> None:
            async with aconnect("odd://", **options):
                if fails:
                    raise KeyError("body")

        asyncio.run(on_a_loop())

    with pytest.raises((UnsafeStoreError, StoreUnavailableError)):
        use(fails=False)
    with pytest.raises(ExceptionGroup) as caught:
        use(fails=False, allow_unsafe={"no-replica"})
    with pytest.raises(KeyError) as noted:
        use(fails=True, allow_unsafe={"no-replica"})

    assert [store.closed for store in stores] == [1, 1, 1]
    assert [str(error) for error in caught.value.exceptions] == ["it does not want to close"]
    assert "it does not want to close" in str(noted.value.__notes__)


@both_colours
async def test_what_is_remembered_of_others_locks_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that tries a great many keys does not keep them all; forgetting only delays a takeover."""
    monkeypatch.setattr("dlock_core.engine.observations.OBSERVATIONS_MAX", 5)
    async with world.client(auto_renew=False, lease_duration=10) as dead, world.client() as client:
        for number in range(20):
            raw(await dead.acquire(f"k{number}"))._closed = True
            assert await client.try_acquire(f"k{number}") is None

        assert len(getattr(client, "_inner", client)._engine._observations) == 5
        await world.jump(11)
        assert await client.try_acquire("k0") is None
        lease = await client.try_acquire("k19")
        assert lease is not None


def test_lease_that_was_never_made_is_dropped_silently() -> None:
    """A constructor that failed leaves nothing to warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Lease.__new__(Lease)
        gc.collect()

    assert caught == []
    assert repr(KEEP) == "KEEP"


@async_only
async def test_client_that_is_not_open_says_how_to_open_it(world: World) -> None:
    """An asyncio client is opened by ``async with`` or ``await``."""
    client = world.client()

    with pytest.raises(LeaseStateError, match="not open yet"):
        await client.acquire("k")
    with pytest.raises(LeaseStateError, match="not open yet"):
        client.holds("k")
    await client.close()
    opened = await client
    assert opened is client
    await client.close()


@both_colours
async def test_losses_and_takeovers_are_logged_at_their_levels(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """WARNING when lost, INFO when taken over, DEBUG for the rest, all under the logger ``dlock``."""
    caplog.set_level(logging.DEBUG, "dlock")
    async with world.client(owner="a", auto_renew=False, lease_duration=10) as a, world.client(owner="b") as b:
        dead = await a.acquire("k")
        assert await b.try_acquire("k") is None
        await world.jump(10)
        taken = await b.try_acquire("k")

        assert taken is not None
        assert dead.loss is not None
        levels = {record.getMessage().split(",")[0]: record.levelname for record in caplog.records}
        assert levels["lock 'k' acquired by 'a'"] == "DEBUG"
        assert levels["lock 'k' is lost (expired)"] == "WARNING"
        assert levels["lock 'k' taken over from a dead holder by 'b'"] == "INFO"
        assert all(record.name.startswith("dlock.") for record in caplog.records)


def test_every_error_of_a_client_is_one_of_ours() -> None:
    """Whatever goes wrong in a call can be caught as DLockError."""
    for kind in (AcquireTimeoutError, ConfigurationError, LeaseStateError, LockLostError, StoreUnavailableError):
        assert issubclass(kind, DLockError)
