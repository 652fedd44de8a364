"""A lease whose holder hears that somebody waits, in both colours from one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ConfigurationError
from tests.core.scheduler_support import batches
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


class Waiter:
    """What somebody leaves in the queue of a key until they :meth:`leave`."""

    def __init__(self, world: World, record: Any) -> None:
        self._space, self._key = world.space, record.key
        assert self._space.enter(record, self._woken)

    def _woken(self) -> bool:
        return False  # has no use for the release

    def leave(self) -> None:
        """Wait no more."""
        self._space.leave(self._key, self._woken, pass_on=False)


def waiter(world: World, key: str = "k") -> Waiter:
    """Return somebody who waits for *key*."""
    return Waiter(world, world.space.records[key])


@both_colours
async def test_wanted_is_what_the_last_renewal_found(world: World) -> None:
    """False before the first renewal, true while somebody waits, false when they have left; nothing is asked for it."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        told: list[Any] = []
        lease.on_wanted(told.append)
        waits = waiter(world)
        assert not lease.wanted
        for stretch in (1, 2):
            await lease.renew()
            await lease.renew()
            assert lease.wanted
            await world.until(lambda stretch=stretch: len(told) == stretch)
            waits.leave()
            assert lease.wanted  # no renewal has looked since
            await lease.renew()
            assert not lease.wanted
            waits = waiter(world)

        assert [each.key for each in told] == ["k", "k"]
        assert set(world.store.requests) == {"claim", "replace"}


@both_colours
async def test_wanted_comes_by_a_batch_and_for_its_own_key_alone(world: World) -> None:
    """The renewals of the scheduler carry it, too."""
    store = batches(world)
    async with world.client(store, lease_duration=20) as client:
        leases = [await client.acquire(key) for key in ("a", "k", "z")]
        told: list[Any] = []
        for lease in leases:
            lease.on_wanted(told.append)
        waiter(world)

        await world.live(6)
        await world.until(lambda: bool(told))

        assert store.sizes[0] == len(leases)
        assert [lease.wanted for lease in leases] == [False, True, False]
        assert [each.key for each in told] == ["k"]


@both_colours
async def test_lock_that_a_session_keeps_is_never_wanted(world: World) -> None:
    """Not even by the renewal that moved it: no later one would find that the waiter has left."""
    async with world.client(lease_duration=20, renewal="session") as client, client.lock("k") as lease:
        told: list[Any] = []
        lease.on_wanted(told.append)
        waits = waiter(world)
        await lease.renew()
        assert lease.wanted
        await world.live(11)
        assert world.space.records["k"].session is not None
        waits.leave()
        await lease.renew()

        assert not lease.wanted
        assert len(told) == 1


@both_colours
async def test_renewal_whose_reply_is_lost_leaves_what_is_wanted_as_it_was(world: World) -> None:
    """The refusal by which it is found says nothing of who waits: nobody is called again for the same stretch."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        told: list[Any] = []
        lease.on_wanted(told.append)
        waiter(world)
        await lease.renew()
        await world.until(lambda: bool(told))
        world.store.lose_reply("replace")

        await lease.renew()
        assert lease.wanted
        await lease.renew()
        await world.settle()

        assert lease.wanted
        assert [each.key for each in told] == ["k"]


@both_colours
async def test_on_wanted_while_wanted_calls_at_once(world: World) -> None:
    """A callback that comes late is not left out, and is not called again for the same stretch."""
    async with world.client(lease_duration=20) as client, client.lock("k") as lease:
        waiter(world)
        await lease.renew()
        told: list[Any] = []

        lease.on_wanted(told.append)
        await world.until(lambda: bool(told))
        await lease.renew()
        await world.settle()

        assert [each.key for each in told] == ["k"]


@both_colours
async def test_a_lease_that_has_ended_is_not_wanted(world: World) -> None:
    """By a release or by a loss; and a callback that comes then is not called."""
    async with world.client(lease_duration=20, auto_renew=False) as client:
        leases = [await client.acquire(key) for key in ("k", "lost")]
        told: list[Any] = []
        for lease in leases:
            waiter(world, lease.key)
            await lease.renew()
            assert lease.wanted

        await leases[0].release()
        await world.jump(20)
        for lease in leases:
            assert not lease.wanted
            lease.on_wanted(told.append)
        await world.settle()

        assert leases[1].loss is not None
        assert told == []


@both_colours
async def test_what_is_wanted_stays_the_holders(world: World) -> None:
    """It is no right of who waits: the lock is renewed for as long as its holder likes."""
    async with world.client(lease_duration=20) as client, client.lock("k", reentrant=True) as lease:
        waiter(world)
        await world.live(60)
        assert lease.is_valid
        async with client.lock("k", reentrant=True) as inner:
            assert inner.wanted
        assert lease.wanted


@both_colours
async def test_on_wanted_refuses_what_cannot_be_called(world: World) -> None:
    """As ``on_risk`` does."""
    async with world.client() as client, client.lock("k") as lease:
        wrong: Any = 5
        with pytest.raises(ConfigurationError, match="cannot be called"):
            lease.on_wanted(wrong)
