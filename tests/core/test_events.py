"""The event hook: what happens to a client's locks, told to a function of the user that is never in the way."""

from __future__ import annotations

import asyncio
import dis
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from dlock_core import EventKind, LockClient, LockEvent, connect
from dlock_core.engine import event_hook
from dlock_core.errors import (
    AcquireTimeoutError,
    ConfigurationError,
    LockLostError,
    RecordError,
    StoreUnavailableError,
)
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.store import Reply
from tests.core.worlds import World, async_only, both_colours, eventually

REQUESTED, WAITING, GRANTED, TAKEN_OVER, REFUSED, RENEWED, AT_RISK, LOST, RELEASED, BROKEN = EventKind


async def told(world: World, events: list[LockEvent], *kinds: EventKind) -> list[LockEvent]:
    """Wait until *events* are of these *kinds*; return them."""
    await world.until(lambda: len(events) >= len(kinds))
    assert [event.kind for event in events] == list(kinds)
    return events


@both_colours
async def test_lock_that_comes_and_goes_is_told_from_the_request_to_the_release(world: World) -> None:
    """Under the full key, with one number for the attempt, its token, and how long each part took."""
    events: list[LockEvent] = []

    async with world.client(prefix="app/", on_event=events.append, lease_duration=20) as client:
        async with client.lock("k"):
            await world.live(6)

        requested, granted, renewed, released = await told(world, events, REQUESTED, GRANTED, RENEWED, RELEASED)

    assert {event.key for event in events} == {"app/k"}
    assert len({event.attempt for event in events}) == 1
    assert (requested.fencing_token, granted.fencing_token, released.fencing_token) == (0, 1, 1)
    assert (granted.duration, renewed.duration, released.duration) == (0.0, 0.0, 6.0)


@both_colours
async def test_wait_and_takeover_name_the_holder_and_the_time(world: World) -> None:
    """A wait is told once, however long it lasts; a takeover after it, since the holder died."""
    events: list[LockEvent] = []
    async with (
        world.client(owner="dead", lease_duration=4) as holder,
        world.client(on_event=events.append, lease_duration=4) as client,
    ):
        lease = await holder.acquire("k", auto_renew=False)
        waiter = world.spawn(client.acquire("k", auto_renew=False))
        await world.live(6)
        taken = await waiter.result()

        _, waiting, taken_over = await told(world, events, REQUESTED, WAITING, TAKEN_OVER)
        await taken.release()
        with pytest.raises(LockLostError):
            await lease.release()

    assert (waiting.holder, waiting.error) == ("dead", None)
    assert 4 <= taken_over.duration <= 6
    assert taken_over.fencing_token == 2


@both_colours
async def test_refusal_says_who_holds_the_lock_and_why(world: World) -> None:
    """In the words of the error; so does an attempt that ends with an error of the store."""
    events: list[LockEvent] = []
    async with world.client(owner="other") as other, world.client(on_event=events.append) as client:
        async with other.lock("k"):
            with pytest.raises(AcquireTimeoutError) as caught:
                await client.acquire("k", timeout=0)
        with world.store.outage(), pytest.raises(StoreUnavailableError):
            await client.acquire("k", timeout=0)

        _, refused, _, failed = await told(world, events, REQUESTED, REFUSED, REQUESTED, REFUSED)

    assert (refused.holder, refused.error) == ("other", str(caught.value))
    assert (failed.holder, "was not sent" in str(failed.error)) == (None, True)


@both_colours
async def test_attempt_of_a_job_that_is_busy_is_told_as_refused(world: World) -> None:
    """At once, though no lease of it is given up that would tell."""
    events: list[LockEvent] = []
    async with world.client() as other, world.client(on_event=events.append) as client, other.once("k", slot=1):
        async with client.once("k", slot=1, timeout=0) as job:
            assert job.busy

        await told(world, events, REQUESTED, REFUSED)


