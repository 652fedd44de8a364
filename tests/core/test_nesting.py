"""A thread or task that acquires a key which it, or another of its client, holds: reentrancy and nesting, both colours from one text."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import inspect
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import AcquireTimeoutError, ConfigurationError, LeaseStateError, LockClient, LockLostError, LossReason
from dlock_core.memory import MemoryStore
from tests.core.worlds import async_only, both_colours, raw

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_reentrant_lock_is_counted_and_keeps_its_token(world: World) -> None:
    """The same client enters again without a request; the key is free when the last view has left."""
    async with world.client(reentrant=True) as client:
        async with client.lock("k") as outer:
            async with client.lock("k", timeout=0) as inner:
                assert inner.fencing_token == outer.fencing_token
            assert (inner.is_valid, inner.remaining) == (False, 0)
            assert outer.remaining > 0
            assert client.holds("k")

        assert not client.holds("k")
        assert world.store.requests == {"claim": 1, "release": 1}


@both_colours
async def test_reentrant_view_released_twice_counts_once(world: World) -> None:
    """Each view gives back its own share."""
    async with world.client(reentrant=True) as client:
        outer, inner = await client.acquire("k"), await client.acquire("k")

        await inner.release()
        await inner.release()

        assert outer.is_valid
        with pytest.raises(LeaseStateError, match="was released"):
            await inner.ensure()
        with pytest.raises(LeaseStateError, match="was released"):
            inner.progress()
        raw(inner)._leave_to_scheduler()
        assert outer.is_valid
        await outer.release()
        assert not client.holds("k")


@both_colours
async def test_reentrancy_joins_only_what_opted_in_and_only_in_the_same_client(world: World) -> None:
    """A lock that was not taken as reentrant, and one of another client, are simply held."""
    async with world.client() as a, world.client() as b:
        plain = await a.acquire("plain")
        shared = await a.acquire("shared", reentrant=True)

        assert await a.try_acquire("plain", reentrant=True) is None
        assert await a.try_acquire("shared") is None
        assert await b.try_acquire("shared", reentrant=True) is None
        assert plain.is_valid
        assert shared.is_valid


@both_colours
async def test_reentrant_acquire_of_a_lost_lock_raises_its_loss(world: World) -> None:
    """Queueing would be waiting for oneself; every view is told, the inner one at the end of its block too."""
    async with world.client(reentrant=True, auto_renew=False, lease_duration=10) as client:

        async def inner() -> None:
            async with client.lock("k"):
                await world.jump(10)

        async def outer() -> None:
            async with client.lock("k"):
                with pytest.raises(LockLostError):
                    await inner()
                with pytest.raises(LockLostError) as caught:
                    await client.acquire("k")
                assert caught.value.loss.reason is LossReason.EXPIRED

        with pytest.raises(LockLostError):
            await outer()
        lease = await client.acquire("k", timeout=0)
        assert lease.fencing_token == 2


@both_colours
async def test_reentrancy_excludes_the_other_threads_or_tasks_of_a_client(world: World) -> None:
    """Five threads, or five tasks, of one client: one after another inside, each of them as often as it likes."""
    begun, inside, most = 0, 0, 0
    async with world.client(reentrant=True) as client:

        async def work() -> int:
            nonlocal begun, inside, most
            begun += 1
            async with client.lock("k") as outer, client.lock("k") as inner:
                inside += 1
                most = max(most, inside)
                await world.until(lambda: begun == 5)
                inside -= 1
                assert inner.fencing_token == outer.fencing_token
                return outer.fencing_token

        works = [world.spawn(work(), parks=False) for _ in range(5)]
        await world.until(lambda: begun == 5)
        while not all(each.done for each in works):
            await world.live(0.5)
        tokens = [await each.result() for each in works]

    assert most == 1
    assert sorted(tokens) == [1, 2, 3, 4, 5]


@both_colours
async def test_reentrancy_of_a_client_joins_any_thread_or_task_where_both_ask_for_it(world: World) -> None:
    """As the Java client does it: counted, whoever asks; one who asks for less waits."""
    async with world.client() as client:
        outer = await client.acquire("k", reentrant="client")

        async def other() -> Any:
            assert await client.try_acquire("k", reentrant=True) is None
            assert await client.try_acquire("k") is None
            return await client.acquire("k", reentrant="client", timeout=0)

        inner = await world.spawn(other()).result()
        assert inner.fencing_token == outer.fencing_token
        await outer.release()
        assert client.holds("k")
        await inner.release()
        assert not client.holds("k")


@both_colours
async def test_lease_of_a_thread_or_task_that_ended_is_not_joined(world: World) -> None:
    """A later thread may have the number of an earlier one, and is another thread all the same."""
    async with world.client(reentrant=True) as client:

        async def acquire() -> Any:
            return await client.acquire("k", timeout=0)

        lease = await world.spawn(acquire()).result()

        for _ in range(3):
            with pytest.raises(AcquireTimeoutError, match=r"another (thread|task) of this client"):
                await world.spawn(acquire()).result()
        assert lease.is_valid
        await lease.release()


@both_colours
@pytest.mark.parametrize("options", [{}, {"timeout": 30}, {"reentrant": True}, {"fail_closed": True}])
async def test_thread_or_task_that_would_wait_for_itself_is_told_at_once(world: World, options: dict[str, Any]) -> None:
    """With both places; however long it may wait, only it itself could end the wait."""
    began = world.clock.now()
    async with world.client() as client:
        async with client.lock("k") as lease:
            with pytest.raises(LeaseStateError) as caught:
                await client.acquire("k", **options)

            assert lease.is_valid
        assert not client.holds("k")

    message = str(caught.value)
    assert message.startswith("lock 'k' is held by this ")
    assert "would wait for itself for ever" in message
    assert "reentrant=True in both places" in message
    assert "handover=True in the first place" in message
    assert world.clock.now() == began


@async_only
async def test_error_of_a_nested_acquire_names_the_file_and_line_of_both(world: World) -> None:
    """Whoever reads it finds the two calls, also behind an ExitStack."""
    async with world.client() as client:
        first = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
        lease = await client.acquire("k")
        with pytest.raises(LeaseStateError) as caught:
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(client.lock("k"))
        assert lease.is_valid

    assert f"by this task since {__file__}:{first}," in str(caught.value)
    assert f"the acquire at {__file__}:{first + 3} " in str(caught.value)


def test_error_of_a_nested_acquire_names_the_file_and_line_of_both_in_threads() -> None:
    """The same in the blocking colour."""
    with LockClient(MemoryStore()) as client, client.lock("k"):
        line = inspect.currentframe().f_lineno  # type: ignore[union-attr]  # CPython has frames
        with pytest.raises(LeaseStateError) as caught:
            client.acquire("k")

    assert f"by this thread since {__file__}:{line - 1}, " in str(caught.value)
    assert f"the acquire at {__file__}:{line + 2} " in str(caught.value)


@both_colours
async def test_lock_all_that_holds_one_of_its_keys_already_gives_back_the_others(world: World) -> None:
    """It would wait for itself, too."""
    async with world.client() as client, client.lock("b"):
        with pytest.raises(LeaseStateError, match="lock 'b' is held by this"):
            async with client.lock_all(["a", "b", "c"]):
                pytest.fail("entered")
        assert client.holds("b")
        assert not client.holds("a")


@both_colours
async def test_single_try_of_a_key_that_the_caller_holds_is_answered_as_ever(world: World) -> None:
    """It waits for nothing, and "held" is the truth: no error for ``try_acquire``; the busy message names the place and the option."""
    async with world.client() as client, world.client() as other:
        lease = await client.acquire("k")

        assert await client.try_acquire("k") is None
        with pytest.raises(AcquireTimeoutError, match=r"this (thread|task), since .*:\d+ \(reentrant=True in both"):
            await client.acquire("k", timeout=0)
        with pytest.raises(AcquireTimeoutError) as caught:
            await other.acquire("k", timeout=0)
        assert lease.is_valid

    assert "reentrant" not in str(caught.value)


@both_colours
async def test_other_thread_or_task_waits_as_ever_and_is_not_sent_to_reentrancy(world: World) -> None:
    """It waits for another, who may come to an end; the option would be no help."""
    async with world.client() as client:
        lease = await client.acquire("k")

        async def wait() -> None:
            await client.acquire("k", timeout=3)

        waiting = world.spawn(wait())
        await world.live(4)
        with pytest.raises(AcquireTimeoutError, match=r"another (thread|task) of this client") as caught:
            await waiting.result()
        assert lease.is_valid

    assert "reentrant" not in str(caught.value)


@both_colours
async def test_lease_that_may_be_handed_over_is_waited_for(world: World) -> None:
    """The option says that somebody else releases it."""
    async with world.client() as client:
        lease = await client.acquire("k", handover=True)

        async def work() -> None:
            await world.until(lambda: world.store.requests["claim"] >= 2)
            await lease.release()
            await world.live(2)

        working = world.spawn(work(), parks=False)
        second = await client.acquire("k")
        await working.result()

        assert second.fencing_token == 2


@both_colours
async def test_lease_that_nothing_renews_is_waited_for_since_it_ends_by_itself(world: World) -> None:
    """One that was not told apart from a crashed holder's."""
    async with world.client() as client:
        outer = await client.acquire("k", auto_renew=False, lease_duration=2)

        async def pass_time() -> None:
            await world.until(lambda: world.store.requests["claim"] >= 2)
            await world.live(6)

        with pytest.raises(AcquireTimeoutError):
            await client.acquire("k", timeout=0)
        world.clock.advance(2)
        assert outer.loss is not None or not outer.is_valid
        passing = world.spawn(pass_time(), parks=False)
        second = await client.acquire("k", timeout=60)
        await passing.result()

        assert second.fencing_token == 2


