"""The waiters of one client for one key: who asks, who waits for its turn, and how the turn is passed on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import AcquireTimeoutError, AsyncLockClient, LeaseStateError, StoreUnavailableError
from dlock_core.engine.lines import STREAK_MAX, Lines
from dlock_core.events import EventKind
from dlock_core.memory import AsyncMemoryStore
from tests.core.worlds import PATIENCE_S, async_only, both_colours

if TYPE_CHECKING:
    from dlock_core import Claim, LockRecord, Reply
    from tests.core.worlds import Spawned, World

MANY = 3 * STREAK_MAX


class Turns:
    """Waiters of one *client*, each of which releases what it obtained, at once or after *hold_s*."""

    def __init__(self, world: World, client: Any, hold_s: float = 0.0) -> None:
        self.world, self.client, self.hold_s = world, client, hold_s
        self.order: list[int] = []
        self.spawned: list[Spawned] = []

    async def come(self, number: int) -> None:
        """Have so many more wait, one behind the other."""
        for _ in range(number):
            self.spawned.append(self.world.spawn(self._use(len(self.spawned))))
            await self.world.settle()

    async def _use(self, place: int) -> None:
        lease = await self.client.acquire("k", timeout=600)
        self.order.append(place)
        if self.hold_s:
            await self.client._engine.runtime.sleep(self.hold_s)
        await lease.release()

    async def all_done(self) -> None:
        """Let time pass until each has had it, in the order in which they came."""
        until = time.monotonic() + PATIENCE_S
        while len(self.order) < len(self.spawned):
            assert time.monotonic() < until, f"only {self.order} had it"
            await self.world.live(0.01, 0.01)
        assert self.order == sorted(self.order)

    async def end(self) -> None:
        """Close the client, which ends those that wait."""
        await self.client.close()
        for each in self.spawned:
            with contextlib.suppress(LeaseStateError):
                await each.result()


async def _behind_its_own_client(world: World, client: Any) -> tuple[Spawned, Turns]:
    """Return who of *client* has the key, and one behind it that waits for its release and has not asked yet."""
    lease = await client.acquire("k")
    keeper = world.spawn(client.acquire("k", timeout=600))
    await world.settle()
    turns = Turns(world, client)
    await turns.come(1)
    await lease.release()
    await world.settle()
    return keeper, turns


@both_colours
async def test_waiters_of_one_client_obtain_the_lock_in_the_order_in_which_they_came(world: World) -> None:
    """Also on a store that wakes nobody, and beside one that comes back again and again."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        await turns.come(MANY)
        await lease.release()
        again = world.spawn(client.acquire("k", timeout=600))
        await turns.all_done()
        await world.live(0.1, 0.01)

        last = await again.result()
        assert last.fencing_token == lease.fencing_token + MANY + 1
        await last.release()


@both_colours
async def test_only_the_first_in_line_asks(world: World) -> None:
    """And it asks as often as a lone waiter does. A grant of this client to itself costs a claim and a release."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        await turns.come(MANY)
        await world.live(4)
        sent = world.store.requests
        assert (sent["claim"], sent["replace"]) == (2, 0)
        assert sent["read"] <= 10 + 4 / 0.25

        reads = sent["read"]
        await lease.release()
        await turns.all_done()

        in_vain = (MANY - 1) // STREAK_MAX
        assert sent["claim"] <= 2 + MANY + in_vain
        assert sent["read"] <= reads + 3 * in_vain


@async_only
async def test_client_that_has_the_lock_again_and_again_lets_others_come_to_it(world: World) -> None:
    """After so many grants in a row the first in line asks while the key is held, and waits as the waiters of other clients do."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client, hold_s=0.02)
        await turns.come(MANY)
        claims = world.store.requests["claim"]
        await lease.release()
        await world.live(2, 0.005)

        assert turns.order == list(range(MANY))
        assert world.store.requests["claim"] - claims == MANY + (MANY - 1) // STREAK_MAX


@both_colours
async def test_waiter_learns_at_once_of_a_release_by_its_own_client(world: World) -> None:
    """Where the store wakes nobody, others find out by a poll."""
    async with world.client(lease_duration=20) as client, world.client(lease_duration=20) as other:
        lease = await client.acquire("k")
        turns, others = Turns(world, client), Turns(world, other)
        await others.come(1)
        await turns.come(1)
        await lease.release()
        await world.until(lambda: turns.order == [0])

        assert others.order == []
        await world.live(1)
        assert others.order == [0]


