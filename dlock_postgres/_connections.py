"""The links: how a statement reaches the server and its answer comes back, for threads and for asyncio, each within its time.

A connection is libpq's own, driven without blocking: what has to be waited for is written once, as generators, and each colour waits in its
way. A statement that has no answer shortly before its time is over is cancelled, so that mostly the server says whether it was applied.
Only a connection whose answer was read to its end is kept, and on which nothing was cancelled: the server may act on that late, and would
cancel the next statement.

Each link has connections for claims and reads, and others for renewals and releases, so nothing that waits can starve a lock that is held.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.pq import ConnStatus, PollingStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import AsyncPool, AsyncSeats, BeginsAnew, Lane, Pool, Seats, Shelf, watch_forks
from dlock_postgres._addresses import CONNECT_S, Steps, opening
from dlock_postgres._errors import not_connected
from dlock_postgres._running import Answer, running
from dlock_postgres._wire import Statement

__all__ = ["AsyncLink", "ThreadLink", "aconnected", "awaits", "connected", "waits"]

_CONNECTIONS_MAX = 8
_URGENT_MAX = 2
# A statement is cancelled so long before its time is over, or a quarter of it where that is less.
_CANCEL_S = 0.25
# A connection is made in this time, whether or not somebody still waits for it.
_CONNECT_S = 5.0
_T = TypeVar("_T")


def is_idle(pg: PGconn) -> bool:
    """Whether *pg* can be used: not if the server has closed it, or said something unasked."""
    return (
        pg.status == ConnStatus.OK
        and pg.transaction_status == TransactionStatus.IDLE
        and not waits(pg.socket, writes=False, timeout_s=0)
    )


def cancel(pg: PGconn) -> None:
    """Ask the server to end the statement on *pg*, in a thread of its own: that takes a connection, and may take long."""
    if not capabilities.has_cancel_safe():
        return  # an older libpq would stop all threads meanwhile
    asking = pg.cancel_conn()

    def ask() -> None:
        # Where that fails the statement goes on, and its outcome is unknown as it was.
        with suppress(psycopg.Error, OSError):
            _drive(_cancelling(asking), _Patience(CONNECT_S))

    with suppress(RuntimeError):  # the interpreter is shutting down, and starts no thread any more
        threading.Thread(target=ask, name="dlock-postgres-cancel", daemon=True).start()


def _cancelling(asking: Any) -> Steps[None]:
    asking.start()
    try:
        while (state := asking.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
            yield asking.socket, state == PollingStatus.WRITING
    finally:
        asking.finish()


class _Patience:
    """How long a statement is waited for: until it is cancelled, if it may be, and then for the answer to that."""

    def __init__(self, timeout_s: float, *, cancels: bool = False) -> None:
        self._end = time.monotonic() + timeout_s
        self._cancel_at = self._end - min(_CANCEL_S, timeout_s / 4)
        self._running: PGconn | None = None
        self._cancels = cancels
        self.cancelled = False

    def began(self, pg: PGconn) -> None:
        """Cancel the statement on *pg* when it takes too long."""
        self._running = pg

    def left_s(self) -> float:
        """Return how long to wait at most until :meth:`expire`."""
        cancels = self._cancels and self._running is not None
        return max((self._cancel_at if cancels else self._end) - time.monotonic(), 0)

    def expire(self) -> None:
        """Cancel the statement; if that was done, or must not be, raise TimeoutError."""
        if not self._cancels or self._running is None:
            raise TimeoutError("no answer in time")
        self._cancels, self.cancelled = False, True
        cancel(self._running)

    def end(self) -> None:
        """Close the connection; a statement whose answer was not read to its end is cancelled if it may be."""
        pg = self._running
        if pg is not None:
            if self._cancels and pg.transaction_status == TransactionStatus.ACTIVE:
                cancel(pg)
            pg.finish()


def waits(fd: int, writes: bool, timeout_s: float) -> bool:  # noqa: FBT001
    """Wait until the socket can be read, or with *writes* also written; return whether it can."""
    if not hasattr(select, "poll"):
        return any(select.select([fd], [fd] if writes else [], [], timeout_s))
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLOUT if writes else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class _Pool(Pool[PGconn]):
    """Up to *size* connections."""

    def __init__(self, conninfo: Callable[[], str], size: int, reserve: _Pool | None = None) -> None:
        super().__init__(Seats(size), _shelf(), reserve)
        self._open = _opener(conninfo, size, self.shelf)

    def send(self, statement: Statement, timeout_s: float) -> Answer:
        patience = _Patience(timeout_s, cancels=statement.cancels)
        seat = self.seats.take(timeout_s)
        if seat is None:
            raise _crowded()
        pg = None
        try:
            pg = self.shelf.take() or self.opened(partial(self._open, patience))
            patience.began(pg)
            return _drive(running(pg, statement), patience)
        finally:
            if pg is not None:
                _put_back(self.shelf, pg, patience)
            self.seats.leave(seat)


def _shelf() -> Shelf[PGconn]:
    return Shelf(is_idle, PGconn.finish)


def _opener(conninfo: Callable[[], str], size: int, shelf: Shelf[PGconn]) -> Callable[[_Patience], PGconn]:
    """Return what opens a connection; one that is too late for its request is for the next one."""
    openers = Lane(size)
    return lambda patience: opened(openers, conninfo, patience, late=shelf.keep_one)


def _put_back(shelf: Shelf[PGconn], pg: PGconn, patience: _Patience) -> None:
    if is_idle(pg) and not patience.cancelled:
        shelf.put(pg)
    else:
        patience.end()


def opened(
    openers: Lane, conninfo: Callable[[], str], patience: _Patience, late: Callable[[PGconn], object] = PGconn.finish
) -> PGconn:
    """Return a new connection, opened on a thread of *openers*: the search for the server's name has no bound."""

    def connect() -> PGconn:
        return _drive(opening(conninfo), _Patience(max(patience.left_s(), _CONNECT_S)))

    try:
        pg: PGconn = openers.run(connect, patience.left_s(), late)
    except TimeoutError as error:
        raise not_connected("no connection in time") from error
    return pg


