"""The two stores, for threads and for asyncio. The verbs are in ``_verbs``, the way to the server in ``_connections``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.kit import (
    AsyncBatches,
    AsyncClaimsMany,
    AsyncExchangeStore,
    AsyncReadsAge,
    AsyncWaits,
    AsyncWatch,
    Batches,
    ClaimsMany,
    ExchangeStore,
    ReadsAge,
    Waits,
    Watch,
)
from dlock_core.store import Capability
from dlock_postgres._connections import AsyncLink, ThreadLink
from dlock_postgres._listen import anews_of, news_of
from dlock_postgres._verbs import PostgresVerbs
from dlock_postgres._wire import BATCH_LIMIT
from dlock_postgres.options import checked_table, conninfo_of, fence_sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_postgres.provision import Facts

__all__ = ["AsyncPostgresStore", "PostgresStore"]


class _Store:
    """What both stores share: how they are made, and when they can notify."""

    batch_limit = BATCH_LIMIT
    # A row that another transaction has locked can't be marked.
    _asking_max_s = 1.0
    _link: Any
    _notify: Callable[[Any], None]

    fence_sql = staticmethod(fence_sql)

    def _prepared(self, table: str, watched: Callable[[Callable[[], str], str], object]) -> PostgresVerbs:
        self.capabilities = frozenset({Capability.ATOMIC_MULTI, Capability.BATCH_RENEW, Capability.SERVER_CLOCK})

        def learned(facts: Facts) -> None:
            if facts.notifies and self._link.watch is None:
                self._notify(watched(self._link.conninfo, verbs.channel))

        def is_awaited(key: str) -> bool:
            watch = self._link.watch
            return watch is not None and key in watch.queues

        verbs = PostgresVerbs(checked_table(table), learned, is_awaited)
        return verbs


class PostgresStore(_Store, Batches, ClaimsMany, ReadsAge, Waits, ExchangeStore):
    """The store for threads.

    *source* is a URL, a DSN, or a pool of the user's (``psycopg_pool.ConnectionPool``). Of a pool only the server's address and who the
    user is are taken: the store has connections of its own.
    """

    def __init__(self, source: Any, *, table: str = "public.dlock") -> None:
        super().__init__(self._prepared(table, lambda *of: Watch(news_of(*of))), ThreadLink(conninfo_of(source)))


class AsyncPostgresStore(_Store, AsyncBatches, AsyncClaimsMany, AsyncReadsAge, AsyncWaits, AsyncExchangeStore):
    """As :class:`PostgresStore`, for the tasks of one event loop."""

    def __init__(self, source: Any, *, table: str = "public.dlock") -> None:
        super().__init__(self._prepared(table, lambda *of: AsyncWatch(anews_of(*of))), AsyncLink(conninfo_of(source)))
