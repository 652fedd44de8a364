"""The link for tasks of one event loop; as :mod:`dlock_redis._connections`, on redis-py's connections."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.exceptions import InvalidResponse

from dlock_core.errors import StoreError
from dlock_core.kit import AsyncPool, AsyncSeats
from dlock_redis import _errors as errors
from dlock_redis._connections import Inbox, Node, broken, busy, readable, shelf
from dlock_redis._resp import IncompleteError, answers_in, pack
from dlock_redis._servers import Locate, Request, Servers, Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["AsyncConnections"]

_log = logging.getLogger("dlock.redis")


class _AsyncLink(asyncio.Protocol):
    """A connection of the driver for asyncio. Once it is made, all that the server says comes here, and no more to the driver."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport = connection._writer.transport  # as in _Link
        self._is_readable = readable(self._transport.get_extra_info("socket"))
        self._loop = asyncio.get_running_loop()
        # An error is a result too: the loop complains of an exception that an interrupted request never fetches.
        self._answers: asyncio.Future[list[Any] | Exception] | None = None
        self._count, self._read = 0, b""
        self._spoilt = False
        # Called with all that the server says unasked; with nothing at the end of the connection.
        self.hear: Callable[[bytes], None] = self._spoil
        self._transport.set_protocol(self)

    async def ask(self, commands: bytes, count: int, timeout_s: float) -> list[Any]:
        """As :meth:`_Link.ask`."""
        answers: asyncio.Future[list[Any] | Exception] = self._loop.create_future()
        self._answers = answers
        self._count, self._read = count, b""
        timer = self._loop.call_later(timeout_s, _give_up, answers)
        self._transport.write(commands)
        try:
            answer = await answers
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self._answers = None
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read the answers, once they are whole. After an interrupt in here they may never be."""
        answers = self._answers
        if answers is None or answers.done():
            self.hear(data)
            return
        try:
            self._read += data
            result = answers_in(self._read, self._count)
        except IncompleteError:
            return
        except BaseException as error:
            self._fail(error if isinstance(error, InvalidResponse) else ConnectionResetError("interrupted"))
            if not isinstance(error, InvalidResponse):
                raise
        else:
            _settle(answers, result)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request under way."""
        self._fail(error or ConnectionResetError("the server closed the connection"))
        self.hear(b"")

    def _fail(self, error: Exception) -> None:
        if self._answers is not None:
            _settle(self._answers, error)

    def stale(self) -> bool:
        """Whether the server has closed the connection, or said something unasked: to the event loop, or still in the socket."""
        return self._spoilt or self._transport.is_closing() or bool(self._is_readable())

    def close(self) -> None:
        """Close at once, without waiting for the other side: TLS would shake hands once more, and the loop may end before it has."""
        self.hear = self._spoil
        self._transport.abort()
        self._connection._close()  # its disconnect() needs a running task, which a closing loop has not

    def _spoil(self, _: bytes) -> None:
        self._spoilt = True


def _give_up(answers: asyncio.Future[list[Any] | Exception]) -> None:
    _settle(answers, TimeoutError("no answer in time"))


def _settle(answers: asyncio.Future[list[Any] | Exception], result: list[Any] | Exception) -> None:
    with suppress(asyncio.InvalidStateError):  # it ended meanwhile, or a signal handler has cancelled the request
        answers.set_result(result)


class _AsyncPool(AsyncPool[_AsyncLink]):
    """As :class:`_Pool`, for tasks."""

    def __init__(self, source: Source, size: int, reserve: _AsyncPool | None = None) -> None:
        super().__init__(AsyncSeats(size), shelf(), reserve)
        self._source = source
        self._waiting: set[_AsyncLink] = set()

    async def ask(self, request: Request, timeout_s: float) -> list[Any]:
        """As :meth:`_Pool.ask`."""
        deadline = time.monotonic() + timeout_s
        if (request.waits and self.seats.taken == self.seats.count) or not await self.seats.take(timeout_s):
            raise busy(request.key)
        link: _AsyncLink | None = None
        usable = False
        try:
            link = self.shelf.take() or await self.opened(partial(aconnected, self._source, request.key, deadline))
            if request.waits:
                self._waiting.add(link)
            answers = await link.ask(request.commands, request.answers, deadline - time.monotonic())
            usable = not errors.is_misplaced(answers[0])
            return answers
        finally:
            if link is not None:
                self._waiting.discard(link)
                self.shelf.put(link) if usable else link.close()
            self.seats.leave()

    def end_waits(self) -> None:
        """As :meth:`_Pool.end_waits`."""
        for link in list(self._waiting):
            link.close()


