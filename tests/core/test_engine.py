"""What a lease does and is told: ensure, renew, release, loss, risk, leaving a block, lost replies; in both colours from one text."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    LossReason,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.clock import now_ns
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.states import Due, Renew
from dlock_core.testing import FakeClock
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dlock_core import AsyncLease, AsyncLockClient
    from tests.core.worlds import World


class Boom(Exception):  # noqa: N818  # it is what a body happens to raise
    """Raised by a body."""


def count(world: World) -> int:
    """Return how many requests were made."""
    return sum(world.store.requests.values())


async def steal(world: World, lease: AsyncLease) -> None:
    """Let somebody else hold the key, as after a pause longer than the lease of which this process knows nothing."""
    async with world.client(owner="thief") as thief:
        assert await thief.break_lock(lease.key, fencing_token=lease.fencing_token, now=True)
        stolen = await thief.acquire(lease.key, fail_closed=True, timeout=5)
        raw(stolen)._closed = True  # it stays held when the thief's client is closed
        thief_engine = getattr(thief, "_inner", thief)._engine
        thief_engine.driver.held.clear()


# ---- ensure


@both_colours
async def test_ensure_without_an_argument_makes_no_request(world: World) -> None:
    """It is called before each effect, so it costs none."""
    async with world.client() as client, client.lock("k") as lease:
        before = count(world)

        assert [await lease.ensure() for _ in range(100)] == [lease.fencing_token] * 100

        assert count(world) == before


@both_colours
async def test_ensure_of_what_remains_anyway_makes_no_request(world: World) -> None:
    """A renewal is made only where too little is left."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)

        await lease.ensure(14)

        assert world.store.requests["replace"] == 0


@both_colours
async def test_ensure_of_more_than_remains_renews_once(world: World) -> None:
    """One request, and then as much is left as was asked for."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)

        assert await lease.ensure(15) == 1

        assert world.store.requests["replace"] == 1
        assert 19 < lease.remaining < 20
        assert lease.lease_duration == 20


@both_colours
async def test_ensure_of_more_than_the_lease_lengthens_it(world: World) -> None:
    """The record's lease grows to what is needed, and it counts from then on."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        assert await lease.ensure(60) == 1

        assert 60 <= lease.remaining < 70
        assert 60 < lease.lease_duration < 70
        record = await client.get("k")
        assert record is not None
        assert record.lease_ms == round(lease.lease_duration * 1000)
        await world.jump(50)
        assert lease.is_valid


@both_colours
async def test_ensure_of_all_that_a_lease_can_give_lengthens_it(world: World) -> None:
    """What is usable of the lease at the moment of its send is less when the answer comes."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(0.01)

        await lease.ensure(19.6)

        assert lease.remaining >= 19.6
        assert lease.lease_duration > 20


@both_colours
async def test_ensure_never_shortens_the_lease(world: World) -> None:
    """Asking for less than there is changes nothing, also after the lease was lengthened."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await lease.renew(lease_duration=100)
        await world.jump(90)

        await lease.ensure(50)

        assert lease.lease_duration == 100
        assert 97 < lease.remaining < 99


@both_colours
@pytest.mark.parametrize("asked", [True, -1, float("nan"), float("inf"), "5", None, 10**400])
async def test_ensure_of_no_duration_is_refused(world: World, asked: Any) -> None:
    """What is no duration is told by name, and nothing is sent."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="min_remaining: "):
            await lease.ensure(asked)

        assert count(world) == 1
        assert lease.is_valid


@both_colours
async def test_ensure_of_more_than_any_lease_is_refused(world: World) -> None:
    """More than a day cannot be had."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="lease_duration"):
            await lease.ensure(100_000)

        assert lease.is_valid


