"""Candidates of an election, in both colours from one text: campaign, lead, resign, run, and what is refused."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    Leader,
    LeaderState,
    LeaseStateError,
    LockClient,
    LockLostError,
    LossReason,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.memory import MemorySpace, MemoryStore
from tests.core.election_support import nothing, reported, without_cancellation
from tests.core.hold_support import Boom
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_a_term_is_a_lease_with_a_number_and_a_value(world: World) -> None:
    """Observers read the same term and value; a resignation lets the next candidate lead, with a greater term."""
    async with world.client(owner="one", prefix="app/") as one, world.client(owner="two", prefix="app/") as two:
        election = one.election("k", value=b"one:80")
        async with await election.campaign() as term:
            assert (term.term, term.value) == (term.fencing_token, b"one:80")
            assert await two.election("k").try_campaign() is None
            assert await two.election("k").leader() == Leader("k", term.term, "one", b"one:80", LeaderState.LEADING)
            await term.proclaim(b"one:81")
            assert term.value == b"one:81"
            assert reported(await election.leader()).value == b"one:81"
        assert await election.leader() is None

        second = await two.election("k").try_campaign()

        assert second is not None
        assert second.term > term.term
        assert second.value is None
        await second.resign()
        await second.resign()


@both_colours
async def test_campaigning_while_it_leads_is_refused(world: World) -> None:
    """One election leads once at a time, whether its term is still valid or lost; after the resignation it campaigns again."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        election = client.election("k")
        term = await election.campaign()
        with pytest.raises(LeaseStateError, match="has not resigned"):
            await election.try_campaign()

        await world.live(10)
        assert not term.is_valid
        with pytest.raises(LeaseStateError, match="has not resigned"):
            await election.campaign()
        with pytest.raises(LockLostError):
            await term.resign()

        await (await election.campaign()).resign()


@both_colours
async def test_campaigning_twice_at_once_is_refused(world: World) -> None:
    """A second call is refused while the first waits, and the first goes on."""
    async with world.client(owner="one") as one, world.client(owner="two") as two:
        leading = await one.election("k").campaign()
        election = two.election("k")
        waiting = world.spawn(election.campaign(), parks=False)
        await world.until(lambda: election._candidate._campaign is not None)

        with pytest.raises(LeaseStateError, match="campaigns already"):
            await election.campaign()

        await leading.resign()
        await world.live(1)
        await (await waiting.result()).resign()


@both_colours
async def test_the_stop_grace_is_a_quarter_of_the_lease(world: World) -> None:
    """It is so by default, and of max_hold or stall_timeout where that is shorter; one that is given counts."""
    async with world.client(lease_duration=20) as client:

        def grace(**options: Any) -> float:
            resolved = client.election("k", **options)._candidate.resolve({})
            return resolved.timings.stop_grace_ns / 1e9

        assert (grace(), grace(max_hold=8), grace(stop_grace=1), grace(fail_closed=True)) == (5, 2, 1, 0)
        assert (grace(stall_timeout=4), grace(lock_delay=5)) == (1, 5)


@both_colours
async def test_wrong_options_are_refused_when_the_election_is_made(world: World) -> None:
    """The error names the option, and for a stop grace that does not fit the terms of the sum."""
    async with world.client(lease_duration=20) as client:
        with pytest.raises(ConfigurationError, match=r"stop_grace 12 s.*stop_grace is what breaks it"):
            client.election("k", stop_grace=12)
        with pytest.raises(ConfigurationError, match="give value="):
            client.election("k", data=b"x")
        with pytest.raises(ConfigurationError, match="reentrant"):
            client.election("k", reentrant=True)
        with pytest.raises(ConfigurationError, match="value is str"):
            client.election("k", value="text")  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(ConfigurationError, match="key"):
            client.election("")


