"""A lane of tasks makes calls for callers who go on when their time is over."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import AsyncLane


def test_a_task_of_a_lane_goes_on_where_its_caller_has_no_more_time() -> None:
    """Its answer is late, and its place is free only then."""
    late = list[int]()

    async def scene() -> None:
        lane, end = AsyncLane(1), asyncio.Event()

        async def call() -> int:
            await end.wait()
            return 7

        with pytest.raises(TimeoutError):
            await lane.run(call, 0.01, late.append)
        with pytest.raises(StoreUnavailableError, match=r"no task was free within 0\.01 s; nothing was sent"):
            await lane.run(call, 0.01, late.append)
        assert late == []
        end.set()
        assert await lane.run(call, 10, late.append) == 7

    asyncio.run(scene())
    assert late == [7]


def test_a_task_of_a_lane_goes_on_where_its_caller_is_cancelled() -> None:
    """A connection that was nearly made is not lost by it."""
    late = list[int]()

    async def scene() -> None:
        lane, begun, end = AsyncLane(1), asyncio.Event(), asyncio.Event()

        async def call() -> int:
            begun.set()
            await end.wait()
            return 7

        caller = asyncio.create_task(lane.run(call, 10, late.append))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        end.set()
        assert await lane.run(call, 10) == 7

    asyncio.run(scene())
    assert late == [7]


def test_what_a_lane_of_tasks_has_under_way_ends_with_it() -> None:
    """The loop may be closed next, and would complain of a task that is pending."""

    async def scene() -> list[str]:
        lane, ended = AsyncLane(2), list[str]()

        async def call() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("call")

        caller = asyncio.create_task(lane.run(call, 10))
        with pytest.raises(TimeoutError):
            await lane.run(call, 0.01)
        await lane.close()
        with pytest.raises(StoreUnavailableError, match="the store was closed meanwhile; nothing was sent"):
            await caller
        return ended

    assert asyncio.run(scene()) == ["call", "call"]


def test_an_error_of_a_task_that_nobody_waits_for_is_not_complained_of() -> None:
    """The event loop would log an exception that was never retrieved, from a finalizer."""
    complaints, late = list[object](), list[object]()

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        lane, end = AsyncLane(1), asyncio.Event()

        async def call() -> None:
            await end.wait()
            raise ConnectionError

        with pytest.raises(TimeoutError):
            await lane.run(call, 0.01, late.append)
        end.set()
        await lane.run(partial(asyncio.sleep, 0), 10)  # on its place, once that is free
        gc.collect()

    asyncio.run(scene())
    assert (complaints, late) == ([], [])


def test_a_task_of_a_lane_does_not_hide_that_its_caller_is_cancelled_with_it() -> None:
    """As all tasks are where a program ends: the caller would go on."""

    async def scene() -> None:
        lane = AsyncLane(1)
        caller = asyncio.create_task(lane.run(asyncio.Event().wait, 10))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scene())
