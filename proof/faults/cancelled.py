"""A party whose tasks are cancelled at any await: each turn at a random one of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from dlock_core import aconnect
from dlock_core.errors import DLockError, LockLostError
from proof.faults.party import now, opened, told, use

if TYPE_CHECKING:
    from dlock_core import AsyncLockClient
    from proof.faults.book_line import Line
    from proof.faults.party import Scene

__all__ = ["Interrupted", "Point", "cancelled"]

_POINTS = 12
_LATE_S = 0.002
_STALE = 0.5  # leases after which work that was cancelled still writes: the control


class Point:
    """Where a turn is cancelled: at its await number *at*, or at one after :meth:`reached` was told."""

    def __init__(self) -> None:
        self.awaits = 0
        self.at = random.choice((random.randint(1, _POINTS), 0))

    def reached(self) -> None:
        """The lock was got; if the turn was not to be cancelled before, it is cancelled from here on."""
        self.at = self.at or self.awaits + random.randint(1, _POINTS)


class Interrupted(Coroutine[Any, Any, Any]):
    """A coroutine whose task is cancelled at a *point*: at once, or a moment later, when the answer may be there."""

    def __init__(self, inner: Coroutine[Any, Any, Any], point: Point) -> None:
        self._inner, self._point = inner, point

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._counted(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        """Go on with an exception."""
        return self._counted(self._inner.throw(*error))

    def close(self) -> None:
        """End it."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def _counted(self, awaited: Any) -> Any:
        self._point.awaits += 1
        task = asyncio.current_task()
        if self._point.awaits == self._point.at and task is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(random.choice((0, random.random() * _LATE_S)), task.cancel)
        return awaited


async def cancelled(scene: Scene) -> None:
    """Work on all keys, and cancel."""
    async with aconnect(scene.order.url, **opened(scene.order)) as client, asyncio.TaskGroup() as tasks:
        scene.client = client
        for key in scene.order.keys:
            tasks.create_task(_key(scene, key, client))


async def _key(scene: Scene, key: str, client: AsyncLockClient) -> None:
    line = scene.line()
    while True:
        point = Point()
        turn: Any = Interrupted(_turn(scene, key, client, line, point), point)
        try:
            await asyncio.create_task(turn)
        except asyncio.CancelledError:
            line.tell("cancel", key, now())


async def _turn(scene: Scene, key: str, client: AsyncLockClient, line: Line, point: Point) -> None:
    line.tell("wait", key, now())
    try:
        async with client.lock(key, timeout=20) as lease:
            point.reached()
            token = lease.fencing_token
            line.ask("grant", key, token, now())
            why = "released"
            try:
                await use(scene, key, lease, line)
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_later(_STALE * scene.order.lease_s, line.tell, "naive", key, token)
                raise
            except LockLostError:
                why = "lost"
                scene.later(line, key, token)
                raise
            finally:
                line.tell("end", key, token, why, now())
    except LockLostError:
        return
    except DLockError as error:
        told(line, error)
        await asyncio.sleep(scene.computes_s())
