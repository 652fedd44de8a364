"""A lease that is renewed by its holder, in both colours from one text."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    ConfigurationError,
    LockLostError,
    LossReason,
    OutcomeUnknownError,
    UnsupportedError,
)
from dlock_core.states import Due, Renew
from dlock_core.testing import FakeClock
from dlock_core.timings import NANOS
from tests.core.hold_support import steal
from tests.core.worlds import both_colours, saying

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.core.worlds import World


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
async def test_lock_that_a_renewal_made_short_stays_held_while_a_long_one_hangs(world: World) -> None:
    """The renewals of other locks leave room for those of its pace from then on."""
    async with world.client(world.hanging_store("long"), lease_duration=60) as client:
        long, short = await client.acquire("long"), await client.acquire("short")
        await short.renew(lease_duration=1)
        hung = False
        for _ in range(25):
            await world.live(1, step=0.05)
            hung = hung or bool(world.hung)

        assert hung
        assert short.is_valid
        assert long.is_valid
        await short.release()
        await world.live(60)


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
async def test_data_that_the_store_cannot_keep_is_refused(world: World) -> None:
    """Before anything is sent; a renewal and a release without data are as ever, and those of a shared lock may say that there is none."""
    async with world.client(saying(world, refuses=(("data", "its rows are narrow"),))) as client:
        lease = await client.acquire("k")
        for call in (lease.renew, lease.release):
            with pytest.raises(UnsupportedError, match="data cannot be had from this store: its rows are narrow"):
                await call(data=b"x")
        await lease.renew(data=None)
        await lease.release()
    async with world.client() as client:
        permit = await client.acquire("k", permits=2)
        for call in (permit.renew, permit.release):
            with pytest.raises(ConfigurationError, match="is a shared one, whose record has no place for data"):
                await call(data=b"x")
        await permit.renew(data=None)
        await permit.release(data=None)


@both_colours
@pytest.mark.parametrize(
    ("lease_duration", "told"),
    [(0, "0.001 "), (-1, "0.001 or more"), (True, "bool"), (float("nan"), "nan"), (0.0001, "0.001 "), (90_000, "24 h")],
)
async def test_renew_with_a_bad_lease_changes_nothing(world: World, lease_duration: Any, told: str) -> None:
    """What cannot be a lease is refused before anything is sent."""
    async with world.client() as client, client.lock("k") as lease:
        with pytest.raises(ConfigurationError, match=f"lease_duration.*{told}"):
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
            LockLostError, match=r"another holder took it over; now it is held by 'thief'.*, with token 3"
        ) as caught:
            await lease.renew()

        loss = caught.value.loss
        assert (loss.key, loss.fencing_token, loss.reason) == ("k", 1, LossReason.STOLEN)
        assert loss.record is not None
        assert loss.record.owner == "thief"


@both_colours
async def test_renew_of_a_vanished_record_is_a_loss_and_creates_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What is gone is lost; nobody brings it back but a new acquire."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        world.space.records.clear()

        with pytest.raises(LockLostError, match="its record was removed, so another may hold it"):
            await lease.renew()

        assert lease.loss is not None
        assert lease.loss.record is None
        assert not world.space.records
        assert "clause S7" not in caplog.text


@both_colours
async def test_loss_by_a_store_that_forgot_a_renewal_blames_nobody(world: World) -> None:
    """A failover brought back the holder's own record as it was before: no other holder has been there."""
    async with world.client(auto_renew=False) as client:
        lease = await client.acquire("k")
        before = dict(world.space.records)
        await lease.renew()
        world.space.records.update(before)

        with pytest.raises(LockLostError, match="was lost: the store shows an earlier state of it") as caught:
            await lease.renew()

        assert caught.value.loss.reason is LossReason.STOLEN


@both_colours
async def test_records_that_were_made_anew_are_told_as_that(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The release of such a lock "got no answer", and its renewals "failed": the store had answered each."""
    told = "shows an older record of it, with token 1, as where records were made anew or restored .* token_floor has to be above 2"
    async with world.client(lease_duration=10, token_floor=2) as client, world.client() as other:
        leases = {key: await client.acquire(key) for key in ("freed", "renewed", "kept")}
        world.space.records.clear()
        others = [await other.acquire(key) for key in leases]

        for call in (leases["freed"].release, leases["renewed"].renew):
            with pytest.raises(OutcomeUnknownError, match=f"was not seen applied: the store {told}"):
                await call()
        await world.live(10)
        with pytest.raises(LockLostError, match=f"its renewals failed until its lease ran out \\(the store {told}\\)"):
            await leases["kept"].release()

        assert [each.fencing_token for each in others] == [1, 1, 1]
        assert re.search(rf"lock 'kept' is at risk: .* \(the store {told}\)", caplog.text)


@pytest.fixture
def long_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request take so long that no test ends that waits for its time-out, in place of its answer."""
    monkeypatch.setattr("dlock_core.timings._REQUEST_MAX_NS", 3600 * NANOS)


@both_colours
async def test_renewals_of_one_lease_wait_for_each_other(world: World, long_requests: None) -> None:
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

    async with world.client(world.hooked_store(before, after), lease_duration=3600, auto_renew=False) as client:
        lease = await client.acquire("k")
        first = world.spawn(lease.renew(data=b"1"), parks=False)
        await world.until(lambda: writing[0] == 1)
        second = world.spawn(lease.renew(data=b"2"), parks=False)
        third = world.spawn(lease.ensure(4000), parks=False)
        gate.set()

        await first.result()
        await second.result()
        assert await third.result() == 1

        assert max(most) == 1
        assert lease.remaining > 4000
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


def test_renewal_is_known_to_be_applied_though_another_thread_renews_before_it_looks() -> None:
    """Each time; what was written last is the other's."""
    with FakeClock() as clock, clock.client() as client, client.lock("k") as lease:
        driver, drive, others = client._engine.driver, client._engine.driver.drive, list[threading.Thread]()

        async def drive_and_be_late(*request: Any, **options: Any) -> Any:
            error = await drive(*request, **options)
            if threading.current_thread() is threading.main_thread():
                clock.advance(0.001)
                others.append(threading.Thread(target=lease.renew))
                others[-1].start()
                others[-1].join()
            return error

        driver.drive = drive_and_be_late  # type: ignore[method-assign]
        lease.renew()
        driver.drive = drive  # type: ignore[method-assign]

        assert len(others) == 1
        assert lease.is_valid


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
async def test_renewal_waiting_for_another_one_sees_the_loss_that_it_brings(world: World, long_requests: None) -> None:
    """Who waits for an answer that proves the loss is told of it, without a request of its own."""
    gate: Any = threading.Event() if world.colour == "sync" else asyncio.Event()
    asked = [0]

    def before(verb: str, request: Any) -> Any:
        if verb != "replace" or request.record.owner != "me":
            return None
        asked[0] += 1
        return gate.wait()

    store = world.hooked_store(before)
    async with world.client(store, lease_duration=3600, owner="me", auto_renew=False) as client:  # as above
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