@both_colours
async def test_attempt_that_finds_no_lock_of_ours_is_told_as_refused(world: World) -> None:
    """In the words of the error, which ends it at once."""
    events: list[LockEvent] = []

    def refuse(verb: str, _: object) -> None:
        raise RecordError("something else is stored there")

    async with world.client(world.hooked_store(refuse), on_event=events.append) as client:
        with pytest.raises(RecordError):
            await client.acquire("k")

        _, refused = await told(world, events, REQUESTED, REFUSED)

    assert refused.error == "something else is stored there"


@async_only
async def test_attempt_that_is_cancelled_is_told_as_refused_once(world: World) -> None:
    """By the name of what ended it, whether it was the first in line, which asks, or stood behind it."""
    events: list[LockEvent] = []
    async with world.client() as other, world.client(on_event=events.append) as client, other.lock("k"):
        tasks = [asyncio.ensure_future(client.acquire("k")) for _ in range(2)]
        await world.live(1)
        for task in reversed(tasks):
            task.cancel()
            await world.settle()

        *_, first, second = await told(world, events, *(REQUESTED, WAITING) * 2, REFUSED, REFUSED)

    assert [first.error, second.error] == ["CancelledError"] * 2
    assert first.attempt != second.attempt


@both_colours
async def test_what_a_cancelled_attempt_left_is_granted_and_not_taken_over(world: World) -> None:
    """Its claim was applied, and its clean-up fails: nobody has died."""
    events, cancels, is_down = list[LockEvent](), [True], [True]

    def fail(verb: str, _: Any) -> None:
        if verb == "release" and is_down:
            raise StoreUnavailableError("down")

    def cancel(_: str) -> None:
        if cancels:
            cancels.clear()
            raise asyncio.CancelledError

    async with world.client(world.hooked_store(fail, cancel), on_event=events.append) as client:
        with pytest.raises(asyncio.CancelledError):
            await client.acquire("k")
        lease = await client.acquire("k")
        *_, granted = await told(world, events, REQUESTED, REFUSED, REQUESTED, GRANTED)
        is_down.clear()
        await lease.release()

    assert granted.fencing_token == 2


@both_colours
async def test_risk_and_loss_are_told_with_their_reasons(world: World) -> None:
    """How long the lock still lasts, what the store said, and what the loss is."""
    events: list[LockEvent] = []
    async with world.client(on_event=events.append, lease_duration=20) as client:
        lease = await client.acquire("k")
        with world.store.outage():
            await world.live(25)

        _, _, risk, lost = await told(world, events, REQUESTED, GRANTED, AT_RISK, LOST)
        with pytest.raises(LockLostError):
            await lease.release()

    assert 5 < risk.duration < 20
    assert "was not sent" in str(risk.error)
    assert (lost.error, lost.holder) == ("unreachable", None)
    assert 15 < lost.duration < 25


@both_colours
async def test_risk_of_a_lock_whose_renewal_was_refused_by_old_news_has_no_error(world: World) -> None:
    """The store has answered: it is another matter than an outage."""
    events: list[LockEvent] = []
    store = MemoryStore(world.space) if world.colour == "sync" else AsyncMemoryStore(world.space)
    async with world.client(store, on_event=events.append, lease_duration=20) as client, client.lock("k"):
        replace, old = store.replace, [world.space.records["k"]]

        async def areplace(request: Any, **how: Any) -> Any:
            return Reply(applied=False, record=old.pop()) if old else await replace(request, **how)  # type: ignore[misc]

        def sreplace(request: Any, **how: Any) -> Any:
            return Reply(applied=False, record=old.pop()) if old else replace(request, **how)

        store.replace = sreplace if world.colour == "sync" else areplace  # type: ignore[method-assign]
        await world.live(6)

        assert (await told(world, events, REQUESTED, GRANTED, AT_RISK, RENEWED))[2].error is None


@both_colours
async def test_break_is_told_to_who_breaks_and_to_who_loses(world: World) -> None:
    """The operator's client has no attempt of its own."""
    broken: list[LockEvent] = []
    lost: list[LockEvent] = []
    async with (
        world.client(owner="operator", on_event=broken.append) as operator,
        world.client(on_event=lost.append) as client,
    ):
        lease = await client.acquire("k")
        assert await operator.break_lock("k", fencing_token=lease.fencing_token)
        with pytest.raises(LockLostError):
            await lease.renew()

        assert await told(world, broken, BROKEN) == [LockEvent(BROKEN, "k", "", 1)]
        event = (await told(world, lost, REQUESTED, GRANTED, LOST))[-1]

    assert (event.error, event.holder) == ("broken", "operator")