@both_colours
async def test_stopping_is_set_the_grace_before_the_deadline(world: World) -> None:
    """The term still is valid then, for as long as the grace says."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        term = await client.election("k", **without_cancellation(world)).campaign()
        stopping = term.stopping
        await world.live(14.5)
        assert not stopping.is_set()

        await world.live(0.25)
        await world.until(stopping.is_set)

        assert term.is_valid
        assert 4.8 < term.remaining <= 5
        await term.resign()


@both_colours
async def test_run_campaigns_again_after_each_term(world: World) -> None:
    """Each body has a term of its own, greater than the last; what a body raises ends the run, and the key is free."""
    async with world.client() as client:
        terms: list[int] = []

        async def body(term: Any) -> None:
            assert client.holds("k")
            terms.append(term.term)
            if len(terms) == 3:
                raise Boom

        with pytest.raises(Boom):
            await client.election("k").run(body)

        assert terms == [1, 2, 3]
        assert await client.election("k").leader() is None


@both_colours
async def test_run_without_rejoin_leads_once(world: World) -> None:
    """It returns when the body has, and raises the loss of the term."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        terms: list[int] = []

        async def body(term: Any) -> None:
            terms.append(term.term)

        async def long_body(term: Any) -> None:
            world.clock.advance(10)

        await client.election("k").run(body, rejoin=False)
        with pytest.raises(LockLostError) as caught:
            await client.election("k").run(long_body, rejoin=False)

        assert terms == [1]
        assert caught.value.loss.reason is LossReason.EXPIRED


