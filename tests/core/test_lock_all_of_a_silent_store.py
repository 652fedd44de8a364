"""The end of several locks on a store that does not answer, in both colours from one text: not a time-out for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import AcquireTimeoutError, LockLostError, OutcomeUnknownError
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

_KEYS = [f"k{number}" for number in range(8)]
_ASKED, _LEFT = "no answer", "the store has not confirmed the releases before it"


class _Silence:
    """What a store does ahead of each request: no release gets an answer until it *is_over*."""

    is_over = False

    def __call__(self, verb: str, request: Any) -> None:
        if verb == "release" and not self.is_over:
            raise OutcomeUnknownError(_ASKED, key=request.record.key)


async def _expect_all_free(world: World, client: Any, silence: _Silence) -> None:
    silence.is_over = True
    await world.live(5)
    assert {record.key: record.state.value async for record in client.scan()} == dict.fromkeys(_KEYS, "free")


@both_colours
async def test_block_of_many_locks_asks_a_silent_store_twice(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The others are given back by the scheduler, as is told of each; what an outer block holds stays."""
    silence = _Silence()
    async with world.client(world.hooked_store(silence), reentrant=True, lease_duration=10) as client:
        outer = await client.acquire(_KEYS[0])

        async with client.lock_all(_KEYS) as leases:
            pass

        told = [record.getMessage() for record in caplog.records if "was not confirmed" in record.getMessage()]
        assert [_ASKED in text for text in told] == [True] * 2 + [False] * (len(_KEYS) - 3)
        assert all(_LEFT in text for text in told[2:])
        assert [lease.is_valid for lease in leases.values()] == [False] * len(_KEYS)
        assert outer.is_valid
        silence.is_over = True
        await outer.release()
        await _expect_all_free(world, client, silence)


@both_colours
async def test_block_of_many_locks_tells_of_each_loss_on_a_silent_store(world: World) -> None:
    """Also of those whose release was not tried."""
    silence = _Silence()
    async with world.client(world.hooked_store(silence), lease_duration=10, auto_renew=False) as client:

        async def body() -> None:
            async with client.lock_all(_KEYS):
                await world.jump(10)

        with pytest.raises(LockLostError) as caught:
            await body()

        assert len(caught.value.__notes__) == len(_KEYS) - 1
        await _expect_all_free(world, client, silence)


@both_colours
async def test_lock_all_that_fails_asks_a_silent_store_twice(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What it had won before is given back by the scheduler."""
    silence = _Silence()
    async with world.client(world.hooked_store(silence), lease_duration=10) as client, world.client() as other:
        held = await other.acquire(_KEYS[-1])

        with pytest.raises(AcquireTimeoutError):
            async with client.lock_all(_KEYS, timeout=0):
                pytest.fail("entered")

        assert caplog.text.count("was not confirmed") == 2
        await held.release()
        await _expect_all_free(world, client, silence)