@both_colours
async def test_ensure_after_the_deadline_raises_the_loss_at_once(world: World) -> None:
    """Though no thread ran since: what decides is the clock at the call."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        lease = await client.acquire("k")
        world.clock.advance(19.61)

        with pytest.raises(LockLostError) as caught:
            await lease.ensure()

        assert caught.value.loss.reason is LossReason.EXPIRED
        assert lease.loss == caught.value.loss
        assert "token 1) was lost: its lease ran out" in str(caught.value)


@both_colours
async def test_ensure_while_the_store_is_down_tells_trouble_and_keeps_the_lock(world: World) -> None:
    """A renewal that failed is no loss: the lease has its time."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(5)
        with world.store.outage():
            with pytest.raises(StoreUnavailableError):
                await lease.ensure(18)
            assert await lease.ensure(10) == 1

        assert await lease.ensure(18) == 1


@both_colours
async def test_ensure_after_release_is_a_mistake_and_not_a_loss(world: World) -> None:
    """Used after its end, a lease says that it was released."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        calls: list[Callable[[], Awaitable[object]]] = [lease.ensure, lambda: lease.ensure(5), lease.renew]
        for call in calls:
            with pytest.raises(LeaseStateError, match="lease of lock 'k' was released; acquire it anew"):
                await call()
        assert lease.loss is None
        assert world.store.requests == {"claim": 1, "release": 1}


# ---- renew


@both_colours
async def test_renew_moves_the_deadline_and_keeps_the_token(world: World) -> None:
    """A renewal by hand counts from its send."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await world.jump(15)
        assert lease.remaining < 5

        await lease.renew()

        assert lease.remaining > 19
        assert lease.fencing_token == 1
        assert world.store.requests["replace"] == 1


@both_colours
async def test_renew_with_a_shorter_lease_counts_at_once(world: World) -> None:
    """Who renews for less has less, in the record too."""
    async with world.client(lease_duration=20, auto_renew=False) as client, client.lock("k") as lease:
        await lease.renew(lease_duration=2)

        assert 1.9 < lease.remaining < 2
        record = await client.get("k")
        assert record is not None
        assert record.lease_ms == 2000
        with pytest.raises(LockLostError):
            async with lease:
                await world.jump(2)
    assert lease.loss is not None


@both_colours
async def test_renew_with_a_shorter_lease_is_followed_by_renewals_of_its_pace(world: World) -> None:
    """The heartbeat follows the lease that the record has now."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        await lease.renew(lease_duration=2)
        await world.live(10)

        assert lease.is_valid
        assert world.store.requests["replace"] >= 16


@both_colours
async def test_renew_with_data_replaces_it_and_keeps_the_attributes(world: World) -> None:
    """Data is what progress is told by."""
    async with world.client() as client, client.lock("k", data=b"0 %", attributes={"job": "x"}) as lease:
        await lease.renew(data=b"50 %")

        record = await client.get("k")
        assert record is not None
        assert (record.data, record.attributes) == (b"50 %", (("job", "x"),))
        assert lease.data == b"50 %"
        await lease.renew()
        assert lease.data == b"50 %"
        await lease.renew(data=None)
        record = await client.get("k")
        assert record is not None
        assert record.data is lease.data is None


@both_colours
@pytest.mark.parametrize("lease_duration", [0, -1, True, float("nan"), 0.0001, 90_000])
async def test_renew_with_a_bad_lease_changes_nothing(world: World, lease_duration: Any) -> None:
    """What cannot be a lease is refused before anything is sent."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match="lease_duration"):
            await lease.renew(lease_duration=lease_duration)

        assert world.store.requests == {"claim": 1}
        assert lease.lease_duration == 20


