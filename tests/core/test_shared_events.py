"""What the event hook hears of shared locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core import AcquireTimeoutError, EventKind, LockEvent
from tests.core.test_events import told
from tests.core.test_shared_locks import lived
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

_TOLD = (EventKind.REQUESTED, EventKind.WAITING, EventKind.GRANTED, EventKind.RENEWED, EventKind.RELEASED)


@both_colours
async def test_events_tell_of_the_shared_lock(world: World) -> None:
    """Under its key, with one number for the attempt; of the session nothing."""
    events: list[LockEvent] = []
    world.clock.advance(1000)
    async with (
        world.client(prefix="p/", owner="other") as other,
        world.client(prefix="p/", on_event=events.append) as client,
    ):
        held = await other.acquire("k", permits=1)
        waiting = world.spawn(client.acquire("k", permits=1, timeout=60))
        await world.live(1)
        await held.release()
        lease = await lived(world, waiting, 3)
        await world.live(6)
        await lease.release()

        kinds = await told(world, events, *_TOLD)

    assert {event.key for event in events} == {"p/k"}
    assert len({event.attempt for event in events}) == 1
    assert [event.fencing_token for event in kinds] == [0, 0, 2, 2, 2]
    assert kinds[1].holder == "other"
    assert 1 <= kinds[2].duration < 10
    assert kinds[0].duration == 0


@both_colours
async def test_events_tell_why_a_place_was_refused(world: World) -> None:
    """With the words of the error, or its name where it has none."""
    events: list[LockEvent] = []
    store = world.hooked_store(lambda verb, _: boom(verb))
    raised: list[Exception] = []

    def boom(verb: str) -> None:
        if raised and verb == "read":
            raise raised[0]

    async with world.client(store, on_event=events.append) as client, client.semaphore("k", 1):
        with pytest.raises(AcquireTimeoutError):
            await client.acquire("k", permits=1, timeout=0, handover=True)
        raised.append(LookupError())
        with pytest.raises(LookupError):
            await client.acquire("k", permits=1, timeout=0)
        raised.clear()
        await world.until(lambda: [event.kind for event in events].count(EventKind.REFUSED) == 2)

    refused = [event for event in events if event.kind is EventKind.REFUSED]
    assert [event.fencing_token for event in refused] == [0, 0]
    assert "held by 1 holder with 1 permit" in str(refused[0].error)
    assert refused[1].error == "LookupError"
