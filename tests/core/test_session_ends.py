"""How the hold of a lock ends that a session keeps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockLostError, LossReason, State, StoreUnavailableError
from tests.core.test_sessions import KEEPS, moved, sessions_of
from tests.core.worlds import async_only, both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_dead_holders_session_is_taken_over_once_and_given_back(world: World) -> None:
    """A lease after it was last seen alive, and not before; then each of its locks is one read and one write."""
    store, others = world.another_store(), world.another_store()
    async with world.client(store, **KEEPS) as dead, world.client(others, lease_duration=10) as live:
        leases = await moved(world, dead, *(f"k{number}" for number in range(10)))
        losses: list[Any] = []
        for lease in leases:
            lease.on_lost(losses.append)
        with store.outage():
            waiting = world.spawn(live.acquire("k0", timeout=60))
            await world.live(9)
            assert not waiting.done
            await world.live(6)
            taken = [await waiting.result()]
            assert not any(lease.is_valid for lease in leases)
            assert [record.state for record in sessions_of(world).values()] == [State.GONE]
            before = others.requests.total()
            taken += [await live.acquire(f"k{number}", timeout=0) for number in range(1, 10)]

            # A claim that is refused, a look at the session by each attempt unless it is known to be over, and the takeover.
            assert others.requests.total() - before <= 9 * 2
            assert [lease.fencing_token for lease in taken] == [2] * 10
        await world.settle()
        assert [loss.reason for loss in losses] == [LossReason.UNREACHABLE] * 10
        with pytest.raises(LockLostError, match=r"lock 'k1' \(token 1\) was lost: its renewals failed until"):
            await leases[1].ensure()
        for lease in leases:
            with pytest.raises(LockLostError):
                await lease.release()


@both_colours
@pytest.mark.parametrize("asks_before", [True, False])
async def test_lock_is_over_with_its_session_though_no_thread_ran(world: World, asks_before: bool) -> None:
    """Asked in the instant, before anybody was told; and it says why, as the session knows."""
    store = world.another_store()
    async with world.client(store, **KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        with store.outage():
            await world.live(4)  # a beat fails
            world.clock.advance(10)

            assert not lease.is_valid
            assert lease.remaining == 0.0
            with pytest.raises(LockLostError) as raised:
                await (lease.ensure() if asks_before else lease.release())
            assert raised.value.loss.reason is LossReason.UNREACHABLE
        await world.settle()
        if asks_before:
            with pytest.raises(LockLostError):
                await lease.release()


@both_colours
async def test_session_whose_row_is_gone_counts_for_one_more_lease(world: World) -> None:
    """Its owner hears of it by the next beat only (Q4); a waiter sees it absent for a lease first."""
    store = world.another_store()
    async with world.client(store, **KEEPS) as a, world.client(lease_duration=10) as b:
        (lease,) = await moved(world, a, "k")
        with store.outage():
            for key in sessions_of(world):
                del world.space.records[key]
            waiting = world.spawn(b.acquire("k", timeout=60))
            await world.live(9.5)
            assert not waiting.done
            await world.live(6)

            assert (await waiting.result()).fencing_token == 2
            assert not lease.is_valid
        await world.settle()
        with pytest.raises(LockLostError):
            await lease.release()


@both_colours
async def test_overrun_of_a_kept_lock_gives_it_back_a_lease_later(world: World) -> None:
    """Nothing of it would lapse by itself, since its session goes on (Q3); its neighbour stays."""
    async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
        lease, neighbour = await a.acquire("k", max_hold=8), await a.acquire("n")
        await world.live(7)
        assert world.space.records["k"].session is not None
        await world.live(2)
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.OVERRUN
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.live(8)
        assert not waiting.done

        await world.live(4)

        assert (await waiting.result()).fencing_token == 2
        assert neighbour.is_valid
        with pytest.raises(LockLostError):
            await lease.release()


@both_colours
async def test_dropped_lease_of_a_kept_lock_comes_free(world: World) -> None:
    """Its session goes on for others, so the scheduler gives it back, a lease after it heard of it."""
    async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
        leases = await moved(world, a, "k", "n")
        with pytest.warns(ResourceWarning, match="unreleased lease of lock 'k'"):
            leases.pop(0)
        waiting = world.spawn(b.acquire("k", timeout=60))
        await world.live(9)
        assert not waiting.done

        await world.live(6)

        assert (await waiting.result()).fencing_token == 2
        assert leases[0].is_valid


@both_colours
@pytest.mark.parametrize("end", ["overrun", "dropped"])
async def test_last_lock_of_a_session_is_given_back_a_lease_later_too(world: World, end: str) -> None:
    """The session, which has nothing to keep then, goes on for so long: its end would be that of the lock."""
    async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
        leases = await moved(world, a, "k", **({"max_hold": 8} if end == "overrun" else {}))
        waiting = world.spawn(b.acquire("k", timeout=60))
        if end == "dropped":
            with pytest.warns(ResourceWarning, match="unreleased lease of lock 'k'"):
                leases.clear()
        else:
            await world.live(2)
            assert not leases[0].is_valid
        await world.live(9)
        assert not waiting.done
        assert sessions_of(world)

        await world.live(6)

        assert (await waiting.result()).fencing_token == 2
        await world.live(6)
        assert [record.state for record in sessions_of(world).values()] == [State.GONE]


@both_colours
async def test_move_without_an_answer_is_resolved_by_the_next_write(world: World) -> None:
    """Applied or not, the lock stays held, and both ends count until it is known (Q2)."""
    for fault in ("lose_reply", "lose_request"):
        async with world.client(**KEEPS) as a, world.client(lease_duration=10) as b:
            lease = await a.acquire(f"k-{fault}")
            await world.live(4.75)  # the session is open, and the second renewal is next
            getattr(world.store, fault)("replace", 2)
            await world.live(20)

            assert lease.is_valid
            assert await b.try_acquire(f"k-{fault}") is None
            await lease.release()


@both_colours
async def test_closing_ends_locks_and_session(world: World) -> None:
    """Everything is free at once."""
    async with world.client(**KEEPS) as client:
        leases = await moved(world, client, "a", "b")

    assert not any(lease.is_valid for lease in leases)
    assert {key: record.state for key, record in world.space.records.items() if record.held} == {}


@both_colours
async def test_end_of_the_program_is_one_request_for_all_locks_of_a_session(world: World) -> None:
    """Whoever comes may take them at once; there may be no time for thousands of releases."""
    async with world.client(**KEEPS) as client:
        leases = await moved(world, client, *(f"k{number}" for number in range(50)))
        before = world.store.requests.total()
        told: list[Any] = []
        leases[0].on_lost(told.append)

        await engine_of(world).close(world.clock.now() + 1_000_000_000)

        assert world.store.requests.total() - before == 1
        assert not any(lease.is_valid for lease in leases)
        await world.settle()
        assert told == []
    async with world.client() as other, other.lock("k0", timeout=0) as taken:
        assert taken.fencing_token == 2


def engine_of(world: World) -> Any:
    """Return the engine of the client that was made last."""
    client = world.clients[-1]
    return getattr(client, "_opened", None) or client._engine


@both_colours
async def test_sessions_have_no_events_of_their_own(world: World) -> None:
    """Neither those of this client, nor those of others that it takes over: nobody has asked for them."""
    events: list[Any] = []
    store = world.another_store()
    async with (
        world.client(store, **KEEPS, on_event=events.append) as dead,
        world.client(**KEEPS, on_event=events.append) as live,
    ):
        leases = await moved(world, dead, "k")
        with store.outage():
            waiting = world.spawn(live.acquire("k", timeout=60))
            await world.live(25)
            taken = await waiting.result()
        await world.live(5)
        with pytest.raises(LockLostError):
            await leases[0].release()
        await taken.release()

    await world.until(lambda: [each.kind for each in events].count("released") == 1)
    assert {each.key for each in events} == {"k"}


@both_colours
async def test_session_without_locks_is_let_go_after_two_beats(world: World) -> None:
    """Another lock that comes soon finds it; later a new one is opened."""
    async with world.client(**KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        (name,) = sessions_of(world)
        await lease.release()
        await world.live(1)
        assert world.space.records[name].held

        await world.live(6)

        assert not world.space.records[name].held
        (again,) = await moved(world, client, "k")
        assert again.is_valid


@both_colours
async def test_lease_that_was_dropped_under_a_session_lapses_with_the_next_beats(world: World) -> None:
    """Whenever its turn to be audited comes."""
    async with world.client(**KEEPS) as client:
        leases = await moved(world, client, *(f"k{number:02}" for number in range(30)))
        with pytest.warns(ResourceWarning, match="unreleased lease of lock 'k15'"):
            del leases[15]
        assert client.health().held == 30

        await world.live(6)

        assert client.health().held == 29
        await world.live(12)
        assert [key for key, record in world.space.records.items() if not record.held] == ["k15"]


@both_colours
async def test_new_session_behind_rows_that_were_deleted_is_not_taken_for_one_that_is_over(world: World) -> None:
    """What was seen of a session is kept for ever, by its key and its token; so its token is not granted there again."""
    store = world.another_store()
    async with world.client(store, lease_duration=10) as a, world.client(lease_duration=10) as b:
        first = await a.acquire("k", permits=1)
        with store.outage():
            waiting = world.spawn(b.acquire("k", permits=1, timeout=60))
            await world.live(14)
            await (await waiting.result()).release()
            assert not first.is_valid
        world.space.records.clear()

        again = await a.acquire("k", permits=1)

        assert await b.try_acquire("k", permits=1) is None
        assert await again.ensure()


@both_colours
@pytest.mark.parametrize("change", [{"data": b"x"}, {"lease_duration": 15}], ids=["data", "lease"])
async def test_answer_that_comes_after_the_end_of_a_session_holds_nothing(world: World, change: dict[str, Any]) -> None:
    """As where the process was stopped while it changed a lock: that is lost, whatever was written, and stays so."""

    def stopped(verb: str) -> None:
        if verb == "replace" and stops:
            world.clock.advance(stops.pop())

    stops: list[int] = []
    async with world.client(world.hooked_store(lambda *_: None, stopped), **KEEPS) as client:
        (lease,) = await moved(world, client, "k")
        stops.append(12)
        with pytest.raises(LockLostError):
            await lease.renew(**change)

        assert not lease.is_valid
        with pytest.raises(LockLostError):
            await lease.release()
        assert not world.space.records["k"].held


@async_only
async def test_lock_is_lost_with_the_session_under_which_it_was_being_moved(world: World) -> None:
    """Its own lease lasts a little longer, and the move was not made; but it was over meanwhile, and nothing makes it valid again."""
    goes_on, is_valid, late = asyncio.Event(), list[bool](), False

    async def before(_: str, request: Any) -> None:
        record = getattr(request, "record", None)
        if late and record is not None and record.session is None:  # a beat
            await goes_on.wait()
        elif late and record is not None:
            world.clock.advance(7)
            is_valid.append(second.is_valid)
            raise StoreUnavailableError("not sent (injected)")

    async with world.client(world.hooked_store(before), **KEEPS) as client:
        (first,) = await moved(world, client, "first")
        session = first._handle.keeper.handle
        while world.clock.now() != session.state.sent_at:
            await world.live(0.25)
        await world.live(0.5)
        second = await client.acquire("second")
        late = True
        world.hung[session.key] = 0
        await world.jump(2.5)

        assert is_valid == [False]
        assert not second.is_valid
        goes_on.set()
        del world.hung[session.key]
        late = False


@both_colours
async def test_session_is_let_go_after_a_lock_that_was_over_when_it_was_to_be_moved(world: World) -> None:
    """That lock ends with a lease of its own, and the session need not outlast it."""
    async with world.client(**KEEPS) as client:
        (kept,) = await moved(world, client, "kept")
        over = await client.acquire("over", max_hold=1)
        await world.live(3)
        assert over.loss is not None

        await kept.release()
        await world.live(30)

        assert not [record for record in sessions_of(world).values() if record.held]