@both_colours
async def test_renew_of_a_stolen_lock_raises_the_loss_with_what_stands_there(world: World) -> None:
    """The proof of a loss is another's record, and it is handed on."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        await steal(world, lease)

        with pytest.raises(
            LockLostError, match="another holder took it over; now 'thief' stands there with token 3"
        ) as caught:
            await lease.renew()

        loss = caught.value.loss
        assert (loss.key, loss.fencing_token, loss.reason) == ("k", 1, LossReason.STOLEN)
        assert loss.record is not None
        assert loss.record.owner == "thief"


@both_colours
async def test_renew_of_a_vanished_record_is_a_loss_and_creates_nothing(world: World) -> None:
    """What is gone is lost; nobody brings it back but a new acquire."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        world.space.records.clear()

        with pytest.raises(LockLostError):
            await lease.renew()

        assert lease.loss is not None
        assert lease.loss.record is None
        assert not world.space.records


@both_colours
async def test_renewals_of_one_lease_wait_for_each_other(world: World) -> None:
    """One write of a lease is under way at a time: the second begins when the first is answered, and both succeed (F8e)."""
    gate: Any = threading.Event() if world.colour == "sync" else asyncio.Event()
    writing, most = [0], [0]

    def before(verb: str, request: Any) -> Any:
        if verb != "replace":
            return None
        writing[0] += 1
        most[0] = max(most)
        return gate.wait()

    def after(verb: str) -> None:
        if verb == "replace":
            most.append(writing[0])
            writing[0] -= 1

    async with world.client(world.hooked_store(before, after), lease_duration=20, auto_renew=False) as client:
        lease = await client.acquire("k")
        first = world.spawn(lease.renew(data=b"1"), parks=False)
        await world.until(lambda: writing[0] == 1)
        second = world.spawn(lease.renew(data=b"2"), parks=False)
        third = world.spawn(lease.ensure(30), parks=False)
        gate.set()

        await first.result()
        await second.result()
        assert await third.result() == 1

        assert max(most) == 1
        assert lease.remaining > 30
        assert lease.data == b"2"


class Crowded:
    """A mutex: in the instant in which it is next released, another thread comes and does *other*."""

    def __init__(self, mutex: Any, other: Callable[[], object]) -> None:
        self._mutex = mutex
        self._others = [other]

    def __enter__(self) -> None:
        self._mutex.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._mutex.__exit__(*exc)
        if self._others:
            thread = threading.Thread(target=self._others.pop())
            thread.start()
            thread.join()


def test_renewal_that_another_thread_tries_to_get_ahead_of_is_made() -> None:
    """Any thread may use a lease, and the scheduler does: that one of them begins between two steps of another is nobody's mistake."""
    with FakeClock() as clock, clock.client(lease_duration=20) as client:
        lease = client.acquire("k", auto_renew=False)
        driver, handle = client._engine.driver, lease._handle

        def begin() -> None:
            if getattr(handle.state, "in_flight", None) is None:
                driver.advance(handle, Renew("of the other thread"))

        client._runtime.mutex = Crowded(client._runtime.mutex, begin)  # type: ignore[assignment]
        lease.renew(data=b"1")

        assert lease.data == b"1"


def test_renewal_of_a_lock_that_another_thread_finds_lost_raises_the_loss() -> None:
    """Not that a lost lock cannot be renewed, which is for those who program the machine."""
    with FakeClock() as clock, clock.client(lease_duration=20) as client:
        lease = client.acquire("k", auto_renew=False)
        driver, handle = client._engine.driver, lease._handle

        def lapse() -> None:
            clock.advance(30)
            driver.advance(handle, Due("of the other thread"))

        client._runtime.mutex = Crowded(client._runtime.mutex, lapse)  # type: ignore[assignment]
        with pytest.raises(LockLostError):
            lease.renew()


def test_acquire_whose_lock_another_thread_finds_lost_returns_a_lost_lease() -> None:
    """As after a suspension in just this instant: whoever holds the lease is told, as ever."""
    with FakeClock() as clock, clock.client(lease_duration=20) as client:
        driver = client._engine.driver
        advance = driver.advance

        def slowly(handle: Any, event: Any) -> Any:
            effect = advance(handle, event)
            if handle.token and handle.loss is None:
                clock.advance(30)
                advance(handle, Due("of the scheduler"))
            return effect

        driver.advance = slowly  # type: ignore[method-assign]
        lease = client.acquire("k", auto_renew=False)

        assert not lease.is_valid
        with pytest.raises(LockLostError):
            lease.ensure()
        with pytest.raises(LockLostError):
            lease.release()


