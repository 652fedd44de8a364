"""A lease that is lost or at risk, and who hears of it, in both colours from one text."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    LockLostError,
    LossReason,
)
from dlock_core.testing import FakeClock
from tests.core.aio_support import forever
from tests.core.hold_support import Boom, steal
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.core.worlds import World


@both_colours
async def test_loss_is_told_at_the_deadline_without_renewals(world: World) -> None:
    """With ``auto_renew=False`` the client still tells when the lease is over."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        lease = await client.acquire("k")
        told: list[Any] = []
        lease.on_lost(told.append)
        assert not lease.lost.is_set()

        await world.live(9.75)
        assert not told
        await world.live(0.25)
        await world.until(lambda: bool(told))

        assert [loss.reason for loss in told] == [LossReason.EXPIRED]
        assert lease.lost.is_set()
        assert world.store.requests == {"claim": 1}


@both_colours
async def test_lost_is_one_event_and_is_set_after_the_loss_too(world: World) -> None:
    """Who asks late gets an event that is set."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        early, late = await client.acquire("early"), await client.acquire("late")
        assert early.lost is early.lost
        await world.jump(10)
        await world.until(early.lost.is_set)

        assert late.lost.is_set()


@both_colours
async def test_lost_stays_unset_when_the_lock_is_released(world: World) -> None:
    """Giving back is no loss."""
    async with world.client(lease_duration=10) as client:
        async with client.lock("k") as lease:
            told: list[Any] = []
            lease.on_lost(told.append)
            event = lease.lost
        await world.live(12)

        assert not event.is_set()
        assert not told
        assert lease.loss is None


@both_colours
async def test_on_lost_after_the_loss_calls_at_once(world: World) -> None:
    """A callback that comes too late is not lost."""
    async with world.client(lease_duration=10, auto_renew=False) as client:
        lease = await client.acquire("k")
        await world.jump(10)
        assert lease.loss is not None

        told: list[Any] = []
        lease.on_lost(told.append)
        await world.until(lambda: bool(told))

        assert told == [lease.loss]


@both_colours
async def test_on_lost_calls_each_callback_once(world: World) -> None:
    """All are told, in the order of asking, once."""
    async with world.client(lease_duration=10) as client:
        lease = await client.acquire("k")
        told: list[str] = []
        for name in "abc":
            lease.on_lost(lambda loss, name=name: told.append(f"{name} {loss.reason}"))  # type: ignore[misc]  # a default binds the name
        await steal(world, lease)
        await world.live(12)

        assert told == ["a stolen", "b stolen", "c stolen"]


@both_colours
async def test_risk_is_not_told_to_a_lease_that_was_dropped(world: World) -> None:
    """Another one of the same lock goes on, and is told."""
    async with world.client(reentrant=True, lease_duration=20) as client:
        kept, dropped = await client.acquire("k"), [await client.acquire("k")]
        told: list[Any] = []
        kept.on_risk(told.append)
        dropped[0].on_risk(told.append)
        dropped.clear()
        with world.store.outage():
            await world.live(8)

        assert told == [raw(kept)]


@both_colours
async def test_theft_is_told_at_the_next_renewal(world: World) -> None:
    """The loss does not wait for the deadline when another's record proves it."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        risks: list[Any] = []
        lease.on_risk(risks.append)
        await steal(world, lease)

        await world.live(5.25)

        assert not lease.is_valid
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.STOLEN
        await world.until(lambda: bool(risks))


@both_colours
async def test_lost_is_absorbing(world: World) -> None:
    """Nothing makes a lost lease valid again, and nothing is sent for it any more."""
    async with world.client(lease_duration=10) as client:
        lease = await client.acquire("k")
        with world.store.outage():
            await world.live(11)
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.UNREACHABLE
        sent = world.store.requests["replace"]

        await world.live(11)

        assert not lease.is_valid
        assert world.store.requests["replace"] == sent
        calls: list[Callable[[], Awaitable[object]]] = [lease.ensure, lambda: lease.ensure(5), lease.renew]
        for call in calls:
            with pytest.raises(LockLostError, match=r"renewals failed until its lease ran out \(.*not sent"):
                await call()


