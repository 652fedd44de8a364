"""The common part of the worlds of elections and of jobs: virtual time, the clients that live by it, and the first broken rule."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlock_core.memory import MemorySpace
from dlock_core.testing import FakeClock
from proof.jobs.chances import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dlock_core import AsyncLockClient
    from dlock_core.testing import AsyncFaultyStore
    from proof.jobs.chances import Chances

__all__ = ["KEY", "World", "play"]

KEY = "k"
_TURNS = 12
_ENDING_STEPS = 200


class World:
    """Time, one space of a memory store, and clients on it. A world overrides :meth:`play`."""

    def __init__(self, chances: Chances, lease_s: float) -> None:
        self.chances = chances
        self.lease_s = lease_s
        self.clock = FakeClock()
        self.space = MemorySpace(self.clock.now)
        self.counts: Counter[str] = Counter()
        self.violation: str | None = None
        self.clients: list[AsyncLockClient] = []

    async def play(self) -> None:
        """Let the world live until it has ended."""
        raise NotImplementedError

    def violate(self, what: str) -> None:
        """Take note of a rule that was broken; the first one counts."""
        self.violation = self.violation or what

    def client(self, store: AsyncFaultyStore, owner: str) -> AsyncLockClient:
        """Return a client of this world, to be entered."""
        client = self.clock.aclient(store, lease_duration=self.lease_s, owner=owner)
        self.clients.append(client)
        return client

    async def sleep(self, seconds: float) -> None:
        """Wait, by the clock of the world."""
        over = asyncio.Event()
        timer = self.clock.call_later(asyncio.get_running_loop(), seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass at once, and what is due then be done."""
        self.clock.advance(seconds)
        await self.turn()

    async def turn(self) -> None:
        """Let everything be done that needs no time."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def find_errors(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Count an error that ended one of *tasks* as a violation."""
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.violate(f"{type(error).__name__}: {error}")

    async def end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """End everything; nothing is checked any more."""
        for task in tasks:
            task.cancel()
        for _ in range(_ENDING_STEPS):
            if all(task.done() for task in tasks):
                return
            await self.pass_time(self.lease_s)
        raise AssertionError("the world does not end")


def play(world: World) -> Outcome:
    """Play *world* to its end."""
    with _same_jitter():
        asyncio.run(world.play())
    return Outcome(world.violation, world.counts)


@contextmanager
def _same_jitter() -> Iterator[None]:
    """Have the clients spread their polls in each world alike, or no schedule could be played twice."""
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)