@both_colours
async def test_renewal_waiting_for_another_one_sees_the_loss_that_it_brings(world: World) -> None:
    """Who waits for an answer that proves the loss is told of it, without a request of its own."""
    gate: Any = threading.Event() if world.colour == "sync" else asyncio.Event()
    asked = [0]

    def before(verb: str, request: Any) -> Any:
        if verb != "replace" or request.record.owner != "me":
            return None
        asked[0] += 1
        return gate.wait()

    async with world.client(world.hooked_store(before), owner="me", auto_renew=False) as client:
        lease = await client.acquire("k")
        await steal(world, lease)
        first = world.spawn(lease.renew(), parks=False)
        await world.until(lambda: asked[0] == 1)
        second = world.spawn(lease.renew(), parks=False)
        gate.set()

        for spawned in (first, second):
            with pytest.raises(LockLostError):
                await spawned.result()
        assert asked == [1]


# ---- release


@both_colours
async def test_release_twice_is_once(world: World) -> None:
    """The second call does nothing, and does not raise."""
    async with world.client() as client:
        lease = await client.acquire("k")

        await lease.release()
        await lease.release()

        assert world.store.requests["release"] == 1


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


# ---- leaving a block


@both_colours
async def test_body_that_raises_keeps_its_exception(world: World) -> None:
    """The lock never replaces what the body raised, and releases all the same."""
    async with world.client() as client:
        error = Boom("body")

        with pytest.raises(Boom) as caught:
            async with client.lock("k"):
                raise error

        assert caught.value is error
        assert not hasattr(error, "__notes__")
        assert world.store.requests["release"] == 1


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
async def test_entering_a_released_lease_is_refused(world: World) -> None:
    """A block would run without the lock."""
    async with world.client() as client:
        lease = await client.acquire("k")
        await lease.release()

        with pytest.raises(LeaseStateError, match="was released"):
            async with lease:
                pytest.fail("the block ran")


# ---- loss


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
            with pytest.raises(LockLostError, match="could not be reached before its lease ran out"):
                await call()


# ---- risk


@both_colours
async def test_outage_during_the_hold_is_a_risk_and_then_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """At risk once a renewal fails, safe again once one succeeds; told once for each such stretch."""
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
        assert lease.loss is None


@both_colours
async def test_callback_that_cannot_be_called_is_refused_when_it_is_given(world: World) -> None:
    """What a function returned, instead of the function: at the loss it would be too late."""
    async with world.client() as client, client.lock("k") as lease:
        for register in (lease.on_lost, lease.on_risk):
            with pytest.raises(ConfigurationError, match="None cannot be called"):
                register(None)  # type: ignore[arg-type]


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
            lease.on_risk(lambda _: risks.append("at risk"))
            await world.until(lambda: risks == ["at risk"])
            await world.live(20)
            lease.on_risk(lambda _: risks.append("lost"))
            await world.until(lambda: risks == ["at risk", "lost"])


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


# ---- lost replies


@both_colours
@pytest.mark.parametrize("wait", [0, 5, None])
async def test_acquire_whose_reply_was_lost_holds_the_key(world: World, wait: float | None) -> None:
    """A read tells that the claim was applied; it is adopted, with the token of the record (hazard 1)."""
    async with world.client() as client:
        world.store.lose_reply("claim")

        lease = await client.acquire("k", timeout=wait)

        assert lease.fencing_token == 1
        assert world.store.requests == {"claim": 1, "read": 1}
        assert await lease.ensure(19.7) == 1
        await lease.release()


