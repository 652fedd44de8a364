"""Jobs that run once per slot, in both colours from one text."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    StoreUnavailableError,
    connect,
)
from dlock_core.once import Finished, finished_in
from tests.core.aio_support import forever
from tests.core.early_support import dies
from tests.core.jobs_support import enter
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World

AT_THE_GRANT = 2
"""Which look of a run at the record is the one at its grant: the first is before the acquire."""


@both_colours
async def test_slot_is_run_once_and_its_result_is_kept(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever comes later reads the result, in one request; the next slot is due. None of it is worth a warning."""
    async with world.client() as client, world.client() as other:
        async with client.once("k", slot=1) as job:
            assert job.due
            assert (job.busy, job.last_slot, job.result) == (False, None, None)
            assert job.lease is not None
            token = job.lease.fencing_token
            await job.finish(b"42")
            assert (job.result, job.last_slot) == (b"42", 1)
        assert world.store.requests == {"read": 1, "claim": 1, "release": 1}

        async with other.once("k", slot=1) as job:
            assert (job.due, job.busy, job.result, job.last_slot, job.lease) == (False, False, b"42", 1, None)
        assert world.store.requests == {"read": 2, "claim": 1, "release": 1}

        async with other.once("k", slot=2) as job:
            assert job.due
            assert (job.result, job.last_slot) == (b"42", 1)
            assert job.lease is not None
            assert job.lease.fencing_token > token
        async with client.once("k", slot=2) as job:
            assert (job.due, job.result, job.last_slot) == (False, None, 2)
    assert not caplog.messages


@both_colours
async def test_read_that_gets_no_answer_fails_neither_a_run_nor_a_finished_slot(world: World) -> None:
    """The acquire tries for longer, and the payload of its grant tells what was finished."""
    async with world.client() as client:
        for fault in (world.store.fail, world.store.lose_request, world.store.lose_reply):
            fault("read")
            async with client.once("k", slot=1) as job:
                assert job.due is (fault == world.store.fail)
                assert job.last_slot == (None if job.due else 1)


@both_colours
async def test_run_whose_process_died_is_found_and_redone(world: World) -> None:
    """By a process that comes once and watches for a lease (E5)."""
    async with world.client(lease_duration=4) as client:
        async with client.once("k", slot=1) as job:
            await job.finish(b"one")
        token = await dies(world, replace_data=False)
        async with world.client() as daily:
            entered = world.spawn(enter(daily, slot=2))
            await world.live(25)
            job = await entered.result()

            assert job.due
            assert job.lease.fencing_token > token
            assert (job.last_slot, job.result) == (1, b"one")
            await job.finish()


@both_colours
async def test_busy_is_told_only_when_the_holder_was_seen_to_renew(world: World) -> None:
    """Within a quarter of its lease and a poll; nothing is left of the try."""
    async with world.client(lease_duration=20) as client, world.client(lease_duration=20) as other:
        async with client.once("k", slot=1) as job:
            entered = world.spawn(enter(other, slot=1))
            await world.live(4.5)
            assert not entered.done
            await world.live(1.5)
            found = await entered.result()

            assert (found.due, found.busy, found.lease) == (False, True, None)
            assert job.lease is not None
            assert job.lease.is_valid
        async with other.once("k", slot=1) as job:
            assert not job.due


@both_colours
async def test_timeout_says_how_long_the_end_of_another_run_is_waited_for(world: World) -> None:
    """0 says busy at once; a longer one finds the slot done when the run has ended."""
    async with world.client(lease_duration=20) as client, world.client(lease_duration=20) as other:
        running = client.once("k", slot=1)
        await running.__aenter__()
        async with other.once("k", slot=1, timeout=0) as job:
            assert job.busy

        waiting = world.spawn(enter(other, slot=1, timeout=60))
        await world.live(12)
        assert not waiting.done
        await running.__aexit__(None, None, None)
        await world.live(2)
        job = await waiting.result()
        assert (job.due, job.busy, job.last_slot) == (False, False, 1)
        assert not other.holds("k")

        async with client.once("k", slot=2, timeout=0):
            waiting = world.spawn(enter(other, slot=2, timeout=3))
            await world.live(4)
            assert (await waiting.result()).busy


