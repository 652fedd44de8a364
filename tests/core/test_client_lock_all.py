"""Several locks at once, in both colours from one text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LockLostError,
    StoreUnavailableError,
)
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


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
        ([""], "one character or more, not ''"),
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
async def test_lock_all_has_one_time_for_all_of_its_keys(world: World) -> None:
    """What the first key was waited for is not there for the second."""
    async with world.client() as client, world.client() as other:
        first, second = await other.acquire("a"), await other.acquire("b")

        async def use_both() -> None:
            async with client.lock_all(["a", "b"], timeout=10):
                pytest.fail("entered")

        using = world.spawn(use_both())
        await world.live(8)
        await first.release()
        await world.live(4)

        assert using.done
        with pytest.raises(AcquireTimeoutError) as caught:
            await using.result()
        assert caught.value.key == "b"
        assert second.is_valid


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

        error = caught.value
        assert isinstance(error.__cause__, LockLostError)
        assert (error.key, error.timeout, error.outcome_unknown) == ("a", 6.0, False)
        assert error.holder is not None
        assert error.holder.owner == "thief"
        assert {record.key: record.state.value async for record in other.scan()} == {"a": "held", "z": "free"}


@both_colours
async def test_lock_all_waits_for_a_key_that_its_own_client_holds(world: World) -> None:
    """In other hands, so that the wait has an end: until the same end of its patience as for any other key."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("b", handover=True)

        async def both() -> list[str]:
            async with client.lock_all(["a", "b"], timeout=5) as leases:
                return sorted(leases)

        in_time, too_late = world.spawn(both()), world.spawn(both())
        await world.live(1)
        await lease.release()
        await world.live(1)
        assert await in_time.result() == ["a", "b"]
        assert await too_late.result() == ["a", "b"]

        held = await client.acquire("b", handover=True)
        refused = world.spawn(both())
        await world.live(6)
        with pytest.raises(AcquireTimeoutError):
            await refused.result()
        await held.release()


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


class _Interrupted(BaseException):
    """As a signal handler raises it, or the end of a task."""


@both_colours
async def test_lock_all_that_is_interrupted_gives_back_all_that_it_took_itself(world: World) -> None:
    """By the scheduler, since the caller has no time for it; what it joined stays with the outer block."""

    def before(verb: str, request: Any) -> None:
        if verb == "claim" and request.record.key == "d":
            raise _Interrupted

    async with world.client(world.hooked_store(before), reentrant=True, lease_duration=10) as client:
        outer = await client.acquire("a")

        with pytest.raises(_Interrupted):
            async with client.lock_all(["a", "b", "c", "d"]):
                pytest.fail("entered")
        await world.live(1)

        assert outer.is_valid
        assert {record.key: record.state.value async for record in client.scan()} == {
            "a": "held",
            "b": "free",
            "c": "free",
        }
        await outer.release()


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
async def test_lock_all_looks_at_the_keys_that_come_next_when_the_holder_has_renewed(world: World) -> None:
    """Most likely the same one holds and renews them. A look that fails ends nothing; the next renewal is followed by another one."""
    looks: list[str] = []

    def note(verb: str, request: Any) -> None:
        if verb == "read" and (request != "a" or not looks):
            looks.append(request)
            if len(looks) == 1:
                raise StoreUnavailableError("was not sent")

    async with world.client(lease_duration=20) as holder, world.client(world.hooked_store(note)) as client:
        lease = await holder.acquire("a")

        async def use_all() -> None:
            async with client.lock_all(["a", "b", "c"], timeout=60):
                pass

        using = world.spawn(use_all())
        await world.live(4.5)
        assert looks == ["b"]
        await world.live(4.5)
        assert looks == ["b", "b", "c"]
        await lease.release()
        await world.live(2)
        await using.result()


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
