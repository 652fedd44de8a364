"""A body that a loss cancels, as only asyncio can."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from dlock_core import (
    LeaseStateError,
    LockLostError,
    LossReason,
)
from tests.core.aio_support import forever
from tests.core.worlds import PATIENCE_S, async_only

if TYPE_CHECKING:
    from tests.core.worlds import World


@async_only
async def test_cancel_on_loss_ends_the_body_with_the_loss(world: World) -> None:
    """The body is cancelled where it waits, and what comes out of the block is LockLostError."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        cleaned = []

        async def body() -> None:
            async with client.lock("k"):
                try:
                    await forever()
                except asyncio.CancelledError as error:
                    cleaned.append(str(error))
                    raise

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(9)
        assert not task.done()
        await world.jump(1)

        with pytest.raises(LockLostError) as caught:
            await task
        assert caught.value.loss.reason is LossReason.EXPIRED
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert cleaned == ["lock 'k' was lost"]
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_ends_the_body_where_another_task_closes_the_client(world: World) -> None:
    """The lock is released under it. A task that closes the client within its own block knows, and goes on."""
    client = await world.client(cancel_on_loss=True)

    async def body() -> None:
        async with client.lock("k"):
            await forever()

    async with client.lock("mine"):
        task = asyncio.ensure_future(body())
        await world.until(lambda: client.holds("k"))
        await client.close()
        with pytest.raises(LeaseStateError, match="the client was closed while the block of lock 'k' ran"):
            await task
        await asyncio.sleep(0)


@async_only
async def test_cancel_on_loss_leaves_the_task_able_to_go_on(world: World) -> None:
    """After the block nothing of the cancellation is left: the next wait of the task is not cancelled."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> str:
            with pytest.raises(LockLostError):
                async with client.lock("k"):
                    await forever()
            await asyncio.sleep(0)
            async with client.lock("k"):
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        assert await task == "went on"


@async_only
@pytest.mark.parametrize("call", ["ensure", "renew", "ensure_more"])
async def test_cancel_on_loss_noticed_by_the_body_itself_is_raised_once(world: World, call: str) -> None:
    """The call that finds the loss raises it; no cancellation strikes after the block."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def hold() -> None:
            async with client.lock("k") as lease:
                world.clock.advance(10)
                if call == "renew":
                    await lease.renew()
                await lease.ensure(*([5] if call == "ensure_more" else []))

        async def body() -> str:
            with pytest.raises(LockLostError):
                await hold()
            for _ in range(5):
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())

        assert await task == "went on"
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_ends_a_body_that_ignored_the_loss_it_found(world: World) -> None:
    """Swallowing the error of ``ensure`` does not keep the body running."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                world.clock.advance(10)
                with contextlib.suppress(LockLostError):
                    await lease.ensure()
                await forever()

        with pytest.raises(LockLostError):
            await asyncio.wait_for(body(), PATIENCE_S)


@async_only
async def test_cancel_on_loss_ends_a_block_that_is_entered_too_late(world: World) -> None:
    """A lease that was lost before its block began does not let it run."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            lease = await client.acquire("k")
            world.clock.advance(10)
            with contextlib.suppress(LockLostError):
                await lease.ensure()
            async with lease:
                await forever()

        with pytest.raises(LockLostError):
            await asyncio.wait_for(body(), PATIENCE_S)


@async_only
async def test_external_cancellation_stays_a_cancellation(world: World) -> None:
    """Whoever cancels the task sees it cancelled, with the lock released."""
    async with world.client(cancel_on_loss=True) as client:

        async def body() -> None:
            async with client.lock("k"):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        task.cancel("by the user")

        with pytest.raises(asyncio.CancelledError, match="by the user"):
            await task
        assert task.cancelled()
        assert not client.holds("k")
        assert world.store.requests["release"] == 1


@async_only
async def test_cancellation_from_both_sides_stays_a_cancellation(world: World) -> None:
    """A loss that comes together with an external cancellation does not hide it; it is a note on it."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                # Called between our cancellation and the next step of the task.
                lease.on_risk(lambda _: task.cancel("by the user"))
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert task.cancelled()
        assert "lock 'k' (token 1) was lost" in str(caught.value.__notes__)


@async_only
async def test_cancel_on_loss_in_a_task_being_cancelled_is_still_the_loss(world: World) -> None:
    """A lock taken while cleaning up after a cancellation tells its own loss."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        outcome: list[object] = []

        async def body() -> None:
            try:
                await forever()
            finally:
                try:
                    async with client.lock("k"):
                        await forever()
                except BaseException as error:
                    outcome.append(type(error))
                    raise

        task = asyncio.ensure_future(body())
        await world.jump(0)
        task.cancel()
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert outcome == [LockLostError]


@async_only
async def test_cancel_on_loss_of_two_locks_of_one_body_is_one_loss(world: World) -> None:
    """Nested blocks that are lost together both end; nothing of a cancellation is left."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> str:
            with pytest.raises(LockLostError):
                async with client.lock("a"), client.lock("b"):
                    await forever()
            with pytest.raises(LockLostError):
                async with client.lock_all(["a", "b"]):
                    await forever()
            await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)
        await world.jump(10)

        assert await task == "went on"
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_of_a_body_that_swallows_the_cancellation_is_told_at_the_end(world: World) -> None:
    """A body cannot talk itself out of the loss."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k"):
                with contextlib.suppress(asyncio.CancelledError):
                    await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert task.cancelling() == 0


@async_only
async def test_cancel_on_loss_after_an_explicit_release_within_is_the_loss(world: World) -> None:
    """A body that releases while it is being cancelled still ends with the loss, and not with a cancellation that nobody sent."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock("k") as lease:
                try:
                    await forever()
                finally:
                    with contextlib.suppress(LockLostError):
                        await lease.release()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert not task.cancelled()


@async_only
async def test_loss_after_the_block_cancels_nobody(world: World) -> None:
    """The task that held the lock is left alone from the end of its block on."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        lease = await client.acquire("outer")

        async def body() -> str:
            async with client.lock("k"):
                pass
            world.clock.advance(20)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return "undisturbed"

        assert await asyncio.ensure_future(body()) == "undisturbed"
        assert not lease.is_valid


@async_only
async def test_loss_of_one_lock_while_another_of_the_block_is_released_is_the_loss(world: World) -> None:
    """The body has ended: what comes out of the block of several is the loss, and no cancellation that nobody sent."""

    async def wait_for_the_store(verb: str, _: object) -> None:
        if verb == "release":
            for _turn in range(6):
                await asyncio.sleep(0)

    store = world.hooked_store(wait_for_the_store)
    async with world.client(store, cancel_on_loss=True, lease_duration=10) as client:

        async def body() -> None:
            async with client.lock_all(["a", "b"]):
                world.clock.advance(11)

        task = asyncio.ensure_future(body())
        with pytest.raises(LockLostError):
            await task
        assert task.cancelling() == 0
