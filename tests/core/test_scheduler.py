"""Renewals: one thread or timer for all leases, and requests that hang."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockClient, LockLostError, LossReason
from dlock_core.engine.blocking_runtime import HELPERS_MAX
from dlock_core.memory import MemoryStore
from tests.core.scheduler_support import batches
from tests.core.worlds import both_colours, eventually

if TYPE_CHECKING:
    from tests.core.worlds import World


def our_threads() -> list[threading.Thread]:
    """Return the threads of the clients, but for those of callbacks."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlock-renewals")]


def sent_keys(world: World) -> tuple[Any, list[str]]:
    """Return a store without batches, and the list of keys that it renews, in the order of sending."""
    order: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "replace":
            order.append(request.record.key)

    return world.hooked_store(before), order


@both_colours
async def test_a_thousand_locks_are_renewed_in_few_batches_by_one_thread(world: World) -> None:
    """However many locks are held, at rest there is one thread (or timer), and renewals go together."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(1000)]
        await world.live(30)

        assert all(lease.is_valid for lease in leases)
        assert sum(store.sizes) >= 5000
        assert len(store.sizes) <= 8
        if world.colour == "sync":
            assert len(our_threads()) == 1
        else:
            assert len(world.clock._timers) == 2  # one rings for the other, where a signal stops it
            assert our_threads() == []


@both_colours
async def test_batches_are_no_larger_than_the_store_allows(world: World) -> None:
    """A limit of the store is kept, and all are renewed all the same (clause B3)."""
    store = batches(world)
    store.batch_limit = 30
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(100)]
        await world.live(6)

        assert sorted(store.sizes) == [10, 30, 30, 30]
        assert all(lease.remaining > 15 for lease in leases)


@both_colours
async def test_batch_has_the_time_out_of_its_shortest_lease(world: World) -> None:
    """With the longest one a store that hangs would cost the short lease of a batch its lock."""
    store = batches(world)

    async def timeout_of(*durations: float) -> float:
        async with world.client(store) as client:
            leases = [
                await client.acquire(f"k{duration}", lease_duration=duration, heartbeat_period=2)
                for duration in durations
            ]
            await world.live(3)
            assert all(lease.is_valid for lease in leases)
        return float(store.timeouts[-1])

    short, long = await timeout_of(10, 10.5), await timeout_of(40, 40.5)

    assert short < long
    assert await timeout_of(40, 10) == await timeout_of(10, 40) == short


@both_colours
async def test_renewals_due_soon_go_along_with_one_that_is_due(world: World) -> None:
    """A batch costs the store what one costs, so neighbours share one."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        leases = []
        for number in range(10):
            leases.append(await client.acquire(f"k{number}"))
            await world.jump(0.05)
        await world.live(5, step=0.05)

        assert store.sizes == [10]
        assert all(lease.remaining > 18 for lease in leases)


@both_colours
@pytest.mark.parametrize("limit", [1, 2])
async def test_renewals_due_soon_wait_where_a_batch_has_no_room(world: World, limit: int) -> None:
    """One more request for them would cost what it costs when they are due; so it is for a store without batches."""
    store = batches(world)
    store.batch_limit = limit
    async with world.client(store if limit > 1 else world.store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(limit)]
        await world.jump(0.3)
        late = await client.acquire("late")
        await world.jump(4.8)

        assert sum(store.sizes) + world.store.requests["replace"] == limit
        assert all(lease.remaining > 19 for lease in leases)
        assert late.remaining < 15.5
        await world.jump(0.3)
        assert late.remaining > 19


@both_colours
async def test_healthy_lock_is_renewed_once_per_heartbeat(world: World) -> None:
    """Neither more requests than the period asks for, nor fewer."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        await world.live(60.5)

        assert world.store.requests["replace"] == 12
        assert lease.is_valid


@both_colours
async def test_heartbeat_period_of_the_user_is_kept(world: World) -> None:
    """The pace can be chosen, per lock."""
    async with world.client(lease_duration=20) as client:
        store_requests = world.store.requests
        async with client.lock("k", heartbeat_period=2):
            await world.live(20.5)

        assert store_requests["replace"] == 10


@both_colours
async def test_auto_renew_false_sends_nothing(world: World) -> None:
    """Renewing is then the caller's business, and the loss is told all the same."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        lease = await client.acquire("k")
        await world.live(19)
        assert world.store.requests == {"claim": 1}
        await lease.renew()
        await world.live(19)
        assert lease.is_valid

        await world.live(1)

        assert lease.loss is not None
        assert lease.loss.reason is LossReason.EXPIRED
        assert world.store.requests == {"claim": 1, "replace": 1}


