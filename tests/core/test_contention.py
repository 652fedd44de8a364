"""Many clients and many threads at one lock, in both colours from one text."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import (
    AcquireTimeoutError,
    AsyncLockClient,
    Claim,
    Expect,
    LeaseStateError,
    LockRecord,
    Release,
    Reply,
    State,
    StoreUnavailableError,
)
from dlock_core.clock import now_ns
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.store import Capability
from tests.core.hold_support import Boom
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

WAKE_UPS = 5


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
    for options, fail_closed, claim, other in (
        ({"lease_duration": 6}, False, 3, 1),
        ({"lease_duration": 600}, False, 10, 10),
        ({"lease_duration": 6, "request_timeout": 0.5}, False, 0.5, 0.5),
        ({"lease_duration": 6}, True, 3, 1),
    ):
        store = world.hooked_store(lambda *_: None)
        async with world.client(store, **options) as client, client.lock("k", fail_closed=fail_closed) as lease:
            await lease.renew()

        assert dict(store.timeouts) == {"claim": claim, "replace": other, "release": other}


@both_colours
async def test_grant_that_came_too_late_is_renewed_with_the_time_of_an_acquire(world: World) -> None:
    """Nobody works under the lock yet, and a store that was slow may still be."""
    store = world.hooked_store(lambda *_: None, lambda verb: world.clock.advance(7) if verb == "claim" else None)
    async with world.client(store, lease_duration=6) as client, client.lock("k"):
        assert store.timeouts == [("claim", 3), ("replace", 3)]


@async_only
async def test_attempt_keeps_its_place_between_two_waits_and_not_after_the_last(world: World) -> None:
    """For a store that writes a place for each wait that keeps none."""
    waits: list[str] = []

    class Queue(AsyncMemoryStore):
        async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
            waits.append("alone")
            world.clock.advance(timeout_s)

        async def wait_keeping_place(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
            waits.append("keeping")
            world.clock.advance(timeout_s)

    async with (
        world.client(lease_duration=3600) as holder,
        world.client(Queue(world.space), server_wait=False) as client,
        holder.lock("k"),
    ):
        with pytest.raises(AcquireTimeoutError):
            await client.acquire("k", timeout=30)

    assert (waits[0], waits[-1]) == ("keeping", "alone")


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


@async_only
async def test_waiters_of_one_client_look_as_often_as_one_does(world: World) -> None:
    """Each is told of the release, and of the holder's death, as early as a lone waiter; a write never rests on the look of another."""
    async with world.client(lease_duration=20) as holder:
        lease = await holder.acquire("k")
        store = world.another_store()
        client = await world.client(store, lease_duration=20)
        waiting = [world.spawn(client.acquire("k", timeout=60)) for _ in range(100)]
        await world.live(20)
        looks = store.requests["read"]
        assert 20 / 0.5 <= looks <= 10 + 20 / 0.25

        await lease.release()
        await world.live(1)

        [first] = [spawned for spawned in waiting if spawned.done]
        assert (await first.result()).fencing_token > lease.fencing_token
        assert store.requests["claim"] <= 3
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


def test_one_lease_may_be_used_by_many_threads_at_once() -> None:
    """Renewals, checks and the release of one lease from many threads end without an error, and free the key once.

    A renewal under way when the release begins may be applied before it, and refuses it: then it is sent once more.
    """
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
        assert store.requests["release"] in {1, 2}
        record = client.get("k")
        assert record is not None
        assert (record.state, record.fencing_token) == ("free", 1)


def test_counter_under_the_lock_is_exact() -> None:
    """Threads that each have a client of one space never run in the block together."""
    from dlock_core.client import LockClient
    from dlock_core.memory import MemorySpace

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


@async_only
async def test_wake_ups_use_up_no_retries(world: World) -> None:
    """A store may wake at each renewal, too; only waits to their end are the polls that the option counts."""

    class Restless(AsyncMemoryStore):
        capabilities = AsyncMemoryStore.capabilities - {Capability.CLAIM_WAIT}
        claim_when_free: Any = None
        waits = 0

        async def wait(self, record: Any, *, ticket: str, timeout_s: float) -> None:
            self.waits += 1
            if self.waits > WAKE_UPS:
                woken.set()
                await super().wait(record, ticket=ticket, timeout_s=timeout_s)

    woken = asyncio.Event()
    async with AsyncLockClient(Restless(world.space)) as client:
        held = await client.acquire("k")
        second = asyncio.create_task(client.acquire("k", retries=1))
        await asyncio.wait({second, asyncio.create_task(woken.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert woken.is_set()
        await held.release()

        await (await second).release()


@both_colours
async def test_turn_of_a_client_uses_up_no_retries(world: World) -> None:
    """The release of its own client has a waiter ask early; who is faster from elsewhere takes no poll from it."""
    taken: list[Reply] = []

    def take(verb: str) -> None:
        if verb == "release" and not taken:
            record = LockRecord("k", State.HELD, "rvn of another", 7, "another", 600_000)
            taken.append(world.space.claim(Claim(record, Expect.ANY)))

    async with world.client(world.hooked_store(lambda *_: None, take), lease_duration=20) as client:
        held = await client.acquire("k")
        waits = world.spawn(client.acquire("k", retries=1, timeout=600))
        await world.settle()
        await held.release()
        await world.settle()

        assert taken[0].applied
        assert not waits.done
        stands = world.space.records["k"]
        world.space.release(Release(replace(stands, state=State.FREE, rvn="freed", lease_ms=None), stands.version))
        await world.live(3)
        await (await waits.result()).release()


@both_colours
async def test_store_whose_notifications_fail_is_polled(world: World) -> None:
    """It is asked no more often than one that has none."""
    claims: list[Claim] = []
    plain = MemoryStore(world.space)

    def claim(request: Claim, *, timeout_s: float) -> Reply:
        claims.append(request)
        assert len(claims) < 20, "it is asked without a pause"
        return plain.claim(request, timeout_s=timeout_s)

    def wait(record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        raise StoreUnavailableError("no news (injected)")

    async def aclaim(request: Claim, *, timeout_s: float) -> Reply:
        return claim(request, timeout_s=timeout_s)

    async def await_(record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        wait(record, ticket=ticket, timeout_s=timeout_s)

    deaf: Any = MemoryStore(world.space) if world.colour == "sync" else AsyncMemoryStore(world.space)
    deaf.claim, deaf.wait = (claim, wait) if world.colour == "sync" else (aclaim, await_)
    async with world.client() as holder, world.client(deaf, server_wait=False, lease_duration=20) as client:
        held = await holder.acquire("k")
        waits = world.spawn(client.acquire("k", timeout=600))
        await world.live(10)
        await held.release()
        await world.live(3)
        await (await waits.result()).release()