@both_colours
async def test_run_goes_on_after_a_loss_and_lets_the_loss_of_another_lock_out(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of the term begins a new campaign; the loss of any other lock is the body's own error."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        terms: list[int] = []

        async def body(term: Any) -> None:
            terms.append(term.term)
            if len(terms) == 1:
                world.clock.advance(10)
                await term.ensure()
            async with client.lock("another") as lease:
                world.clock.advance(7)
                await term.renew()
                world.clock.advance(4)
                await lease.ensure()

        with caplog.at_level(logging.INFO, "dlock.client"), pytest.raises(LockLostError) as caught:
            await client.election("k").run(body)

        assert terms == [1, 2]
        assert caught.value.loss.key == "another"
        [told] = [message for message in caplog.messages if "campaigning again" in message]
        assert told.startswith("election 'k': term 1 has ended, campaigning again: lock 'k' (token 1) was lost")


@both_colours
async def test_no_body_begins_under_a_term_that_is_over(world: World) -> None:
    """The process stood still between the grant and the block: another may lead by now, and the same election campaigns again."""
    async with world.client(lease_duration=10) as client:
        election = client.election("k")
        late = await election.campaign()
        world.clock.advance(10)

        with pytest.raises(LockLostError):
            async with late:
                raise AssertionError("the block was entered")

        campaigning = world.spawn(election.campaign())
        await world.live(12)
        term = await campaigning.result()
        assert term.term > late.term
        await term.resign()


@both_colours
async def test_run_never_has_two_bodies_and_gives_back_after_the_body(world: World) -> None:
    """A second run of one election is refused while the first's body runs, and the key is held until that has ended."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        election = client.election("k", **without_cancellation(world))

        async def body(term: Any) -> None:
            with pytest.raises(LeaseStateError):
                await election.run(body)
            world.clock.advance(10)  # past the deadline: the term is lost, the body runs
            assert not term.is_valid
            with pytest.raises(LeaseStateError):
                await election.try_campaign()
            assert world.space.records["k"].held
            raise Boom

        with pytest.raises(Boom):
            await election.run(body)


@both_colours
async def test_the_term_is_renewed_while_the_body_stops(world: World) -> None:
    """A body that was told to stop has the lock until it has ended (D2)."""
    async with world.client(lease_duration=20) as client:
        term = await client.election("k", **without_cancellation(world)).campaign()
        stopping = term.stopping
        with world.store.outage():
            await world.live(15)
            await world.until(stopping.is_set)
            assert term.is_valid
        await world.live(30)

        assert term.is_valid
        await term.resign()


@both_colours
async def test_a_body_that_outlives_its_term_is_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One warning when the term ends under a body that was told to stop."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        term = await client.election("k", **without_cancellation(world)).campaign()
        with caplog.at_level(logging.WARNING, "dlock.client"):
            await world.live(20)
            await world.until(lambda: len(caplog.messages) > 0)

        [message] = [text for text in caplog.messages if "still runs" in text]
        assert "term 1 of election 'k' is over (expired) and the block that leads still runs" in message
        assert "it was told to stop 5 s before" in message
        with pytest.raises(LockLostError):
            await term.resign()


@both_colours
async def test_run_waits_for_a_store_that_cannot_be_reached(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A candidate campaigns again after an outage; without rejoin the error is raised."""
    async with world.client(lease_duration=4) as client:
        with world.store.outage():
            with pytest.raises(StoreUnavailableError):
                await client.election("k", timeout=0).run(nothing, rejoin=False)
            done: list[int] = []

            async def body(term: Any) -> None:
                done.append(term.term)
                raise Boom

            running = world.spawn(client.election("k").run(body))
            await world.live(12)
            assert not done
        await world.live(6)

        with pytest.raises(Boom):
            await running.result()
        assert done == [1]
        told = {message.rpartition(": ")[0] for message in caplog.messages if "tried again" in message}
        assert told == {"election 'k': the campaign failed, and is tried again"}


@both_colours
async def test_run_asks_a_store_that_cannot_be_reached_a_quarter_of_the_lease_apart(world: World) -> None:
    """Between a half and the whole of it, at random, where a campaign fails at once."""
    async with world.client(lease_duration=4) as client:
        with world.store.outage():
            running = world.spawn(client.election("k", timeout=0).run(nothing))
            await world.live(12, step=0.125)
            await client.close()
            await running.result()

        assert 10 <= world.store.requests["claim"] <= 25


@both_colours
async def test_run_ends_with_trouble_that_no_time_mends(world: World) -> None:
    """A right that is missing is no outage, and what is stored under the key no campaign."""

    def refuse(verb: str, _: object) -> None:
        raise StoreSetupError("the right to write is missing")

    async with world.client(world.hooked_store(refuse)) as client:
        with pytest.raises(StoreSetupError, match="the right to write"):
            await client.election("k").run(nothing)


@both_colours
@pytest.mark.parametrize("how", ["resigned", "dropped"])
@pytest.mark.filterwarnings("ignore:unreleased lease:ResourceWarning")
async def test_term_without_a_body_is_not_named_as_one_with_a_body(
    world: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was resigned from, and broken before the store had answered; or dropped, and has lapsed."""
    async with world.client(lease_duration=8) as client, world.client(world.another_store()) as operator:
        term = await client.election("k", **without_cancellation(world)).campaign()
        handle = term._handle
        if how == "resigned":
            with world.store.outage():
                with pytest.raises(StoreUnavailableError):
                    await term.resign()
                await operator.break_lock("k", fencing_token=1)
            await world.live(8)
        else:
            del term
            gc.collect()
            await world.live(10)

        assert handle.loss is not None
        assert not [message for message in caplog.messages if "still runs" in message or "raised" in message]


@both_colours
async def test_run_ends_with_the_client(world: World) -> None:
    """A candidate that waits returns when its client is closed."""
    async with world.client() as leader, world.client() as client:
        term = await leader.election("k").campaign()
        running = world.spawn(client.election("k").run(nothing))
        await world.live(1)

        await client.close()
        await running.result()
        await term.resign()


@both_colours
@pytest.mark.parametrize("place", ["engine.elections.Candidate._end", "engine.lease_view.LeaseView._begin_body"])
async def test_an_interrupt_before_the_body_gives_the_term_back(
    world: World, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes between the grant and the block, and whoever shows the traceback keeps the term; and it leads again."""

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    async with world.client(lease_duration=10) as client:
        election = client.election("k")
        monkeypatch.setattr(f"dlock_core.{place}", strike)
        with pytest.raises(KeyboardInterrupt) as kept:
            await election.run(nothing)
        monkeypatch.undo()
        await world.live(1)

        assert not world.space.records["k"].held
        assert kept.traceback
        del kept
        gc.collect()
        await election.run(nothing, rejoin=False)


def test_run_raises_what_no_coroutine_can_raise() -> None:
    """The body of a blocking client is no coroutine: what it raises comes out of the run, and the key is free."""

    def body(_: object) -> None:
        next(iter(()))

    with LockClient(MemoryStore(MemorySpace())) as client:
        with pytest.raises(StopIteration):
            client.election("k").run(body)

        with client.lock("k", timeout=0) as lease:
            assert lease.fencing_token == 2
