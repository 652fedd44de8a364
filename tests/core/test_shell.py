"""What surrounds the engine: threads that cannot be started, hostile logging and callbacks, context variables, a clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from dlock_core import LockClient, LockLostError, StoreUnavailableError
from dlock_core.engine.store_in_threads import ThreadedStore
from dlock_core.memory import MemoryStore
from dlock_core.testing import AsyncFaultyStore, FakeClock, FaultyStore
from tests.core.worlds import PATIENCE_S, async_only, both_colours, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core import Claim, Replace, Reply
    from dlock_core.engine.asyncio_runtime import AsyncRuntime
    from tests.core.worlds import World

_limit: ContextVar[str] = ContextVar("limit", default="none")


def test_requests_given_up_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were given up a moment ago an answer may come yet."""
    monkeypatch.setattr("dlock_core.engine.driver.ABANDONED_MAX", 2)
    with LockClient(MemoryStore()) as client:
        driver = client._engine.driver
        driver._remember_abandoned(("first",))
        driver._remember_abandoned(("second", "third"))

        assert list(driver._abandoned) == ["second", "third"]


@pytest.fixture
def hostile() -> Iterator[logging.Filter]:
    """A logging filter that raises."""

    class Hostile(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise LookupError("the filter is broken")

    found = Hostile()
    logging.getLogger("dlock.engine").addFilter(found)
    yield found
    logging.getLogger("dlock.engine").removeFilter(found)


class _Inheriting(FakeClock):
    """Calls back in the context of whoever set the timer, as event loops do."""

    def call_later(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Any) -> Any:
        return super().call_later(loop, seconds, partial(copy_context().run, callback))


@pytest.fixture
def inheriting_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads run in the context of whoever starts them, as free-threaded builds do."""
    start = threading.Thread.start

    def start_here(thread: threading.Thread) -> None:
        context, run = copy_context(), thread.run
        thread.run = lambda: context.run(run)  # type: ignore[method-assign]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_here)


class _Watched(FaultyStore):
    """Remembers the context variable that each verb saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        self.seen.append(("claim", _limit.get()))
        return super().claim(request, timeout_s=timeout_s)

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        self.seen.append(("replace", _limit.get()))
        return super().replace(request, timeout_s=timeout_s)


@pytest.mark.usefixtures("inheriting_threads")
def test_renewals_of_threads_have_none_of_the_context_variables_of_who_acquired() -> None:
    """A time limit that a driver keeps in a context variable (``pymongo.timeout``) is the acquire's, and no renewal's."""
    store = _Watched()
    with FakeClock() as clock, clock.client(store, lease_duration=9) as client:
        token = _limit.set("1.5 s")
        lease = client.acquire("k")
        _limit.reset(token)
        clock.advance(4)
        eventually(lambda: len(store.seen) > 1)
        lease.release()

    assert store.seen == [("claim", "1.5 s"), ("replace", "none")]


@pytest.mark.usefixtures("inheriting_threads")
@pytest.mark.parametrize("threaded", [False, True])
def test_renewals_of_tasks_have_none_of_the_context_variables_of_who_acquired(*, threaded: bool) -> None:
    """As with threads, on a store for asyncio and on one that is served by threads."""
    store = _Watched()

    class Native(AsyncFaultyStore):
        async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
            return store.claim(request, timeout_s=timeout_s)

        async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
            return store.replace(request, timeout_s=timeout_s)

    async def main(clock: FakeClock) -> None:
        async with clock.aclient(cast("Any", store) if threaded else Native(store=None), lease_duration=9) as client:
            token = _limit.set("1.5 s")
            lease = await client.acquire("k")
            _limit.reset(token)
            clock.advance(4)
            for _ in range(200):
                await asyncio.sleep(0.001 if len(store.seen) < 2 else 0)
            with contextlib.suppress(LockLostError):
                await lease.release()

    with _Inheriting() as clock:
        asyncio.run(main(clock))

    assert store.seen == [("claim", "none" if threaded else "1.5 s"), ("replace", "none")]


@both_colours
async def test_filter_of_logging_that_raises_ends_no_renewal(
    world: World, hostile: logging.Filter, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a filter raises goes to stderr, as with logging's own handlers; the lock is renewed on."""
    async with world.client(lease_duration=9) as client:
        lease = await client.acquire("k")
        world.store.fail("replace", 1)
        await world.live(30)

        assert lease.is_valid
        assert "the filter is broken" in capsys.readouterr().err


@both_colours
async def test_factory_of_log_records_that_raises_ends_no_renewal(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that asks for the request at work, which no thread of ours has."""

    def broken(*_: object, **__: object) -> logging.LogRecord:
        raise LookupError("the factory is broken")

    async with world.client(lease_duration=9) as client:
        lease = await client.acquire("k")
        world.store.fail("replace", 1)
        with monkeypatch.context() as patch:
            patch.setattr(logging, "_logRecordFactory", broken)
            await world.live(30)

        assert lease.is_valid
        assert "the factory is broken" in capsys.readouterr().err


def test_thread_that_cannot_be_started_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a thread a lock lapses; the next call of a lease starts the thread if it can."""
    start, refused = threading.Thread.start, [True]

    def refuse(thread: threading.Thread) -> None:
        if refused[0] and thread.name == "dlock-renewals":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    store = FaultyStore()
    with FakeClock() as clock, clock.client(store, lease_duration=9) as client:
        lease = client.acquire("k")
        assert "locks are not renewed: the process gets no more threads: can't start new thread" in caplog.text
        refused[0] = False
        lease.ensure()

        clock.advance(4)

        eventually(lambda: store.requests["replace"] == 1)


def test_handler_of_logging_that_blocks_delays_no_renewal_and_no_acquire() -> None:
    """Neither the mutex nor the thread that renews waits for a handler of the user."""
    entered, over = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            over.wait(PATIENCE_S)

    handler = Stuck(logging.WARNING)
    logger = logging.getLogger("dlock.engine")
    logger.addHandler(handler)
    try:
        store = FaultyStore()
        with FakeClock() as clock, clock.client(store, lease_duration=9) as client:
            lease = client.acquire("k")
            store.fail("replace", 1)
            clock.advance(3.5)
            assert entered.wait(PATIENCE_S)
            renewed = store.requests["replace"]
            clock.advance(1)
            eventually(lambda: store.requests["replace"] > renewed)
            another = client.acquire("another")
            assert another.is_valid
            assert lease.is_valid
            over.set()
    finally:
        over.set()
        logger.removeHandler(handler)


def test_callbacks_that_hang_keep_no_other_from_being_called() -> None:
    """However many hang, the next one waits for one of them, and for a moment only."""
    over, told = threading.Event(), threading.Event()
    with FakeClock() as clock, clock.client(lease_duration=9) as client:
        lease = client.acquire("k", auto_renew=False)
        for _ in range(30):
            lease.on_lost(lambda _: over.wait(PATIENCE_S))
        lease.on_lost(lambda _: told.set())

        clock.advance(10)

        assert told.wait(4)
        over.set()


class _Timed(FakeClock):
    """Remembers for how long it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        self.waits.append(seconds)
        super().wait(condition, seconds)

    def call_later(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Any) -> Any:
        self.waits.append(seconds)
        return super().call_later(loop, seconds, callback)


def test_thread_that_renews_looks_at_the_clock_each_second() -> None:
    """What waits stands still while the machine sleeps: after a resume a loss is known within a second."""
    with _Timed() as clock, clock.client(lease_duration=3600) as client:
        lease = client.acquire("k")
        lease.on_lost(print)
        eventually(lambda: bool(clock.waits))
        lease.release()

    assert max(clock.waits) <= 1


def test_timer_that_renews_looks_at_the_clock_each_second() -> None:
    """As with threads."""

    async def main(clock: _Timed) -> None:
        async with clock.aclient(lease_duration=3600) as client:
            lease = await client.acquire("k")
            await lease.release()

    with _Timed() as clock:
        asyncio.run(main(clock))

    assert clock.waits
    assert max(clock.waits) <= 1


@async_only
async def test_task_that_fails_inside_of_the_client_is_told_and_not_by_the_loop(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Our own mistake is logged by us; the loop's "exception was never retrieved" never appears."""

    async def broken() -> None:
        raise LookupError("our own mistake")

    async with world.client() as client:
        cast("AsyncRuntime", client._engine.runtime)._spawn(broken())
        await world.live(1)
        gc.collect()

    assert "a task of the client failed" in caplog.text
    assert "never retrieved" not in caplog.text


def test_call_that_fails_as_its_task_is_cancelled_is_not_told_by_the_loop() -> None:
    """The answer of a thread that comes together with the cancellation is taken note of."""
    complaints: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        store = MemoryStore()
        threaded = ThreadedStore(store)
        store.close()
        for turns in range(60):
            task = asyncio.ensure_future(threaded.read("k", timeout_s=5))
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            if turns % 2:
                threading.Event().wait(0.002)  # the loop is busy, and the answer comes meanwhile
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreUnavailableError):
                await task
            del task
        threaded.end_threads()
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())

    assert complaints == []
