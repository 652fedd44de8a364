"""Holds that end for want of progress, and locks that stay closed after a death, in both colours from one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core import AcquireTimeoutError, ConfigurationError, LeaseStateError, LockLostError, LossReason
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_body_without_progress_loses_the_lock_and_the_next_gets_it(world: World) -> None:
    """Renewals succeed all the time, and end with the loss; the record lapses one lease after the last."""
    async with (
        world.client(lease_duration=4, stall_timeout=10) as client,
        world.client(lease_duration=4) as other,
    ):
        lease = await client.acquire("k")
        await world.live(9.5)
        assert lease.is_valid
        assert lease.remaining == pytest.approx(0.5)
        await world.live(0.5)

        assert not lease.is_valid
        await world.until(lease.lost.is_set)
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.STALLED
        with pytest.raises(LockLostError, match="no progress for stall_timeout"):
            lease.progress()
        waiting = world.spawn(other.acquire("k"))
        await world.live(5)
        next_lease = await waiting.result()
        assert next_lease.fencing_token > lease.fencing_token


@both_colours
async def test_progress_keeps_the_lock_as_long_as_the_work_goes_on(world: World) -> None:
    """It makes no request."""
    async with world.client(lease_duration=4, stall_timeout=3) as client, client.lock("k") as lease:
        for _ in range(8):
            await world.live(2)
            before = world.store.requests.total()
            lease.progress()
            assert world.store.requests.total() == before

        assert lease.is_valid
        assert lease.remaining == pytest.approx(3)


@async_only
async def test_progress_that_finds_the_lock_lost_says_so(world: World) -> None:
    """A body that blocks the event loop for too long is the first that looks."""
    async with world.client(lease_duration=20, stall_timeout=5) as client:
        lease = await client.acquire("k")
        lost = lease.lost
        world.clock.advance(6)

        with pytest.raises(LockLostError):
            lease.progress()

        assert lost.is_set()


@both_colours
async def test_watch_calls_progress_at_each_item(world: World) -> None:
    """The items come as they are, one by one, and a loss ends them."""
    async with world.client(lease_duration=4, stall_timeout=3) as client:
        lease = await client.acquire("k")
        seen = []
        for item in lease.watch(range(4)):
            seen.append(item)
            await world.live(2.5)
        assert seen == [0, 1, 2, 3]
        assert lease.remaining == pytest.approx(3)

        items = lease.watch(range(9))
        assert next(items) == 0
        await world.live(3)
        with pytest.raises(LockLostError):
            next(items)


@both_colours
async def test_progress_of_a_released_lease_is_refused(world: World) -> None:
    """As any other call."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        with pytest.raises(LeaseStateError, match="was released"):
            lease.progress()


@both_colours
async def test_ensure_promises_no_more_than_the_stall_leaves(world: World) -> None:
    """The message says what bounds it."""
    async with world.client(lease_duration=20, stall_timeout=5) as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match=r"held for 5\.00 s more by its max_hold or stall_timeout"):
            await lease.ensure(6)


# ---- lock_delay


@both_colours
async def test_dead_holders_lock_is_free_the_delay_after_its_lease(world: World) -> None:
    """What the holder sent last has that long to end."""
    async with (
        world.client(lease_duration=4, lock_delay=6, auto_renew=False) as client,
        world.client(lease_duration=4) as other,
    ):
        lease = await client.acquire("k")
        assert lease.lease_duration == 4
        assert lease.remaining == pytest.approx(10 * 0.98 - 6)
        record = await client.get("k")
        assert record is not None
        assert (record.lease_ms, record.delay_ms) == (10_000, 6_000)

        waiting = world.spawn(other.acquire("k"))
        await world.live(9.9)
        assert not waiting.done
        await world.live(0.5)
        assert (await waiting.result()).is_valid


@both_colours
async def test_clean_release_skips_the_delay(world: World) -> None:
    """Nothing is left at work."""
    async with world.client(lease_duration=4, lock_delay=6) as client, world.client() as other:
        async with client.lock("k"):
            with pytest.raises(AcquireTimeoutError):
                await other.acquire("k", timeout=0)

        next_lease = await other.try_acquire("k")
        assert next_lease is not None
        await next_lease.release()


@both_colours
async def test_ensure_asks_for_a_lease_that_gives_so_much_beside_the_delay(world: World) -> None:
    """The lease grows, and the delay stays."""
    async with world.client(lease_duration=4, lock_delay=6) as client, client.lock("k") as lease:
        await lease.ensure(20)

        assert 20 <= lease.remaining < 30
        record = await client.get("k")
        assert record is not None
        assert record.delay_ms == 6_000


@both_colours
async def test_lock_delay_out_of_bounds_is_refused(world: World) -> None:
    """0 to 60 s."""
    async with world.client(lease_duration=20) as client:
        with pytest.raises(ConfigurationError, match=r"lock_delay: 60\.5 s is too long; at most 60"):
            await client.acquire("k", lock_delay=60.5)