@both_colours
async def test_slot_finished_between_the_read_and_the_grant_is_not_run(world: World) -> None:
    """The payload of the grant decides (E1), and giving back keeps it (E2)."""
    async with world.client() as client, world.client() as other:

        async def finish_first(verb: str, request: Any) -> None:
            if verb == "claim" and not done:
                done.append(request)
                async with other.once("k", slot=1) as job:
                    await job.finish(b"theirs")

        done: list[Any] = []

        def before(verb: str, request: Any) -> Any:
            work = finish_first(verb, request)
            if world.colour == "async":
                return work
            from dlock_core.engine.blocking_runtime import run_blocking

            return run_blocking(work)

        async with (
            world.client(world.hooked_store(before)) as slow,
            slow.once("k", slot=1) as job,
        ):
            assert (job.due, job.busy, job.result, job.last_slot) == (False, False, b"theirs", 1)
        record = await client.get("k")
        assert record is not None
        assert (record.held, record.data) == (False, b"theirs")


@both_colours
async def test_slot_that_goes_back_is_never_run_and_the_log_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Text that does not grow would never be due again, silently."""
    async with world.client() as client:
        async with client.once("k", slot="tuesday"):
            pass
        with caplog.at_level(logging.WARNING, "dlock.client"):
            async with client.once("k", slot="thursday") as job:
                assert not job.due
                assert job.last_slot == "tuesday"

        assert caplog.messages == [
            "slot 'thursday' of job 'k' lies before 'tuesday', which was finished, so it is not run; slots must grow"
        ]
        with pytest.raises(ConfigurationError, match="cannot be compared"):
            await enter(client, slot=7)


@both_colours
async def test_no_run_begins_under_a_lease_that_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still between the grant and the block; the slot stays due."""
    looks: list[object] = []

    def stand_still(key: str, payload: Any) -> Finished:
        looks.append(payload)
        if len(looks) == AT_THE_GRANT:
            world.clock.advance(10)
        return finished_in(key, payload)

    monkeypatch.setattr("dlock_core.engine.jobs.finished_in", stand_still)
    async with world.client(lease_duration=10) as client:
        with pytest.raises(LockLostError):
            async with client.once("k", slot=1):
                raise AssertionError("the block was entered")

        entered = world.spawn(enter(client, slot=1))
        await world.live(12)
        job = await entered.result()
        assert job.due
        await job.finish()


@both_colours
@pytest.mark.parametrize(("of_client", "of_job"), [({}, {"at_most_for": 10}), ({"max_hold": 10}, {})])
async def test_at_most_for_bounds_a_run(world: World, of_client: dict[str, int], of_job: dict[str, int]) -> None:
    """As ``max_hold``, which counts where the client has one and the job says nothing."""
    async with world.client(lease_duration=20, **of_client) as client:
        job = await enter(client, slot=1, **of_job)
        await world.live(9.5)
        assert job.lease.is_valid
        await world.live(0.5)

        assert not job.lease.is_valid
        await raw(job.lease).lost.wait() if world.colour == "async" else raw(job.lease).lost.wait(20)


@both_colours
async def test_at_least_for_keeps_others_from_a_new_run_by_the_wall_clock(world: World) -> None:
    """The job is released, so nobody takes its lock for held (E4)."""
    async with world.client() as client, world.client() as other:
        async with client.once("k", slot=1, at_least_for=60):
            await world.live(10)
        await world.live(40)
        record = await client.get("k")
        assert record is not None
        assert dict(record.attributes)["once.not_before"] == world.clock.wall_ms() - 50_000 + 60_000
        async with other.once("k", slot=2) as job:
            assert (job.due, job.busy, job.last_slot) == (False, False, 1)
        await world.live(11)

        async with other.once("k", slot=2) as job:
            assert job.due


@both_colours
async def test_slot_is_computed_when_the_run_begins(world: World) -> None:
    """A function, as :mod:`dlock_core.slots` gives."""
    number = [1]
    async with world.client() as client:
        job = client.once("k", slot=lambda: number[0])
        number[0] = 2
        async with job as run:
            assert run.due
        record = await client.get("k")
        assert record is not None
        assert dict(record.attributes)["once.slot"] == 2


