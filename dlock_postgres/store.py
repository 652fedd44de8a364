"""The two stores, for threads and for asyncio. The verbs are in ``_verbs``, their statements in ``_wire``, a connection in ``_session``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.kit import (
    AsyncExchangeStore,
    AsyncPooledLink,
    AsyncWatch,
    Batches,
    ClaimsMany,
    ExchangeStore,
    PooledLink,
    ReadsAge,
    Waits,
    Watch,
)
from dlock_core.store import Capability
from dlock_postgres._errors import not_connected
from dlock_postgres._listen import news_of
from dlock_postgres._session import TASKS, THREADS, Session
from dlock_postgres._verbs import PostgresVerbs
from dlock_postgres._wire import BATCH_LIMIT
from dlock_postgres.options import conninfo_of, fence_sql, table_of

if TYPE_CHECKING:
    from dlock_core.errors import StoreError
    from dlock_postgres._session import Colour
    from dlock_postgres.provision import Facts

__all__ = ["AsyncPostgresStore", "PostgresStore"]


# Connections of a store for claims and reads, and for renewals and releases; one more listens.
_CONNECTIONS = {"most": 8, "urgent": 2}


class _Store(Batches, ClaimsMany, ReadsAge, Waits):
    """What both stores share: how they are made, and when they can notify."""

    batch_limit = BATCH_LIMIT
    # A row that another transaction has locked can't be marked.
    _asking_max_s = 1.0
    _link: Any
    _link_class: Any
    _watch_class: Any
    _colour: Colour

    fence_sql = staticmethod(fence_sql)

    def __init__(self, source: Any, *, table: str | None = None) -> None:
        conninfo, last_conninfo = conninfo_of(source)
        self.capabilities = frozenset({Capability.ATOMIC_MULTI, Capability.BATCH_RENEW, Capability.SERVER_CLOCK})

        def learned(facts: Facts) -> None:
            if facts.notifies and self._link.watch is None:
                self._notify(self._watch_class(news_of(conninfo, verbs.channel, self._colour, lambda: verbs.demotions)))

        def is_awaited(key: str) -> bool:
            watch = self._link.watch
            return watch is not None and key in watch.queues

        verbs = PostgresVerbs(table_of(source, table), learned, is_awaited)

        def unconnected(error: Exception) -> StoreError:
            return not_connected(error, last_conninfo())

        link = self._link_class(lambda _: Session(conninfo(), self._colour), unconnected, **_CONNECTIONS)
        super().__init__(verbs, link)  # type: ignore[call-arg]  # the face that is mixed in


class PostgresStore(_Store, ExchangeStore):
    """The store for threads.

    *source* is a URL, a DSN, or a pool of the user's (``psycopg_pool.ConnectionPool``). Of a pool only the server's address and who the
    user is are taken: the store has connections of its own. *table* is SCHEMA.TABLE; by default that of the URL, or ``public.dlock``.
    """

    _link_class, _watch_class, _colour = PooledLink, Watch, THREADS


class AsyncPostgresStore(_Store, AsyncExchangeStore):
    """As :class:`PostgresStore`, for the tasks of one event loop."""

    _link_class, _watch_class, _colour = AsyncPooledLink, AsyncWatch, TASKS
