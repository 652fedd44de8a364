"""Interrupted at every point: cancelled at each await in asyncio, KeyboardInterrupt at each store call and wait in threads.

Whatever was under way, the exception that interrupted leaves, and within one lease nothing is held that nobody has.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dlock_core import AcquireTimeoutError, AsyncLockClient, StoreError
from dlock_core.memory import AsyncMemoryStore
from tests.core.worlds import PATIENCE_S, async_only, raw, run_scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from dlock_core import AsyncLease
    from tests.core.worlds import World

LEASE = 8.0
POINTS_MAX = 100


class Stage(NamedTuple):
    """What an operation works on."""

    world: World
    client: AsyncLockClient
    other: AsyncLockClient
    timings: Faults


class Faults:
    """Interrupts at the n-th point, counted from :meth:`begin` on; may also lose replies."""

    def __init__(self) -> None:
        self.at = 0
        self.points = 0
        self.lost: list[str] = []
        self.reached = False
        self._armed = False

    def begin(self, at: int) -> None:
        """Count from here."""
        self.at, self._armed = at, True

    def end(self) -> None:
        """Interrupt no more."""
        self._armed = False

    def point(self) -> bool:
        """Whether this is the point to interrupt at."""
        if not self._armed:
            return False
        self.points += 1
        self.reached = self.reached or self.points == self.at
        return self.points == self.at


# ---- the operations; each returns the leases that the caller has in hand, whatever happened


async def acquire_free(stage: Stage, mine: list[AsyncLease]) -> None:
    """Obtain a free key."""
    mine.append(await stage.client.acquire("k"))


async def acquire_held(stage: Stage, mine: list[AsyncLease]) -> None:
    """Wait for a key in vain."""
    held = await stage.other.acquire("k", fail_closed=True)
    stage.timings.begin(stage.timings.at)
    try:
        with contextlib.suppress(AcquireTimeoutError):
            mine.append(await stage.client.acquire("k", timeout=2))
    finally:
        stage.timings.end()
        assert held.is_valid
        await held.release()


async def acquire_dead(stage: Stage, mine: list[AsyncLease]) -> None:
    """Take a key over from a dead holder."""
    dead = await stage.other.acquire("k", lease_duration=1, auto_renew=False)
    raw(dead)._closed = True
    stage.timings.begin(stage.timings.at)
    mine.append(await stage.client.acquire("k", timeout=5))


async def acquire_lost(stage: Stage, mine: list[AsyncLease]) -> None:
    """Obtain a key whose claim gets no answer."""
    stage.timings.lost = ["claim"]
    mine.append(await stage.client.acquire("k"))


async def renew(stage: Stage, mine: list[AsyncLease]) -> None:
    """Renew by hand, for a shorter lease, with data."""
    lease = await stage.client.acquire("k", auto_renew=False)
    mine.append(lease)
    stage.timings.begin(stage.timings.at)
    await lease.renew(lease_duration=6, data=b"x")


async def renew_lost(stage: Stage, mine: list[AsyncLease]) -> None:
    """Renew with the first answer lost."""
    lease = await stage.client.acquire("k", auto_renew=False)
    mine.append(lease)
    stage.timings.begin(stage.timings.at)
    stage.timings.lost = ["replace"]
    await lease.renew()


async def ensure(stage: Stage, mine: list[AsyncLease]) -> None:
    """Ensure more than the lease has."""
    lease = await stage.client.acquire("k", auto_renew=False)
    mine.append(lease)
    stage.timings.begin(stage.timings.at)
    await lease.ensure(7.99)


async def release(stage: Stage, mine: list[AsyncLease]) -> None:
    """Give back."""
    lease = await stage.client.acquire("k")
    stage.timings.begin(stage.timings.at)
    await lease.release()


async def release_lost(stage: Stage, mine: list[AsyncLease]) -> None:
    """Give back with the first answer lost, after a renewal whose answer was lost."""
    lease = await stage.client.acquire("k", auto_renew=False)
    stage.timings.lost = ["replace", "replace"]
    with contextlib.suppress(StoreError):
        await lease.renew()
    stage.timings.begin(stage.timings.at)
    stage.timings.lost = ["release"]
    await lease.release()


async def block(stage: Stage, mine: list[AsyncLease]) -> None:
    """A whole cycle."""
    async with stage.client.lock("k") as lease:
        await lease.renew()
        await lease.ensure(7.9)


async def lock_all(stage: Stage, mine: list[AsyncLease]) -> None:
    """A whole cycle over several keys."""
    async with stage.client.lock_all(["a", "b", "k"]) as leases:
        await leases["b"].renew()


async def lock_all_held(stage: Stage, mine: list[AsyncLease]) -> None:
    """Several keys of which the last is held: what was won is given back."""
    held = await stage.other.acquire("k", fail_closed=True)
    stage.timings.begin(stage.timings.at)
    try:
        with contextlib.suppress(AcquireTimeoutError):
            async with stage.client.lock_all(["a", "b", "k"], timeout=1):
                pytest.fail("entered")
    finally:
        stage.timings.end()
        await held.release()


async def close(stage: Stage, mine: list[AsyncLease]) -> None:
    """Close a client that holds several keys."""
    for key in ("a", "b", "k"):
        raw(await stage.client.acquire(key))._closed = True
    stage.timings.begin(stage.timings.at)
    await stage.client.close()


OPERATIONS = [
    acquire_free,
    acquire_held,
    acquire_dead,
    acquire_lost,
    renew,
    renew_lost,
    ensure,
    release,
    release_lost,
    block,
    lock_all,
    lock_all_held,
    close,
]
SETS_UP = {acquire_held, acquire_dead, renew, renew_lost, ensure, release, release_lost, lock_all_held, close}


# ---- interrupting


async def check(stage: Stage, mine: list[AsyncLease]) -> None:
    """Whoever has a lease in hand still holds it; all else is free within one lease, and nothing is left to be done."""
    for lease in mine:
        if lease.is_valid:
            assert stage.client.holds("k")
            await lease.release()
    await stage.world.live(LEASE + 0.25)
    for key, record in stage.world.space.records.items():
        assert not record.held or record.owner != "me", f"{key} is still held"
    engine = getattr(stage.client, "_inner", stage.client)._engine
    assert not engine.driver.held
    assert not engine.driver.following


@types.coroutine
def cancelling(work: Coroutine[Any, Any, Any], timings: Faults) -> Generator[Any, Any, Any]:
    """Run *work*, and cancel the task at the planned one of its suspensions."""
    step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731  # replaced in each turn
    while True:
        try:
            waiting = step()
        except StopIteration as stop:
            return stop.value
        if timings.point():
            task = asyncio.current_task()
            assert task is not None
            task.cancel("by the test")
        try:
            value = yield waiting
        except BaseException as error:  # noqa: BLE001  # handed on to the work
            step = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
        else:
            step = lambda value=value: work.send(value)  # type: ignore[misc]  # noqa: E731


async def run_cancelled(world: World, operation: Callable[[Stage, list[AsyncLease]], Awaitable[None]], at: int) -> bool:
    """Run *operation* cancelled at point *at*; whether it has so many."""
    timings = Faults()

    async def before(verb: str) -> None:
        await asyncio.sleep(0)

    async def after(verb: str) -> None:
        await asyncio.sleep(0)
        if timings.lost[:1] == [verb]:
            timings.lost.pop(0)
            from dlock_core import OutcomeUnknownError

            raise OutcomeUnknownError("lost")

    store = world.hooked_store(lambda verb, _: before(verb), after)
    async with world.client(store, owner="me", lease_duration=LEASE) as client, world.client() as other:
        stage, mine = Stage(world, client, other, timings), list[Any]()
        timings.at = at
        if operation not in SETS_UP:
            timings.begin(at)
        work: Any = operation(stage, mine)
        task = asyncio.ensure_future(_awaited(cancelling(work, timings)))
        for _ in range(400):
            if task.done():
                break
            await world.live(0.25)
        timings.end()
        if timings.reached:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        await check(stage, mine)
    return timings.reached


async def _awaited(work: Generator[Any, Any, Any]) -> Any:
    return await work  # type: ignore[misc]  # a generator-based coroutine


async def run_interrupted(
    world: World, operation: Callable[[Stage, list[AsyncLease]], Awaitable[None]], at: int
) -> bool:
    """Run *operation* with KeyboardInterrupt at point *at* of the calling thread; whether it has so many."""
    timings, main = Faults(), threading.current_thread()

    def point(*_: object) -> None:
        if threading.current_thread() is main and timings.point():
            raise KeyboardInterrupt

    def after(verb: str) -> None:
        point()
        if threading.current_thread() is main and timings.lost[:1] == [verb]:
            timings.lost.pop(0)
            from dlock_core import OutcomeUnknownError

            raise OutcomeUnknownError("lost")

    def wait(seconds: float) -> bool:
        if threading.current_thread() is not main:
            return False
        point()
        world.clock.advance(seconds)
        return True

    world.clock.on_wait = wait  # type: ignore[attr-defined]  # of the blocking world's clock
    store = world.hooked_store(point, after)
    async with world.client(store, owner="me", lease_duration=LEASE) as client, world.client() as other:
        stage, mine = Stage(world, client, other, timings), list[Any]()
        timings.at = at
        if operation not in SETS_UP:
            timings.begin(at)
        try:
            await operation(stage, mine)
        except KeyboardInterrupt:
            assert timings.reached
        else:
            assert not timings.reached, "the interrupt was swallowed"
        finally:
            timings.end()
        await check(stage, mine)
    return timings.reached


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_hazard_28_interrupted_at_every_point_leaks_nothing(colour: str, operation: Any) -> None:
    """At each await (asyncio) or store call and wait (threads): the interruption leaves, and the key is free within one lease."""
    run = run_cancelled if colour == "async" else run_interrupted
    points = 0

    async def scenario(world: World, at: int) -> None:
        nonlocal points
        points += await run(world, operation, at)

    for at in range(1, POINTS_MAX):
        run_scenario(colour, scenario, at)
        if points < at:
            break

    assert 2 <= points < POINTS_MAX - 1


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_cancelled_by_a_timeout_is_a_timeout(operation: Any) -> None:
    """``asyncio.timeout`` around any operation raises TimeoutError and leaks nothing."""

    async def scenario(world: World) -> None:
        timings, stuck, limits = Faults(), asyncio.Event(), list[asyncio.Timeout]()

        async def before(verb: str) -> None:
            if timings.point():
                for limit in limits:
                    limit.reschedule(0)  # now
                await stuck.wait()

        store = world.hooked_store(lambda verb, _: before(verb))
        async with world.client(store, owner="me", lease_duration=LEASE) as client, world.client() as other:
            stage, mine = Stage(world, client, other, timings), list[Any]()
            timings.at = 1
            if operation not in SETS_UP:
                timings.begin(1)

            async def timed() -> None:
                async with asyncio.timeout(PATIENCE_S) as limit:
                    limits.append(limit)
                    try:
                        await operation(stage, mine)
                    finally:
                        limits.clear()

            task = asyncio.ensure_future(timed())
            for _ in range(100):
                if task.done() or timings.reached:
                    break
                await world.live(0.25)
            with pytest.raises(TimeoutError):
                await task
            timings.end()
            stuck.set()
            await check(stage, mine)

    run_scenario("async", scenario)


@async_only
async def test_waiters_cancelled_together_with_the_release_pass_the_wake_up_on(world: World) -> None:
    """Whenever a woken waiter is cancelled, another one obtains the key, at once and not by its slow poll."""
    for ticks in range(8):
        async with AsyncLockClient(AsyncMemoryStore()) as client:
            held = await client.acquire("k")
            first = asyncio.ensure_future(client.acquire("k"))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(client.acquire("k"))
            await asyncio.sleep(0)
            await held.release()
            for _ in range(ticks):
                await asyncio.sleep(0)
            first.cancel()
            got_first = (await asyncio.gather(first, return_exceptions=True))[0]
            if not isinstance(got_first, BaseException):
                await got_first.release()
            else:
                assert isinstance(got_first, asyncio.CancelledError)
            async with asyncio.timeout(1):  # the slow poll comes after 2 s
                lease = await second
            await lease.release()


@async_only
async def test_task_cancelled_before_it_began_sends_nothing(world: World) -> None:
    """A cancellation that comes first leaves no trace."""
    async with world.client() as client:
        task = asyncio.ensure_future(client.acquire("k"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not world.store.requests


@async_only
async def test_scan_abandoned_half_way_leaves_nothing(world: World) -> None:
    """An async generator that is not read to its end can be closed."""
    async with world.client() as client:
        for key in "abc":
            async with client.lock(key):
                pass
        records = client.scan()
        async for record in records:
            assert record.key == "a"
            break
        await records.aclose()
