"""The two stores: their links to the server, for threads and for asyncio. The verbs are in ``_verbs``."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.errors import AutoReconnect, NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern

from dlock_core.backend import redact
from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_core.kit import (
    AsyncExchangeStore,
    AsyncSeats,
    AsyncWatch,
    Batches,
    BeginsAnew,
    ExchangeStore,
    Lane,
    News,
    ReadsAge,
    Seats,
    Waits,
    Watch,
    watch_forks,
)
from dlock_core.store import Capability
from dlock_mongodb._errors import error_of
from dlock_mongodb._verbs import MongoDBVerbs
from dlock_mongodb._wire import BATCH_LIMIT, CODEC, DUPLICATE_KEY, NEWS, Document
from dlock_mongodb.options import MongoDBStoreOptions, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_mongodb._wire import Command
    from dlock_mongodb.provision import Facts

__all__ = ["AsyncMongoDBStore", "MongoDBStore"]

# Claims, reads and waits of one client that are under way at once, at most: a server serves more of them no sooner.
_SEATS_MAX = 16
# One for the change stream, and one that only renewals and releases take.
_RESERVED_CONNECTIONS = 2
# Of the threads that make the calls of the main thread: one, beside the calls that signal handlers make or have interrupted.
_LANE_WIDTH, _CLOSE_S, _LEAVE_S = 16, 10.0, 1.0
_AWAIT_MS, _CONNECT_MS = 500, 10_000
# What an inspection may take at least: its connection is made first, which a short search for a server says nothing about.
_LOOK_S = 2.0


class _Link:
    """The client of both links, and its *seats*: a request that is not urgent needs one, so the urgent ones always find a connection."""

    watch: Any = None

    def __init__(self, client: Any) -> None:
        self.client, self.owned = client, False
        size = client.options.pool_options.max_pool_size
        self.has_room = size is None or size > _RESERVED_CONNECTIONS
        self._seats_max = _SEATS_MAX if size is None else max(1, min(_SEATS_MAX, size - _RESERVED_CONNECTIONS))

    def _command(self, command: Command, timeout_s: float) -> Any:
        """Send *command* once: return its answer, or an awaitable of it."""
        return self.client[command.database].command(
            command.within(timeout_s),
            check=command.checked,
            allowable_errors=[DUPLICATE_KEY] if command.checked else None,
            codec_options=CODEC,
        )

    def _doubted(self, command: Command) -> list[Any]:
        """Return the pools to be emptied after an urgent *command* that got no answer in time: their idle connections may all be dead.

        The way to the server may be gone without a word, and pymongo would spend the time of one request on each of them.
        """
        servers = list(self.client._topology._servers.values()) if command.urgent else []  # no public way
        return [server.pool for server in servers if server.description.is_writable]

    def _limit_s(self, command: Command, timeout_s: float) -> float:
        """Return how long *command* may take: an inspection less, where the user waits less for a server, but enough for a connection."""
        return (
            timeout_s if command.checked else min(timeout_s, max(self.client.options.server_selection_timeout, _LOOK_S))
        )

    def _crowded(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"MongoDB was not asked, nothing was written: {self._seats_max} other requests of this client were under way all the time"
        )


class _ThreadLink(_Link, BeginsAnew):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._lane = Lane(_LANE_WIDTH)
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin with all seats free: the threads that have some are the parent's."""
        self._seats = Seats(self._seats_max)

    def send(self, command: Command, timeout_s: float) -> Document:
        limit_s = self._limit_s(command, timeout_s)
        end = time.monotonic() + limit_s
        if command.urgent:
            return self._bounded(command, end)
        seat = self._seats.take(limit_s)
        if seat is None:
            raise self._crowded()
        try:
            return self._bounded(command, end)
        finally:
            self._seats.leave(seat)

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
        if self.owned:
            # The client takes leave of its server, and would look for one as long as a call may that has no time-out.
            self._aside(lambda _: self.client.close(), time.monotonic() + _LEAVE_S, _CLOSE_S)

    def _bounded(self, command: Command, end: float) -> Document:
        answer: Document = self._aside(partial(self._asked, command), end, end - time.monotonic())
        return answer

    def _asked(self, command: Command, timeout_s: float) -> Any:
        try:
            return self._command(command, timeout_s)
        except NetworkTimeout:
            for pool in self._doubted(command):
                pool.reset_without_pause()
            raise

    def _aside(self, call: Callable[[float], Any], end: float, patience_s: float) -> Any:
        """Make *call*, with a time-out that is over at *end*."""

        def within() -> Any:
            timeout_s = end - time.monotonic()
            with pymongo.timeout(max(timeout_s, 0.001)):
                return call(timeout_s)

        # In a context of its own: pymongo keeps the deadline there, where an interrupt may leave it for all later requests of the thread;
        # and there it finds the caller's own deadline, and the session that the caller has bound, in whose transaction a step would be.
        # On the lane: the lock of its pool is Python's, and an interrupt could leave it held.
        return self._lane.aside(partial(Context().run, within), patience_s)