@both_colours
async def test_acquire_whose_reply_and_read_were_lost_holds_the_key_later(world: World) -> None:
    """It goes on asking while it has time."""
    async with world.client() as client:
        world.store.lose_reply("claim")
        world.store.fail("read", 2)
        acquiring = world.spawn(client.acquire("k", timeout=10))
        for _ in range(20):
            await world.live(0.5)
            if acquiring.done:
                break

        lease = await acquiring.result()

        assert lease.fencing_token == 1


@both_colours
@pytest.mark.parametrize("lost", ["claim", "read"])
async def test_acquire_whose_claim_vanished_claims_again(world: World, lost: str) -> None:
    """A request that never arrived is repeated, and costs no second token."""
    async with world.client() as client:
        world.store.lose_request("claim")
        if lost == "read":
            world.store.lose_request("read")
        acquiring = world.spawn(client.acquire("k", timeout=10))
        for _ in range(20):
            await world.live(0.5)
            if acquiring.done:
                break

        lease = await acquiring.result()

        assert lease.fencing_token == 1


@both_colours
async def test_acquire_given_up_with_an_applied_claim_leaves_no_orphan(world: World) -> None:
    """What the caller was told to be doubtful is cleaned up by the client, well within the lease."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        world.store.lose_reply("claim")
        world.store.fail("read", 1)

        with pytest.raises(OutcomeUnknownError, match=r"got no answer and is being cleaned up") as caught:
            await client.acquire("k", timeout=0)

        assert isinstance(caught.value.__cause__, StoreUnavailableError)
        await world.live(4)
        record = await other.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_acquire_that_timed_out_with_a_write_pending_says_so(world: World) -> None:
    """``outcome_unknown`` tells that a claim may still be applied, and it is freed when it is (hazard 4)."""
    async with world.client(lease_duration=20) as client, world.client() as other:
        held = await other.acquire("k", lease_duration=4, auto_renew=False)
        world.store.delay("claim")

        with pytest.raises(AcquireTimeoutError) as caught:
            await client.acquire("k", timeout=0)

        assert caught.value.outcome_unknown
        assert "a write got no answer and is being cleaned up" in str(caught.value)
        await world.settle()
        await held.release()
        late = world.store.deliver()
        if late is not None:
            await late
        record = await other.get("k")
        assert record is not None
        assert record.state == "held"
        await world.live(21)
        record = await other.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_new_attempt_does_not_adopt_what_the_last_one_left(world: World) -> None:
    """It takes the orphan over with a token of its own, so that the clean-up of the old attempt cannot free it (F4)."""
    async with world.client(lease_duration=20) as client:
        world.store.lose_reply("claim")
        world.store.fail("read", 1)
        with pytest.raises(StoreError):
            await client.acquire("k", timeout=0)

        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 2
        await world.live(30)

        assert await lease.ensure() == 2


@both_colours
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "fail", "delay"])
async def test_renewals_whose_outcome_is_unknown_lose_nothing(world: World, fault: str) -> None:
    """Whatever happens to one renewal, the next one finds out, and the lock stays held (hazard 2)."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        for _ in range(8):
            getattr(world.store, fault)("replace")
            await world.live(6)

        assert lease.is_valid
        assert lease.fencing_token == 1
        assert lease.loss is None


@both_colours
async def test_renew_whose_reply_was_lost_succeeds_and_writes_its_data(world: World) -> None:
    """The second try is refused by what the first one wrote, and that is a success."""
    async with world.client(auto_renew=False) as client, client.lock("k") as lease:
        world.store.lose_reply("replace")

        await lease.renew(data=b"new", lease_duration=60)

        record = await client.get("k")
        assert record is not None
        assert (record.data, record.lease_ms) == (b"new", 60_000)
        assert (lease.data, lease.lease_duration) == (b"new", 60)


