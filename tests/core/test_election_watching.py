"""Observers of an election on a client, in both colours from one text: what they are told, and what they ask of the store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dlock_core import (
    ConfigurationError,
    Grade,
    Leader,
    LeaderState,
    LeaseStateError,
    LockLostError,
    RecordError,
    StoreSetupError,
)
from tests.core.election_support import reported, without_cancellation
from tests.core.worlds import both_colours, raw, saying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.core.worlds import World


class Watcher:
    """Observes beside the scenario, and keeps each report."""

    def __init__(self, world: World, reports: AsyncIterator[Leader]) -> None:
        self.told: list[tuple[int, bytes | None, str]] = []
        self.work = world.spawn(self._follow(reports))

    async def _follow(self, reports: AsyncIterator[Leader]) -> None:
        async for leader in reports:
            self.told.append((leader.term, leader.value, leader.state.value))


@both_colours
async def test_an_observer_hears_of_each_change_and_ends_with_the_client(world: World) -> None:
    """Vacant, leading, a new value, vacant; the observer claims nothing, and ends with its client."""
    async with world.client(lease_duration=8) as client:
        observing = world.another_store()
        async with world.client(observing) as observer:
            watcher = Watcher(world, observer.election("k").observe(poll_period=1))
            await world.live(1)
            term = await client.election("k", value=b"a", **without_cancellation(world)).campaign()
            await world.live(20)
            await term.proclaim(b"b")
            await world.live(2)
            with world.store.outage():
                await world.live(3)
            await term.resign()
            await world.live(2)
            read = observing.requests["read"]
            await observer.close()
            await watcher.work.result()
            assert observing.requests["read"] == read

        assert watcher.told == [
            (0, None, "vacant"),
            (1, b"a", "leading"),
            (1, b"b", "leading"),
            (1, None, "vacant"),
        ]
        assert set(observing.requests) == {"read"}


@both_colours
async def test_an_observer_finds_a_dead_leader_silent(world: World) -> None:
    """The record says leading for ever; the observer's own clock says for how long nothing has changed."""
    async with world.client(lease_duration=8, auto_renew=False) as client, world.client() as observer:
        term = await client.election("k", **without_cancellation(world)).campaign()
        watcher = Watcher(world, observer.election("k").observe())
        await world.live(7.5)
        assert watcher.told == [(1, None, "leading")]
        await world.live(3)

        assert watcher.told == [(1, None, "leading"), (1, None, "silent")]
        assert reported(await observer.election("k").leader()).state is LeaderState.LEADING
        await observer.close()
        await watcher.work.result()
        with pytest.raises(LockLostError):
            await term.resign()


@both_colours
async def test_an_observer_waits_for_an_outage_and_finds_the_leader_silent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """No answer is no sign of life; one warning an outage, not one a read, also where it begins with the first read."""
    async with world.client(lease_duration=8) as client:
        term = await client.election("k").campaign()
        observing = world.another_store()
        async with world.client(observing) as observer:
            with observing.outage():
                watcher = Watcher(world, observer.election("k").observe())
                await world.live(4)
            await world.live(4)
            with observing.outage():
                await world.live(12)
            await world.live(4)
            await observer.close()
            await watcher.work.result()
        await term.resign()

    assert watcher.told == [(1, None, "leading"), (1, None, "silent"), (1, None, "leading")]
    assert [message.rpartition(": ")[0] for message in caplog.messages] == [
        "election 'k' cannot be observed at present"
    ] * 2


@both_colours
async def test_an_observer_ends_with_trouble_that_no_time_mends(world: World) -> None:
    """A right that is missing is no outage."""

    def refuse(verb: str, _: object) -> None:
        raise StoreSetupError("the right to read is missing")

    async with world.client(world.hooked_store(refuse)) as observer:
        with pytest.raises(StoreSetupError, match="the right to read"):
            await anext(aiter(observer.election("k").observe(poll_period=1)))


