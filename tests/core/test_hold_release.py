"""A lease that is released, by a call or at the end of a block, in both colours from one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    LeaseStateError,
    LockLostError,
    LossReason,
    StoreUnavailableError,
)
from dlock_core.engine.lease_view import LeaseView
from dlock_core.events import EventKind
from tests.core.hold_support import Boom, steal
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from dlock_core import AsyncLockClient, LockEvent, Loss
    from dlock_core.engine.renewals import Job
    from tests.core.worlds import World


@both_colours
async def test_release_twice_is_once(world: World) -> None:
    """The second call does nothing, and does not raise."""
    async with world.client() as client:
        lease = await client.acquire("k")

        await lease.release()
        await lease.release()

        assert world.store.requests["release"] == 1
        assert not client._engine.driver.held


@both_colours
async def test_release_of_a_lapsed_lock_raises_the_loss_and_frees_the_key(world: World) -> None:
    """Late, but the record was still ours, and it is of no use to keep it closed."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        lease = await client.acquire("k")
        await world.jump(10)

        with pytest.raises(LockLostError):
            await lease.release()

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"
        await lease.release()


@both_colours
async def test_release_after_takeover_leaves_the_new_holder_alone(world: World) -> None:
    """A late release by an expired holder must not free the next holder's lock."""
    async with world.client(lease_duration=10, auto_renew=False) as a, world.client() as b:
        late = await a.acquire("k")
        assert await b.try_acquire("k") is None
        await world.jump(10)
        lease = await b.try_acquire("k")
        assert lease is not None

        with pytest.raises(LockLostError):
            await late.release()

        assert await lease.ensure(60) == 2


@both_colours
async def test_late_release_leaves_the_next_lease_of_the_same_client_alone(world: World) -> None:
    """The client knows the key as held by the next, and afterwards by nobody."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        late = await client.acquire("k")
        waits = world.spawn(client.acquire("k"))
        await world.live(11)
        lease = await waits.result()

        with pytest.raises(LockLostError):
            await late.release()

        assert client.holds("k")
        assert lease.is_valid
        await world.jump(10)
        with pytest.raises(LockLostError):
            await lease.release()
        assert not client._engine.driver.held


async def told_of_losses(world: World, client: AsyncLockClient, events: list[LockEvent]) -> int:
    """Return how many losses the hook of *client* was told of, with all that goes before what it hears next."""
    async with client.lock("next"):
        pass
    await world.until(lambda: bool(events) and (events[-1].kind, events[-1].key) == (EventKind.RELEASED, "next"))
    return [event.kind for event in events].count(EventKind.LOST)


@both_colours
async def test_release_that_finds_the_lock_broken_tells_of_the_loss(world: World) -> None:
    """As the renewal would have that came too late for it."""
    events: list[LockEvent] = []
    async with world.client(on_event=events.append) as client, world.client() as operator:
        lease = await client.acquire("k")
        losses: list[Loss] = []
        lost = lease.lost
        lease.on_lost(losses.append)
        assert await operator.break_lock("k", fencing_token=lease.fencing_token, now=True)

        with pytest.raises(LockLostError):
            await lease.release()
        await world.until(lambda: lost.is_set() and bool(losses))

        assert [loss.reason for loss in losses] == [LossReason.BROKEN]
        assert await told_of_losses(world, client, events) == 1


@both_colours
@pytest.mark.parametrize("reason", [LossReason.EXPIRED, LossReason.STOLEN])
async def test_release_of_a_lost_lock_tells_of_no_second_loss(world: World, reason: LossReason) -> None:
    """Everybody has heard of it when it was lost."""
    events: list[LockEvent] = []
    async with world.client(
        on_event=events.append, lease_duration=10, auto_renew=reason is LossReason.STOLEN
    ) as client:
        lease = await client.acquire("k")
        if reason is LossReason.STOLEN:
            await steal(world, lease)
        await world.live(10)

        with pytest.raises(LockLostError) as caught:
            await lease.release()

        assert caught.value.loss.reason is reason
        assert await told_of_losses(world, client, events) == 1


@both_colours
async def test_release_of_a_lost_lock_raises_the_loss_though_the_store_is_down(world: World) -> None:
    """That the lock was lost matters more than that the store does not answer."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        lease = await client.acquire("k")
        await world.jump(10)

        with world.store.outage(), pytest.raises(LockLostError):
            await lease.release()
        await world.jump(20)