@both_colours
async def test_most_urgent_renewal_goes_first(world: World) -> None:
    """After a delay that made all due, what would lapse first is sent first, whatever was due first."""
    store, order = sent_keys(world)
    async with world.client(store) as client:
        lives = ((40, 1), (16, 3), (30, 2), (12, 3))
        leases = [await client.acquire(f"k{s}", lease_duration=s, heartbeat_period=due) for s, due in lives]
        await world.jump(11)

        assert all(lease.is_valid for lease in leases)
        assert order == ["k12", "k16", "k30", "k40"]


@both_colours
async def test_renewals_go_along_up_to_an_eighth_of_their_period_early(world: World) -> None:
    """What is due later waits until then."""
    store = batches(world)
    async with world.client(store, lease_duration=16) as client:
        leases = [await client.acquire("first")]
        for number in range(2):
            await world.jump(0.5)
            leases.append(await client.acquire(f"later{number}"))
        await world.jump(3)

        assert store.sizes == [2]
        assert all(lease.is_valid for lease in leases)


@both_colours
async def test_batch_is_as_urgent_as_its_most_urgent_lock(world: World) -> None:
    """A lock that can wait holds up none that goes along with it."""
    store = batches(world)
    store.batch_limit = 3
    async with world.client(store) as client:
        # In the order in which they fall due: a batch of three, of which the last would lapse first of all, and a batch of two.
        lives = [(100, 1), (100, 2), (12, 3), (30, 5), (30, 5)]
        leases = [
            await client.acquire(f"k{number}", lease_duration=length, heartbeat_period=period)
            for number, (length, period) in enumerate(lives)
        ]

        await world.jump(10)

        assert all(lease.is_valid for lease in leases)
        # Of two threads the second may overtake the first, which has chosen its batch already.
        first = store.sizes[:2]
        assert (first if world.colour == "async" else sorted(first, reverse=True)) == [3, 2]


@both_colours
async def test_no_renewal_is_sent_after_the_deadline(world: World) -> None:
    """Who wakes late has lost the lock, and does not try to bring it back (F8g)."""
    store, order = sent_keys(world)
    async with world.client(store, lease_duration=20) as client:
        late, fine = await client.acquire("late"), await client.acquire("fine", lease_duration=100)

        await world.jump(19.6)

        assert order in (["fine"], [])
        assert late.loss is not None
        assert late.loss.reason is LossReason.EXPIRED
        assert fine.is_valid


def test_thread_starts_with_the_first_lock_and_ends_after_the_last() -> None:
    """A client without locks has no thread; a second lock starts none; soon after the last release it ends; then it can start anew."""
    from dlock_core.testing import FakeClock

    clock = FakeClock()
    with clock.client() as client:
        assert our_threads() == []
        for _ in range(2):
            leases = [client.acquire(key) for key in "abc"]
            [thread] = our_threads()
            assert thread.daemon
            for lease in leases:
                lease.release()

            def gone() -> bool:
                clock.advance(0.5)
                return our_threads() == []

            eventually(gone)


def test_thread_survives_short_pauses_between_locks() -> None:
    """A program that takes one lock after the other does not start a thread for each."""
    with LockClient(MemoryStore()) as client:
        idents: set[int | None] = set()
        for _ in range(200):
            with client.lock("k"):
                idents.update(thread.ident for thread in our_threads())

        assert len(idents) == 1


@both_colours
async def test_close_ends_the_thread_and_the_timer(world: World) -> None:
    """A closed client has nothing running."""
    async with world.client() as client:
        leases = [await client.acquire(key) for key in "abc"]

    assert our_threads() == []
    if world.colour == "async":
        assert world.clock._timers == {}
    assert not any(lease.is_valid for lease in leases)


