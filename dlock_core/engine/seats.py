"""Seats bound how many do something at once. They have no mutex: a signal handler may use them while its thread is anywhere inside."""

from __future__ import annotations

import weakref
from queue import Empty, SimpleQueue


class Seat:
    """The right of one request to be under way. Where an interrupt drops the object, the seat is free again."""

    def __init__(self, free: SimpleQueue[Seat]) -> None:
        self._free = weakref.ref(free)

    def __del__(self) -> None:
        """Put a new seat in the place of this one."""
        free = self._free()
        if free is not None:
            free.put(Seat(free))


class Seats:
    """*count* seats for the requests of threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: SimpleQueue[Seat] = SimpleQueue()
        for _ in range(count):
            self._free.put(Seat(self._free))

    @property
    def taken(self) -> int:
        """How many seats are taken."""
        return self.count - self._free.qsize()

    def take(self, timeout_s: float) -> Seat | None:
        """Return a seat, or None if none was free within *timeout_s*."""
        try:
            return self._free.get(timeout=max(timeout_s, 0))
        except Empty:
            return None

    def leave(self, seat: Seat) -> None:
        """Give *seat* back."""
        self._free.put(seat)