async def aconnected(source: Source, key: str | None, deadline: float) -> _AsyncLink:
    """Return a new connection."""
    with errors.unsent(key):
        timeout_s = deadline - time.monotonic()
        connection = source.connection(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.connect()
        except BaseException:
            connection._close()  # as in _AsyncLink
            raise
    return _AsyncLink(connection)


class _AsyncWatch:
    """As :class:`_Watch`; the event loop reads for all."""

    def __init__(self, source: Source, channel: bytes) -> None:
        self._source, self._channel = source, channel
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._subscribing = asyncio.Lock()
        self._link: _AsyncLink | None = None
        self._inbox = Inbox()

    @asynccontextmanager
    async def listening(self, key: str, place: bytes, timeout_s: float) -> AsyncIterator[asyncio.Future[None]]:
        """Subscribe; give a future that is done when *place* is woken."""
        woken = self._waiting[place] = asyncio.get_running_loop().create_future()
        woken.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with self._subscribing:
                if self._link is None:
                    await self._subscribe(key, timeout_s)
            yield woken
        finally:
            woken.cancel()
            self._waiting.pop(place, None)

    async def _subscribe(self, key: str, timeout_s: float) -> None:
        link = await aconnected(self._source, key, time.monotonic() + timeout_s)
        try:
            with errors.unsent(key):
                errors.check(await link.ask(pack(b"SUBSCRIBE", self._channel), 1, timeout_s), key)
        except BaseException:
            link.close()
            raise
        self._link, self._inbox, link.hear = link, Inbox(), self._hear

    def _hear(self, more: bytes) -> None:
        try:
            for place in self._inbox.places(more):
                woken = self._waiting.get(place)
                if woken is not None:
                    with suppress(asyncio.InvalidStateError):  # it was woken before, or is cancelled
                        woken.set_result(None)
        except (OSError, InvalidResponse) as error:
            _log.debug("the connection on which Redis wakes waiters broke: %s", error)
            self.close()

    def close(self) -> None:
        """End every wait."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for woken in self._waiting.values():
            with suppress(asyncio.InvalidStateError):
                woken.set_exception(broken())


class AsyncConnections:
    """The link for tasks of one event loop; as :class:`Connections`."""

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, channel: bytes) -> None:
        self.servers = Servers(client, redis.asyncio, partial(Node.of, _AsyncPool, _AsyncWatch, channel))
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def pools(self) -> list[Any]:
        """As :attr:`Connections.pools`."""
        return self.servers.pools

    async def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """As :meth:`Connections.send`."""
        try:
            if self.servers.cluster:
                await self._learn()
            if isinstance(request, Locate):
                return self.servers.locate(request)
            node = self.servers.node(request)
            answers: list[Any] = await node.pool(request).ask(request, timeout_s / request.share)
        except (StoreError, *errors.TROUBLE) as error:
            self._refresh_after(error)
            raise
        if errors.is_misplaced(answers[0]):
            self._refresh_after(answers[0])
        return answers

    async def _learn(self) -> None:
        with errors.unsent(None):
            await self.servers.initialize()

    @asynccontextmanager
    async def listening(self, key: str, place: bytes, timeout_s: float) -> AsyncIterator[asyncio.Future[None]]:
        """As :meth:`Connections.listening`."""
        if self.servers.cluster:
            await self._learn()
        async with self.servers.node(Request(key=key)).watch.listening(key, place, timeout_s) as woken:
            yield woken

    async def close(self) -> None:
        """As :meth:`Connections.close`."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        for node in self.servers.close():
            node.close()

    def _refresh_after(self, error: BaseException) -> None:
        if self.servers.wants_refresh(error):
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self.servers.refresh()
        except errors.TROUBLE as error:
            _log.debug("asking the Cluster for its slots failed: %s", error)
        finally:
            self.servers.refreshed()
