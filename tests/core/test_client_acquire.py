"""Asking for a lock, in both colours from one text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    OutcomeUnknownError,
    StoreSetupError,
)
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


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
        assert (record.state, record.fencing_token, record.owner, record.lease_ms) == ("free", 1, "a", None)


@both_colours
async def test_record_tells_by_the_wall_clock_when_it_was_granted_and_written(world: World) -> None:
    """Also of a client that has been open for long, and where the lock was renewed."""
    async with world.client(lease_duration=20) as client:
        await world.live(30)
        granted_s = world.clock.wall_ms() // 1000
        async with client.lock("k"):
            await world.live(6)
            times = world.space.records["k"].times

    assert times is not None
    assert times.granted_at_s == granted_s
    assert granted_s < times.written_at_s <= granted_s + 6


@both_colours
async def test_lock_does_nothing_until_it_is_entered(world: World) -> None:
    """Asking for a lock is not holding it."""
    async with world.client() as client:
        with pytest.warns(RuntimeWarning, match="was never entered"):
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
        assert re.fullmatch(
            r"could not acquire lock 'billing/42' in one try: held by 'a' since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
            str(error),
        )
        assert isinstance(error, TimeoutError)
        for timeout in (None, 60):
            with pytest.raises(AcquireTimeoutError, match=r"within \S+ ms: held by") as caught:
                await b.acquire("billing/42", retries=0, timeout=timeout)
            assert caught.value.timeout == 0


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
        with pytest.raises(
            AcquireTimeoutError,
            match=r"within 7\.0 s: held by 'a' since .* UTC, renewed .* UTC \(record changed once while waiting\)",
        ):
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


@both_colours
async def test_trouble_that_no_time_mends_is_told_also_after_a_lost_reply(world: World) -> None:
    """What to mend is said, and not only that it is unknown whether the write before was applied."""

    def refuse(verb: str, _: object) -> None:
        raise OutcomeUnknownError("no answer") if verb == "claim" else StoreSetupError("the right to read is missing")

    async with world.client(world.hooked_store(refuse)) as client:
        with pytest.raises(StoreSetupError, match="the right to read is missing"):
            await client.acquire("k", timeout=0)