@both_colours
async def test_job_makes_its_record_whatever_the_locks_of_its_client_do(world: World) -> None:
    """A client whose locks wait for a record that exists would wait for that of a new job for ever."""
    async with world.client(only_if_exists=True) as client, client.once("k", slot=1, timeout=0) as job:
        assert job.due


@both_colours
async def test_interrupt_at_the_grant_gives_the_job_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when its lease is over: the slot is due for whoever comes."""
    looks: list[object] = []

    def interrupt(key: str, payload: Any) -> Finished:
        looks.append(payload)
        if len(looks) == AT_THE_GRANT:
            raise _InterruptError
        return finished_in(key, payload)

    monkeypatch.setattr("dlock_core.engine.jobs.finished_in", interrupt)
    async with world.client() as client, world.client() as other:
        with pytest.raises(_InterruptError):
            await enter(client, slot=1)
        await world.live(1)

        async with other.once("k", slot=1, timeout=0) as job:
            assert job.due


class _InterruptError(BaseException):
    """As KeyboardInterrupt, which pytest takes for its own."""


@both_colours
async def test_job_says_what_it_is(world: World) -> None:
    """Its key, its slot and what came of it."""
    async with world.client() as client:
        async with client.once("k", slot=1) as job, client.once("k", slot=1, timeout=0) as busy:
            told = repr(job), repr(busy)
        async with client.once("k", slot=1) as done:
            pass

    name = "Once" if world.colour == "sync" else "AsyncOnce"
    assert told == (f"<{name} 'k' slot 1 due>", f"<{name} 'k' slot 1 busy>")
    assert repr(done) == f"<{name} 'k' slot 1 not due>"


def test_run_is_neither_true_nor_false() -> None:
    """Else `if job:` ran a job again that is done."""
    told = pytest.raises(LeaseStateError, match=r"once\('k'\) is neither true nor false; .*if job.due")
    with connect("memory://") as client, client.once("k", slot=1) as job, told:
        bool(job)


@both_colours
async def test_run_is_for_one_use(world: World) -> None:
    """A second entry would decide anew under the first's name."""
    async with world.client() as client:
        job = client.once("k", slot=1)
        async with job:
            pass
        with pytest.raises(LeaseStateError, match="was used before"):
            await job.__aenter__()


@both_colours
async def test_trouble_of_the_store_is_raised_and_leaves_nothing(world: World) -> None:
    """The slot stays due."""
    async with world.client(lease_duration=4) as client:
        with world.store.outage():
            entered = world.spawn(enter(client, slot=1))
            await world.live(25)
            with pytest.raises(StoreUnavailableError):
                await entered.result()
        async with client.once("k", slot=1) as job:
            assert job.due


@both_colours
async def test_release_of_a_lock_without_a_lease_is_waited_for_where_a_timeout_says_so(world: World) -> None:
    """Its holder may come to an end."""
    async with world.client() as client, world.client() as other:
        lease = await client.acquire("k", fail_closed=True)
        waiting = world.spawn(enter(other, slot=1, timeout=60))
        await world.live(5)
        assert not waiting.done
        await lease.release()
        await world.live(3)

        job = await waiting.result()
        assert job.due
        await job.finish()


@both_colours
async def test_lock_without_a_lease_is_busy_at_once(world: World) -> None:
    """It shows no sign of life, and is never taken over."""
    async with (
        world.client() as client,
        world.client() as other,
        client.lock("k", fail_closed=True),
        other.once("k", slot=1) as job,
    ):
        assert job.busy


@async_only
async def test_cancel_on_loss_cancels_a_run_at_its_end(world: World) -> None:
    """The slot stays due."""
    async with world.client(cancel_on_loss=True, lease_duration=10) as client:

        async def body() -> None:
            async with client.once("k", slot=1, at_most_for=5):
                await forever()

        task = asyncio.ensure_future(body())
        await world.jump(0)
        await world.jump(5)
        with pytest.raises(LockLostError):
            await task
        assert task.cancelling() == 0
        async with client.once("k", slot=1) as job:
            assert job.due