@both_colours
async def test_renew_that_was_never_applied_raises_and_keeps_the_old_deadline(world: World) -> None:
    """Nothing was written: what remained, remains."""
    async with world.client(auto_renew=False) as client, client.lock("k", data=b"old") as lease:
        await world.jump(5)
        left = lease.remaining
        world.store.fail("replace", 2)

        with pytest.raises(StoreUnavailableError):
            await lease.renew(data=b"new", lease_duration=2)

        assert lease.remaining == left
        assert lease.data == b"old"
        assert lease.lease_duration == 20


@both_colours
async def test_renew_to_less_without_an_answer_counts_the_shorter_lease(world: World) -> None:
    """A waiter may be counting the shorter one: until it is known, the holder does too (hazard 11)."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        world.store.delay("replace", 2)

        with pytest.raises(OutcomeUnknownError):
            await lease.renew(lease_duration=2)

        assert lease.remaining < 2
        await world.jump(2)
        assert not lease.is_valid


@both_colours
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "fail"])
async def test_release_whose_reply_was_lost_frees_the_key_without_an_error(world: World, fault: str) -> None:
    """One more request tells, and the next holder does not wait for a lease (hazard 3)."""
    async with world.client() as client, world.client() as other:
        lease = await client.acquire("k")
        getattr(world.store, fault)("release")

        await lease.release()

        assert world.store.requests["release"] == 2
        again = await other.try_acquire("k")
        assert again is not None
        assert lease.loss is None


@both_colours
async def test_release_while_a_renewal_is_unknown_follows_it(world: World) -> None:
    """A renewal that was applied unheard is chased, so that the release is not refused for good (F8c)."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        world.store.lose_reply("replace", 1)
        await world.live(5)
        assert world.store.requests["replace"] == 1

        await lease.release()

        record = await client.get("k")
        assert record is not None
        assert record.state == "free"


@both_colours
async def test_late_duplicate_of_a_claim_harms_nobody(world: World) -> None:
    """A claim applied a second time, after the release, holds the key for nobody: for one lease at most."""
    async with world.client(lease_duration=10) as client, world.client() as other:
        world.store.duplicate("claim")
        lease = await client.acquire("k")
        await lease.release()
        late = world.store.deliver()
        if late is not None:
            await late

        assert await other.try_acquire("k") is None
        await world.live(10.25)
        again = await other.try_acquire("k")

        assert again is not None
        assert again.fencing_token == 3
        assert not lease.is_valid


@both_colours
@pytest.mark.parametrize("wait", [0, 3, None])
async def test_acquire_from_a_store_that_is_down_fails_in_bounded_time(world: World, wait: float | None) -> None:
    """No longer than asked for, and no longer than a lease: then the store's error is told."""
    async with world.client(lease_duration=8) as client:
        with world.store.outage():
            acquiring = world.spawn(client.acquire("k", timeout=wait))
            for _ in range(40):
                if acquiring.done:
                    break
                await world.live(0.25)
            with pytest.raises(StoreUnavailableError, match="claim of 'k' was not sent"):
                await acquiring.result()

        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 1


@both_colours
async def test_timeout_told_is_the_one_asked_for(world: World) -> None:
    """However long the last request took beyond it."""

    def before(verb: str, request: Any) -> None:
        if verb == "claim" and request.record.owner == "slow":
            world.clock.advance(3)

    async with world.client() as holder, world.client(world.hooked_store(before), owner="slow") as client:
        held = await holder.acquire("k", fail_closed=True)

        with pytest.raises(AcquireTimeoutError, match=r"within 1\.0 s") as caught:
            await client.acquire("k", timeout=1)

        assert caught.value.timeout == 1.0
        assert held.is_valid


@both_colours
async def test_acquire_survives_a_short_outage(world: World) -> None:
    """Within its time it tries again."""
    async with world.client(lease_duration=20) as client:
        world.store.fail("claim", 3)
        acquiring = world.spawn(client.acquire("k", timeout=30))
        for _ in range(40):
            if acquiring.done:
                break
            await world.live(0.5)

        lease = await acquiring.result()

        assert lease.is_valid


