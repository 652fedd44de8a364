"""One scenario text for both colours.

A scenario is a coroutine that is given a :class:`World`. On the blocking colour it awaits blocking calls in the shape of the asyncio API,
so it never suspends and needs no event loop; on the asyncio colour it runs on a loop. Time stands still until the world lets it pass.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from dlock_core.client import Lease, LockClient
from dlock_core.client_once import Once
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.errors import StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.testing import AsyncFaultyStore, FakeClock, FaultyStore
from dlock_core.timings import NANOS, nanoseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from dlock_core import AsyncLockClient, AsyncLockStore, LockStore
    from dlock_core.engine.engine import Engine

__all__ = ["PATIENCE_S", "Spawned", "World", "async_only", "both_colours", "eventually", "run_scenario", "saying"]

PATIENCE_S = 20.0
"""How long a fact that has to come true may take on a busy machine; no test waits so long when all is well."""

_GLANCE_S = 0.0005
_TICKS_MAX = 500

_COROUTINES = frozenset(
    (
        *(
            "acquire",
            "try_acquire",
            "get",
            "break_lock",
            "break_session",
            "prune",
            "guarantees",
            "provision",
            "close",
            "ensure",
            "renew",
            "downgrade",
            "try_upgrade",
            "release",
        ),
        *("campaign", "try_campaign", "leader", "proclaim", "resign"),
    )
)


def eventually(fact: Callable[[], bool], what: str = "the fact") -> None:
    """Wait until *fact* is true, which other threads bring about."""
    until = time.monotonic() + PATIENCE_S
    glance = threading.Event()
    while not fact():
        assert time.monotonic() < until, f"{what} did not come true within {PATIENCE_S:g} s"
        glance.wait(_GLANCE_S)


def _in_flight(engine: Engine) -> set[str]:
    """Return the keys for which a request is under way."""
    handles = [*engine.driver.held.values(), *engine.driver.following]
    return {handle.key for handle in handles if getattr(handle.state, "in_flight", None) is not None}


def _due(engine: Engine) -> bool:
    first = engine.driver.timers.first()
    return first is not None and first.due <= engine.runtime.now()


class Spawned(Protocol):
    """A coroutine that runs beside the scenario."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        ...

    async def result(self) -> Any:
        """Wait for its end; return or raise what came of it."""
        ...


class World(Protocol):
    """Time, a memory space and clients on it, in one colour. *store* is the default store of the clients, and can be told to misbehave."""

    colour: str
    clock: FakeClock
    space: MemorySpace
    store: AsyncFaultyStore
    hung: dict[str, int]
    clients: list[Any]

    def another_store(self, inner: object = None) -> AsyncFaultyStore:
        """Return another store that can be told to misbehave: on the same space, or around *inner*."""
        ...

    def hooked_store(self, before: Callable[[str, Any], object], after: Callable[[str], object] | None = None) -> Any:
        """Return a store on the same space that calls *before* ahead of each verb, and *after* behind it; either may raise."""
        ...

    def hanging_store(self, *keys: str) -> Any:
        """Return a store on the same space whose renewals of *keys* are never sent, and take the whole of their time to fail."""
        ...

    def client(self, store: object = None, /, **options: Any) -> AsyncLockClient:
        """Return a client that lives by the world's clock, to be entered."""
        ...

    async def settle(self) -> None:
        """Let everything that is due now be done."""
        ...

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until *fact* is true."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any], *, parks: bool = True) -> Spawned:
        """Run *work* beside the scenario. It *parks* if all its waiting is for time: then it is part of what settles."""
        ...

    async def jump(self, seconds: float) -> None:
        """Let *seconds* pass at once, as if nothing had run meanwhile; then let what is due be done."""
        ...

    async def live(self, seconds: float, step: float = 0.25) -> None:
        """Let *seconds* pass in small steps, with everything done in its time."""
        ...


class _ParkingClock(FakeClock):
    """Knows which thread waits until when."""

    def __init__(self) -> None:
        super().__init__()
        self._parked: dict[int, tuple[int, threading.Condition]] = {}
        # Called ahead of each wait; what is true makes it return at once.
        self.on_wait: Callable[[float], object] = _nothing

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        if self.on_wait(seconds):
            return
        me = threading.get_ident()
        self._parked[me] = self.now() + nanoseconds(seconds), condition
        try:
            super().wait(condition, seconds)
        finally:
            del self._parked[me]

    def parks(self, thread: int | None) -> bool:
        """Whether the thread of this id waits for an instant that is yet to come; one that was notified will run."""
        due, condition = self._parked.get(thread or 0, (0, None))
        if condition is None or due <= self.now():
            return False
        here = sum(other is condition for _, other in list(self._parked.values()))
        return len(condition._waiters) >= here  # type: ignore[attr-defined]  # a notify takes one out at once


