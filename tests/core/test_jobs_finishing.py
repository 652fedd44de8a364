"""The end of a run of a job, in both colours: the finish is one write, and says so only where it was written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    OutcomeUnknownError,
)
from dlock_core.engine.jobs import JobRun
from dlock_core.engine.lease_view import LeaseView
from dlock_core.once import mark
from dlock_core.states import Payload
from tests.core.hold_support import Boom
from tests.core.jobs_support import enter
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from dlock_core import LockRecord
    from tests.core.worlds import World

NOTHING = Payload(None, ())


def finished(slot: str | int) -> Payload:
    """Return what a run of *slot* leaves."""
    return mark(slot, None, at_ms=1, not_before_ms=0)


@both_colours
async def test_leaving_the_block_finishes_the_slot_and_a_body_that_raises_leaves_it_due(world: World) -> None:
    """Due again at once, for whoever comes; what was finished before stays."""
    async with world.client() as client:
        async with client.once("k", slot="a") as job:
            await job.finish(b"first")
        with pytest.raises(Boom):
            async with client.once("k", slot="b"):
                raise Boom

        async with client.once("k", slot="b") as job:
            assert job.due
            assert (job.result, job.last_slot) == (b"first", "a")
        async with client.once("k", slot="b") as job:
            assert not job.due


@both_colours
async def test_finish_is_one_write_and_a_lost_reply_is_followed_up(world: World) -> None:
    """Applied, and the answer was lost: the next request tells, and the slot is done."""
    async with world.client() as client:
        async with client.once("k", slot=1) as job:
            world.store.lose_reply("release")
            await job.finish(b"x")
        async with client.once("k", slot=1) as job:
            assert (job.due, job.result) == (False, b"x")


@both_colours
async def test_finish_without_an_answer_is_an_error_and_arrives_all_the_same(world: World) -> None:
    """It is followed up in the background."""
    async with world.client(lease_duration=20) as client:
        job = await enter(client, slot=1)
        world.store.lose_request("release", 2)
        with pytest.raises(OutcomeUnknownError):
            await job.finish(b"x")
        with pytest.raises(LeaseStateError, match="not running here"):
            await job.finish(b"x")
        await world.live(5)

        async with client.once("k", slot=1) as job:
            assert (job.due, job.result) == (False, b"x")


@both_colours
async def test_run_that_was_lost_says_so_when_it_finishes(world: World) -> None:
    """Another process runs the slot; its mark is not touched."""
    async with world.client(lease_duration=4, auto_renew=False) as client, world.client(lease_duration=4) as other:
        job = await enter(client, slot=1)
        entered = world.spawn(enter(other, slot=1))
        await world.live(6)
        second = await entered.result()
        assert second.due

        with pytest.raises(LockLostError):
            await job.finish(b"late")
        await second.finish(b"good")
        async with client.once("k", slot=1) as job:
            assert job.result == b"good"


@both_colours
@pytest.mark.parametrize(
    ("left", "error", "told"),
    [
        (NOTHING, LockLostError, "now it is held by 'other'"),
        (finished(1), LockLostError, "took it over"),
        (finished(2), OutcomeUnknownError, "slot 2 was"),
        (finished("2"), LockLostError, "took it over"),
        (Payload(b"of a plain lock", ()), LockLostError, "took it over"),
    ],
)
async def test_finish_that_arrives_after_a_takeover_is_no_success(
    world: World, left: Payload, error: type[Exception], told: str
) -> None:
    """The process stood still in the middle of the finish, and another one took the key over; it may have finished slots, too."""

    def stand_still(verb: str, _: object) -> None:
        if verb == "release":
            world.clock.advance(8)
            world.space.records["k"] = taken_over(world.space.records["k"], left)

    async with world.client(world.hooked_store(stand_still), lease_duration=4) as client:
        job = await enter(client, slot=1)
        with pytest.raises(error, match=told) as raised:
            await job.finish(b"late")
        assert (job.last_slot, job.result) == (None, None)
        assert getattr(raised.value, "key", "k") == "k"


def taken_over(record: LockRecord, payload: Payload) -> LockRecord:
    """Return the record as another holder has left it, with *payload*."""
    return replace(
        record,
        rvn="f" * 32,
        fencing_token=record.fencing_token + 1,
        owner="other",
        data=payload.data,
        attributes=payload.attributes,
    )


@both_colours
async def test_run_whose_lease_is_over_says_that_when_it_finishes(world: World) -> None:
    """Nobody has taken it over: the slot is due for whoever comes."""
    async with world.client(lease_duration=4, auto_renew=False) as client:
        job = await enter(client, slot=1)
        await world.live(5)
        with pytest.raises(LockLostError, match="its lease ran out"):
            await job.finish(b"late")

        async with client.once("k", slot=1) as job:
            assert (job.due, job.result) == (True, None)


@both_colours
async def test_run_that_took_too_long_leaves_its_slot_due(world: World) -> None:
    """Its body ended well, but after ``at_most_for``: leaving the block is the loss, and marks nothing."""

    async def run(client: Any) -> None:
        async with client.once("k", slot=1, at_most_for=3):
            await world.live(4)

    async with world.client(lease_duration=20) as client:
        with pytest.raises(LockLostError, match="at_most_for"):
            await run(client)

        async with client.once("k", slot=1) as job:
            assert (job.due, job.last_slot) == (True, None)


@both_colours
@pytest.mark.parametrize(
    ("held_s", "took_s", "told"),
    [(0, 8, "no answer"), (3.75, 0.2, "slot 1 of job 'k' was finished by this run: the store did not")],
    ids=["stood still", "no time left"],
)
async def test_finish_that_nobody_answered_until_the_lease_was_over_is_unknown(
    world: World, held_s: float, took_s: float, told: str
) -> None:
    """The process stood still between the tries, or the lease has no time for another: nobody can tell what the store has done."""

    def let_time_pass(verb: str, _: object) -> None:
        if verb == "release":
            world.clock.advance(took_s)
            raise OutcomeUnknownError("no answer", key="k")

    async with world.client(world.hooked_store(let_time_pass), lease_duration=4, auto_renew=False) as client:
        job = await enter(client, slot=1)
        await world.live(held_s)
        with pytest.raises(OutcomeUnknownError, match=told) as raised:
            await job.finish(b"late")
        assert (job.last_slot, raised.value.key) == (None, "k")


@both_colours
async def test_leaving_the_block_without_an_answer_is_followed_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done: the log tells of the doubt, and the slot is finished later."""
    async with world.client() as client:
        async with client.once("k", slot=1):
            world.store.lose_request("release", 2)
        assert caplog.messages[-1].startswith("the release of lock 'k' was not confirmed; it is followed up")
        await world.live(5)

        async with client.once("k", slot=1) as job:
            assert not job.due