class _Unreadable:
    """Raises *error* from every verb."""

    def __init__(self, inner: Any, error: Exception) -> None:
        self._inner, self._error = inner, error
        self.asked: Counter[str] = Counter()
        self.capabilities: frozenset[Any] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("replace_many", "wait", "read_age", "claim_many", "batch_limit"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def claim(self, request: object, *, timeout_s: float) -> Any:
        self.asked["claim"] += 1
        raise self._error


class _AsyncUnreadable(_Unreadable):
    async def claim(self, request: object, *, timeout_s: float) -> Any:
        self.asked["claim"] += 1
        raise self._error


@both_colours
@pytest.mark.parametrize("kind", [RecordError, StoreSetupError])
async def test_trouble_that_waiting_cannot_mend_is_told_at_once(world: World, kind: type[StoreError]) -> None:
    """A foreign record, a missing table: the error leaves after one request, however long the timeout."""
    error = kind("it is not ours", key="k")
    store = (_Unreadable if world.colour == "sync" else _AsyncUnreadable)(world.another_store(), error)
    async with world.client(store) as client:
        with pytest.raises(kind) as caught:
            await client.acquire("k")

        assert caught.value is error
        assert store.asked == {"claim": 1}


@both_colours
@pytest.mark.parametrize("kind", [ValueError, OSError, MemoryError, RecursionError])
async def test_store_that_breaks_the_contract_leaks_no_lock(world: World, kind: type[Exception]) -> None:
    """An exception that no store should raise leaves as it is, and what may have been applied is cleaned up."""
    store = (_Unreadable if world.colour == "sync" else _AsyncUnreadable)(world.another_store(), kind("driver"))
    async with world.client(store, lease_duration=4) as client:
        with pytest.raises(kind, match="driver"):
            await client.acquire("k")
        await world.live(5)

        assert not getattr(client, "_inner", client)._engine.driver.following


@both_colours
async def test_waiting_for_notice_that_fails_falls_back_to_polling(world: World) -> None:
    """A notification is a convenience: without it the key is obtained all the same."""
    kind = MemoryStore if world.colour == "sync" else AsyncMemoryStore

    def fail(self: object, *_: object, **__: object) -> Any:
        raise StoreUnavailableError("no notifications today")

    deaf = type("DeafStore", (kind,), {"wait": fail})(world.space)
    async with world.client(owner="a") as a, world.client(deaf) as b:
        held = await a.acquire("k")
        waiting = world.spawn(b.acquire("k", timeout=30))
        await world.live(1)
        assert not waiting.done
        await held.release()
        await world.live(3)

        assert waiting.done
        lease = await waiting.result()
        assert lease.fencing_token == 2


@both_colours
async def test_what_is_remembered_of_given_up_attempts_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgetting one costs at most the wait for its lease."""
    monkeypatch.setattr("dlock_core.engine.driver.ABANDONED_MAX", 3)
    async with world.client(lease_duration=4) as client:
        world.store.fail("read", 1000)
        for number in range(8):
            world.store.lose_request("claim")
            with pytest.raises(StoreError):
                await client.acquire(f"k{number}", timeout=0)

        assert len(getattr(client, "_inner", client)._engine.driver._abandoned) == 3
        await world.live(5)


# ---- whose lock it is, how long a request may take, and a herd


@both_colours
async def test_same_owner_in_two_clients_is_two_holders(world: World) -> None:
    """The owner is a label for people: whoever has the same one is somebody else (hazard 20)."""
    async with world.client(owner="me") as a, world.client(owner="me") as b:
        lease = await a.acquire("k")

        assert await b.try_acquire("k") is None
        assert await a.try_acquire("k") is None
        await lease.release()
        other = await b.try_acquire("k")
        assert other is not None
        assert other.owner == lease.owner


@both_colours
async def test_requests_get_a_share_of_the_lease_as_their_time(world: World) -> None:
    """Whatever the driver's own time-outs are: half a lease to obtain, a sixth to renew or release, and never above the cap (hazard 33)."""
    for options, claim, other in (
        ({"lease_duration": 6}, 3, 1),
        ({"lease_duration": 600}, 10, 10),
        ({"lease_duration": 6, "request_timeout": 0.5}, 0.5, 0.5),
        ({"lease_duration": 6, "fail_closed": True}, 3, 1),
    ):
        store = world.hooked_store(lambda *_: None)
        async with world.client(store, **options) as client, client.lock("k") as lease:
            await lease.renew()

        assert dict(store.timeouts) == {"claim": claim, "replace": other, "release": other}


@async_only
async def test_hazard_21_herd_of_waiters_is_spread_and_has_one_winner(world: World) -> None:
    """A hundred waiters poll with growing, jittered pauses; of them one obtains the key, with a bounded number of requests (hazard 21)."""
    async with world.client(lease_duration=20) as holder:
        lease = await holder.acquire("k")
        store = world.another_store()
        clients = [await world.client(store, lease_duration=20) for _ in range(100)]
        waiting = [world.spawn(client.acquire("k")) for client in clients]
        await world.live(20)
        assert store.requests["claim"] == 100
        assert store.requests["read"] <= 100 * (10 + 20 / 0.25)

        await lease.release()
        await world.live(2)

        assert sum(spawned.done for spawned in waiting) == 1
        assert sum(client.holds("k") for client in clients) == 1
        for client in clients:
            await client.close()
        for spawned in waiting:
            with contextlib.suppress(LeaseStateError):
                await spawned.result()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="another clock counts the time asleep here")
