"""A holder that is told to stop before its lock ends: ``stop_grace`` and ``lease.stopping``, in both colours from one text."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ConfigurationError, LockLostError, LossReason
from tests.core.aio_support import forever
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_stopping_is_set_the_grace_before_the_end_and_the_lock_still_is_held(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The body has that much time to end its work, and the log says so."""
    async with world.client(lease_duration=10, auto_renew=False, stop_grace=3) as client:
        lease = await client.acquire("k")
        assert lease.stopping is lease.stopping

        await world.live(6.75)
        assert not lease.stopping.is_set()
        with caplog.at_level(logging.WARNING, "dlock.engine"):
            await world.jump(0.05)
            await world.until(lease.stopping.is_set)

        assert lease.is_valid
        assert not lease.lost.is_set()
        assert caplog.messages == ["lock 'k' ends in 3.0 s (expired); its holder is told to stop"]
        await lease.release()
        assert lease.loss is None


@both_colours
async def test_stopping_is_not_set_while_renewals_succeed(world: World) -> None:
    """Each renewal moves the end, and the stop with it."""
    async with world.client(lease_duration=10, stop_grace=2.5) as client, client.lock("k") as lease:
        stopping = lease.stopping
        await world.live(40)

        assert not stopping.is_set()


@both_colours
async def test_stopping_stays_set_when_a_late_renewal_keeps_the_lock(world: World) -> None:
    """A body that has begun to end is not told to go on; the lock is renewed until the body has ended."""
    async with world.client(lease_duration=10, stop_grace=2.5) as client, client.lock("k") as lease:
        stopping = lease.stopping
        with world.store.outage():
            await world.live(7.5)
            await world.until(stopping.is_set)

        await world.live(1)

        assert stopping.is_set()
        assert lease.remaining > 8
        await world.live(30)
        assert lease.is_valid


@both_colours
async def test_stopping_is_set_at_a_loss_also_without_a_grace(world: World) -> None:
    """Who waits for it learns of every end; who asks after that gets an event that is set."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        early, late = await client.acquire("early"), await client.acquire("late")
        stopping = early.stopping
        await world.live(9.75)
        assert not stopping.is_set()

        await world.jump(0.25)
        await world.until(stopping.is_set)

        assert late.stopping.is_set()
        assert early.lost.is_set()


@both_colours
async def test_stopping_is_asked_for_after_it_was_told(world: World) -> None:
    """The event is set at once."""
    async with world.client(lease_duration=10, auto_renew=False, stop_grace=3) as client, client.lock("k") as lease:
        await world.live(7)

        assert lease.stopping.is_set()


@both_colours
async def test_stopping_stays_unset_when_the_lock_is_released(world: World) -> None:
    """Giving back in time is no end to be told."""
    async with world.client(lease_duration=10, stop_grace=2) as client:
        async with client.lock("k") as lease:
            stopping = lease.stopping
        await world.live(12)

        assert not stopping.is_set()


@both_colours
async def test_stopping_is_set_in_time_while_each_renewal_hangs(world: World) -> None:
    """A store that takes the whole time-out to fail does not delay the stop, nor the loss."""
    async with world.client(world.hanging_store("k"), lease_duration=20, stop_grace=5) as client:
        lease = await client.acquire("k")
        stopping, lost = lease.stopping, lease.lost
        await world.live(14.5)
        assert not stopping.is_set()

        await world.live(0.25)
        await world.until(stopping.is_set)
        assert not lost.is_set()
        await world.live(4.75)
        assert not lost.is_set()
        await world.live(0.25)
        await world.until(lost.is_set)
        await world.live(5)  # what hangs still ends


@both_colours
async def test_stop_grace_that_does_not_fit_names_the_term(world: World) -> None:
    """When the options are read, of the client or of the call."""
    async with world.client(lease_duration=10) as client:
        with pytest.raises(ConfigurationError, match=r"stop_grace is what breaks it: at most 2\.85 s"):
            await client.acquire("k", stop_grace=4)
        with pytest.raises(ConfigurationError, match="stop_grace=5 s must be shorter than max_hold, 5 s"):
            await client.acquire("k", max_hold=5, stop_grace=5)
        lease = await client.acquire("k", stop_grace=2.8)
        with pytest.raises(ConfigurationError, match="stop_grace is what breaks it"):
            await lease.renew(lease_duration=5)
        await lease.release()


# ---- in asyncio, with cancel_on_loss


@async_only
async def test_cancel_on_loss_cancels_the_body_the_grace_before_the_end(world: World) -> None:
    """The body ends under a valid lock, which is then released; what leaves the block says why it was cancelled."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10, stop_grace=3) as client:
        held: list[Any] = []

        async def body() -> None:
            async with client.lock("k") as lease:
                try:
                    await forever()
                except asyncio.CancelledError as error:
                    held.append((lease.is_valid, str(error)))
                    raise

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(6.75)
        assert not task.done()
        await world.jump(0.25)

        with pytest.raises(
            LockLostError, match=r"was about to be lost: its lease ran out.* cancelled 3 s before"
        ) as caught:
            await task
        assert caught.value.loss.reason is LossReason.EXPIRED
        assert caught.value.loss.fencing_token >= 1
        assert held == [(True, "lock 'k' is about to be lost")]
        assert task.cancelling() == 0
        assert client.holds("k") is False
        assert world.store.requests["release"] == 1


@async_only
async def test_cancel_on_loss_of_a_body_that_ends_well_raises_nothing(world: World) -> None:
    """A body that catches the cancellation and ends within the grace has done its work under the lock."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10, stop_grace=3) as client:

        async def body() -> str:
            async with client.lock("k"):
                try:
                    await forever()
                except asyncio.CancelledError:
                    return "saved its work"
            raise AssertionError("it was not cancelled")

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(7)

        assert await task == "saved its work"
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_strikes_a_block_that_is_entered_after_the_stop(world: World) -> None:
    """The second block on a joined lock does not run into the end."""
    async with world.client(
        cancel_on_loss=True, auto_renew=False, lease_duration=10, stop_grace=3, reentrant="client"
    ) as client:
        lease = await client.acquire("k")
        await world.jump(7)

        async def body() -> None:
            async with client.lock("k"):
                await forever()

        with pytest.raises(LockLostError):
            await asyncio.wait_for(asyncio.ensure_future(body()), 20)
        await lease.release()


@async_only
async def test_release_that_fails_after_the_stop_is_a_note_on_what_leaves(world: World) -> None:
    """The reason of the cancellation comes first."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10, stop_grace=3) as client:

        async def body() -> None:
            async with client.lock("k"):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        world.store.fail("release", times=2)
        await world.jump(7)

        with pytest.raises(LockLostError) as caught:
            await task
        assert caught.value.__notes__ == ["release of 'k' was not sent (injected)"]
