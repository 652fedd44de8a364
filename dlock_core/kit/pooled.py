"""The link of a store whose requests each have a connection for themselves, to one server.

Some connections are for renewals and releases alone, so nothing that waits can starve a lock that is held. One is made on a thread of a
lane, since the search for a server's name has no bound; where it comes too late for its request, it is for the next one.

Where a request gets no answer in time, its server or the way there may be gone without a word, and all idle connections with it. Where a
server says that it takes no writes any more, another one may be the primary now. In both cases the next request opens a new connection, and
takes an idle one only where it gets none: else each of them would cost one request its time.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from dlock_core.engine.seats import Seats
from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit.exchange import aperform, perform
from dlock_core.kit.forks import BeginsAnew, watch_forks
from dlock_core.kit.lane import AsyncLane, Lane, in_own_thread
from dlock_core.kit.seats import AsyncSeats, Shelf
from dlock_core.store import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Generator, Iterator

_T = TypeVar("_T")
_SeatsT = TypeVar("_SeatsT", Seats, AsyncSeats)

# A connection is made in this time, whether or not somebody still waits for it.
_CONNECT_S = 5.0


class PooledConnection(Protocol):
    """An open connection. It belongs to one request at a time.

    One that has a true attribute ``demoted`` is to a server that has said that it takes no writes; it is then unfit for another request.
    """

    @property
    def fit(self) -> bool:
        """Whether the last request came to its end, so that another one may be sent."""

    def is_alive(self) -> bool:
        """Whether it is fit, and the server has said nothing since: neither a good-bye nor its end."""

    def close(self) -> None:
        """Close it, whatever is under way."""

    def disown(self) -> None:
        """In a forked child: give back the descriptor, unless it is closed, and say nothing to the server, with which the parent speaks."""

    def send(self, request: Any, deadline: float) -> Any:
        """Send *request* once; return the answer by *deadline*, on the monotonic clock, or raise the driver's error.

        For tasks, what this returns is awaited.
        """


def on_lane(
    lane: Lane, connect: Callable[[float, float], Any], unconnected: Callable[[Exception], Exception]
) -> Callable[[Shelf, float], Any]:
    """Return what makes a connection by a deadline, by calls of *connect* on the *lane*.

    *connect* is called with that deadline, and with a later one: a connection that comes in between is put on the shelf, if it is empty. It
    raises StoreErrors; where the time is over, the error is that of *unconnected*.
    """

    def connected(shelf: Shelf, deadline: float) -> Any:
        try:  # what else comes out here is of a signal handler
            return lane.run(_patient(connect, deadline), deadline - time.monotonic(), shelf.keep_one)
        except TimeoutError as error:
            raise unconnected(error) from error

    return connected


def on_async_lane(
    lane: AsyncLane,
    connect: Callable[[float, float], Coroutine[Any, Any, Any]],
    unconnected: Callable[[Exception], Exception],
) -> Callable[[Shelf, float], Any]:
    """As :func:`on_lane`; what *connect* and the connections return is awaited."""

    async def connected(shelf: Shelf, deadline: float) -> Any:
        try:
            return await lane.run(_patient(connect, deadline), deadline - time.monotonic(), shelf.keep_one)
        except TimeoutError as error:
            raise unconnected(error) from error

    return connected


def _patient(connect: Callable[[float, float], _T], deadline: float) -> Callable[[], _T]:
    return partial(connect, deadline, max(deadline, time.monotonic() + _CONNECT_S))


def _crowded() -> StoreUnavailableError:
    return StoreUnavailableError(
        "other requests of this client had all connections all the time; nothing was sent, nothing was written"
    )


class _Pool(Generic[_SeatsT]):
    """Up to *size* connections at once, which *connect* makes: called with the shelf of the pool, and a deadline on the monotonic clock.

    Where requests are under way at once, each further connection comes after the first one of *reserve*: so no request takes the last
    descriptor, or the last connection that the server grants, from a renewal.
    """

    _seats_class: type[_SeatsT]

    def __init__(self, size: int, connect: Callable[[Shelf, float], Any], reserve: Self | None = None) -> None:
        self.seats: _SeatsT = self._seats_class(size)
        self.shelf = Shelf()
        self.lent: set[PooledConnection] = set()
        self.close = self.shelf.close
        self._connect, self._reserve = connect, reserve
        self._fills_reserve = False
        self._shelves = self._all_shelves = [self.shelf]
        if reserve is not None:
            reserve._shelves.append(self.shelf)
            self._all_shelves = reserve._shelves

    @property
    def connections(self) -> Connections:
        """Count them."""
        return Connections(self.seats.taken, len(self.shelf), self.seats.count)

    def _idle(self, *, doubted: bool = False) -> tuple[PooledConnection | None, Shelf]:
        """Return a connection that no request uses, if there is one, and the shelf to which it goes back; with *doubted* a last resort.

        A reserve has those of its pools as well: a server that grants no more connections ends no lock while one of them is idle.
        """
        for shelf in self._shelves:
            if (connection := shelf.take(doubted=doubted)) is not None:
                return connection, shelf
        return None, self.shelf

    def _opening(self, deadline: float) -> Generator[Any, Any, tuple[PooledConnection, Shelf]]:
        """Return a new connection, or else one that may be dead, and the shelf to which it goes back; as steps."""
        # One that may be dead is left half of the time.
        until = (time.monotonic() + deadline) / 2 if any(shelf.doubted for shelf in self._shelves) else deadline
        try:
            with self._filling() as empty:
                if empty is not None:
                    empty.keep_one((yield self._connect(self.shelf, until)))
            connection = yield self._connect(self.shelf, until)
        except Exception:
            resort, shelf = self._idle(doubted=True)
            if resort is None:
                raise
            return resort, shelf
        for shelf in self._all_shelves:
            shelf.drop_doubted()
        return connection, self.shelf

    def _doubt_after(self, error: Exception, connection: PooledConnection | None) -> None:
        """Where a request on *connection* got no answer in time, or met a server that takes no writes, doubt all that are idle now."""
        if connection is None:
            return
        if getattr(connection, "demoted", False) or any(
            isinstance(each, TimeoutError) for each in (error, error.__context__)
        ):
            for shelf in self._all_shelves:
                shelf.doubt()

    @contextmanager
    def _filling(self) -> Iterator[Shelf | None]:
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

    def _take_back(self, connection: PooledConnection | None, shelf: Shelf) -> None:
        if connection is not None:
            self.lent.discard(connection)
            shelf.put(connection) if connection.fit else connection.close()


class Pool(_Pool[Seats]):
    """The connections of one server for the requests of threads."""

    _seats_class = Seats

    def send(self, request: Any, timeout_s: float, *, waits: bool = True) -> Any:
        """Send *request* once, on a connection of its own; unless it *waits* for one, only if one is free now."""
        deadline = time.monotonic() + timeout_s
        seat = self.seats.take(timeout_s if waits else 0)
        if seat is None:
            raise _crowded()
        connection, shelf = None, self.shelf
        try:
            connection, shelf = self._idle()
            if connection is None:
                connection, shelf = self._opened(deadline)
            self.lent.add(connection)
            return connection.send(request, deadline)
        except Exception as error:
            self._doubt_after(error, connection)
            raise
        finally:
            self._take_back(connection, shelf)
            self.seats.leave(seat)

    def _opened(self, deadline: float) -> tuple[PooledConnection, Shelf]:
        return perform(self._opening(deadline))


class AsyncPool(_Pool[AsyncSeats]):
    """As :class:`Pool`, for the tasks of one event loop; what *connect* returns is awaited."""

    _seats_class = AsyncSeats

    async def send(self, request: Any, timeout_s: float, *, waits: bool = True) -> Any:
        """As :meth:`Pool.send`."""
        deadline = time.monotonic() + timeout_s
        if not await self.seats.take(timeout_s if waits else 0):
            raise _crowded()
        connection, shelf = None, self.shelf
        try:
            connection, shelf = self._idle()
            if connection is None:
                connection, shelf = await self._opened(deadline)
            self.lent.add(connection)
            return await connection.send(request, deadline)
        except Exception as error:
            self._doubt_after(error, connection)
            raise
        finally:
            self._take_back(connection, shelf)
            self.seats.leave()

    async def _opened(self, deadline: float) -> tuple[PooledConnection, Shelf]:
        return await aperform(self._opening(deadline))


class _Link(BeginsAnew):
    """What both colours share: up to *most* connections at once, and *urgent* more for requests that are ``urgent``.

    *connect* is called with a deadline on the monotonic clock; of what it raises *unconnected* makes the error that a request ends with.
    """

    watch: Any = None
    pools: tuple[Any, ...] = ()
    _pool: Callable[..., Any]
    _made: Collection[PooledConnection] = ()

    def __init__(
        self,
        connect: Callable[[float], PooledConnection],
        unconnected: Callable[[Exception], Exception],
        *,
        most: int,
        urgent: int,
    ) -> None:
        self._connecting, self._sizes = (connect, unconnected), (most, urgent)
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without connections: two processes must not speak on one."""
        for connection in self._made:  # wherever another thread has it: a pool does not know each
            connection.disown()
        self._made = made = WeakSet[Any]()
        (connect, unconnected), (most, urgent) = self._connecting, self._sizes

        def make(_: float, until: float) -> Any:
            try:
                connection = connect(until)
            except StoreError:
                raise
            except Exception as error:  # a server of another kind may have a driver raise anything; no request was sent
                raise unconnected(error) from error
            made.add(connection)
            return connection

        for_urgent = self._pool(urgent, on_lane(Lane(urgent), make, unconnected))
        self.pools = (self._pool(most, on_lane(Lane(most), make, unconnected), for_urgent), for_urgent)

    def send(self, request: Any, timeout_s: float) -> Any:
        """Send *request* once, on a connection of its own; for asyncio what this returns is awaited."""
        return self.pools[request.urgent].send(request, timeout_s)


class PooledLink(_Link):
    """For threads. A store that is told of releases has its :class:`Watch` closed with it."""

    _pool = Pool

    def close(self) -> None:
        """Close the connections; those of requests under way are closed at their ends."""
        if self.watch is not None:
            self.watch.close()
        for pool in self.pools:
            pool.close()


class AsyncPooledLink(_Link):
    """As :class:`PooledLink`, for the tasks of one event loop."""

    @staticmethod
    def _pool(size: int, connect: Callable[..., Any], reserve: AsyncPool | None = None) -> AsyncPool:
        def in_thread(shelf: Shelf, deadline: float) -> Any:
            return in_own_thread(partial(connect, shelf, deadline), shelf.keep_one)

        return AsyncPool(size, in_thread, reserve)

    async def close(self) -> None:
        """As :meth:`PooledLink.close`."""
        if self.watch is not None:
            await self.watch.close()
        for pool in self.pools:
            pool.close()
