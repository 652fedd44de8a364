"""Seats bound how many requests are under way at once, and a shelf keeps the connections that no request uses.

Neither has a mutex: a signal handler may use them while its thread is anywhere inside.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from dlock_core.store import Connections

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Self

__all__ = ["AsyncPool", "AsyncSeats", "Pool", "Seat", "Seats", "Shelf"]

_T = TypeVar("_T")
_SeatsT = TypeVar("_SeatsT", "Seats", "AsyncSeats")


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


class AsyncSeats:
    """*count* seats for the requests of the tasks of one event loop."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Semaphore(count)
        self.taken = 0

    async def take(self, timeout_s: float) -> bool:
        """Take a seat; False if none was free within *timeout_s*."""
        if self._free.locked():
            if timeout_s <= 0:
                return False
            try:
                async with asyncio.timeout(timeout_s):
                    await self._free.acquire()
            except TimeoutError:
                return False
        else:
            await self._free.acquire()
        self.taken += 1
        return True

    def leave(self) -> None:
        """Give the seat back."""
        self.taken -= 1
        self._free.release()


class Shelf(Generic[_T]):
    """The connections that no request uses. One that comes back after :meth:`close` is closed."""

    def __init__(self, is_usable: Callable[[_T], object], close: Callable[[_T], object]) -> None:
        self._is_usable, self._close = is_usable, close
        self._open = True
        self._connections: list[_T] = []

    def __len__(self) -> int:
        """How many connections are here."""
        return len(self._connections)

    def take(self) -> _T | None:
        """Return a usable connection, or None."""
        while True:
            try:
                connection = self._connections.pop()
            except IndexError:
                return None
            if self._is_usable(connection):
                return connection
            self._close(connection)

    def put(self, connection: _T) -> None:
        """Keep *connection*."""
        self._connections.append(connection)
        if not self._open:
            self.close()  # another thread may have closed the shelf just before the line above

    def keep_one(self, connection: _T) -> None:
        """Keep *connection* if there is no other, as one that was made too late for its request: else close it.

        A server that is slow would otherwise be asked for connections only, and none ever be used.
        """
        if self:
            self._close(connection)
        else:
            self.put(connection)

    def close(self) -> None:
        """Close the connections that are here, and each other one when it comes back."""
        self._open = False
        while self._connections:
            try:
                self._close(self._connections.pop())
            except IndexError:  # another thread took it
                return


class _Reserving(Generic[_SeatsT, _T]):
    _seats_class: type[_SeatsT]

    def __init__(self, size: int, shelf: Shelf[_T], reserve: Self | None = None) -> None:
        self.seats: _SeatsT = self._seats_class(size)
        self.shelf: Shelf[_T] = shelf
        self._reserve = reserve
        self._fills_reserve = False
        self._shelves = [shelf]
        if reserve is not None:
            reserve._shelves.append(shelf)
        self.close = shelf.close

    @property
    def connections(self) -> Connections:
        """Count them."""
        return Connections(self.seats.taken, len(self.shelf), self.seats.count)

    def idle(self) -> tuple[_T | None, Shelf[_T]]:
        """Return a connection that no request uses, if there is one, and the shelf to which it goes back.

        A reserve has those of its pools as well: a server that grants no more connections ends no lock while one of them is idle.
        """
        for shelf in self._shelves:
            if (connection := shelf.take()) is not None:
                return connection, shelf
        return None, self.shelf

    @contextmanager
    def _filling(self) -> Iterator[Shelf[_T] | None]:
        """Give where a connection has to be put before one more is opened here, or None; one request at a time does so."""
        reserve = self._reserve
        if reserve is None or self._fills_reserve or self.seats.taken <= 1 or reserve.shelf or reserve.seats.taken:
            yield None
            return
        self._fills_reserve = True
        try:
            yield reserve.shelf
        finally:
            self._fills_reserve = False


class Pool(_Reserving[Seats, _T]):
    """The connections of one server for the requests of threads: *size* at once, at most.

    Where requests are under way at once, each further connection comes after the first one of *reserve*: so no request takes the last
    descriptor, or the last connection that the server grants, from a renewal.
    """

    _seats_class = Seats

    def opened(self, connect: Callable[[], _T]) -> _T:
        """Return a new connection."""
        with self._filling() as empty:
            if empty is not None:
                empty.keep_one(connect())
        return connect()


class AsyncPool(_Reserving[AsyncSeats, _T]):
    """As :class:`Pool`, for the tasks of one event loop."""

    _seats_class = AsyncSeats

    async def opened(self, connect: Callable[[], Awaitable[_T]]) -> _T:
        """As :meth:`Pool.opened`."""
        with self._filling() as empty:
            if empty is not None:
                empty.keep_one(await connect())
        return await connect()