def test_hazard_25_loss_is_known_at_the_deadline_though_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What decides is the clock at the use: a process that is out of threads does not believe in a lease that is over."""
    from dlock_core.testing import FakeClock

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = FakeClock()
    with clock.client(lease_duration=10) as client:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        lease = client.acquire("k")
        assert lease.is_valid
        clock.advance(9.81)

        assert not lease.is_valid
        assert not client.holds("k")
        with pytest.raises(LockLostError):
            lease.ensure()
        assert lease.lost.is_set()
        monkeypatch.undo()


@both_colours
async def test_what_is_planned_does_not_pile_up(world: World) -> None:
    """Locks that come and go leave no instants behind."""
    async with world.client(lease_duration=1000) as client, client.lock("stays"):
        for number in range(500):
            async with client.lock(f"k{number}"):
                pass

        timers = getattr(client, "_inner", client)._engine.driver.timers
        assert len(timers._heap) < 200
        assert timers.live == 1


@both_colours
@pytest.mark.parametrize("hanging", [1, 3, HELPERS_MAX + 2])
async def test_hanging_renewals_never_make_another_lock_lose(world: World, hanging: int) -> None:
    """Requests that take the whole of their time delay no other lock past its lease, whatever the leases are."""
    hung = [f"hung{number}" for number in range(hanging)]
    async with world.client(world.hanging_store(*hung)) as client:
        stuck = [await client.acquire(key, lease_duration=20) for key in hung]
        others = {length: await client.acquire(f"k{length}", lease_duration=length) for length in (1, 2, 5, 20, 60)}

        await world.live(30, step=0.05)

        assert {length for length, lease in others.items() if not lease.is_valid} == set()
        assert not any(lease.is_valid for lease in stuck)
        await world.live(12, step=0.05)


@both_colours
@pytest.mark.parametrize("hanging", [1, 2, HELPERS_MAX + 3])
async def test_short_lock_acquired_while_renewals_hang_stays_held(world: World, hanging: int) -> None:
    """It comes when the requests of long ones hang already, and needs renewing before they end."""
    hung = [f"long{number}" for number in range(hanging)]
    async with world.client(world.hanging_store(*hung)) as client:
        long = [await client.acquire(key, lease_duration=60) for key in hung]
        await world.live(15.25)
        assert world.hung

        short = await client.acquire("short", lease_duration=1)
        await world.live(6, step=0.05)

        assert short.is_valid
        assert all(lease.is_valid for lease in long)
        await short.release()
        await world.live(60)


@both_colours
async def test_lock_shortened_by_a_renewal_gets_time_outs_to_match(world: World) -> None:
    """A request may take a part of the lease that is, not of the one that was: one that hangs does not use it up, for whichever lock."""
    store = world.hanging_store("long")
    async with world.client(store, lease_duration=20) as client, client.lock("k") as lease:
        long = await client.acquire("long")
        await lease.renew(lease_duration=1)
        await world.live(7, step=0.05)
        assert lease.is_valid
        assert max(timeout_s for _, timeout_s in store.timeouts[3:]) <= 1 / 6
        await world.live(20)
        assert not long.is_valid


def test_threads_that_help_are_bounded_and_end() -> None:
    """However many requests hang, there are a few threads; when they end, there is one."""
    from tests.core.worlds import run_scenario

    most = []

    async def scenario(world: World) -> None:
        hung = [f"hung{number}" for number in range(20)]
        async with world.client(world.hanging_store(*hung)) as client:
            short = await client.acquire("short", lease_duration=1)
            stuck = [await client.acquire(key, lease_duration=20) for key in hung]
            for _ in range(200):
                await world.live(0.1, step=0.05)
                most.append(len(our_threads()))
            assert short.is_valid
            assert not any(lease.is_valid for lease in stuck)
            await world.live(60, step=0.05)
            eventually(lambda: len(our_threads()) == 1)

    run_scenario("sync", scenario)
    assert 2 <= max(most) <= HELPERS_MAX + 1


@both_colours
async def test_renewal_that_waits_for_its_turn_beyond_the_deadline_is_never_sent(world: World) -> None:
    """Many that hang keep others waiting; what was lost meanwhile is not renewed after all (F8g)."""
    sent_late: list[str] = []
    hanging = world.hanging_store(*[f"hung{number}" for number in range(12)])
    replace = hanging.replace

    def watched(request: Any, *, timeout_s: float) -> Any:
        if world.clock.now() >= begun + 20_000_000_000:
            sent_late.append(request.record.key)
        return replace(request, timeout_s=timeout_s)

    hanging.replace = watched
    async with world.client(hanging) as client:
        begun = world.clock.now()
        short = await client.acquire("short", lease_duration=1)
        stuck = [await client.acquire(f"hung{number}", lease_duration=20) for number in range(12)]

        await world.live(60, step=0.05)

        assert set(sent_late) <= {"short"}
        assert short.is_valid
        assert not any(lease.is_valid for lease in stuck)
