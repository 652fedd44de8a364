"""The attempts of one client at one shared lock: who asks, who waits for its turn, and how the turn is passed on."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dlock_core import AcquireTimeoutError, LeaseStateError, StoreUnavailableError
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.lines import STREAK_MAX
from dlock_core.engine.turns import Turns as _Turns
from dlock_core.members import PERMIT, Wish
from tests.core.attempts import SECOND
from tests.core.test_lines import Turns
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from dlock_core.engine.sharing import Attempt
    from tests.core.worlds import World

MANY = 12


class PermitTurns(Turns):
    """Waiters of one client for the one permit of a semaphore."""

    async def _use(self, place: int) -> None:
        lease = await self.client.acquire("k", permits=1, timeout=600)
        self.order.append(place)
        await lease.release()


@both_colours
async def test_only_the_first_asks_and_each_has_its_turn(world: World) -> None:
    """It asks as often as a lone waiter does; then each costs the requests of a place and its end, and meets nobody."""
    async with world.client(lease_duration=20) as client:
        held = await client.acquire("k", permits=1)
        turns = PermitTurns(world, client)
        await turns.come(MANY)
        await world.live(4)
        sent = world.store.requests
        assert (sent["claim"], sent["replace"]) == (2, 0)
        assert sent["read"] <= 40

        sent.clear()
        await held.release()
        await turns.all_done()

        in_vain = sent.total() - 2 - MANY * (3 + 2)
        assert in_vain <= 6 * MANY // STREAK_MAX + MANY


@both_colours
async def test_places_that_came_free_together_are_had_one_after_the_other(world: World) -> None:
    """Without a pause between them, and so that none refuses another: each costs a look, a session and a place."""
    async with world.client(lease_duration=20) as other, world.client(lease_duration=20) as client:
        held = await other.acquire("k", permits=MANY, weight=MANY)
        coming = [world.spawn(client.acquire("k", permits=MANY, timeout=600)) for _ in range(MANY)]
        await world.live(1)
        await held.release()
        world.store.requests.clear()
        await world.live(0.5)
        await world.until(lambda: all(each.done for each in coming))

        leases = [await each.result() for each in coming]
        assert sorted(lease.slot or 0 for lease in leases) == list(range(MANY))
        assert world.store.requests.total() <= 3 * MANY + 10


@both_colours
async def test_place_that_came_free_in_this_client_is_had_at_once(world: World) -> None:
    """The first in turn does not finish its pause; not always, since nobody tells the waiters of other clients."""
    async with world.client(lease_duration=20) as client:
        released_at, paused = world.clock.now(), list[float]()

        async def use() -> None:
            nonlocal released_at
            lease = await client.acquire("k", permits=1, timeout=600)
            paused.append((world.clock.now() - released_at) / SECOND)
            await client._engine.runtime.sleep(2)
            released_at = world.clock.now()
            await lease.release()

        spawned = [world.spawn(use()) for _ in range(2 * STREAK_MAX)]
        for _ in range(60 * STREAK_MAX):
            await world.live(0.1, 0.1)
        for each in spawned:
            await each.result()

        assert sum(pause < 0.05 for pause in paused) >= 2 * STREAK_MAX - 3


class Asking:
    """What is used of an attempt."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish


def test_first_is_told_of_a_place_that_came_free_but_not_each_time() -> None:
    """Waiters of other clients, whom nobody tells, must come to it, too. What is told while it asks is not lost."""
    told: list[str] = []

    class Signal:
        def __init__(self) -> None:
            self.is_set = False

        def set(self) -> None:
            self.is_set = True

        async def wait(self, _: float) -> None:
            told.append("went on" if self.is_set else "paused")

    runtime: Any = SimpleNamespace(mutex=nullcontext(), turn=Signal, now=lambda: 0)
    turns = _Turns(runtime)
    first, stranger = (cast("Attempt", Asking(Wish("k", PERMIT, name, "o", 1))) for name in "ab")
    run_blocking(turns.enter(first, 1))
    for _ in range(2 * STREAK_MAX):
        turns.note_leaving("another")
        turns.note_leaving("k")
        run_blocking(turns.pause(first, 1.0))

    assert told == [*["went on"] * (STREAK_MAX - 1), "paused"] * 2
    turns.leave(stranger)
    assert turns._queues
    turns.leave(first)
    assert not turns._queues


