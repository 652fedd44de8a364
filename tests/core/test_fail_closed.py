"""Fail-closed locks, in both colours: held until released or broken, whatever gets lost, doubled or late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core import AcquireTimeoutError, OutcomeUnknownError
from tests.core.worlds import both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
@pytest.mark.parametrize("verb", ["claim", "release", "read"])
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "fail"])
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "tombstone"])
async def test_one_fault_never_locks_the_key_for_ever(world: World, verb: str, fault: str, used: bool) -> None:
    """Claimed and released under it, the next one has the key at once."""
    async with world.client() as one, world.client(world.another_store()) as two:
        if used:
            await (await one.acquire("k")).release()
        getattr(world.store, fault)(verb)

        asking = world.spawn(one.acquire("k", fail_closed=True, timeout=20))
        await world.live(3)  # the back-off after a failure
        lease = await asking.result()
        assert await two.try_acquire("k", fail_closed=True) is None
        await lease.release()

        again = await two.try_acquire("k", fail_closed=True)
        assert again is not None
        assert again.fencing_token > lease.fencing_token


@both_colours
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "tombstone"])
async def test_late_copy_of_a_claim_holds_nothing(world: World, used: bool) -> None:
    """It expects what stood there when it was sent, and that never comes back."""
    async with world.client() as one, world.client(world.another_store()) as two:
        if used:
            await (await one.acquire("k")).release()
        world.store.duplicate("claim", times=3)
        await (await one.acquire("k", fail_closed=True)).release()

        delivered = world.store.deliver()
        if world.colour == "async":
            await delivered

        again = await two.try_acquire("k", fail_closed=True)
        assert again is not None


@both_colours
async def test_claim_given_up_is_followed_beyond_any_lease(world: World) -> None:
    """It arrives an hour later, and is given back all the same."""
    async with world.client() as one, world.client(world.another_store()) as two:
        world.store.delay("claim", times=20)
        asking = world.spawn(one.acquire("k", fail_closed=True, timeout=0.1))
        await world.live(10)
        with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)):
            await asking.result()
        await world.live(3600, step=60)

        delivered = world.store.deliver()
        if world.colour == "async":
            await delivered
        await world.live(300, step=10)

        again = await two.try_acquire("k", fail_closed=True)
        assert again is not None


@both_colours
async def test_release_without_an_answer_is_followed_until_there_is_one(world: World) -> None:
    """However long the store is away."""
    async with world.client() as one, world.client(world.another_store()) as two:
        lease = await one.acquire("k", fail_closed=True)
        with world.store.outage():
            with pytest.raises(Exception, match="not sent"):
                await lease.release()
            await world.live(1000, step=20)
        await world.live(300, step=10)

        again = await two.try_acquire("k", fail_closed=True)
        assert again is not None


@both_colours
async def test_client_closed_with_one_open_names_what_an_operator_needs(world: World) -> None:
    """Key, token, record version, and the commands, which add the prefix by themselves: one with it would find nothing."""
    client = world.client(prefix="p:")
    await client.__aenter__()
    lease = await client.acquire("k", fail_closed=True)
    raw(lease)._closed = True
    record = await client.get("k")
    assert record is not None

    with world.store.outage(), pytest.raises(ExceptionGroup) as caught:
        await client.close()

    told = [str(error) for error in caught.value.exceptions if isinstance(error, OutcomeUnknownError)]
    assert any(f"token {lease.fencing_token}" in text and record.rvn in text for text in told)
    assert any("'dlock show'" in text and "'dlock break'" in text for text in told)