class _TaskLink(_Link):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._seats = AsyncSeats(self._seats_max)
        self._under_way = set[asyncio.Task[Document]]()
        self._closed = False

    async def send(self, command: Command, timeout_s: float) -> Document:
        limit_s = self._limit_s(command, timeout_s)
        end = time.monotonic() + limit_s
        if not command.urgent and not await self._seats.take(limit_s):
            raise self._crowded()
        # A task of its own, which no cancellation of the caller's reaches: one that does, in the middle of a checkout, may leave the lock
        # of pymongo's pool taken for ever. So the connection is not lost either; the time-out ends the task. Its context is new, as for
        # threads.
        task = Context().run(asyncio.create_task, self._bounded(command, end - time.monotonic()))
        self._under_way.add(task)
        task.add_done_callback(partial(self._ended, command))
        return await asyncio.shield(task)

    async def close(self) -> None:
        if self.watch is not None:
            await self.watch.close()
        if self.owned:
            with pymongo.timeout(_LEAVE_S):  # as for threads
                await self.client.close()
        # The commands that are under way end with their time-outs; a close does not wait so long for a server that hangs. It cancels those
        # of its own client, whose pool nothing uses any more.
        self._closed = True
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=_LEAVE_S)
            if self.owned:
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    async def _bounded(self, command: Command, timeout_s: float) -> Document:
        with pymongo.timeout(max(timeout_s, 0.001)):
            try:
                answer: Document = await self._command(command, timeout_s)
            except NetworkTimeout:
                for pool in self._doubted(command):
                    await pool.reset_without_pause()
                raise
            except asyncio.CancelledError:
                if self._closed:
                    raise AutoReconnect("the store was closed before there was an answer") from None
                raise
            return answer

    def _ended(self, command: Command, task: asyncio.Task[Document]) -> None:
        if not command.urgent:
            self._seats.leave()
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more


class _Store(Batches, ReadsAge, Waits):
    """What both stores share: how they are made, and when they can notify."""

    batch_limit = BATCH_LIMIT
    _client_class: type
    _watch_class: type

    def _prepared(self: Any, client: Any, database: str, collection: str) -> MongoDBVerbs:
        kind = self._client_class
        if not isinstance(client, kind):
            raise ConfigurationError(
                f"{type(self).__name__} works with a pymongo.{kind.__name__}, not with {type(client).__name__}; "
                "a URL goes to connect() or aconnect()"
            )
        names = MongoDBStoreOptions(database=database, collection=collection)
        self.capabilities = frozenset({Capability.BATCH_RENEW, Capability.SERVER_CLOCK})

        def learned(facts: Facts) -> None:
            link = self._link
            if facts.notifies and link.watch is None and link.has_room:
                # The only read concern that a change stream may have.
                concern = ReadConcern("majority")
                home = link.client.get_database(names.database, CODEC, ReadPreference.PRIMARY, read_concern=concern)
                self._notify(self._watch_class(news_of(home.get_collection(names.collection))))

        return MongoDBVerbs(names, learned)

    @classmethod
    def opened(cls: Any, options: MongoDBStoreOptions) -> Any:
        """Return a store with a client of its own."""
        store = cls(_client(cls._client_class, options), database=options.database, collection=options.collection)
        store._link.owned = True
        return store


class MongoDBStore(_Store, ExchangeStore):
    """The store for threads, on a ``MongoClient`` of the user's, who closes it.

    The client's settings do not weaken the steps: each command names its own write concern, read concern and time-out, goes to the
    primary, and is sent once. The attribute ``wait`` is there where the server has change streams.
    """

    _client_class, _watch_class = MongoClient, Watch

    def __init__(self, client: MongoClient[Any], *, database: str = "dlock", collection: str = "locks") -> None:
        super().__init__(self._prepared(client, database, collection), _ThreadLink(client))


class AsyncMongoDBStore(_Store, AsyncExchangeStore):
    """As :class:`MongoDBStore`, for the tasks of one event loop, with an ``AsyncMongoClient``."""

    _client_class, _watch_class = AsyncMongoClient, AsyncWatch

    def __init__(self, client: AsyncMongoClient[Any], *, database: str = "dlock", collection: str = "locks") -> None:
        super().__init__(self._prepared(client, database, collection), _TaskLink(client))


def news_of(collection: Any) -> News:
    """Return the change stream of *collection*, of either colour. It ends where the collection is dropped or renamed."""
    opened = partial(collection.watch, NEWS, max_await_time_ms=_AWAIT_MS)
    return News(opened, lambda change: (change["documentKey"]["_id"],), (PyMongoError, OSError, RuntimeError))


def _client(make: Any, options: MongoDBStoreOptions) -> Any:
    if options.url is None:
        raise ConfigurationError("the MongoDB store has no URL; give it one, or a client of your own")
    url = options.url.get_secret_value()
    said, usual = url.lower(), {}
    # A mongodb+srv URL is looked up by name servers first, for as long as a connection may take.
    if "connecttimeoutms" not in said:
        usual["connectTimeoutMS"] = _CONNECT_MS
    # The driver makes these beside the requests: where connecting takes longer than a request of a short lease may, none ever had one.
    if "poolsize" not in said:
        usual["minPoolSize"] = _RESERVED_CONNECTIONS
    try:
        # With retries of reads or writes on, the driver would also send a refused command again.
        return make(url, retryReads=False, retryWrites=False, **usual)
    except (PyMongoError, ValueError, TypeError) as error:
        problem = error_of(error, None, writes=False)
        if isinstance(problem, StoreUnavailableError):
            raise problem from error
        # Without its cause: the driver repeats values, and one of them may be a secret.
        raise ConfigurationError(f"pymongo refuses {redact(url)!r}: {told(error, url)}") from None