@both_colours
async def test_hook_that_raises_is_logged_and_has_the_next_event(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock is held and released as ever."""
    events: list[LockEvent] = []

    def hook(event: LockEvent) -> None:
        events.append(event)
        raise ValueError("a mistake in the hook")

    async with world.client(on_event=hook) as client:
        async with client.lock("k") as lease:
            assert lease.is_valid

        await told(world, events, REQUESTED, GRANTED, RELEASED)
    eventually(lambda: sum("raised at" in record.getMessage() for record in caplog.records) == 3)


@both_colours
async def test_hook_that_blocks_is_logged_and_keeps_nobody(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks come and go while it hangs, and the client is closed; the warning comes once."""
    monkeypatch.setattr(event_hook, "CALLBACK_LIMIT_S", 0.0)
    goes_on, entered = threading.Event(), threading.Event()

    def hook(_: LockEvent) -> None:
        entered.set()
        goes_on.wait(30)

    async with world.client(on_event=hook) as client:
        async with client.lock("a"):
            await world.until(entered.is_set)
        async with client.lock("b"):
            pass
    goes_on.set()

    assert sum("still runs after" in record.getMessage() for record in caplog.records) == 1


@both_colours
async def test_hook_sees_the_context_variables_of_the_caller(world: World) -> None:
    """So that a span has its parent; what the hook sets stays in the hook."""
    request = ContextVar("request", default="none")
    seen: list[str] = []

    def hook(_: LockEvent) -> None:
        seen.append(request.get())
        request.set("of the hook")

    async with world.client(on_event=hook) as client:
        request.set("of the caller")
        async with client.lock("k"):
            pass
        await world.until(lambda: len(seen) == 3)

    assert seen == ["of the caller"] * 3
    assert request.get() == "of the caller"


def test_last_events_are_handed_over_before_the_client_is_closed() -> None:
    """A short program does not lose the release of its lock."""
    events: list[LockEvent] = []

    with connect("memory://", on_event=events.append) as client:
        lease = client.acquire("k")
    del lease

    assert [event.kind for event in events] == [REQUESTED, GRANTED, RELEASED]


def test_events_of_a_busy_program_share_a_thread() -> None:
    """Starting or waking a thread for each would cost more than the lock; the thread ends with the client."""
    threads: list[threading.Thread] = []

    with LockClient(MemoryStore(), on_event=lambda _: threads.append(threading.current_thread())) as client:
        for _ in range(200):
            with client.lock("k"):
                pass

    # One, but for a machine that stands still for longer than an idle thread lives.
    assert len(set(threads)) <= 5
    eventually(lambda: not any(thread.is_alive() for thread in threads))
    assert len(threads) == 600


@pytest.mark.parametrize("hook", [5, "print", asyncio.sleep])
def test_hook_that_is_no_plain_function_is_refused(hook: Any) -> None:
    """Also a coroutine function: the hook runs on a thread, without a loop."""
    with pytest.raises(ConfigurationError, match=r"on_event: .* is (a coroutine function|not a function)"):
        LockClient(MemoryStore(), on_event=hook)


def test_option_that_no_text_can_hold_is_refused_there() -> None:
    """A URL or a variable names no function."""
    with pytest.raises(ConfigurationError, match="on_event"):
        connect("memory://?on_event=print")


def test_client_without_a_hook_makes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs one look at an attribute: the method ends after the first test."""
    monkeypatch.delattr("dlock_core.engine.event_hook.LockEvent")
    with LockClient(MemoryStore()) as client, client.lock("k") as lease:
        lease.renew()

    first, *_ = [each for each in dis.get_instructions(event_hook.note_event) if "JUMP" in each.opname]
    assert len([each for each in dis.get_instructions(event_hook.note_event) if each.offset <= first.offset]) <= 6
