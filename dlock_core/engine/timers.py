"""Which handle wants the protocol's attention, and when: a heap, earliest first, whose stale entries are skipped."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from dlock_core.engine.handle import Handle

__all__ = ["TimerQueue"]

_SLACK = 64


class TimerQueue:
    """An entry counts while its handle still is due at that instant. All calls are made under the engine's mutex."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Handle]] = []
        self._order = itertools.count()
        self.live = 0

    def put(self, handle: Handle, due: int) -> None:
        """Make *handle* due at *due*, and at no other instant; NEVER takes it off."""
        if due == handle.due:
            return
        self.live += (due != NEVER) - (handle.due != NEVER)
        handle.due = due
        if due != NEVER:
            heapq.heappush(self._heap, (due, next(self._order), handle))
        if len(self._heap) > 2 * self.live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
            heapq.heapify(self._heap)

    def first(self) -> Handle | None:
        """Return the handle that is due first."""
        heap = self._heap
        while heap:
            due, _, handle = heap[0]
            if handle.due == due:
                return handle
            heapq.heappop(heap)
        return None

    def pop(self) -> None:
        """Take the first handle off."""
        handle = heapq.heappop(self._heap)[2]
        handle.due = NEVER
        self.live -= 1
