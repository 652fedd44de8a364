"""How a job tells whether who has its key is alive, where that is no run of the job, or was seen before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core import LeaseStateError
from tests.core.early_support import dies
from tests.core.jobs_support import enter
from tests.core.test_sessions import KEEPS, moved
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
@pytest.mark.parametrize("knows_it", [False, True])
async def test_dead_holder_that_a_session_kept_is_found(world: World, knows_it: bool) -> None:
    """The record of the lock shows no sign of life, that of the session does: also to who has seen the session alive long before."""
    store = world.another_store()
    async with world.client(lease_duration=10) as other, world.client(store, **KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        if knows_it:
            entering = world.spawn(enter(other, slot=1))
            await world.live(10)
            assert (await entering.result()).busy
            await world.live(10)
        with store.outage():
            await world.live(30)
            entering = world.spawn(enter(other, slot=1))
            await world.live(15)

            job = await entering.result()
            assert job.due
            assert not lease.is_valid
            await job.finish()


@both_colours
async def test_holder_that_a_session_keeps_is_busy_once_the_session_was_renewed(world: World) -> None:
    """As a run of the job itself is: whoever comes does not wait for its end."""
    async with world.client(lease_duration=10) as other, world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        entering = world.spawn(enter(other, slot=1))
        await world.live(4)

        job = await entering.result()
        assert job.busy
        assert not job.due
        assert lease.is_valid


@both_colours
async def test_holder_of_long_ago_is_not_taken_for_the_one_of_today(world: World) -> None:
    """The first request of today gets no answer, so what this client has seen last is another run's: that proves nothing of this one."""
    async with world.client(lease_duration=10) as client, world.client(lease_duration=10) as daily:
        async with client.once("k", slot=1):
            assert (await enter(daily, slot=1, timeout=0)).busy
        await dies(world, replace_data=False)
        await world.live(60)
        world.store.fail("claim")
        entering = world.spawn(enter(daily, slot=2))
        await world.live(30)

        job = await entering.result()
        assert job.due
        await job.finish()


@both_colours
@pytest.mark.parametrize("wait_s", [None, 30])
@pytest.mark.parametrize("is_job", [True, False])
async def test_run_that_would_wait_for_its_own_thread_or_task_is_told_at_once(
    world: World, wait_s: float | None, is_job: bool
) -> None:
    """As an acquire is: nobody else ends the wait. Without a timeout it is busy, as beside any other run."""
    began = world.clock.now()
    async with world.client() as client, client.once("k", slot=1) if is_job else client.lock("k"):
        with pytest.raises(LeaseStateError, match="would wait for itself for ever; release it first; if another"):
            await enter(client, slot=2, timeout=wait_s)
        assert (await enter(client, slot=2, timeout=0)).busy
        assert client.holds("k")
        assert world.clock.now() == began