@both_colours
@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("text", r"str; give at most 65536 bytes, as text.encode\(\) makes them, or None"),
        (7, "int; give at most 65536 bytes, or None"),
        (b"x" * 65_537, "65537 bytes; give at most 65536 bytes, or None"),
    ],
)
async def test_result_that_cannot_be_kept_is_refused_and_the_run_goes_on(world: World, result: Any, told: str) -> None:
    """Up to 64 KiB of bytes."""
    async with world.client() as client, client.once("k", slot=1) as job:
        with pytest.raises(ConfigurationError, match=f"the result of job 'k' is {told}"):
            await job.finish(result)
        assert job.lease is not None
        assert job.lease.is_valid
        await job.finish(b"x" * 65_536)


@both_colours
async def test_lease_released_by_the_body_finishes_nothing(world: World) -> None:
    """The body gave the job back, and somebody else may run it."""
    async with world.client() as client:
        async with client.once("k", slot=1) as job:
            assert job.lease is not None
            await job.lease.release()
        async with client.once("k", slot=1) as job:
            assert job.due


@both_colours
async def test_leaving_the_block_after_a_takeover_is_the_loss(world: World) -> None:
    """Also where only the record tells of it: another process runs the slot again, so this run was no success."""

    def take_over(verb: str, _: object) -> None:
        if verb == "release":
            world.space.records["k"] = taken_over(world.space.records["k"], finished(1))

    async def run(client: Any) -> None:
        async with client.once("k", slot=1):
            pass

    async with world.client(world.hooked_store(take_over)) as client:
        with pytest.raises(LockLostError, match="took it over"):
            await run(client)