def _drive(steps: Steps[_T], patience: _Patience) -> _T:
    try:
        while True:
            fd, writes = next(steps)
            while not waits(fd, writes, patience.left_s()):
                patience.expire()
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        steps.close()


def connected(openers: Lane, conninfo: Callable[[], str], first: Statement, timeout_s: float) -> PGconn:
    """Return a connection on which the statement *first* was run."""
    patience = _Patience(timeout_s)
    pg = opened(openers, conninfo, patience)
    try:
        _drive(running(pg, first), patience)
    except BaseException:
        pg.finish()
        raise
    return pg


class _Link(BeginsAnew):
    """The pools of a link, and its stream of news."""

    watch: Any = None
    _pool_class: Any

    def __init__(self, conninfo: Callable[[], str]) -> None:
        self.conninfo = conninfo
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without connections: two processes must not speak on one. psycopg leaves those of the parent open."""
        urgent = self._pool_class(self.conninfo, _URGENT_MAX)
        self.pools = (self._pool_class(self.conninfo, _CONNECTIONS_MAX, urgent), urgent)


class ThreadLink(_Link):
    """The link for threads."""

    _pool_class = _Pool

    def send(self, statement: Statement, timeout_s: float) -> Answer:
        """Send *statement* once."""
        return self.pools[statement.urgent].send(statement, timeout_s)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close all connections."""
        if self.watch is not None:
            self.watch.close()
        for pool in self.pools:
            pool.close()


def _crowded() -> StoreUnavailableError:
    return StoreUnavailableError(
        "PostgreSQL was not asked, nothing was written: all connections of this client were in use all the time"
    )


class _AsyncPool(AsyncPool[PGconn]):
    """As :class:`_Pool`, for the tasks of one event loop."""

    def __init__(self, conninfo: Callable[[], str], size: int, reserve: _AsyncPool | None = None) -> None:
        super().__init__(AsyncSeats(size), _shelf(), reserve)
        self._open = _opener(conninfo, size, self.shelf)

    async def send(self, statement: Statement, timeout_s: float) -> Answer:
        patience = _Patience(timeout_s, cancels=statement.cancels)
        if not await self.seats.take(timeout_s):
            raise _crowded()
        pg = None
        try:
            pg = self.shelf.take() or await self.opened(partial(asyncio.to_thread, self._open, patience))
            patience.began(pg)
            return await _adrive(running(pg, statement), patience)
        finally:
            if pg is not None:
                _put_back(self.shelf, pg, patience)
            self.seats.leave()


async def _adrive(steps: Steps[_T], patience: _Patience) -> _T:
    try:
        while True:
            fd, writes = next(steps)
            while not await awaits(fd, writes, patience.left_s()):
                patience.expire()
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        steps.close()


async def awaits(fd: int, writes: bool, timeout_s: float) -> bool:  # noqa: FBT001
    """As :func:`waits`."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        with suppress(asyncio.InvalidStateError):  # it was called before, or the task is cancelled
            ready.set_result(None)

    loop.add_reader(fd, wake)
    if writes:
        loop.add_writer(fd, wake)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        if writes:
            loop.remove_writer(fd)
    return True


async def aconnected(openers: Lane, conninfo: Callable[[], str], first: Statement, timeout_s: float) -> PGconn:
    """As :func:`connected`."""
    patience = _Patience(timeout_s)
    pg = await asyncio.to_thread(opened, openers, conninfo, patience)
    try:
        await _adrive(running(pg, first), patience)
    except BaseException:
        pg.finish()
        raise
    return pg


class AsyncLink(_Link):
    """The link for the tasks of one event loop."""

    _pool_class = _AsyncPool

    async def send(self, statement: Statement, timeout_s: float) -> Answer:
        """As :meth:`ThreadLink.send`."""
        return await self.pools[statement.urgent].send(statement, timeout_s)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """As :meth:`ThreadLink.close`."""
        if self.watch is not None:
            await self.watch.close()
        for pool in self.pools:
            pool.close()
