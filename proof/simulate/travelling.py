"""A store that is some way off, for random users, and the event loop that lives by the clock of their world."""

from __future__ import annotations

import asyncio
import selectors
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.errors import OutcomeUnknownError
from dlock_core.store import Capability
from dlock_core.testing import AsyncFaultyStore
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from dlock_core.errors import StoreError
    from dlock_core.memory import AsyncMemoryStore
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Replace, Reply
    from dlock_core.testing import FakeClock

__all__ = ["AbleStore", "TravellingStore", "VirtualLoop"]

# The store itself has all the time it needs.
_LONG_S, _IDLE_S = 10.0, 0.05
_TURNS_MAX = 4
_WAYS_S = (0.02, 0.1, 0.3, 0.45, 0.7)


class TravellingStore(AsyncFaultyStore):
    """Requests and answers take some turns of the event loop, or time, and may come too late; who is cancelled may be so on each way."""

    store: AsyncMemoryStore

    def __init__(self, store: AsyncMemoryStore, chance: random.Random) -> None:
        super().__init__(store)
        self._chance = chance
        # How often a way is none at all, and how often it takes no time.
        self.ways = chance.choice([(1.0, 1.0), (0.5, 1.0), (0.5, 0.97), (0.0, 0.9)])

    async def _do(self, verb: str, call: Callable[..., Awaitable[Any]], request: Any, timeout_s: float) -> Any:
        return await self._carry(partial(super()._do, verb, call, request, _LONG_S), timeout_s)

    async def _carry(self, work: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                await self._travel()
                answer = await work()
                await self._travel()
                return answer
        except TimeoutError as error:
            raise OutcomeUnknownError("no answer came in time") from error

    async def _travel(self) -> None:
        kind = self._chance.random()
        if kind >= self.ways[1]:
            await asyncio.sleep(self._chance.choice(_WAYS_S))
        elif kind >= self.ways[0]:
            for _ in range(self._chance.randrange(1, _TURNS_MAX)):
                await asyncio.sleep(0)


class AbleStore(TravellingStore):
    """A store with all capabilities but the removal of records."""

    capabilities = frozenset(Capability) - {Capability.PRUNE}
    batch_limit = 3

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Renew many."""
        answers: Sequence[Reply | StoreError] = await self._carry(
            partial(self.store.replace_many, requests, timeout_s=_LONG_S), timeout_s
        )
        return answers

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Claim all or none."""
        replies: Sequence[Reply] = await self._carry(
            partial(self.store.claim_many, requests, timeout_s=_LONG_S), timeout_s
        )
        return replies

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Read with the age."""
        found: tuple[LockRecord, int] | None = await self._carry(
            partial(self.store.read_age, key, timeout_s=_LONG_S), timeout_s
        )
        return found

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait for a release."""
        await self._travel()
        await self.store.wait(record, ticket=ticket, timeout_s=timeout_s)

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim when the key is free."""
        work = partial(self.store.claim_when_free, request, wait_s=wait_s, timeout_s=_LONG_S)
        reply: Reply = await self._carry(work, wait_s + timeout_s)
        return reply


class _Selector(selectors.DefaultSelector):
    """Time goes on where nothing else is to be done."""

    clock: FakeClock

    def select(self, timeout: float | None = None) -> Any:
        if timeout != 0:
            self.clock.advance(_IDLE_S)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of *clock*."""

    def __init__(self, clock: FakeClock) -> None:
        self._virtual = clock
        selector = _Selector()
        selector.clock = clock
        super().__init__(selector)

    def time(self) -> float:
        """Return the time in seconds."""
        return self._virtual.now() / NANOS
