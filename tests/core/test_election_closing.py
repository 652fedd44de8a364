"""Closing a client whose other threads or tasks lead, or run a job: their locks are given back by their bodies alone."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LeaseStateError
from tests.core.election_support import without_cancellation
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

GRACE_S = 0.05


async def told_to_stop(lease: Any) -> None:
    """Wait until the holder is told to stop."""
    waiting = lease.stopping.wait()
    if inspect.isawaitable(waiting):
        await waiting


@both_colours
async def test_closing_tells_the_body_to_stop_and_gives_the_term_back_after_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """``run`` returns then; nobody else could lead before."""
    caplog.set_level(logging.INFO, "dlock.engine")
    held: list[bool] = []

    async def body(term: Any) -> None:
        held.append(world.space.records["k"].held)
        await told_to_stop(term)
        held.append(world.space.records["k"].held)

    async with world.client() as client:
        running = world.spawn(client.election("k", **without_cancellation(world)).run(body), parks=False)
        await world.until(lambda: bool(held))

        await client.close()
        await running.result()

    assert held == [True, True]
    assert not world.space.records["k"].held
    assert "the client is being closed; the holder of lock 'k' is told to stop" in caplog.messages


@async_only
async def test_closing_cancels_a_body_of_asyncio(world: World) -> None:
    """As at a loss; ``run`` returns."""
    held: list[bool] = []

    async def body(term: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            held.append(world.space.records["k"].held)

    async with world.client() as client:
        running = world.spawn(client.election("k").run(body))
        await world.until(lambda: client.holds("k"))

        await client.close()
        await running.result()

    assert held == [True]
    assert not world.space.records["k"].held


@both_colours
async def test_term_whose_body_does_not_stop_is_not_given_back_but_lapses(world: World) -> None:
    """The error says so; the record stays held."""
    begun: list[bool] = []
    ended: list[bool] = []

    async def body(term: Any) -> None:
        begun.append(True)
        await told_to_stop(term)
        world.clock.advance(2 * GRACE_S)
        await world.until(lambda: bool(ended))

    async with world.client() as client:
        election = client.election("k", stop_grace=GRACE_S, **without_cancellation(world))
        running = world.spawn(election.run(body), parks=False)
        await world.until(lambda: bool(begun))

        with pytest.raises(ExceptionGroup) as caught:
            await client.close()
        assert world.space.records["k"].held
        ended.append(True)
        await running.result()

    [error] = caught.value.exceptions
    assert isinstance(error, LeaseStateError)
    assert str(error) == "lock 'k' was not released, since its body still runs; it lapses"


@both_colours
async def test_job_that_runs_is_not_given_back_by_closing(world: World) -> None:
    """The slot would be due at once, and be run beside the body."""
    begun: list[bool] = []

    async def work(client: Any) -> None:
        async with client.once("k", slot=1, stop_grace=GRACE_S) as job:
            begun.append(job.due)
            await told_to_stop(job.lease)
            assert world.space.records["k"].held
            await job.finish(b"in time")

    async with world.client() as client:
        running = world.spawn(work(client), parks=False)
        await world.until(lambda: bool(begun))

        await client.close()
        await running.result()

    assert world.space.records["k"].data == b"in time"


@both_colours
async def test_body_that_closes_its_own_client_gives_its_term_back(world: World) -> None:
    """It has nobody to wait for."""
    async with world.client() as client, await client.election("k").campaign():
        await client.close()

        assert not world.space.records["k"].held


@both_colours
async def test_term_that_was_given_back_by_closing_begins_no_block(world: World) -> None:
    """It was not in a block yet; nor does a term of ``run`` that came just then."""
    async with world.client() as client:
        term = await client.election("k").campaign()
        await client.close()

        with pytest.raises(LeaseStateError, match="the client was closed"):
            async with term:
                raise AssertionError("the block was entered")


@both_colours
async def test_run_of_a_closed_client_is_refused(world: World) -> None:
    """It would return as if it had led."""
    async with world.client() as client:
        election = client.election("k")
    with pytest.raises(LeaseStateError, match="the client was closed"):
        await election.run(told_to_stop)
