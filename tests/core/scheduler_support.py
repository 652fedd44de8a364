"""What the tests of renewals share: stores that renew in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.memory import AsyncMemoryStore, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.core.worlds import World


class Batches(MemoryStore):
    """Notes the size and the time-out of each batch; *answer* may put something else in place of the results, or raise."""

    def __init__(self, *args: Any, answer: Callable[[Sequence[Any]], Any] | None = None) -> None:
        super().__init__(*args)
        self.sizes: list[int] = []
        self.timeouts: list[float] = []
        self.answer = answer

    def replace_many(self, requests: Sequence[Any], *, timeout_s: float) -> Any:
        """Do each replace."""
        self.sizes.append(len(requests))
        self.timeouts.append(timeout_s)
        results = super().replace_many(requests, timeout_s=timeout_s)
        return results if self.answer is None else self.answer(results)


class AsyncBatches(AsyncMemoryStore):
    """Its twin."""

    def __init__(self, *args: Any, answer: Callable[[Sequence[Any]], Any] | None = None) -> None:
        super().__init__(*args)
        self.sizes: list[int] = []
        self.timeouts: list[float] = []
        self.answer = answer

    async def replace_many(self, requests: Sequence[Any], *, timeout_s: float) -> Any:
        """Do each replace."""
        self.sizes.append(len(requests))
        self.timeouts.append(timeout_s)
        results = await super().replace_many(requests, timeout_s=timeout_s)
        return results if self.answer is None else self.answer(results)


def batches(world: World, answer: Callable[[Sequence[Any]], Any] | None = None) -> Any:
    """Return a store that can renew in batches, in the world's colour."""
    return (Batches if world.colour == "sync" else AsyncBatches)(world.space, answer=answer)