def test_attempt_that_an_interrupt_has_ended_before_it_left_keeps_nobody_waiting() -> None:
    """It goes with its last reference, and the next one finds itself the first when it looks."""
    interrupted: list[Attempt] = [cast("Attempt", Asking(Wish("k", PERMIT, "a", "o", 1)))]
    behind = cast("Attempt", Asking(Wish("k", PERMIT, "b", "o", 1)))

    looks: list[float] = []

    class Signal:
        async def wait(self, seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == MANY:
                interrupted.pop()

    runtime: Any = SimpleNamespace(mutex=nullcontext(), turn=Signal, now=lambda: 0)
    turns = _Turns(runtime)
    run_blocking(turns.enter(interrupted[0], 1))

    run_blocking(turns.enter(behind, 600 * SECOND))

    assert looks == [5.0] * MANY
    assert turns._is_first(behind)
    turns.leave(behind)
    assert not turns._queues


def test_leaving_tells_the_next_one_alone_and_is_not_undone_by_a_pause() -> None:
    """All others would ask in vain; and who has left stands in nobody's way."""
    told: list[int] = []
    places = iter(range(MANY))

    class Signal:
        def __init__(self) -> None:
            self.place = next(places)

        def set(self) -> None:
            told.append(self.place)

        async def wait(self, _: float) -> None:
            pass

    runtime: Any = SimpleNamespace(mutex=nullcontext(), turn=Signal, now=lambda: 0)
    turns = _Turns(runtime)
    attempts = [cast("Attempt", Asking(Wish("k", PERMIT, name, "o", 1))) for name in "abc"]
    for attempt in attempts:
        run_blocking(turns.enter(attempt, 0))

    turns.leave(attempts[0])
    run_blocking(turns.pause(attempts[0], 1.0))

    assert told == [1]
    for attempt in attempts[1:]:
        turns.leave(attempt)
    assert not turns._queues


@both_colours
async def test_wait_behind_others_ends_in_time_and_names_the_holder(world: World) -> None:
    """Whoever leaves passes the turn on."""
    async with world.client(lease_duration=20, owner="the holder") as a, world.client(lease_duration=20) as b:
        held = await a.acquire("k", permits=1)
        first = world.spawn(b.acquire("k", permits=1, timeout=8))
        await world.settle()
        behind = world.spawn(b.acquire("k", permits=1, timeout=4))
        await world.settle()
        last = world.spawn(b.acquire("k", permits=1, timeout=60))
        await world.live(5)
        with pytest.raises(AcquireTimeoutError, match=r"within 4\.0 s: .*1 holder"):
            await behind.result()
        await world.live(5)
        with pytest.raises(AcquireTimeoutError, match=r"within 8\.0 s"):
            await first.result()

        await held.release()
        await world.live(3)

        assert (await last.result()).is_valid


@both_colours
async def test_store_that_is_silent_ends_all_at_once(world: World) -> None:
    """Not one after the other, each after a lease of its own."""
    async with world.client(lease_duration=10) as client:
        held = await client.acquire("k", permits=1)
        waiting = [world.spawn(client.acquire("k", permits=1, timeout=600)) for _ in range(4)]
        await world.live(1)
        with world.store.outage():
            await world.live(24)
            assert all(each.done for each in waiting)
        for each in waiting:
            with pytest.raises(StoreUnavailableError):
                await each.result()
        assert not held.is_valid


@both_colours
async def test_closing_ends_all(world: World) -> None:
    """Those behind, too."""
    async with world.client(lease_duration=20) as other:
        held = await other.acquire("k", permits=1)
        async with world.client(lease_duration=20) as client:
            waiting = [world.spawn(client.acquire("k", permits=1, timeout=600)) for _ in range(4)]
            await world.live(1)
        await held.release()
    for each in waiting:
        with pytest.raises(LeaseStateError, match="closed"):
            await each.result()


@both_colours
async def test_who_does_not_wait_takes_no_turn(world: World) -> None:
    """A single try, by its time or by its number, is made at once; so is that of another number of permits."""
    async with world.client(lease_duration=20) as other, world.client(lease_duration=20) as client:
        held = await other.acquire("k", permits=3, weight=2)
        waiting = world.spawn(client.acquire("k", permits=3, weight=2, timeout=600))
        await world.live(1)

        tries: list[dict[str, Any]] = [{"timeout": 0}, {"retries": 0}]
        for once in tries:
            with pytest.raises(AcquireTimeoutError):
                await client.acquire("k", permits=3, weight=2, **once)
        light = await client.acquire("k", permits=3)

        await held.release()
        await world.live(2)
        assert await (await waiting.result()).ensure()
        await light.release()


@both_colours
async def test_who_would_wait_for_itself_is_told_at_once(world: World) -> None:
    """Behind others that wait for it, too: nobody would ever go on."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k", permits=1)
        waiting = world.spawn(client.acquire("k", permits=1, timeout=600))
        await world.live(1)

        with pytest.raises(LeaseStateError, match="would wait for itself for ever"):
            await client.acquire("k", permits=1, timeout=600)

        await lease.release()
        await world.live(2)
        assert await (await waiting.result()).ensure()


@async_only
async def test_waiter_that_is_cancelled_passes_its_turn_on(world: World) -> None:
    """The first, and one behind it."""
    async with world.client(lease_duration=20) as client:
        held = await client.acquire("k", permits=1)
        waiting: list[asyncio.Task[Any]] = []
        for _ in range(3):
            waiting.append(asyncio.ensure_future(client.acquire("k", permits=1, timeout=600)))
            await world.settle()
        for each in waiting[:2]:
            each.cancel()
        await world.settle()
        await held.release()
        await world.live(2)

        assert (await waiting[2]).is_valid
