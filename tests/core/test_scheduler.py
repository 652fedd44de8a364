"""Renewals: one thread or timer for all locks, batched, never waiting for the slowest, surviving whatever a store raises."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockClient, LockLostError, LossReason, OutcomeUnknownError, Reply, StoreError
from dlock_core.engine.blocking_runtime import HELPERS_MAX
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from tests.core.worlds import both_colours, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.core.worlds import World


def our_threads() -> list[threading.Thread]:
    """Return the threads of the clients, but for those of callbacks."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlock-renewals")]


class Batches(MemoryStore):
    """Notes the size of each batch; *answer* may put something else in place of the results, or raise."""

    def __init__(self, *args: Any, answer: Callable[[Sequence[Any]], Any] | None = None) -> None:
        super().__init__(*args)
        self.sizes: list[int] = []
        self.answer = answer

    def replace_many(self, requests: Sequence[Any], *, timeout_s: float) -> Any:
        """Do each replace."""
        self.sizes.append(len(requests))
        results = super().replace_many(requests, timeout_s=timeout_s)
        return results if self.answer is None else self.answer(results)


class AsyncBatches(AsyncMemoryStore):
    """Its twin."""

    def __init__(self, *args: Any, answer: Callable[[Sequence[Any]], Any] | None = None) -> None:
        super().__init__(*args)
        self.sizes: list[int] = []
        self.answer = answer

    async def replace_many(self, requests: Sequence[Any], *, timeout_s: float) -> Any:
        """Do each replace."""
        self.sizes.append(len(requests))
        results = await super().replace_many(requests, timeout_s=timeout_s)
        return results if self.answer is None else self.answer(results)


def batches(world: World, answer: Callable[[Sequence[Any]], Any] | None = None) -> Any:
    """Return a store that can renew in batches, in the world's colour."""
    return (Batches if world.colour == "sync" else AsyncBatches)(world.space, answer=answer)


def sent_keys(world: World) -> tuple[Any, list[str]]:
    """Return a store without batches, and the list of keys that it renews, in the order of sending."""
    order: list[str] = []

    def before(verb: str, request: Any) -> None:
        if verb == "replace":
            order.append(request.record.key)

    return world.hooked_store(before), order


# ---- one for all


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
            assert len(world.clock._timers) == 1
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
    """After a delay that made all of them due, what would lapse first is sent first."""
    store, order = sent_keys(world)
    async with world.client(store) as client:
        leases = [await client.acquire(f"k{length}", lease_duration=length) for length in (40, 16, 30, 12)]

        await world.jump(11)

        assert all(lease.is_valid for lease in leases)
        assert order == ["k12", "k16", "k30", "k40"]


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


# ---- threads and timers come and go


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


# ---- a request that hangs


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
    """A request may take a part of the lease that is, not of the one that was: one that hangs does not use it up."""
    store = world.hooked_store(lambda *_: None)
    async with world.client(store, lease_duration=20) as client, client.lock("k") as lease:
        await lease.renew(lease_duration=1)
        await world.live(2, step=0.05)

        assert lease.is_valid
        renewals = [timeout_s for verb, timeout_s in store.timeouts if verb == "replace"]
        assert len(renewals) >= 8
        assert max(renewals[1:]) <= 1 / 6


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


# ---- whatever a store raises


class Odd(BaseException):
    """What nobody expects."""


ERRORS: list[type[BaseException]] = [
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
    RuntimeError,
    RecursionError,
    MemoryError,
    OSError,
    ConnectionResetError,
    TimeoutError,
    EOFError,
    BufferError,
    ArithmeticError,
    UnicodeError,
    StopIteration,
    StopAsyncIteration,
    AssertionError,
    ReferenceError,
    asyncio.CancelledError,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    Odd,
]
# These two end an event loop, wherever they are raised in it.
ENDS_A_LOOP = (SystemExit, KeyboardInterrupt)


@both_colours
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_hazard_24_renewals_survive_every_exception_of_the_store(world: World, kind: type[BaseException]) -> None:
    """One renewal that raises is tried again, and those of all other locks go on (hazard 24)."""
    if world.colour == "async" and issubclass(kind, ENDS_A_LOOP):
        return
    faults = [kind("from the store"), kind("from the store")]

    def before(verb: str, request: Any) -> None:
        if verb == "replace" and request.record.key == "k" and faults:
            raise faults.pop()

    async with world.client(world.hooked_store(before), lease_duration=20) as client:
        lease, other = await client.acquire("k"), await client.acquire("other")

        await world.live(60)

        assert faults == []
        assert lease.is_valid
        assert other.is_valid