@both_colours
async def test_the_release_of_a_lost_lock_says_why_it_was_lost(world: World) -> None:
    """Also where the store answers again by then."""
    async with world.client(lease_duration=10) as client:
        lease = await client.acquire("k")
        with world.store.outage():
            await world.live(11)
        assert lease.loss is not None

        with pytest.raises(LockLostError, match=r"renewals failed until its lease ran out \(.*not sent"):
            await lease.release()


@both_colours
async def test_outage_during_the_hold_is_a_risk_and_then_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """At risk once a renewal fails, safe again once one succeeds; told once for each such stretch."""
    caplog.set_level(logging.INFO, "dlock.engine")
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        risks: list[Any] = []
        lease.on_risk(risks.append)
        for stretch in (1, 2):
            with world.store.outage():
                await world.live(8)
            await world.until(lambda stretch=stretch: len(risks) == stretch)  # type: ignore[misc]  # a default binds the number
            await world.live(8)

        assert lease.is_valid
        assert risks == [raw(lease)] * 2
        assert caplog.text.count("lock 'k' is at risk") == 2
        # And why: what the store said.
        assert len(re.findall(r"at risk: a renewal failed, [\d.]+ s left \(.*'k'.*\)", caplog.text)) == 2
        assert len(re.findall(r"lock 'k' is safe again, (?:19|20)\.\d s left", caplog.text)) == 2
        assert lease.loss is None


@both_colours
async def test_callback_that_cannot_be_called_is_refused_when_it_is_given(world: World) -> None:
    """What a function returned, instead of the function: at the loss it would be too late."""
    async with world.client() as client, client.lock("k") as lease:
        for register in (lease.on_lost, lease.on_risk):
            with pytest.raises(ConfigurationError, match="None cannot be called"):
                register(None)  # type: ignore[arg-type]


def test_coroutine_function_is_no_callback_of_the_blocking_client() -> None:
    """No thread of ours runs its body: of a loss nobody would hear."""
    with FakeClock() as clock, clock.client() as client, client.lock("k") as lease:
        for register in (lease.on_lost, lease.on_risk, lease.on_wanted):
            with pytest.raises(ConfigurationError, match="is a coroutine function; give a plain function"):
                register(forever)  # type: ignore[arg-type]


@both_colours
async def test_outage_longer_than_the_lease_is_a_loss_for_unreachability(world: World) -> None:
    """The holder gives up before anybody else may begin, without the store's help."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        told: list[Any] = []
        lease.on_lost(told.append)
        await world.live(5)
        with world.store.outage():
            await world.live(19.5)
            assert lease.is_valid
            await world.live(0.25)

        await world.until(lambda: bool(told))
        assert not lease.is_valid
        assert told[0].reason is LossReason.UNREACHABLE
        assert told[0].record is None


@both_colours
async def test_on_risk_with_a_safe_time_fires_when_no_renewal_succeeded_for_so_long(world: World) -> None:
    """The time is counted from the last renewal that succeeded, however many failed."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        risks: list[Any] = []
        lease.on_risk(risks.append, safe_time=9)
        await world.live(40)
        assert risks == []

        with world.store.outage():
            await world.live(8.75)
            assert risks == []
            await world.live(0.5)
            await world.until(lambda: len(risks) == 1)
            await world.live(2)

        assert len(risks) == 1
        assert lease.is_valid


@both_colours
async def test_on_risk_with_a_safe_time_is_armed_again_on_recovery(world: World) -> None:
    """Each stretch without a renewal is told."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        risks: list[Any] = []
        lease.on_risk(risks.append, safe_time=5)
        for stretch in (1, 2, 3):
            await world.live(6)
            await world.until(lambda stretch=stretch: len(risks) == stretch)  # type: ignore[misc]  # a default binds the number
            await lease.renew()

        assert len(risks) == 3


@both_colours
async def test_on_risk_fires_even_if_it_wakes_after_the_deadline(world: World) -> None:
    """Who sleeps through the risk is told of it before the loss."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        lease = await client.acquire("k")
        told: list[str] = []
        lease.on_risk(lambda _: told.append("risk"), safe_time=5)
        lease.on_lost(lambda _: told.append("lost"))

        await world.jump(100)
        await world.until(lambda: len(told) == 2)

        assert told == ["risk", "lost"]