@both_colours
async def test_release_without_an_answer_is_told_and_followed_up(world: World) -> None:
    """An explicit release says that nobody acknowledged it; the scheduler goes on, and the key is free when the store is back."""
    async with world.client(lease_duration=10) as client:
        lease = await client.acquire("k")
        with world.store.outage():
            with pytest.raises(StoreUnavailableError):
                await lease.release()
            assert not lease.is_valid
            await world.live(1)

        await world.live(4)

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_body_that_raises_keeps_its_exception(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The lock never replaces what the body raised, and releases all the same."""
    async with world.client() as client:
        error = Boom("body")

        with pytest.raises(Boom) as caught:
            async with client.lock("k"):
                raise error

        assert caught.value is error
        assert not hasattr(error, "__notes__")
        assert world.store.requests["release"] == 1
    assert not caplog.messages


async def _fail_in(world: World, client: AsyncLockClient, error: Exception, *, jump: float) -> None:
    async with client.lock("k"):
        await world.jump(jump)
        world.store.fail("release", 9)
        raise error


@both_colours
async def test_body_that_raises_after_a_loss_gets_the_loss_as_a_note(world: World) -> None:
    """Both are told: the exception leaves, and its notes say that the lock was lost, though the store is down too."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        error = Boom("body")

        with pytest.raises(Boom):
            await _fail_in(world, client, error, jump=10)

        [note] = error.__notes__
        assert "lock 'k' (token 1) was lost: its lease ran out" in note


@both_colours
async def test_body_may_raise_after_a_loss_what_has_no_text(world: World) -> None:
    """An error of the user's whose ``__str__`` fails leaves the block all the same: a handler waits for its type."""

    class Textless(Boom):
        def __str__(self) -> str:
            raise RuntimeError

    async with world.client(lease_duration=10, auto_renew=False) as client:
        with pytest.raises(Textless):
            await _fail_in(world, client, Textless(), jump=10)


@both_colours
async def test_hazard_32_body_that_raises_gets_a_release_without_an_answer_as_a_note(world: World) -> None:
    """What failed at the end of the block hides nothing."""
    async with world.client(lease_duration=10) as client:
        error = Boom("body")

        with pytest.raises(Boom):
            await _fail_in(world, client, error, jump=0)

        [note] = error.__notes__
        assert "release of 'k' was not sent" in note
        await world.live(11)


@both_colours
async def test_body_that_raises_gets_each_release_of_a_lock_all_without_an_answer_as_a_note(world: World) -> None:
    """One for each of its locks."""
    async with world.client(lease_duration=10) as client:
        error = Boom("body")

        async def fail() -> None:
            async with client.lock_all(["a", "b"]):
                world.store.fail("release", 9)
                raise error

        with pytest.raises(Boom):
            await fail()

        assert [note.split(" was ")[0].rpartition(" ")[2] for note in error.__notes__] == ["'b'", "'a'"]
        await world.live(11)


@both_colours
async def test_body_that_ended_well_raises_nothing_though_its_release_gets_no_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done under the lock: an error would make the caller repeat it."""
    async with world.client(lease_duration=10) as client:
        async with client.lock("k"):
            world.store.fail("release", 9)

        assert "the release of lock 'k' was not confirmed; it is followed up" in caplog.text
        await world.live(11)


@both_colours
@pytest.mark.parametrize("down", [False, True], ids=["answers", "down"])
async def test_body_that_ended_well_after_a_loss_raises_it(world: World, down: bool) -> None:
    """Whoever worked without the lock is told, whatever the store has to say."""
    async with world.client(lease_duration=10, auto_renew=False) as client:

        async def body() -> None:
            async with client.lock("k"):
                await world.jump(10)
                if down:
                    world.store.fail("release", 9)

        with pytest.raises(LockLostError) as caught:
            await body()

        assert caught.value.loss.reason is LossReason.EXPIRED
        await world.live(11)


@both_colours
async def test_body_that_released_by_itself_leaves_silently(world: World) -> None:
    """The end of the block is the second release, and does nothing."""
    async with world.client() as client:
        async with client.lock("k") as lease:
            await lease.release(data=b"done")

        assert world.store.requests["release"] == 1


@both_colours
async def test_block_whose_end_is_interrupted_before_the_release_gives_the_lock_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of a signal may raise there. The variable of the block still refers to the lease, whose lock was renewed for ever."""

    def interrupt(_: LeaseView) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async with world.client() as client:
        lease = None
        with pytest.raises(KeyboardInterrupt):
            async with client.lock("k") as lease:
                monkeypatch.setattr(LeaseView, "_alive", interrupt)
        await world.live(1)

        assert lease is not None
        assert not lease.is_valid
        assert not world.space.records["k"].held


@both_colours
async def test_entering_a_released_lease_is_refused(world: World) -> None:
    """A block would run without the lock."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        with pytest.raises(LeaseStateError, match="was released"):
            async with lease:
                pytest.fail("the block ran")


@both_colours
async def test_renewals_come_not_between_the_end_of_a_lease_and_its_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that was due just then released the lock without the data, since nobody had it in hand any more."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k", data=b"before")
        engine = client._engine  # where the scheduler could come in between
        release = engine.release

        async def late_release(*arguments: Any) -> None:
            world.clock.advance(6)
            due: list[Job] = []
            engine.renewals.collect(due)
            for job in due:
                await engine.renewals.run(job)
            await release(*arguments)

        monkeypatch.setattr(engine, "release", late_release)
        await lease.release(data=b"after")

    assert world.space.records["k"].data == b"after"


@both_colours
async def test_lock_that_was_released_lasts_no_more(world: World) -> None:
    """Another thread may ask how long it does."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        handle = raw(lease)._handle
        await lease.release()

        assert (handle.deadline, handle.remaining_until, handle.renewed_at) == (0, 0, 0)


@both_colours
async def test_inner_lease_of_a_lock_whose_client_is_being_closed_is_released_as_any_other(world: World) -> None:
    """The close, made elsewhere, has given nothing back so far."""
    async with world.client(reentrant=True) as client:
        outer, inner = await client.acquire("k"), await client.acquire("k")
        client._engine.driver.tell_closing(raw(outer)._handle)

        await inner.release()

        assert outer.is_valid
        await outer.release()
