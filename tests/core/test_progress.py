"""What the log says while a lock is waited for, granted and released, both colours from one text."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from dlock_core import AcquireTimeoutError, EventKind, LockEvent, StoreUnavailableError
from dlock_core.engine.progress import holder_in_words
from dlock_core.record import LockRecord, State
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


def _waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


@both_colours
async def test_wait_is_logged_after_a_second_and_then_once_a_lease(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that seems to hang says whom it waits for; one that waits for a moment says nothing."""
    caplog.set_level(logging.INFO, "dlock")
    async with world.client(owner="holder", lease_duration=8) as holder, world.client() as waiter:
        lease = await holder.acquire("k")

        async def wait() -> None:
            await waiter.acquire("k", timeout=20)

        waiting = world.spawn(wait())
        await world.live(0.75)
        assert _waits(caplog) == []
        await world.live(1)
        (told,) = _waits(caplog)
        assert told.startswith("waiting for lock 'k', for 1.")
        assert " s now: held by 'holder' since " in told
        assert told.endswith(" UTC, token 1")
        await world.live(7)
        assert len(_waits(caplog)) == 1
        await world.live(1)
        assert len(_waits(caplog)) == 2
        await world.live(12)
        with pytest.raises(AcquireTimeoutError):
            await waiting.result()
        assert 3 <= len(_waits(caplog)) <= 4
        assert lease.is_valid


@both_colours
async def test_wait_that_looks_rarely_is_logged_before_it_begins(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a look is due once a minute, the first line does not come after a minute; a lock without a lease is told of all the same."""
    caplog.set_level(logging.INFO, "dlock")
    async with world.client(owner="holder") as holder, world.client(poll_period=60) as waiter:
        lease = await holder.acquire("k", fail_closed=True)

        async def wait() -> None:
            await waiter.acquire("k", timeout=90)

        waiting = world.spawn(wait())
        await world.live(91, 0.5)
        with pytest.raises(AcquireTimeoutError):
            await waiting.result()
        assert lease.is_valid

    assert _waits(caplog)[0].startswith("waiting for lock 'k', for 1.0 s now: held by 'holder' since ")
    assert len(_waits(caplog)) >= 2


@both_colours
async def test_wait_for_a_store_that_does_not_answer_is_logged_as_such(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not held by anybody, as far as this client knows."""
    caplog.set_level(logging.INFO, "dlock")
    world.store.fail("claim", 100)
    world.store.fail("read", 100)
    async with world.client() as client:

        async def wait() -> None:
            await client.acquire("k", timeout=5)

        waiting = world.spawn(wait())
        await world.live(6)
        with pytest.raises(StoreUnavailableError):
            await waiting.result()

    assert any("the store does not answer (" in line for line in _waits(caplog))


@both_colours
async def test_grant_and_release_are_logged_with_the_times_of_wait_and_hold(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG: how long it was waited for, how long it was held."""
    caplog.set_level(logging.DEBUG, "dlock")
    async with world.client(owner="me") as client, client.lock("k"):
        await world.live(2.5)

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert "lock 'k' acquired by 'me', token 1, after 0.000 s" in lines
    assert "lock 'k' released, token 1, held for 2.500 s" in lines


def _facts(record: logging.LogRecord) -> LockEvent:
    return LockEvent(**{name: getattr(record, f"dlock_{name}") for name in LockEvent._fields})


@both_colours
async def test_records_carry_the_fields_of_the_event(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The wait, the grant, the takeover and the release have the key, the attempt, the token, the duration and the holder as attributes."""
    caplog.set_level(logging.DEBUG, "dlock")
    async with world.client(owner="holder", lease_duration=4, auto_renew=False) as holder, world.client() as waiter:
        lease = await holder.acquire("k")

        async def use() -> None:
            await (await waiter.acquire("k", timeout=20)).release()

        waiting = world.spawn(use())
        await world.live(8)
        await waiting.result()
        assert not lease.is_valid

    told = [_facts(record) for record in caplog.records if hasattr(record, "dlock_kind")]
    granted, lost, waits, taken, released = (
        next(event for event in told if event.kind is kind)
        for kind in (EventKind.GRANTED, EventKind.LOST, EventKind.WAITING, EventKind.TAKEN_OVER, EventKind.RELEASED)
    )
    assert {event.key for event in told} == {"k"}
    assert (granted.fencing_token, granted.attempt) == (1, lost.attempt)
    assert (lost.fencing_token, lost.error) == (1, "expired")
    assert 3 < lost.duration <= 4
    assert (waits.holder, waits.fencing_token) == ("holder", 0)
    assert waits.attempt == taken.attempt == released.attempt != granted.attempt
    assert taken.fencing_token == released.fencing_token == 2
    assert 3 < taken.duration < 8


@both_colours
async def test_record_of_a_risk_says_how_long_the_lock_still_lasts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The trouble of the renewal is in a field of its own."""
    async with world.client(lease_duration=20) as client, client.lock("k"):
        world.store.fail("replace", 1)
        await world.live(12)

    (risk,) = [_facts(record) for record in caplog.records if getattr(record, "dlock_kind", "") == "at risk"]
    assert 0 < risk.duration < 20
    assert risk.error


@both_colours
async def test_handler_that_raises_or_looks_at_the_client_neither_ends_nor_blocks_a_wait(world: World) -> None:
    """Nothing is logged inside of the client's mutex, and what a handler does is not the acquire's trouble."""
    seen: list[bool] = []

    class Hostile(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            engine = getattr(waiter, "_inner", waiter)._engine
            seen.append(engine.runtime.is_inside())
            raise RuntimeError("hostile")

    handler, logger = Hostile(), logging.getLogger("dlock")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        async with world.client(lease_duration=4, auto_renew=False) as holder, world.client() as waiter:
            lease = await holder.acquire("k")

            async def wait() -> int:
                got = await waiter.acquire("k", timeout=20)
                await got.release()
                return got.fencing_token

            waiting = world.spawn(wait())
            await world.live(6)
            assert await waiting.result() == 2
            assert not lease.is_valid
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

    assert seen
    assert not any(seen)


@pytest.mark.parametrize(("waiters", "told"), [(None, "held by 'a'"), (3, "held by 'a', 3 waiting for it")])
def test_who_holds_a_lock_is_told_with_how_many_wait(waiters: int | None, told: str) -> None:
    """Where the store knows; in time-outs, the log and the command alike."""
    assert holder_in_words(LockRecord("k", State.HELD, "r", 1, "a", 1000, waiters=waiters)) == told
