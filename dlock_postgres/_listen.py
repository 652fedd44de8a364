"""The connection that wakes waiters: it listens, and the statements that free a key, or renew one that is marked, notify.

A notification belongs to the transaction of its statement, so it never comes before the commit. A waiter marks the row that it waits for,
and the next write of the row drops the mark and notifies: so nothing is notified where nobody waits.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError
from dlock_core.kit import Lane, News, in_own_thread
from dlock_postgres._errors import TROUBLE
from dlock_postgres._session import THREADS, Session
from dlock_postgres._wire import statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_postgres._session import Colour, Steps

_LOOK_S = 0.5
_CONNECT_S = 10.0


class _Stream:
    """A stream of notifications, for the colour of *session*; an error of the connection ends it, and one more of *demotions*.

    A server that takes no writes any more, and closes no connection, has nothing to tell.
    """

    def __init__(self, session: Session, demotions: Callable[[], int], before: int) -> None:
        self.session, self._demotions, self._before = session, demotions, before

    @property
    def alive(self) -> bool:
        """Whether no statement has met a server that takes no writes since the stream began to open."""
        return self._demotions() == self._before

    def try_next(self) -> Any:
        return self.session.colour.perform(self.session.heard(_LOOK_S))

    def close(self) -> Any:
        return self.session.colour.perform(self._closing())

    def _closing(self) -> Steps[None]:
        self.session.close()
        yield from ()


def news_of(conninfo: Callable[[], str], channel: str, colour: Colour, demotions: Callable[[], int]) -> News:
    """Return what is notified on *channel*. A stream is opened on a thread of its own: the search for the server's name has no bound."""

    def listen() -> _Stream:
        before = demotions()
        session = Session(conninfo(), THREADS)
        try:
            session.send(statement(f'LISTEN "{channel}"'), time.monotonic() + _CONNECT_S)
        except BaseException:
            session.close()
            raise
        session.colour = colour
        return _Stream(session, demotions, before)

    def late(stream: _Stream) -> None:
        stream.session.close()

    listened = partial(Lane(1).run, listen, _CONNECT_S, late)
    return News(listened if colour is THREADS else partial(in_own_thread, listened, late), list, (StoreError, *TROUBLE))
