"""A lease that is asked whether it is valid for long enough: ensure, in both colours from one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    LossReason,
    StoreUnavailableError,
)
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.core.worlds import World


def count(world: World) -> int:
    """Return how many requests were made."""
    return sum(world.store.requests.values())


@both_colours
async def test_ensure_without_an_argument_makes_no_request(world: World) -> None:
    """It is called before each effect, so it costs none."""
    async with world.client() as client, client.lock("k") as lease:
        before = count(world)

        assert [await lease.ensure() for _ in range(100)] == [lease.fencing_token] * 100

        assert count(world) == before


@both_colours
async def test_ensure_of_what_remains_anyway_makes_no_request(world: World) -> None:
    """A renewal is made only where too little is left."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)

        await lease.ensure(14)

        assert world.store.requests["replace"] == 0


@both_colours
async def test_ensure_of_more_than_remains_renews_once(world: World) -> None:
    """One request, and then as much is left as was asked for."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)

        assert await lease.ensure(15) == 1

        assert world.store.requests["replace"] == 1
        assert 19 < lease.remaining < 20
        assert lease.lease_duration == 20


@both_colours
async def test_ensure_whose_renewal_took_its_time_is_to_be_asked_again(world: World) -> None:
    """The lease counts from the request: less than was asked for may be left of it. The lock is held all the same."""
    store = world.hooked_store(lambda *_: None, lambda verb: world.clock.advance(1) if verb == "replace" else None)
    async with world.client(store, lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(2)

        with pytest.raises(
            StoreUnavailableError, match=r"has 18\.\d\d s left after a slow renewal, 19\.00 s were"
        ) as caught:
            await lease.ensure(19)

        assert caught.value.key == "k"
        assert await lease.ensure(18) == 1


@both_colours
async def test_ensure_of_more_than_the_lease_lengthens_it(world: World) -> None:
    """The record's lease grows to what is needed, and it counts from then on."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        assert await lease.ensure(60) == 1

        assert 60 <= lease.remaining < 70
        assert 60 < lease.lease_duration < 70
        record = await client.get("k")
        assert record is not None
        assert record.lease_ms == round(lease.lease_duration * 1000)
        await world.jump(50)
        assert lease.is_valid


@both_colours
async def test_ensure_of_all_that_a_lease_can_give_lengthens_it(world: World) -> None:
    """What is usable of the lease at the moment of its send is less when the answer comes."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(0.01)

        await lease.ensure(19.6)

        assert lease.remaining >= 19.6
        assert lease.lease_duration > 20


@both_colours
async def test_ensure_never_shortens_the_lease(world: World) -> None:
    """Asking for less than there is changes nothing, also after the lease was lengthened."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await lease.renew(lease_duration=100)
        await world.jump(90)

        await lease.ensure(50)

        assert lease.lease_duration == 100
        assert 97 < lease.remaining < 99


@both_colours
@pytest.mark.parametrize("asked", [True, -1, float("nan"), float("inf"), "5", None, 10**400])
async def test_ensure_of_no_duration_is_refused(world: World, asked: Any) -> None:
    """What is no duration is told by name, and nothing is sent."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="min_remaining: "):
            await lease.ensure(asked)

        assert count(world) == 1
        assert lease.is_valid


@both_colours
async def test_ensure_of_more_than_any_lease_is_refused(world: World) -> None:
    """More than a day cannot be had."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="lease_duration"):
            await lease.ensure(100_000)

        assert lease.is_valid


@both_colours
async def test_ensure_after_the_deadline_raises_the_loss_at_once(world: World) -> None:
    """Though no thread ran since: what decides is the clock at the call."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        lease = await client.acquire("k")
        world.clock.advance(19.61)

        with pytest.raises(LockLostError) as caught:
            await lease.ensure()

        assert caught.value.loss.reason is LossReason.EXPIRED
        assert lease.loss == caught.value.loss
        assert "token 1) was lost: its lease ran out" in str(caught.value)


@both_colours
async def test_loss_that_ensure_raises_in_a_block_is_told_once(world: World) -> None:
    """What leaves the block says it already."""
    async with world.client(lease_duration=20, auto_renew=False) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                world.clock.advance(19.61)
                await lease.ensure()

        with pytest.raises(LockLostError) as caught:
            await body()

        assert not hasattr(caught.value, "__notes__")


@both_colours
async def test_ensure_while_the_store_is_down_tells_trouble_and_keeps_the_lock(world: World) -> None:
    """A renewal that failed is no loss: the lease has its time."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)
        with world.store.outage():
            with pytest.raises(StoreUnavailableError):
                await lease.ensure(18)
            assert await lease.ensure(10) == 1

        assert await lease.ensure(18) == 1


@both_colours
async def test_ensure_after_release_is_a_mistake_and_not_a_loss(world: World) -> None:
    """Used after its end, a lease says that it was released."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        calls: list[Callable[[], Awaitable[object]]] = [lease.ensure, lambda: lease.ensure(5), lease.renew]
        for call in calls:
            with pytest.raises(LeaseStateError, match="lease of lock 'k' was released; acquire it anew"):
                await call()
        assert lease.loss is None
        assert world.store.requests == {"claim": 1, "release": 1}