class _Base:
    def __init__(self) -> None:
        self.clock = _ParkingClock()
        self.space = MemorySpace()
        self.clients: list[Any] = []
        # Requests that hang at present, by key, and the thread that hangs with each.
        self.hung: dict[str, int] = {}

    async def jump(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    async def live(self, seconds: float, step: float = 0.25) -> None:
        while seconds > 1e-9:
            await self.jump(min(step, seconds))
            seconds -= step

    async def settle(self) -> None:
        raise NotImplementedError


class _BlockingWorld(_Base):
    colour = "sync"

    def __init__(self) -> None:
        super().__init__()
        self.store = self.another_store()
        self._spawned: list[_Thread] = []

    def another_store(self, inner: Any = None) -> FaultyStore:
        return FaultyStore(MemoryStore(self.space) if inner is None else inner)

    def hooked_store(
        self, before: Callable[[str, Any], object], after: Callable[[str], object] | None = None
    ) -> _Hooked:
        return _Hooked(MemoryStore(self.space), before, after)

    def hanging_store(self, *keys: str) -> _Hanging:
        return _Hanging(self, keys)

    def client(self, store: Any = None, /, **options: Any) -> Any:
        client = self.clock.client(cast("LockStore", self.store if store is None else store), **options)
        self.clients.append(client)
        return _Face(client)

    async def settle(self) -> None:
        self._spawned = [work for work in self._spawned if not work.done]
        eventually(self._rests, "rest")

    def _rests(self) -> bool:
        waiting = all(work.done or self.clock.parks(work.thread.ident) for work in self._spawned)
        return waiting and all(client._runtime._closed or self._at_rest(client) for client in self.clients)

    def _at_rest(self, client: LockClient) -> bool:
        """Whether the threads of *client* have done all that is due by the clock, but for what hangs; callbacks included."""
        runtime = client._runtime
        with runtime.mutex:
            hung = {key for key, thread in self.hung.items() if self.clock.parks(thread)}
            main = runtime._thread
            main_hangs = main is not None and main.ident in [self.hung[key] for key in hung]
            if client._engine.driver._untold or not (main is None or self.clock.parks(main.ident)):
                return False  # it tells what came of its last step
            if _due(client._engine) and not main_hangs:
                return False
            waiting = {handle.key for job in [*runtime._jobs, *runtime._waiting_jobs] for handle in job.handles}
            if runtime._jobs and not main_hangs:
                return False
            if _in_flight(client._engine) - hung - waiting or (runtime._helping and not hung):
                return False
        return runtime._callbacks.is_idle and runtime._messages.is_idle

    async def until(self, fact: Callable[[], bool]) -> None:
        eventually(fact)

    def spawn(self, work: Coroutine[Any, Any, Any], *, parks: bool = True) -> Spawned:
        spawned = _Thread(work)
        if parks:
            self._spawned.append(spawned)
        return spawned


class _AsyncWorld(_Base):
    colour = "async"

    def __init__(self) -> None:
        super().__init__()
        self.store = self.another_store()

    def another_store(self, inner: Any = None) -> AsyncFaultyStore:
        return AsyncFaultyStore(AsyncMemoryStore(self.space) if inner is None else inner)

    def hooked_store(
        self, before: Callable[[str, Any], object], after: Callable[[str], object] | None = None
    ) -> _AsyncHooked:
        return _AsyncHooked(AsyncMemoryStore(self.space), before, after)

    def hanging_store(self, *keys: str) -> _AsyncHanging:
        return _AsyncHanging(self, keys)

    def client(self, store: Any = None, /, **options: Any) -> Any:
        client = self.clock.aclient(cast("AsyncLockStore", self.store if store is None else store), **options)
        self.clients.append(client)
        return client

    async def settle(self) -> None:
        # A fact of this loop: what is due takes a few turns of it, and no time.
        for _ in range(4):
            await asyncio.sleep(0)
        for _ in range(_TICKS_MAX):
            if all(self._rests(client) for client in self.clients):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"no rest after {_TICKS_MAX} turns of the loop")

    def _rests(self, client: AsyncLockClient) -> bool:
        if client._opened is None or client._runtime._closed:
            return True
        tasks = len(client._runtime._tasks) - len(self.hung)
        return not _due(client._opened) and not _in_flight(client._opened) - set(self.hung) and tasks <= 0

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not fact():  # noqa: ASYNC110  # a fact of this loop, in some turns of it
                await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, Any], *, parks: bool = True) -> Spawned:
        return _Task(work)


