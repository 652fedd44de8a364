"""The connection that wakes waiters: it listens, and the statements that free a key, or renew one that is marked, notify.

A notification belongs to the transaction of its statement, so it never comes before the commit. A waiter marks the row that it waits for,
and the next write of the row drops the mark and notifies: so nothing is notified where nobody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.errors import StoreError
from dlock_core.kit import Lane, News
from dlock_postgres._connections import aconnected, awaits, connected, waits
from dlock_postgres._errors import TROUBLE
from dlock_postgres._wire import statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.pq.abc import PGconn

__all__ = ["anews_of", "news_of"]

_LOOK_S = 0.5
_CONNECT_S = 10.0


class _Listening:
    """A stream of notifications; an error of the connection ends it."""

    alive = True

    def __init__(self, pg: PGconn) -> None:
        self._pg = pg

    def _heard(self) -> list[str] | None:
        keys = []
        while (told := self._pg.notifies()) is not None:
            keys.append(told.extra.decode())
        return keys or None


class _Listener(_Listening):
    def try_next(self) -> list[str] | None:
        heard = self._heard()
        if heard is None and waits(self._pg.socket, writes=False, timeout_s=_LOOK_S):
            self._pg.consume_input()
            heard = self._heard()
        return heard

    def close(self) -> None:
        self._pg.finish()


class _AsyncListener(_Listening):
    async def try_next(self) -> list[str] | None:
        heard = self._heard()
        if heard is None and await awaits(self._pg.socket, writes=False, timeout_s=_LOOK_S):
            self._pg.consume_input()
            heard = self._heard()
        return heard

    async def close(self) -> None:
        self._pg.finish()


def news_of(conninfo: Callable[[], str], channel: str) -> News:
    """Return what is notified on *channel*, for threads."""
    openers = Lane(1)

    def listen() -> _Listener:
        return _Listener(connected(openers, conninfo, statement(f'LISTEN "{channel}"'), _CONNECT_S))

    return News(listen, list, (StoreError, *TROUBLE))


def anews_of(conninfo: Callable[[], str], channel: str) -> News:
    """As :func:`news_of`, for asyncio."""
    openers = Lane(1)

    async def listen() -> _AsyncListener:
        return _AsyncListener(await aconnected(openers, conninfo, statement(f'LISTEN "{channel}"'), _CONNECT_S))

    return News(listen, list, (StoreError, *TROUBLE))
