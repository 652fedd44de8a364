"""``client.health()``: what a client knows of its own renewals, which run where no program sees them fail."""

from __future__ import annotations

from dlock_core.record import LossReason
from dlock_core.states import Cease
from tests.core.worlds import World, both_colours, raw


@both_colours
async def test_client_without_locks_is_in_good_health(world: World) -> None:
    """There is nothing to be late with, and no error has come."""
    async with world.client() as client:
        health = client.health()

    assert (health.held, health.renewal_late, health.remaining) == (0, 0.0, float("inf"))
    assert (health.at_risk, health.unresolved, health.last_error, health.last_error_age) == ((), 0, None, None)
    assert health.connections is None


@both_colours
async def test_renewals_in_time_leave_a_client_in_good_health(world: World) -> None:
    """The shortest lease says how much time there is; a key is named as the program names it."""
    async with world.client(prefix="app/", lease_duration=20) as client:
        async with client.lock("a"), client.lock("b", lease_duration=9):
            await world.live(30, 0.25)
            health = client.health()

            assert health.held == 2
            assert health.renewal_late < 1
            assert 5 < health.remaining < 9
            assert health.at_risk == ()
        assert client.health().held == 0


@both_colours
async def test_store_that_is_out_shows_in_the_health(world: World) -> None:
    """While the lock still lasts: which key is at risk, how late its renewal is, and what the store said. Then it recovers."""
    async with world.client(prefix="app/", lease_duration=20) as client, client.lock("a"):
        with world.store.outage():
            await world.live(12, 0.25)
            health = client.health()

        assert health.at_risk == ("a",)
        assert 1 < health.renewal_late < 12
        assert 0 < health.remaining < 10
        assert "was not sent" in str(health.last_error)
        assert health.last_error_age is not None
        assert health.last_error_age < 5

        await world.live(3, 0.25)
        after = client.health()
        assert (after.at_risk, after.last_error) == ((), health.last_error)
        assert after.renewal_late < 1


@both_colours
async def test_late_beat_of_a_session_shows_in_the_health(world: World) -> None:
    """The locks that it keeps are not renewed themselves, and last no longer than it does."""
    async with world.client(lease_duration=20, renewal="session") as client, client.lock("a"), client.lock("b"):
        await world.live(12)
        assert client.health().renewal_late < 1
        with world.store.outage():
            await world.live(9)
            health = client.health()

        assert (health.held, health.at_risk) == (2, ("a", "b"))
        assert 2 < health.renewal_late < 9
        assert 0 < health.remaining < 12
        await world.live(5)
        assert client.health().at_risk == ()


@both_colours
async def test_lock_that_is_lost_is_none_of_the_held_ones(world: World) -> None:
    """Though its block goes on: its own lease is over, or its session."""
    for renewal in ("lock", "session"):
        async with world.client(lease_duration=20, renewal=renewal) as client:
            lease = await client.acquire(f"of a {renewal}")
            await world.live(12)
            world.clock.advance(30)
            assert client.health().held == 0
            await world.settle()
            assert not lease.is_valid
            assert client.health().held == 0


@both_colours
async def test_lock_whose_session_was_lost_a_moment_ago_is_none_of_the_held_ones(world: World) -> None:
    """Another thread may ask before the locks of the session are told."""
    async with world.client(lease_duration=20, renewal="session") as client:
        lease = await client.acquire("k")
        await world.live(12)
        engine, keeper = client._engine, raw(lease)._handle.keeper
        with engine.runtime.mutex:
            engine.driver.step(keeper.handle, Cease(LossReason.BROKEN))
            assert client.health().held == 0


@both_colours
async def test_lock_that_is_not_renewed_is_never_late(world: World) -> None:
    """Nothing renews it, and its time runs out as the program wants it."""
    async with world.client(lease_duration=20) as client, client.lock("k", auto_renew=False):
        await world.live(15)
        health = client.health()

    assert (health.held, health.renewal_late) == (1, 0.0)


@both_colours
async def test_time_that_remains_ends_with_the_hold_and_has_no_end_without_a_lease(world: World) -> None:
    """A lock that lasts until it is released bounds nothing; one that may be held for so long ends then."""
    async with world.client(lease_duration=20) as client, client.lock("for ever", fail_closed=True):
        assert client.health().remaining == float("inf")
        async with client.lock("bounded", max_hold=5):
            assert client.health().remaining <= 5


@both_colours
async def test_age_of_the_last_error_is_in_seconds(world: World) -> None:
    """It grows with the clock."""
    async with world.client(lease_duration=20) as client:
        world.store.lose_reply("release")
        lease = await client.acquire("k")
        async with lease:
            pass
        await world.live(3)
        age = client.health().last_error_age

    assert age is not None
    assert 2 < age < 4
