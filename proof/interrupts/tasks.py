"""One trial of the asyncio colour, as :mod:`proof.interrupts.blocking` makes them: an operation in a task, and an act at one point of it.

The act may be an exception that leaves the event loop, as a signal handler's does in a loop that has no handler of its own; the loop
then goes on, as in a notebook. Time is virtual, and a server's answers take what they take.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

from dlock_core import AsyncLockStore, DLockError
from dlock_core.aio import AsyncLease, AsyncLockClient
from dlock_core.testing import FakeClock
from proof.interrupts.blocking import LEASE_S, Verdict
from proof.interrupts.points import Tracer
from proof.interrupts.stores import AT_ONCE, KEPT, PERMIT, READER, WRITER, afaulty, held_by, options_of, plain

__all__ = ["ACTS", "OPERATIONS", "OpenStore", "try_point"]

OpenStore: TypeAlias = Callable[[], Awaitable[AsyncLockStore]]
_STEPS = 8
_HANG_S = 5.0
# An answer that comes while an interrupt leaves the event loop is lost with it: its request waits for its time-out, and goes on.
_REQUEST_S = 2.0
_TURNS = 12
_GLANCES, _GLANCE_S = 1000, 0.0005


class _Scene:
    """Two clients of one store; the caller of one of them holds *leases*."""

    def __init__(self, key: str, operation: str) -> None:
        self.key = key
        self.options = options_of(operation)
        # A lock that a session keeps is given back a lease after the next beat, since it does not lapse by itself.
        self.steps = (2 if operation.startswith(KEPT) else 1) * _STEPS + 3
        self.clock = FakeClock()
        self.stores: list[AsyncLockStore] = []
        self.client: AsyncLockClient
        self.other: AsyncLockClient
        self.leases: list[AsyncLease] = []
        self.bystander: list[AsyncLease] = []
        self.task: asyncio.Task[None]
        self.tasks: list[asyncio.Task[None]] = []
        self.wrong: list[str] = []

    async def _client(self, open_store: OpenStore, operation: str) -> AsyncLockClient:
        self.stores.append(await open_store())
        return await self.clock.aclient(
            afaulty(self.stores[-1], operation), lease_duration=LEASE_S, request_timeout=_REQUEST_S
        )

    async def open(self, open_store: OpenStore, operation: str) -> None:
        """Open the clients, and acquire what the *operation* works on."""
        self.client, self.other = [await self._client(open_store, operation) for _ in range(2)]
        self.bystander.append(await self.client.acquire(f"{self.key}-bystander"))
        if plain(operation) not in ("acquire", "lock_all", AT_ONCE):
            self.leases.append(await self.client.acquire(self.key, **held_by(operation)))
        if operation in (f"{KEPT}release", f"{KEPT}close"):
            for _ in range(_STEPS - 2):
                await self.pass_time()  # a session is opened, and the lock is moved

    async def close(self) -> None:
        """Close the clients' stores, which they do not own."""
        for store in self.stores:
            await store.close()

    async def pass_time(self) -> None:
        """Let a part of a lease pass, with everything done in its time."""
        self.clock.advance(LEASE_S / _STEPS)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for _ in range(_GLANCES):
            if not any(_in_flight(lease) for lease in self.leases):
                return
            await asyncio.sleep(_GLANCE_S)  # a server has not answered yet

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do *work* in a task beside the operation."""
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def _in_flight(lease: AsyncLease) -> bool:
    """Whether a request for it, or for the session that keeps it, has no answer yet."""
    handle = lease._handle
    return any(getattr(each.state, "in_flight", None) is not None for each in (handle, handle.renewal))


async def _acquire(scene: _Scene) -> None:
    scene.leases.append(await scene.client.acquire(scene.key, timeout=0, **scene.options))


async def _lock_all(scene: _Scene) -> None:
    async with scene.client.lock_all([scene.key, f"{scene.key}-more"], timeout=0) as leases:
        scene.leases.append(leases[scene.key])


async def _renew(scene: _Scene) -> None:
    await scene.leases[0].renew()


async def _release(scene: _Scene) -> None:
    for lease in [*scene.leases, *scene.bystander]:
        await lease.release()


async def _downgrade(scene: _Scene) -> None:
    scene.leases.append(await scene.leases[0].downgrade())


async def _upgrade(scene: _Scene) -> None:
    scene.leases += filter(None, [await scene.leases[0].try_upgrade()])


async def _close(scene: _Scene) -> None:
    await scene.client.close()


async def _renewals(scene: _Scene) -> None:
    for _ in range(4):
        await scene.pass_time()


OPERATIONS: dict[str, Callable[[_Scene], Coroutine[Any, Any, None]]] = {
    "acquire": _acquire,
    "lock_all": _lock_all,
    AT_ONCE: _lock_all,
    "renew": _renew,
    "release": _release,
    "close": _close,
    "renewals": _renewals,
    f"{PERMIT}acquire": _acquire,
    f"{PERMIT}release": _release,
    f"{PERMIT}close": _close,
    f"{PERMIT}renewals": _renewals,
    f"{WRITER}downgrade": _downgrade,
    f"{READER}try_upgrade": _upgrade,
    f"{KEPT}release": _release,
    f"{KEPT}close": _close,
    f"{KEPT}renewals": _renewals,
}


def _interrupt(_: _Scene) -> None:
    raise KeyboardInterrupt


ACTS: dict[str, Callable[[_Scene], object]] = {
    "raise": _interrupt,
    "cancel": lambda scene: scene.task.cancel(),
    "task closes": lambda scene: scene.spawn(_quietly(_close(scene))),
    "task releases": lambda scene: scene.spawn(_quietly(_release(scene))),
    "finalizer": lambda scene: scene.bystander.clear(),
}


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(DLockError):
        await work


def try_point(open_store: OpenStore, key: str, operation: str, act: str, at: int) -> Verdict:
    """Have *act* done at point *at* of *operation* on *key*, and say what is wrong then; *at* 0 counts the points only.

    *open_store* opens a store for the running event loop, for each of two clients; they meet the same records.
    """
    with asyncio.Runner() as runner:
        loop, scene = runner.get_loop(), _Scene(key, operation)
        complaints: list[str] = []
        loop.set_exception_handler(lambda _, context: complaints.append(f"the loop complains: {context['message']}"))
        loop.run_until_complete(scene.open(open_store, operation))
        tracer = Tracer(lambda: ACTS[act](scene), at)
        scene.task = loop.create_task(_operate(scene, operation))
        with suppress(KeyboardInterrupt, asyncio.CancelledError):
            tracer.watch()
            try:
                loop.run_until_complete(scene.task)
            finally:
                tracer.end()
        loop.run_until_complete(_check(scene))
        loop.run_until_complete(scene.close())
        del scene.task
        gc.collect(0)
    return Verdict(tracer.count, tracer.where, [*scene.wrong, *complaints])


async def _operate(scene: _Scene, operation: str) -> None:
    try:
        async with asyncio.timeout(_HANG_S):
            await OPERATIONS[operation](scene)
    except TimeoutError:
        scene.wrong.append("hangs")
    except DLockError:
        pass
    except Exception as error:  # noqa: BLE001  # told as a finding
        scene.wrong.append(f"{operation} raised {error!r}")


async def _check(scene: _Scene) -> None:
    await asyncio.wait([scene.task, *scene.tasks], timeout=_HANG_S)
    if scene.task.done() and not scene.task.cancelled():
        scene.task.exception()
    try:
        async with asyncio.timeout(_HANG_S):
            await _check_key(scene)
            await scene.client.close()
            await _expect_free(scene, "after the last close", 1)
            await scene.other.close()
    except TimeoutError:
        scene.wrong.append("the client hangs afterwards")


async def _check_key(scene: _Scene) -> None:
    gc.collect(0)
    live = [lease for lease in scene.leases if not lease._closed and lease.is_valid]
    if not live:
        await _expect_free(scene, "though nobody has a lease", scene.steps)
        return
    for _ in range(_STEPS + 3):
        await scene.pass_time()
        taken = await scene.other.try_acquire(scene.key, **scene.options)
        if taken is not None:
            if live[0].is_valid or not scene.client._engine.closed:
                scene.wrong.append("another got the lock of a live lease")
            await taken.release()
            return
    await live[0].release()
    await _expect_free(scene, "after its release", 1)


async def _expect_free(scene: _Scene, when: str, steps: int) -> None:
    for _ in range(steps):
        taken = await scene.other.try_acquire(scene.key, **scene.options)
        if taken is not None:
            if any(lease.is_valid for lease in scene.leases):
                scene.wrong.append(f"two leases are valid {when}")
            await taken.release()
            return
        await scene.pass_time()
    scene.wrong.append(f"still held {when}")
