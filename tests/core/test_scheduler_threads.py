"""The thread that renews: what comes in between two of its steps, how it is started, and what it inherits."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dlock_core.testing import FakeClock
from tests.core.worlds import async_only, both_colours, run_scenario

if TYPE_CHECKING:
    import pytest

    from tests.core.worlds import World

_LIMIT: ContextVar[float | None] = ContextVar("limit", default=None)


def test_short_lock_that_comes_as_a_renewal_is_begun_stays_held() -> None:
    """The thread that renews looks whether the request could hurt another lock, and says that it is busy, in one step."""

    async def scenario(world: World) -> None:
        async with world.client(world.hanging_store("long")) as client:
            blocking: Any = client
            inner, leases = blocking._inner, []
            runtime, now = inner._runtime, inner._runtime.now
            coming = threading.Thread(target=lambda: leases.append(inner.acquire("short", lease_duration=1)))

            def now_with_a_lock_that_comes() -> int:
                frame = sys._getframe(1)
                # After the look: the bound until which the thread is busy is made of the last of these instants.
                if frame.f_code.co_name == "_perform" and "hurts" in frame.f_locals and not coming.ident:
                    coming.start()
                    coming.join()
                return int(now())

            lease = await client.acquire("long", lease_duration=60)
            runtime.now = now_with_a_lock_that_comes
            await world.live(15.25)
            assert world.hung
            if not coming.ident:
                coming.start()
                coming.join()
            await world.live(6, step=0.05)

            assert lease.is_valid
            assert leases[0].is_valid
            leases[0].release()
            await world.live(60)

    run_scenario("sync", scenario)


def test_thread_that_could_not_be_started_is_started_by_the_next_use_of_a_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by one that sends nothing; a callback that had no thread is called then, too."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with FakeClock().client(lease_duration=10) as client:
        called = threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            lease = client.acquire("k")
            client._runtime.post(lambda _: called.set(), None)
        assert client._runtime._thread is None

        assert lease.ensure() == 1

        assert client._runtime._thread is not None
        assert called.wait(10)
    assert sum("locks are not renewed" in text for text in caplog.messages) == 1


@both_colours
async def test_renewals_inherit_no_context_variable_of_the_program(world: World) -> None:
    """A driver may keep there how long the call that was under way might still take."""
    seen: list[float | None] = []
    store = world.hooked_store(lambda verb, _: seen.append(_LIMIT.get()) if verb == "replace" else None)
    async with world.client(store, lease_duration=10) as client:
        token = _LIMIT.set(0.5)
        lease = await client.acquire("k")
        await world.live(6)
        _LIMIT.reset(token)
        await lease.release()

        assert seen == [None, None]


@async_only
async def test_renewal_whose_task_is_cancelled_before_it_begins_is_made_again(world: World) -> None:
    """As by a program that cancels all tasks of its event loop."""
    async with world.client(lease_duration=10) as client, client.lock("k") as lease:
        world.clock.advance(3)
        await asyncio.sleep(0)
        tasks = set(client._runtime._tasks)
        assert tasks
        for task in tasks:
            task.cancel()
        await world.live(20)

        assert lease.is_valid