def test_hazard_16_clock_that_decides_counts_while_the_machine_sleeps() -> None:
    """CLOCK_MONOTONIC stands still while a machine is suspended, and a lease does not (hazard 16)."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    assert before <= now_ns() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert isinstance(now_ns(), int)


# ---- many threads


def test_one_lease_may_be_used_by_many_threads_at_once() -> None:
    """Renewals, checks and the release of one lease from many threads end in one release and no error."""
    from dlock_core.client import LockClient
    from dlock_core.testing import FaultyStore

    store = FaultyStore()
    with LockClient(store, lease_duration=20) as client:
        lease = client.acquire("k")
        start, errors = threading.Barrier(8), []

        def use() -> None:
            start.wait(20)
            try:
                for _ in range(50):
                    lease.ensure(19.5)
                    lease.renew()
                    assert lease.fencing_token == 1
                lease.release()
            except LeaseStateError:
                pass  # another thread has released it
            except BaseException as error:  # noqa: BLE001  # asserted on below
                errors.append(error)

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert errors == []
        assert store.requests["release"] == 1
        record = client.get("k")
        assert record is not None
        assert record.state == "free"


def test_counter_under_the_lock_is_exact() -> None:
    """Threads that each have a client of one space never run in the block together."""
    from dlock_core.client import LockClient
    from dlock_core.memory import MemorySpace, MemoryStore

    space, inside, total, tokens = MemorySpace(), [0], [0], []

    def work() -> None:
        with LockClient(MemoryStore(space)) as client:
            for _ in range(100):
                with client.lock("k", timeout=60) as lease:
                    inside[0] += 1
                    assert inside[0] == 1
                    tokens.append(lease.fencing_token)
                    total[0] += 1
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert total == [400]
    assert tokens == sorted(set(tokens))


def test_context_managers_of_the_scenarios_are_real(tmp_path: object) -> None:
    """The harness runs a scenario to its end in both colours: one that fails, fails."""
    from tests.core.worlds import run_scenario

    async def failing(world: World) -> None:
        async with world.client() as client, client.lock("k"):
            raise Boom(world.colour)

    for colour in ("sync", "async"):
        with contextlib.suppress(Boom):
            run_scenario(colour, failing)
            pytest.fail("the scenario did not fail")