@async_only
async def test_first_in_line_asks_soon_where_its_own_client_goes_on_holding(world: World) -> None:
    """It has to observe the holder as everybody does, and to stand in the queue of the store."""
    async with world.client(lease_duration=20) as client:
        keeper, turns = await _behind_its_own_client(world, client)
        claims = world.store.requests["claim"]

        await world.live(0.1, 0.05)

        assert world.store.requests["claim"] == claims + 1
        assert turns.order == []
        await (await keeper.result()).release()
        await world.settle()
        assert turns.order == [0]


@async_only
async def test_release_by_the_own_client_does_not_end_a_back_off(world: World) -> None:
    """The first in line, whose request has just failed, is in no hurry, and the machine counts its polls only."""
    async with world.client(lease_duration=20) as client:
        keeper, turns = await _behind_its_own_client(world, client)
        world.store.fail("claim")
        await world.live(0.1, 0.05)

        await (await keeper.result()).release()
        await world.settle()

        assert turns.order == []
        await world.live(2)
        assert turns.order == [0]


@both_colours
async def test_waiter_that_is_never_the_first_ends_in_time_and_names_the_holder(world: World) -> None:
    """It need not ask for that: the first has seen it. Who does not wait at all does not stand in line."""
    async with world.client(lease_duration=20) as holder, world.client(lease_duration=20) as client, holder.lock("k"):
        turns = Turns(world, client)
        await turns.come(3)
        last = world.spawn(client.acquire("k", timeout=1))
        await world.settle()
        await world.live(0.75)
        assert not last.done
        with pytest.raises(AcquireTimeoutError):
            await client.acquire("k", timeout=0)
        claims = world.store.requests["claim"]
        await world.live(0.5)

        assert last.done
        assert world.store.requests["claim"] == claims
        with pytest.raises(AcquireTimeoutError, match="held by"):
            await last.result()
        await turns.end()


@both_colours
async def test_close_ends_all_that_stand_in_line(world: World) -> None:
    """At once, and not when their turn comes."""
    async with world.client(lease_duration=20) as holder, holder.lock("k"):
        async with world.client(lease_duration=20) as client:
            turns = Turns(world, client)
            await turns.come(MANY)
        await world.until(lambda: all(each.done for each in turns.spawned))

        for each in turns.spawned:
            with pytest.raises(LeaseStateError, match="closed"):
                await each.result()


@async_only
async def test_close_ends_those_behind_one_whose_request_hangs(world: World) -> None:
    """They have no request under way that would have to end first."""
    answered = asyncio.Event()

    async def hang() -> None:
        await answered.wait()

    store = world.hooked_store(lambda verb, _: hang() if verb == "read" else None)
    async with world.client(lease_duration=20) as holder, holder.lock("k"):
        async with world.client(store, lease_duration=20) as client:
            turns = Turns(world, client)
            await turns.come(3)
            await world.live(1)
            closing = world.spawn(client.close())

            await world.until(lambda: turns.spawned[1].done and turns.spawned[2].done)

            assert not turns.spawned[0].done
            answered.set()
            await closing.result()
        await turns.end()


@both_colours
async def test_outage_ends_all_that_stand_in_line(world: World) -> None:
    """When the first has given up, each finds out for itself: not one after the other."""
    async with world.client(lease_duration=20) as client:
        await (await client.acquire("other")).release()
        async with world.client(world.another_store(), lease_duration=20) as holder, holder.lock("k"):
            turns = Turns(world, client)
            await turns.come(MANY)
            with world.store.outage():
                await world.live(45)
                assert all(each.done for each in turns.spawned)
        for each in turns.spawned:
            with pytest.raises(StoreUnavailableError):
                await each.result()


@async_only
async def test_waiter_that_is_cancelled_leaves_the_line(world: World) -> None:
    """The first, which asks, as well as one that stands behind it."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        tasks = [asyncio.ensure_future(turns._use(place)) for place in range(4)]
        await world.settle()
        for place in (0, 2):
            tasks[place].cancel()
        await world.settle()
        await lease.release()
        await world.live(1)

        assert turns.order == [1, 3]


@async_only
async def test_waiter_that_is_cancelled_before_it_has_asked_leaves_the_line(world: World) -> None:
    """The first in line waits for the release of its own client for a moment."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        keeper = world.spawn(client.acquire("k", timeout=600))
        await world.settle()
        turns = Turns(world, client)
        first = asyncio.ensure_future(turns._use(0))
        await turns.come(1)
        await lease.release()
        await world.settle()

        first.cancel()
        await world.settle()
        await (await keeper.result()).release()
        await world.settle()

        assert [each.done for each in turns.spawned] == [True]