@both_colours
async def test_valid_lease_that_nothing_renews_is_waited_for_by_its_own_holder(world: World) -> None:
    """The wait has an end, so it is no mistake."""
    async with world.client() as client:
        outer = await client.acquire("k", auto_renew=False, lease_duration=8)

        async def pass_time() -> None:
            await world.until(lambda: world.store.requests["claim"] >= 2)
            await world.live(12)

        passing = world.spawn(pass_time(), parks=False)
        second = await client.acquire("k", timeout=60)
        await passing.result()

        assert outer.loss is not None
        assert second.fencing_token == 2


@both_colours
async def test_lock_that_was_dropped_is_not_joined(world: World) -> None:
    """Nobody has it in hand any more, and it lapses: whoever asks has to wait for that."""
    async with world.client() as client:
        leases = [await client.acquire("k", reentrant="client")]
        with pytest.warns(ResourceWarning, match="unreleased lease"):
            leases.clear()
        gc.collect()

        assert await client.try_acquire("k", reentrant="client") is None


@both_colours
async def test_lock_that_was_broken_or_closed_is_no_nested_one(world: World) -> None:
    """The store is asked, before anybody is refused, whether the lock still stands."""
    async with world.client() as client:
        outer = await client.acquire("k")
        assert await client.break_lock("k", fencing_token=outer.fencing_token, now=True)

        second = await client.acquire("k", timeout=5)

        assert second.fencing_token == 3
        with pytest.raises(LockLostError):
            await outer.renew()