@both_colours
async def test_an_observer_in_a_forked_child_is_refused(world: World) -> None:
    """It would read by its parent's connection."""
    async with world.client() as observer:
        election = observer.election("k")
        raw(observer)._context.generation -= 1
        with pytest.raises(LeaseStateError, match="forked"):
            await anext(aiter(election.observe(poll_period=1)))
        raw(observer)._context.generation += 1


@both_colours
async def test_an_observer_tells_of_a_failover_that_has_lost_a_term(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the store may lose what it has confirmed: nobody leads in between, and one warning says why the term falls."""
    store = saying(world, grade=Grade.C)
    async with world.client(lease_duration=60) as client, world.client(store) as observer:
        term = await client.election("k", **without_cancellation(world)).campaign()
        shown = world.space.records["k"]
        world.space.records["k"] = replace(shown, fencing_token=5)
        watcher = Watcher(world, observer.election("k").observe(poll_period=1))
        await world.live(3)
        world.space.records["k"] = replace(shown, fencing_token=4)
        await world.live(3)
        del world.space.records["k"]
        await world.live(2)
        await observer.close()
        await watcher.work.result()
        await term.resign()

    assert watcher.told == [(5, None, "leading"), (5, None, "vacant"), (4, None, "leading"), (4, None, "vacant")]
    assert [message for message in caplog.messages if "failover" in message] == [
        "election 'k': the store shows term 4 after term 5; it has lost the later one in a failover"
    ]


@both_colours
@pytest.mark.parametrize("seat", ["empty", "vacant"])
async def test_an_observer_reads_a_quarter_of_the_lease_apart_and_two_seconds_at_most(world: World, seat: str) -> None:
    """Between a half and the whole of it, at random; also where somebody has led."""
    if seat == "vacant":
        async with world.client() as client:
            await (await client.acquire("k")).release()
    for lease_s, longest_s in ((4, 1), (60, 2)):
        observing = world.another_store()
        async with world.client(observing, lease_duration=lease_s) as observer:
            watcher = Watcher(world, observer.election("k").observe())
            await world.live(20, step=0.125)
            await observer.close()
            await watcher.work.result()

        assert 20 / (longest_s + 0.125) <= observing.requests["read"] <= 20 / longest_s * 2 + 1


@both_colours
async def test_the_shortest_pause_of_an_observer_is_half_of_the_longest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So two of them drift apart, and none asks twice as often as it says."""
    monkeypatch.setattr("dlock_core.engine.elections.jitter", lambda: 1.0)
    observing = world.another_store()
    async with world.client(observing) as observer:
        watcher = Watcher(world, observer.election("k").observe(poll_period=1))
        await world.settle()
        await world.live(10, step=0.125)
        await observer.close()
        await watcher.work.result()

    assert observing.requests["read"] == 21


@both_colours
@pytest.mark.parametrize(("period", "told"), [(-1, "not a finite number"), (0, "0 s is too short")])
@pytest.mark.timeout(20)
async def test_a_wrong_poll_period_is_refused(world: World, period: float, told: str) -> None:
    """As where it is an option: without a pause the store would be asked all the time."""
    async with world.client() as client:
        with pytest.raises(ConfigurationError, match=f"poll_period: .*{told}"):
            async for _ in client.election("k").observe(poll_period=period):
                pass


@both_colours
async def test_a_semaphore_has_no_leader(world: World) -> None:
    """Neither a look at the leader nor an observer takes who holds a permit for one: the error says that another kind of lock is held."""
    async with (
        world.client(lease_duration=8) as client,
        world.client() as observer,
        client.lock("k", permits=2, **without_cancellation(world)),
    ):
        with pytest.raises(RecordError, match="is held as a semaphore"):
            await observer.election("k").leader()
        with pytest.raises(RecordError, match="is held as a semaphore"):
            await anext(aiter(observer.election("k").observe(poll_period=1)))
