"""Which handle wants the protocol's attention, and when: a heap, earliest first, whose stale entries are skipped."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from dlock_core.engine.handle import Handle

_SLACK = 64


class TimerQueue:
    """An entry counts while its handle still is due at that instant. All calls are made under the engine's mutex.

    A signal handler of the same thread may put handles in the middle of any call: nothing is replaced that has grown meanwhile.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Handle]] = []
        self._order = itertools.count()
        self.live = 0
        self._puts = 0

    def put(self, handle: Handle, due: int) -> None:
        """Make *handle* due at *due*, and at no other instant; NEVER takes it off."""
        if due == handle.due:
            return
        before = handle.due
        try:
            handle.due = due
            if due != NEVER:
                self._puts += 1
                heapq.heappush(self._heap, (due, next(self._order), handle))
        except BaseException:
            handle.due = before  # a signal that raises came before the entry: who repeats the step puts it
            raise
        self.live += (due != NEVER) - (before != NEVER)
        if len(self._heap) > 2 * self.live + _SLACK:
            puts = self._puts
            kept = [entry for entry in self._heap if entry[2].due == entry[0]]
            heapq.heapify(kept)
            if self._puts == puts:
                self._heap = kept

    def first(self) -> Handle | None:
        """Return the handle that is due first."""
        heap = self._heap
        while heap:
            due, _, handle = heap[0]
            if handle.due == due:
                return handle
            heapq.heappop(heap)
        return None