class _Thread:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._outcome: deque[tuple[bool, Any]] = deque(maxlen=1)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append((True, run_blocking(self._work)))
        except BaseException as error:  # noqa: BLE001  # handed to whoever asks for the result
            self._outcome.append((False, error))

    @property
    def done(self) -> bool:
        return bool(self._outcome)

    async def result(self) -> Any:
        self.thread.join(PATIENCE_S)
        assert self._outcome, "the spawned work did not end"
        good, outcome = self._outcome[0]
        if not good:
            raise outcome
        return outcome


class _Task:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(work)

    @property
    def done(self) -> bool:
        return self._task.done()

    async def result(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self._task


# ---- stores that do something besides


def _nothing(*_: object) -> None:
    return None


class _Hooked:
    """A store without batches and notifications that calls *before* ahead of each verb, and *after* behind it."""

    capabilities: frozenset[Any] = frozenset()

    def __init__(
        self, inner: Any, before: Callable[[str, Any], object], after: Callable[[str], object] | None = None
    ) -> None:
        self._inner, self._before, self._after = inner, before, after or _nothing
        self.timeouts: list[tuple[str, float]] = []

    def _step(self, verb: str, request: Any, timeout_s: float) -> Any:
        self.timeouts.append((verb, timeout_s))
        self._before(verb, request)
        reply = getattr(self._inner, verb)(request, timeout_s=timeout_s)
        self._after(verb)
        return reply

    def claim(self, request: Any, *, timeout_s: float) -> Any:
        return self._step("claim", request, timeout_s)

    def replace(self, request: Any, *, timeout_s: float) -> Any:
        return self._step("replace", request, timeout_s)

    def release(self, request: Any, *, timeout_s: float) -> Any:
        return self._step("release", request, timeout_s)

    def read(self, key: str, *, timeout_s: float) -> Any:
        return self._step("read", key, timeout_s)

    def scan(self, prefix: str, *, timeout_s: float) -> Any:
        return self._inner.scan(prefix, timeout_s=timeout_s)

    def guarantees(self) -> Any:
        return self._inner.guarantees()

    def provision(self) -> Any:
        return self._inner.provision()

    def close(self) -> Any:
        return self._inner.close()


class _AsyncHooked(_Hooked):
    """Its twin; the hooks may return awaitables."""

    async def _astep(self, verb: str, request: Any, timeout_s: float) -> Any:
        self.timeouts.append((verb, timeout_s))
        await _maybe(self._before(verb, request))
        reply = await getattr(self._inner, verb)(request, timeout_s=timeout_s)
        await _maybe(self._after(verb))
        return reply

    async def claim(self, request: Any, *, timeout_s: float) -> Any:
        return await self._astep("claim", request, timeout_s)

    async def replace(self, request: Any, *, timeout_s: float) -> Any:
        return await self._astep("replace", request, timeout_s)

    async def release(self, request: Any, *, timeout_s: float) -> Any:
        return await self._astep("release", request, timeout_s)

    async def read(self, key: str, *, timeout_s: float) -> Any:
        return await self._astep("read", key, timeout_s)


async def _maybe(awaitable: object) -> None:
    if inspect.isawaitable(awaitable):
        await awaitable


class _Hanging(_Hooked):
    def __init__(self, world: _BlockingWorld, keys: tuple[str, ...]) -> None:
        super().__init__(MemoryStore(world.space), _nothing)
        self._world, self._keys = world, frozenset(keys)

    def replace(self, request: Any, *, timeout_s: float) -> Any:
        key = request.record.key
        if key not in self._keys:
            return super().replace(request, timeout_s=timeout_s)
        clock, over = self._world.clock, threading.Condition()
        until = clock.now() + nanoseconds(timeout_s)
        self._world.hung[key] = threading.get_ident()
        try:
            with over:
                while (left := until - clock.now()) > 0:
                    clock.wait(over, left / NANOS)
        finally:
            del self._world.hung[key]
        raise StoreUnavailableError(f"replace of {key!r} hung for {timeout_s:g} s", key=key)


class _AsyncHanging(_AsyncHooked):
    def __init__(self, world: _AsyncWorld, keys: tuple[str, ...]) -> None:
        super().__init__(AsyncMemoryStore(world.space), _nothing)
        self._world, self._keys = world, frozenset(keys)

    async def replace(self, request: Any, *, timeout_s: float) -> Any:
        key = request.record.key
        if key not in self._keys:
            return await super().replace(request, timeout_s=timeout_s)
        over = asyncio.Event()
        timer = self._world.clock.call_later(asyncio.get_running_loop(), timeout_s, over.set)
        self._world.hung[key] = 0
        try:
            await over.wait()
        finally:
            del self._world.hung[key]
            timer.cancel()
        raise StoreUnavailableError(f"replace of {key!r} hung for {timeout_s:g} s", key=key)


# ---- a blocking object in the shape of its asyncio twin


class _Face:
    """Forwards to a blocking client or lease; what is a coroutine in the twin is one here."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in _COROUTINES:
            return _as_coroutine(value)
        if name in ("lock", "lock_all", "once", "semaphore", "read_lock", "write_lock"):
            return lambda *args, **options: _ContextFace(value(*args, **options))
        if name == "election":
            return lambda *args, **options: _ElectionFace(value(*args, **options))
        if name == "scan":
            return functools.partial(_iterated, value)
        return value

    def __repr__(self) -> str:
        return repr(self._inner)

    async def __aenter__(self) -> Any:
        self._inner.__enter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


class _ElectionFace(_Face):
    """The body of a term is a coroutine function, as in the twin."""

    def observe(self, **options: Any) -> AsyncIterator[Any]:
        return _iterated(self._inner.observe, **options)

    async def run(self, body: Callable[[Any], Coroutine[Any, Any, Any]], **options: Any) -> None:
        def blocking_body(term: Any) -> None:
            run_blocking(body(_Face(term)))

        blocking_body.__qualname__ = getattr(body, "__qualname__", repr(body))
        self._inner.run(blocking_body, **options)


class _OnceFace(_Face):
    """The run of a job: its lease and the finish are as in the twin."""

    @property
    def lease(self) -> Any:
        return _faced(self._inner.lease)

    async def finish(self, *result: Any) -> None:
        self._inner.finish(*result)


class _ContextFace:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return _faced(self._inner.__enter__())

    async def __aexit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


def _faced(value: Any) -> Any:
    if isinstance(value, Lease):
        return _Face(value)
    if isinstance(value, Once):
        return _OnceFace(value)
    if isinstance(value, dict):
        return {key: _faced(item) for key, item in value.items()}
    return value


def _as_coroutine(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **options: Any) -> Any:
        return _faced(function(*args, **options))

    return call


async def _iterated(call: Callable[..., Any], *args: Any, **options: Any) -> AsyncIterator[Any]:
    for item in call(*args, **options):
        yield item


def raw(face: Any) -> Any:
    """Return the lease, client or run itself, where the scenario was handed its face."""
    return getattr(face, "_inner", face)


def saying(world: World, **changes: Any) -> Any:
    """Return another store of *world*, whose guarantees are changed so."""
    store: Any = world.another_store()
    given = store.guarantees

    def guarantees() -> Any:
        if world.colour == "sync":
            return replace(given(), **changes)

        async def ask() -> Any:
            return replace(await given(), **changes)

        return ask()

    store.guarantees = guarantees
    return store


# ---- running


def run_scenario(colour: str, scenario: Callable[..., Coroutine[Any, Any, None]], *args: Any, **values: Any) -> None:
    """Run *scenario* in one colour."""
    if colour == "sync":
        world = _BlockingWorld()
        try:
            run_blocking(scenario(world, *args, **values))
        finally:
            world.clock.advance(1e6)  # whatever still hangs in it ends
        return

    async def on_a_loop() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await scenario(_AsyncWorld(), *args, **values)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    asyncio.run(on_a_loop())


def both_colours(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of a scenario ``async def test_…(world, …)``; its other parameters are fixtures as ever."""
    return _as_test(scenario, ("sync", "async"))


def async_only(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario that only asyncio has."""
    return _as_test(scenario, ("async",))


def _as_test(scenario: Callable[..., Coroutine[Any, Any, None]], colours: tuple[str, ...]) -> Callable[..., None]:
    def test(colour: str, **values: Any) -> None:
        run_scenario(colour, scenario, **values)

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(test, name, getattr(scenario, name))
    parameters = list(inspect.signature(scenario).parameters.values())[1:]
    kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    first = inspect.Parameter("colour", inspect.Parameter.KEYWORD_ONLY)
    test.__signature__ = inspect.Signature([first, *kept])  # type: ignore[attr-defined]  # what pytest reads
    test.pytestmark = list(getattr(scenario, "pytestmark", []))  # type: ignore[attr-defined]  # marks set below the decorator
    marked: Callable[..., None] = pytest.mark.parametrize("colour", colours)(test)
    return marked
