"""The link for tasks of one event loop; as :mod:`dlock_redis._connections`, on the streams of redis-py's connections."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.exceptions import InvalidResponse

from dlock_core.errors import StoreError
from dlock_redis import _errors as errors
from dlock_redis._connections import CONNECTIONS_MAX, READ_SIZE, URGENT_MAX, Inbox, broken, busy, readable
from dlock_redis._resp import IncompleteError, answers_in, pack
from dlock_redis._servers import Locate, Request, Servers, Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["AsyncConnections"]

_log = logging.getLogger("dlock.redis")


class _AsyncLink:
    """A connection of the driver for asyncio."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._reader, self._writer = connection._reader, connection._writer  # as in _Link
        # Bytes that the event loop has read show in the stream, which has no public way to look; others in the socket.
        unread = readable(self._writer.get_extra_info("socket"))
        self.stale = lambda: (
            self._reader.at_eof() or bool(self._reader._buffer) or self._writer.is_closing() or unread()
        )

    async def ask(self, commands: bytes, count: int) -> list[Any]:
        """As :meth:`_Link.ask`; the caller bounds it."""
        self._writer.write(commands)
        read = b""
        while True:
            more = await self.more()
            if not more:
                raise ConnectionResetError("the server closed the connection")
            read += more
            try:
                return answers_in(read, count)
            except IncompleteError:
                continue

    async def more(self) -> bytes:
        """Return what the server says next."""
        return await self._reader.read(READ_SIZE)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close at once, without waiting for the other side: TLS would shake hands once more, and the loop may end before it has."""
        self._writer.transport.abort()
        self._connection._close()  # its disconnect() needs a running task, which a closing loop has not


class _AsyncPool:
    """As :class:`_Pool`, for tasks."""

    def __init__(self, source: Source, size: int) -> None:
        self.open = True
        self._source = source
        self._idle: list[_AsyncLink] = []
        self._permits = asyncio.Semaphore(size)

    async def ask(self, request: Request, timeout_s: float) -> list[Any]:
        """As :meth:`_Pool.ask`."""
        link: _AsyncLink | None = None
        permitted = whole = False
        try:
            async with asyncio.timeout(timeout_s), self._permits:
                permitted = True
                try:
                    link = self._kept() or await aconnected(self._source, timeout_s)
                    answers = await link.ask(request.commands, request.answers)
                    whole = self.open and not errors.is_misplaced(answers[0])
                    return answers
                finally:
                    if link is not None and whole:
                        self._idle.append(link)
                    elif link is not None:
                        link.close()
        except errors.TROUBLE as error:
            if not permitted:
                raise busy(request.key) from error
            if link is None:
                raise errors.trouble(error, request.key, sent=False) from error
            raise

    def _kept(self) -> _AsyncLink | None:
        while self._idle:
            link = self._idle.pop()
            if not link.stale():  # type: ignore[no-untyped-call]  # a lambda
                return link
            link.close()
        return None

    def close(self) -> None:
        """As :meth:`_Pool.close`."""
        self.open = False
        while self._idle:
            self._idle.pop().close()


async def aconnected(source: Source, timeout_s: float) -> _AsyncLink:
    """Return a new connection."""
    connection = source.connection(timeout_s)
    try:
        await connection.connect()
    except BaseException:
        connection._close()  # as in _AsyncLink
        raise
    return _AsyncLink(connection)


class _AsyncWatch:
    """As :class:`_Watch`; a task reads while somebody waits."""

    def __init__(self, source: Source, channel: bytes) -> None:
        self._source, self._channel = source, channel
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._subscribing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self, key: str, place: bytes, timeout_s: float) -> AsyncIterator[asyncio.Future[None]]:
        """Subscribe; give a future that is done when *place* is woken."""
        woken = self._waiting[place] = asyncio.get_running_loop().create_future()
        woken.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with self._subscribing:
                if self._task is None or self._task.done():
                    with errors.unsent(key):
                        link = await aconnected(self._source, timeout_s)
                        self._task = asyncio.create_task(self._read(link, await self._subscribed(link, key)))
            yield woken
        finally:
            woken.cancel()
            self._waiting.pop(place, None)

    async def _subscribed(self, link: _AsyncLink, key: str) -> Inbox:
        try:
            errors.check(await link.ask(pack(b"SUBSCRIBE", self._channel), 1), key)
        except BaseException:
            link.close()
            raise
        return Inbox()

    async def _read(self, link: _AsyncLink, inbox: Inbox) -> None:
        try:
            while True:
                for place in inbox.places(await link.more()):
                    woken = self._waiting.get(place)
                    if woken is not None and not woken.done():
                        woken.set_result(None)
        except (OSError, EOFError, InvalidResponse) as error:
            _log.debug("the connection on which Redis wakes waiters broke: %s", error)
        finally:
            link.close()
            for woken in self._waiting.values():
                if not woken.done():
                    woken.set_exception(broken())

    async def close(self) -> None:
        """End every wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _AsyncNode:
    """As :class:`_Node`."""

    def __init__(self, source: Source, channel: bytes) -> None:
        self.pools = {False: _AsyncPool(source, CONNECTIONS_MAX), True: _AsyncPool(source, URGENT_MAX)}
        self.watch = _AsyncWatch(source, channel)


class AsyncConnections:
    """The link for tasks of one event loop; as :class:`Connections`."""

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, channel: bytes) -> None:
        self.servers: Servers[_AsyncNode] = Servers(client, redis.asyncio, lambda source: _AsyncNode(source, channel))
        self._refreshing: asyncio.Task[None] | None = None

    async def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """As :meth:`Connections.send`."""
        try:
            if self.servers.cluster:
                await self._learn()
            if isinstance(request, Locate):
                return self.servers.locate(request)
            node = self.servers.node(request)
            answers = await node.pools[request.urgent].ask(request, timeout_s / request.share)
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
            for pool in node.pools.values():
                pool.close()
            await node.watch.close()

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