@both_colours
async def test_nested_acquire_whose_store_is_silent_ends_as_any_acquire_does(world: World) -> None:
    """The read that looks before the refusal fails, and the acquire goes on as it would have."""
    async with world.client() as client:

        async def nested() -> None:
            async with client.lock("k"):
                world.store.fail("read", 1)
                await client.acquire("k", timeout=1)

        waiting = world.spawn(nested())
        await world.live(2)

        with pytest.raises(AcquireTimeoutError):
            await waiting.result()


@async_only
async def test_child_task_is_not_its_parent(world: World) -> None:
    """A task that was started within the block is another task: it does not join, and waits."""
    async with world.client(reentrant=True) as client, client.lock("k"):

        async def child() -> Any:
            return await client.try_acquire("k")

        assert await asyncio.create_task(child()) is None


def test_reentrant_takes_two_truths_and_a_word() -> None:
    """Anything else is a mistake."""
    with LockClient(MemoryStore()) as client, pytest.raises(ConfigurationError, match="reentrant"):
        client.acquire("k", reentrant="thread")  # type: ignore[arg-type]  # the mistake in question


def test_threads_are_told_apart_as_threading_does_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late patch of gevent replaces ``threading.local`` by one that has a state for each greenlet of a thread."""
    made: list[SimpleNamespace] = []

    def local() -> SimpleNamespace:
        made.append(SimpleNamespace())
        return made[-1]

    monkeypatch.setattr(threading, "local", local)

    with LockClient(MemoryStore(), reentrant=True) as client, client.lock("k"):
        for each in made:
            vars(each).clear()  # another greenlet runs
        assert client.try_acquire("k") is None


def test_foreign_thread_is_known_for_itself() -> None:
    """One that Python's threading did not start joins its own lease only."""
    tokens: list[int] = []
    over = threading.Semaphore(0)

    def work() -> None:
        with client.lock("k") as outer, client.lock("k", timeout=0) as inner:
            tokens.append(outer.fencing_token if inner.fencing_token == outer.fencing_token else 0)
        over.release()

    with LockClient(MemoryStore(), reentrant=True) as client:
        for _ in range(3):
            _thread.start_new_thread(work, ())
        for _ in range(3):
            assert over.acquire(timeout=20)

    assert sorted(tokens) == [1, 2, 3]
