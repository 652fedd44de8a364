"""Under which session a lock is moved: never under one that cannot tell any more what its holder has asked to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core import OutcomeUnknownError, StoreUnavailableError
from tests.core.test_sessions import KEEPS, moved
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_lock_that_comes_after_a_session_has_told_to_stop_is_told_in_time(world: World) -> None:
    """A session tells its holders once, and lives on where the store answers again; a new one keeps those that come then."""
    async with world.client(**KEEPS, stop_grace=2) as client:
        (first,) = await moved(world, client, "first")
        with world.store.outage():
            while not first.stopping.is_set():
                await world.live(0.25)
        await world.live(5)
        assert first.is_valid

        second = await client.acquire("second")
        await world.live(20)  # the first number that is tried for another session may be that of the first
        assert world.space.records["second"].session is not None
        assert not second.stopping.is_set()
        with world.store.outage():
            while not second.stopping.is_set():
                await world.live(0.25)
            assert second.is_valid


@both_colours
async def test_lock_is_not_put_at_risk_by_its_move(world: World) -> None:
    """While the renewals of the session fail, its own succeed; where they fail, too, its holder is told, and not only of the loss."""
    fails = False

    def before(_: str, request: Any) -> None:
        if fails and "~dlock/" in getattr(request, "record", request).key:
            raise StoreUnavailableError("not sent (injected)")

    async with world.client(world.hooked_store(before), **KEEPS) as client:
        (first,) = await moved(world, client, "first")
        second = await client.acquire("second")
        told: list[bool] = []
        second.on_risk(lambda lease: told.append(lease.is_valid))
        fails = True
        await world.live(12)

        assert not first.is_valid
        assert second.is_valid
        assert not told
        fails = False
        await world.live(20)  # as above
        assert world.space.records["second"].session is not None


@both_colours
async def test_lock_is_not_moved_under_a_session_of_which_little_is_left(world: World) -> None:
    """After a pause the beat may fail; until it was made, a renewal of its own keeps the lock longer."""
    async with world.client(**KEEPS) as client:
        (first,) = await moved(world, client, "first")
        await world.live(1)
        second = await client.acquire("second")

        await world.jump(5.5)

        assert world.space.records["second"].session is None
        assert second.remaining > 9
        await world.live(4)
        assert world.space.records["second"].session == world.space.records["first"].session
        assert first.is_valid


@both_colours
async def test_lock_whose_renewal_hangs_is_not_moved(world: World) -> None:
    """It was begun so late that there was no sound session yet; its holder is told to stop while it hangs."""
    async with world.client(world.hanging_store("second"), **KEEPS, stop_grace=2) as client:
        (first,) = await moved(world, client, "first")
        second = await client.acquire("second")
        await world.jump(6.5)
        await world.live(1.5)
        assert second.stopping.is_set()
        assert second.is_valid
        await world.live(1)
        assert first.is_valid
        await world.live(5)


@both_colours
async def test_lock_that_may_have_been_moved_lasts_no_longer_than_its_own_lease(world: World) -> None:
    """Until that is known both ends count (Q2), and a renewal that is asked for is one of the lock."""
    fails = True

    def before(_: str, request: Any) -> None:
        if fails and getattr(getattr(request, "record", None), "session", None) is not None:
            raise OutcomeUnknownError("no answer (injected)")

    async with world.client(world.hooked_store(before), **KEEPS) as client:
        lease = await client.acquire("k")
        await world.live(5.25)
        assert lease.remaining < 7.2

        fails = False
        await lease.ensure(9)
        assert lease.remaining > 9
        await lease.release()