@both_colours
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_batches_survive_every_exception_of_the_store(world: World, kind: type[BaseException]) -> None:
    """A batch that raises stands for all of its locks, and the next one finds out what became of them."""
    if world.colour == "async" and issubclass(kind, ENDS_A_LOOP):
        return
    faults = [kind("from the store")]

    def answer(results: Sequence[Any]) -> Any:
        if faults:
            raise faults.pop()
        return results

    store = batches(world, answer)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(10)]

        await world.live(40)

        assert faults == []
        assert all(lease.is_valid for lease in leases)


@both_colours
@pytest.mark.parametrize(
    "answer",
    [
        lambda results: results[:-1],
        lambda results: [],
        lambda results: [*results, results[0]],
        lambda results: [None] * len(results),
        lambda results: [(True, None)] * len(results),
        lambda results: None,
        lambda results: [ValueError("no result")] * len(results),
        lambda results: [Reply(applied=True, record=None)] * len(results),
    ],
    ids=["short", "empty", "long", "nones", "tuples", "none", "errors", "grants-without-record"],
)
async def test_batches_answered_wrongly_lose_nothing(world: World, answer: Callable[[Any], Any]) -> None:
    """An adapter's mistake is an outcome that is not known; the next batch tells."""
    wrong = [answer]

    def answers(results: Sequence[Any]) -> Any:
        return wrong.pop()(results) if wrong else results

    store = batches(world, answers)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(10)]

        await world.live(40)

        assert wrong == []
        assert [lease.is_valid for lease in leases] == [True] * 10


@both_colours
async def test_batch_of_which_a_part_was_applied_unheard_loses_nothing(world: World) -> None:
    """Results are per lock: refused ones are recognised by their own record (§9)."""
    lost = [OutcomeUnknownError("the reply was lost")]

    def answer(results: Sequence[Any]) -> Any:
        if lost:
            raise lost.pop()
        return results

    store = batches(world, answer)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(25)]
        await world.live(5)
        assert lost == []
        left = [lease.remaining for lease in leases]
        assert all(15 > remaining > 14 for remaining in left)

        await world.live(25)

        assert all(lease.is_valid for lease in leases)


@both_colours
async def test_hazard_19_batch_refused_from_an_old_snapshot_loses_nothing(world: World) -> None:
    """Where refusals may be stale, a loss is proved by a read: one answer of a replica that lags behind is none (F12)."""
    stale = [True]

    def answer(results: Sequence[Any]) -> Any:
        return [Reply(applied=False, record=None)] * len(results) if stale and stale.pop() else results

    store = batches(world, answer)
    lagging = dataclasses.replace(MemoryStore().guarantees(), refusal_linearizable=False)

    async def say() -> Any:
        return lagging

    store.guarantees = say if world.colour == "async" else lambda: lagging
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(5)]
        await world.live(30)

        assert stale == []
        assert [lease.is_valid for lease in leases] == [True] * 5


@both_colours
async def test_what_follows_for_some_of_a_batch_never_makes_another_lose(world: World) -> None:
    """The reads that confirm the refusals of some may take their whole time, one after another; the answer to the last was there before."""
    reads = [0]

    def answer(results: Sequence[Any]) -> Any:
        reads.append(0)
        return (
            [Reply(applied=False, record=None)] * (len(results) - 1) + list(results[-1:])
            if len(reads) == 2
            else results
        )

    store = batches(world, answer)
    lagging = dataclasses.replace(MemoryStore().guarantees(), refusal_linearizable=False)
    read = store.read

    async def say() -> Any:
        return lagging

    def slowly(key: str, *, timeout_s: float) -> Any:
        if len(reads) == 2:
            world.clock.advance(3)  # less than the time-out of a request
        return read(key, timeout_s=timeout_s)

    store.guarantees, store.read = (say if world.colour == "async" else lambda: lagging), slowly
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(7)]
        await world.jump(5)

        assert leases[-1].is_valid
        assert leases[-1].loss is None


@both_colours
async def test_result_of_one_lock_in_a_batch_touches_no_other(world: World) -> None:
    """A refusal or an error of one is its own (clause B2)."""
    space = world.space

    def answer(results: Sequence[Any]) -> list[Reply | StoreError]:
        return [
            OutcomeUnknownError("unknown", key="k1")
            if result.record is not None and result.record.key == "k1"
            else result
            for result in results
        ]

    store = batches(world, answer)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(3)]
        del space.records["k2"]

        await world.live(6)

        assert leases[0].is_valid
        assert leases[1].is_valid
        assert leases[2].loss is not None


@both_colours
async def test_trouble_of_one_store_request_is_told_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What a store should never raise does not vanish."""

    def before(verb: str, request: Any) -> None:
        if verb == "replace":
            raise ZeroDivisionError("an adapter's mistake")

    async with world.client(world.hooked_store(before), lease_duration=20) as client:
        lease = await client.acquire("k")
        await world.live(21)

        assert lease.loss is not None
        assert lease.loss.reason is LossReason.UNREACHABLE
        assert "an adapter's mistake" in caplog.text
