"""What only asyncio has in an election: the body is cancelled at the stop grace, and a blocked event loop is noticed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockLostError
from tests.core.aio_support import forever
from tests.core.hold_support import Boom
from tests.core.worlds import async_only

if TYPE_CHECKING:
    from dlock_core import AsyncTerm
    from tests.core.worlds import World


@async_only
async def test_the_body_is_cancelled_at_the_stop_grace_and_the_next_term_begins_after_it(world: World) -> None:
    """It ends within the grace, while its term is valid; then the term is given back, and the campaign begins anew."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        events: list[str] = []
        begun = asyncio.Event()

        async def body(term: AsyncTerm) -> None:
            events.append(f"begins {term.term}")
            begun.set()
            if term.term == 2:
                raise Boom
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                events.append(f"ends, valid: {term.is_valid}, held: {world.space.records['k'].held}")

        running = world.spawn(client.election("k").run(body))
        await begun.wait()
        await world.live(14.5)
        assert events == ["begins 1"]
        await world.live(0.5)

        with pytest.raises(Boom):
            await running.result()
        assert events == ["begins 1", "ends, valid: True, held: True", "begins 2"]


@async_only
async def test_the_block_of_a_campaign_is_cancelled_too(world: World) -> None:
    """``async with`` around a term behaves as the body of a run; the task can go on afterwards."""
    async with world.client(lease_duration=20, auto_renew=False) as client:

        async def lead() -> str:
            with pytest.raises(LockLostError, match="about to be lost"):
                async with await client.election("k").campaign():
                    await forever()
            await asyncio.sleep(0)
            return "went on"

        leading = world.spawn(lead())
        await world.live(15)

        assert await leading.result() == "went on"


@async_only
async def test_a_run_that_is_cancelled_ends_its_body_and_gives_the_term_back(world: World) -> None:
    """The caller's cancellation is the caller's: it leaves the run, and nobody leads."""
    async with world.client() as client:
        begun = asyncio.Event()

        async def body(term: AsyncTerm) -> None:
            begun.set()
            await forever()

        task = asyncio.ensure_future(client.election("k").run(body))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await client.election("k").leader() is None


@async_only
async def test_a_body_that_blocks_the_event_loop_is_named_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The first time that the loop stands still for more than a twentieth of the lease."""
    async with world.client(lease_duration=20) as client:
        begun = asyncio.Event()

        async def blocking_body(term: Any) -> None:
            begun.set()
            await forever()

        task = asyncio.ensure_future(client.election("k").run(blocking_body))
        await begun.wait()
        with caplog.at_level(logging.WARNING, "dlock.client"):
            await world.live(10)
            assert not caplog.messages
            await world.jump(4)
            await world.live(3)
            await world.jump(4)
            await world.live(3)
        task.cancel()
        await asyncio.wait([task])

    [message] = caplog.messages
    assert "the event loop stood still for" in message
    assert "blocking_body ran" in message


@async_only
async def test_a_loop_that_stands_still_after_the_term_is_not_the_body(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The look at the event loop ends with the body."""

    async def body(term: Any) -> None:
        pass

    async with world.client(lease_duration=20) as client:
        await client.election("k").run(body, rejoin=False)
        with caplog.at_level(logging.WARNING, "dlock.client"):
            await world.jump(9)

    assert not caplog.messages
