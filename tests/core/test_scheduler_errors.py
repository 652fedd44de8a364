"""Renewals go on whatever a store raises or answers."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LossReason, OutcomeUnknownError, Reply, StoreError, lease
from dlock_core.engine.renewals import _urgent_at
from dlock_core.memory import MemoryStore
from dlock_core.states import Held
from dlock_core.timings import NEVER
from tests.core.attempts import holding
from tests.core.scheduler_support import batches
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.core.worlds import World


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
async def test_hazard_24_renewals_survive_every_exception_of_the_store(
    world: World, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """One renewal that raises is tried again, and those of all other locks go on (hazard 24). An adapter's mistake is logged."""
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
    if issubclass(kind, Exception):
        said = [line for line in caplog.messages if line.startswith("a request for lock 'k' failed: ")]
        assert [kind.__name__ in line for line in said] == [True, True]


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
    ("answer", "are_no_results"),
    [
        (lambda results: results[:-1], True),
        (lambda results: [], True),
        (lambda results: [*results, results[0]], True),
        (lambda results: [None] * len(results), True),
        (lambda results: [(True, None)] * len(results), True),
        (lambda results: None, True),
        (lambda results: [ValueError("no result")] * len(results), True),
        (lambda results: [Reply(applied=True, record=None)] * len(results), False),
    ],
    ids=["short", "empty", "long", "nones", "tuples", "none", "errors", "grants-without-record"],
)
async def test_batches_answered_wrongly_lose_nothing(
    world: World, answer: Callable[[Any], Any], are_no_results: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An adapter's mistake is an outcome that is not known, and logged; the next batch tells."""
    wrong = [answer]

    def answers(results: Sequence[Any]) -> Any:
        return wrong.pop()(results) if wrong else results

    store = batches(world, answers)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(f"k{number}") for number in range(10)]

        await world.live(40)

        assert wrong == []
        assert [lease.is_valid for lease in leases] == [True] * 10
    said = [line for line in caplog.messages if line.startswith("the batch renewal of 10 locks failed: TypeError(")]
    assert len(said) == are_no_results
    granted = [line for line in caplog.messages if line.endswith("without a record (clause S7)")]
    assert len(granted) == (0 if are_no_results else 10)


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


def test_renewal_is_urgent_early_enough_to_fail_once_and_be_made_again() -> None:
    """Two requests and the pause between them are to be over by the end of the lease; what is no renewal can wait."""
    attempt = holding()
    held, timings = attempt.state, lease.timings_of(attempt.state)
    assert isinstance(held, Held)

    assert held.deadline - _urgent_at(held) == 2 * timings.timeout_ns + timings.backoff_ns
    assert _urgent_at(attempt.free().state) == NEVER
