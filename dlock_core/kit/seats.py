"""Seats for the requests of tasks, and a shelf, which keeps the connections that no request uses.

Neither has a mutex: a signal handler may use them while its thread is anywhere inside.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlock_core.kit.pooled import PooledConnection


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

    def leave(self, _seat: object = None) -> None:
        """Give a seat back, as :meth:`take` returned it."""
        self.taken -= 1
        self._free.release()


class Shelf:
    """The connections that no request uses, and among them those that may be dead. One that comes back after :meth:`close` is closed."""

    def __init__(self) -> None:
        self._open = True
        self._connections: list[PooledConnection] = []
        self.doubted: list[PooledConnection] = []

    def __len__(self) -> int:
        """How many connections are here."""
        return len(self._connections) + len(self.doubted)

    def take(self, *, doubted: bool = False) -> PooledConnection | None:
        """Return a connection that is alive, as far as can be seen, or None; with *doubted* one of those that may be dead."""
        connections = self.doubted if doubted else self._connections
        while True:
            try:
                connection = connections.pop()
            except IndexError:
                return None
            if connection.is_alive():
                return connection
            connection.close()

    def doubt(self) -> None:
        """Note that all connections that are here now may be dead."""
        while (connection := self.take()) is not None:
            self.doubted.append(connection)
        if not self._open:
            self.close()  # as in put

    def put(self, connection: PooledConnection) -> None:
        """Keep *connection*."""
        self._connections.append(connection)
        if not self._open:
            self.close()  # another thread may have closed the shelf just before the line above

    def keep_one(self, connection: PooledConnection) -> None:
        """Keep *connection* if there is no other, as one that was made too late for its request: else close it.

        A server that is slow would otherwise be asked for connections only, and none ever be used.
        """
        if self._connections:
            connection.close()
        else:
            self.put(connection)

    def close(self) -> None:
        """Close the connections that are here, and each other one when it comes back."""
        self._open = False
        self.drop_doubted()
        _close_all(self._connections)

    def drop_doubted(self) -> None:
        """Close those that may be dead."""
        _close_all(self.doubted)


def _close_all(connections: list[PooledConnection]) -> None:
    while connections:
        try:
            connections.pop().close()
        except IndexError:  # another thread took it
            return