@both_colours
@pytest.mark.parametrize("safe_time", [None, 15], ids=["at risk", "safe time"])
async def test_on_risk_fires_at_once_on_theft(world: World, safe_time: float | None) -> None:
    """Nobody waits for the safe time to hear of a lock that is gone; the lease says why."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        lease = await client.acquire("k")
        reasons: list[Any] = []
        lease.on_risk(lambda risky: reasons.append(risky.loss and risky.loss.reason), safe_time=safe_time)
        await other.break_lock("k", fencing_token=lease.fencing_token, now=True)
        thief = await other.acquire("k")

        await world.live(5.5)
        await world.until(lambda: bool(reasons))

        assert reasons == [LossReason.STOLEN]
        assert thief.is_valid


@both_colours
async def test_on_risk_of_a_lock_at_risk_or_lost_fires_at_once(world: World) -> None:
    """Who asks late is told what is the case."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        risks: list[str] = []
        with world.store.outage():
            await world.live(6)
            lease.on_risk(lambda _: risks.append("not renewed"), safe_time=19)
            lease.on_risk(lambda _: risks.append("at risk"))
            await world.until(lambda: risks == ["at risk"])
            await world.live(20)
            lease.on_risk(lambda _: risks.append("lost"))
            await world.until(lambda: risks == ["at risk", "not renewed", "lost"])


@both_colours
@pytest.mark.parametrize("safe_time", [True, -1, float("nan"), "5"])
async def test_on_risk_with_a_bad_safe_time_is_refused(world: World, safe_time: Any) -> None:
    """What is no duration is told by name."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="safe_time: "):
            lease.on_risk(print, safe_time=safe_time)


@both_colours
async def test_hazard_30_callbacks_that_raise_are_logged_and_stop_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the other callbacks nor the renewals suffer from one that is wrong (hazard 30)."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        told: list[Any] = []

        def wrong(_: object) -> None:
            raise Boom("callback")

        lease.on_risk(wrong)
        lease.on_risk(told.append)
        with world.store.outage():
            await world.live(6)
            await world.until(lambda: len(told) == 1)
        await world.live(30)

        assert lease.is_valid
        assert "callback" in caplog.text
        assert "Boom" in caplog.text


@both_colours
async def test_callback_may_use_the_lease_and_the_client(world: World) -> None:
    """A callback runs outside the engine: what it asks is answered."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        seen: list[Any] = []

        def look(loss: object) -> None:
            seen.append((loss, raw(lease).is_valid, raw(lease).remaining, client.holds("k")))
            lease.on_lost(seen.append)

        lease.on_lost(look)
        await steal(world, lease)
        await world.live(6)
        await world.until(lambda: len(seen) == 2)

        assert seen == [(lease.loss, False, 0.0, False), lease.loss]


@both_colours
async def test_hazard_30_callback_that_blocks_stops_no_renewal_and_is_left_behind(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks are time-boxed: the next one comes after the limit, and the lock is renewed all the while (hazard 30)."""
    monkeypatch.setattr("dlock_core.engine.user_calls.CALLBACK_LIMIT_S", 0.05)
    monkeypatch.setattr("dlock_core.engine.asyncio_runtime.CALLBACK_LIMIT_S", 0.05)
    over, told = threading.Event(), list[str]()

    async def stuck(_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async with world.client(lease_duration=20) as client:
        lost, kept = await client.acquire("lost", auto_renew=False), await client.acquire("kept")
        lost.on_lost(stuck if world.colour == "async" else lambda _: over.wait(20))
        lost.on_lost(lambda _: told.append("next"))
        world.clock.advance(19.7)
        await world.until(lambda: told == ["next"])
        world.clock.advance(0.1)

        await world.until(lambda: "after 0.05 s" in caplog.text)
        over.set()
        await world.settle()
        assert kept.is_valid is False  # it slept through its lease, as the clock jumped; another one is renewed
        async with client.lock("another") as another:
            await world.live(30)
            assert another.is_valid