@async_only
async def test_place_that_was_left_without_a_word_is_given_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may end a thread's acquire anywhere, also where it would leave the line: others look now and then."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        first = asyncio.ensure_future(turns._use(0))
        await world.settle()
        await turns.come(1)
        with monkeypatch.context() as patch:
            patch.setattr(Lines, "leave", lambda *_, **__: None)
            first.cancel()
            await world.settle()
        await lease.release()
        await world.live(4)
        assert turns.order == []

        await world.live(2)

        assert turns.order == [0]


@both_colours
async def test_each_that_stands_in_line_is_told_to_wait(world: World) -> None:
    """By an event, whoever asks for it; a single try waits for nothing."""
    events: list[Any] = []
    async with world.client(lease_duration=20, on_event=events.append) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        await turns.come(3)
        assert await client.try_acquire("k") is None
        await world.until(lambda: sum(event.kind is EventKind.REFUSED for event in events) == 1)
        assert sum(event.kind is EventKind.WAITING for event in events) == 3
        await lease.release()
        await turns.all_done()


@async_only
async def test_next_in_line_asks_at_once_where_its_own_client_has_released(world: World) -> None:
    """The one before it failed, so there is no release of its own client to wait for any more."""
    async with world.client(lease_duration=20) as client:
        keeper, turns = await _behind_its_own_client(world, client)
        await turns.come(1)
        world.store.fail("claim")
        await (await keeper.result()).release()
        await world.settle()
        assert turns.order == []

        turns.spawned[0]._task.cancel()  # type: ignore[attr-defined]  # of the asyncio colour
        await world.settle()

        assert turns.order == [1]


@async_only
async def test_line_keeps_nothing_of_who_has_left(world: World) -> None:
    """It may stand for years, with waiters that come and go."""
    async with world.client(lease_duration=20) as client, world.client(lease_duration=20) as other, other.lock("k"):
        turns = Turns(world, client)
        await turns.come(1)
        line = client._engine.driver.lines._lines["k"]
        for _ in range(3):
            waiting = world.spawn(client.acquire("k", timeout=1))
            await world.live(2)
            with pytest.raises(AcquireTimeoutError):
                await waiting.result()

        assert (len(line._asking), len(line._behind)) == (1, 0)
        assert set(line._pauses) <= line._asking
        await turns.end()


@both_colours
async def test_line_ends_with_its_last_waiter(world: World) -> None:
    """Nothing of a key is kept when nobody wants it any more."""
    async with world.client(lease_duration=20) as client:
        lease = await client.acquire("k")
        turns = Turns(world, client)
        await turns.come(3)
        lines = client._engine.driver.lines
        assert "k" in lines
        await lease.release()
        await turns.all_done()

        await world.until(lambda: "k" not in lines)


@async_only
async def test_close_has_nobody_that_stood_in_line_wait_at_the_store(world: World) -> None:
    """All had asked at once. The first was waiting there, and a thousand behind it must not come."""
    store, waits, asked = AsyncMemoryStore(world.space), list[str](), asyncio.Event()
    claim, wait = store.claim, store.wait

    async def claimed(request: Claim, *, timeout_s: float) -> Reply:
        await asked.wait()
        return await claim(request, timeout_s=timeout_s)

    async def waited(record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        waits.append(ticket)
        await wait(record, ticket=ticket, timeout_s=timeout_s)

    store.claim, store.wait = claimed, waited  # type: ignore[method-assign]
    async with world.client() as a, a.lock("k") as lease, AsyncLockClient(store, server_wait=False) as client:
        standing = [world.spawn(client.acquire("k")) for _ in range(5)]
        await asyncio.sleep(0)
        asked.set()
        await world.until(lambda: bool(waits))
        await client.close()
        await world.until(lambda: sum(each.done for each in standing) == 4)
        await lease.release()
        await world.until(lambda: all(each.done for each in standing))
        assert len(waits) == 1
