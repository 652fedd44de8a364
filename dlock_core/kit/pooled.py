"""The link of a store whose requests each have a connection for themselves, to one server.

Some connections are for renewals and releases alone, so nothing that waits can starve a lock that is held. One is made on a thread of a
lane, since the search for a server's name has no bound; where it comes too late for its request, it is for the next one.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit.forks import BeginsAnew, watch_forks
from dlock_core.kit.lane import Lane
from dlock_core.kit.seats import AsyncPool, AsyncSeats, Pool, Seats, Shelf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AsyncPooledLink", "PooledConnection", "PooledLink", "opener"]

# A connection is made in this time, whether or not somebody still waits for it.
_CONNECT_S = 5.0
_T = TypeVar("_T")
_Openers: TypeAlias = "tuple[Callable[[float], Any], Callable[[Exception], StoreError]]"


class PooledConnection(Protocol):
    """An open connection. It belongs to one request at a time."""

    @property
    def fit(self) -> bool:
        """Whether the last request came to its end, so that another one may be sent."""
        ...

    def is_alive(self) -> bool:
        """Whether it is fit, and the server has said nothing since: neither a good-bye nor its end."""
        ...

    def close(self) -> None:
        """Close it, whatever is under way."""
        ...

    def send(self, request: Any, deadline: float) -> Any:
        """Send *request* once; return the answer by *deadline*, on the monotonic clock, or raise the driver's error.

        For tasks, what this returns is awaited.
        """
        ...


def opener(
    connect: Callable[[float], _T], unconnected: Callable[[Exception], StoreError], width: int
) -> Callable[[Callable[[_T], object], float], _T]:
    """Return what makes connections, up to *width* at once: called with what to do with one that comes too late, and the deadline."""
    lane = Lane(width)

    def opened(late: Callable[[_T], object], deadline: float) -> _T:
        patient = max(deadline, time.monotonic() + _CONNECT_S)
        try:
            made: _T = lane.run(partial(connect, patient), deadline - time.monotonic(), late)
        except StoreError:
            raise
        except Exception as error:  # a server of another kind may have a driver raise anything; no request was sent
            raise unconnected(error) from error
        return made

    return opened


def _shelf() -> Shelf[Any]:
    return Shelf(lambda connection: connection.is_alive(), lambda connection: connection.close())


def _crowded() -> StoreUnavailableError:
    return StoreUnavailableError(
        "other requests of this client had all connections all the time; nothing was sent, nothing was written"
    )


class _Pool(Pool[Any]):
    def __init__(self, size: int, openers: _Openers, reserve: _Pool | None = None) -> None:
        super().__init__(Seats(size), _shelf(), reserve)
        self._connect = partial(opener(*openers, size), self.shelf.keep_one)

    def send(self, request: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        seat = self.seats.take(timeout_s)
        if seat is None:
            raise _crowded()
        connection: PooledConnection | None = None
        try:
            connection = self.shelf.take() or self.opened(partial(self._connect, deadline))
            return connection.send(request, deadline)
        finally:
            if connection is not None:
                self.shelf.put(connection) if connection.fit else connection.close()
            self.seats.leave(seat)


class _AsyncPool(AsyncPool[Any]):
    def __init__(self, size: int, openers: _Openers, reserve: _AsyncPool | None = None) -> None:
        super().__init__(AsyncSeats(size), _shelf(), reserve)
        self._connect = partial(opener(*openers, size), self.shelf.keep_one)

    async def send(self, request: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        if not await self.seats.take(timeout_s):
            raise _crowded()
        connection: PooledConnection | None = None
        try:
            connection = self.shelf.take() or await self.opened(partial(asyncio.to_thread, self._connect, deadline))
            return await connection.send(request, deadline)
        finally:
            if connection is not None:
                self.shelf.put(connection) if connection.fit else connection.close()
            self.seats.leave()


class _Link(BeginsAnew):
    """What both colours share: up to *most* connections at once, and *urgent* more for requests that are ``urgent``.

    *connect* is called with a deadline on the monotonic clock; of what it raises *unconnected* makes the error of dlock.
    """

    watch: Any = None
    _pool: Any

    def __init__(
        self,
        connect: Callable[[float], PooledConnection],
        unconnected: Callable[[Exception], StoreError],
        *,
        most: int,
        urgent: int,
    ) -> None:
        self._openers, self._sizes = (connect, unconnected), (most, urgent)
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without connections: two processes must not speak on one."""
        most, urgent = self._sizes
        for_urgent = self._pool(urgent, self._openers)
        self.pools = (self._pool(most, self._openers, for_urgent), for_urgent)


class PooledLink(_Link):
    """For threads. A store that is told of releases has its :class:`Watch` closed with it."""

    _pool = _Pool

    def send(self, request: Any, timeout_s: float) -> Any:
        """Send *request* once, on a connection of its own."""
        return self.pools[request.urgent].send(request, timeout_s)

    def close(self) -> None:
        """Close the connections; those of requests under way are closed at their ends."""
        if self.watch is not None:
            self.watch.close()
        for pool in self.pools:
            pool.close()


class AsyncPooledLink(_Link):
    """As :class:`PooledLink`, for the tasks of one event loop."""

    _pool = _AsyncPool

    async def send(self, request: Any, timeout_s: float) -> Any:
        """As :meth:`PooledLink.send`."""
        return await self.pools[request.urgent].send(request, timeout_s)

    async def close(self) -> None:
        """As :meth:`PooledLink.close`."""
        if self.watch is not None:
            await self.watch.close()
        for pool in self.pools:
            pool.close()