@both_colours
async def test_run_whose_body_closes_the_client_finishes_nothing(world: World) -> None:
    """The close has given the job back, with its slot due."""
    async with world.client() as client:
        async with client.once("k", slot=1) as job:
            await client.close()
            with pytest.raises(LeaseStateError, match="not running here"):
                await job.finish(b"x")
        assert job.last_slot is None
    async with world.client() as client, client.once("k", slot=1) as job:
        assert job.due


@both_colours
async def test_copy_of_a_run_in_a_forked_child_is_dead(world: World) -> None:
    """It finishes nothing, and leaves its block in silence; the parent's run goes on."""
    async with world.client() as client:
        job = await enter(client, slot=1)
        context = raw(job)._context
        context.generation -= 1
        with pytest.raises(LeaseStateError, match="forked"):
            await job.finish()
        await job.__aexit__(None, None, None)
        assert not world.store.requests["release"]

        context.generation += 1
        await job.finish()


@both_colours
async def test_giving_back_without_an_answer_changes_nothing_of_what_was_found(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The slot was finished by another while it was waited for; the release is followed up."""
    async with world.client() as client, world.client() as other:
        running = await enter(client, slot=1)
        waiting = world.spawn(enter(other, slot=1, timeout=60))
        await world.live(1)
        await running.finish(b"x")
        world.store.lose_request("release", 2)
        await world.live(2)

        job = await waiting.result()
        assert (job.due, job.result) == (False, b"x")
        assert caplog.messages[-1].startswith("the release of lock 'k' was not confirmed; it is followed up")


@async_only
async def test_loss_that_the_end_of_a_run_finds_is_the_loss_and_no_cancellation(world: World) -> None:
    """The event loop stood still for longer than the lease: the release, in which the loss is noticed, is no part of the body."""

    async def wait_for_the_store(verb: str, _: object) -> None:
        if verb == "release":
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    store = world.hooked_store(wait_for_the_store)
    async with world.client(store, cancel_on_loss=True, lease_duration=10) as client:

        async def body() -> None:
            async with client.once("k", slot=1):
                world.clock.advance(11)

        task = asyncio.ensure_future(body())
        with pytest.raises(LockLostError):
            await task
        assert task.cancelling() == 0


@both_colours
async def test_time_in_which_no_other_run_begins_counts_from_the_beginning_of_the_run(world: World) -> None:
    """And not from that of the wait for the holder before it, which had died."""
    async with world.client(auto_renew=False) as dead, world.client() as client, world.client() as other:
        first = await enter(dead, slot=1)
        assert first.due
        entered = world.spawn(enter(client, slot=1, at_least_for=30))
        await world.live(21)
        await (await entered.result()).finish()
        await world.live(15)

        async with other.once("k", slot=2) as job:
            assert not job.due


@both_colours
async def test_clock_that_is_set_back_in_a_run_keeps_nobody_from_the_next(world: World) -> None:
    """Nobody has asked for a time in which no other begins."""
    async with world.client() as client, world.client() as other:
        async with client.once("k", slot=1):
            world.clock.skew -= 3600

        async with other.once("k", slot=2) as job:
            assert job.due


@both_colours
async def test_an_interrupt_before_the_block_gives_the_job_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it comes when the job was taken, and whoever shows the traceback keeps the run."""
    decide = JobRun._decide

    async def strike(run: JobRun, *rest: Any) -> None:
        await decide(run, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(JobRun, "_decide", strike)
    async with world.client() as client:
        with pytest.raises(KeyboardInterrupt) as kept:
            await enter(client, slot=1)
        await world.live(1)

        assert not world.space.records["k"].held
        assert kept.traceback


@both_colours
async def test_an_interrupt_before_the_finish_gives_the_job_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the block still refers to the run, whose lock was renewed for ever. Its slot is due again."""

    def interrupt(_: LeaseView) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async with world.client() as client:
        job = None
        with pytest.raises(KeyboardInterrupt):
            async with client.once("k", slot=1) as job:
                monkeypatch.setattr(LeaseView, "_alive", interrupt)
        await world.live(1)

        assert job is not None
        assert not world.space.records["k"].held
        async with client.once("k", slot=1) as again:
            assert again.due
