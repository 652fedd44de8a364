"""A body that a loss cancels, beside time-outs and task groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dlock_core import (
    AcquireTimeoutError,
    LockLostError,
)
from tests.core.aio_support import forever
from tests.core.worlds import PATIENCE_S, async_only

if TYPE_CHECKING:
    from tests.core.worlds import World


@async_only
async def test_cancel_on_loss_within_a_timeout_is_the_loss(world: World) -> None:
    """``asyncio.timeout`` around the block does not take our cancellation for its own."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:

        async def body() -> None:
            async with asyncio.timeout(PATIENCE_S), client.lock("k"), asyncio.timeout(PATIENCE_S):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task


@async_only
@pytest.mark.parametrize("inside", [True, False])
async def test_timeout_around_or_within_the_block_is_a_timeout(world: World, inside: bool) -> None:
    """A deadline of the user's remains one, with the lock released."""
    async with world.client(cancel_on_loss=True) as client:

        async def body() -> None:
            async with asyncio.timeout(None if inside else 0.001), client.lock("k"):
                async with asyncio.timeout(0.001 if inside else None):
                    await forever()

        with pytest.raises(TimeoutError) as caught:
            await body()

        assert not isinstance(caught.value, AcquireTimeoutError)
        assert not client.holds("k")


@async_only
async def test_timeout_and_loss_together_are_a_timeout(world: World) -> None:
    """Both cancelled the body: the outer one has its way, and the loss is told by the lease."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        leases = []

        async def body() -> None:
            async with asyncio.timeout(PATIENCE_S) as timeout, client.lock("k") as lease:
                leases.append(lease)
                world.clock.advance(10)
                timeout.reschedule(0)
                await forever()

        with pytest.raises((TimeoutError, LockLostError)):
            await asyncio.ensure_future(body())

        assert leases[0].loss is not None


@async_only
async def test_cancel_on_loss_within_a_task_group_fails_the_group(world: World) -> None:
    """The loss is the task's error; its siblings are cancelled, as by any error."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        siblings = []

        async def holder() -> None:
            async with client.lock("k"):
                await forever()

        async def sibling() -> None:
            try:
                await forever()
            finally:
                siblings.append("cancelled")

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(holder())
                tasks.create_task(sibling())

        task = asyncio.ensure_future(group())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert [type(error) for error in caught.value.exceptions] == [LockLostError]
        assert siblings == ["cancelled"]


@async_only
async def test_cancel_on_loss_with_a_task_group_inside_ends_its_tasks(world: World) -> None:
    """Work spread over tasks within the block ends with the lock."""
    async with world.client(cancel_on_loss=True, auto_renew=False, lease_duration=10) as client:
        ended = []

        async def work(name: str) -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        async def body() -> None:
            async with client.lock("k"), asyncio.TaskGroup() as tasks:
                tasks.create_task(work("a"))
                tasks.create_task(work("b"))

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(10)

        with pytest.raises(LockLostError):
            await task
        assert sorted(ended) == ["a", "b"]
