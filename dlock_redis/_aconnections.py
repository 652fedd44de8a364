"""The link for tasks of one event loop; as :mod:`dlock_redis._connections`, on redis-py's connections."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.asyncio.sentinel import SentinelManagedConnection
from redis.exceptions import InvalidResponse

from dlock_core.kit import (
    AsyncLane,
    AsyncPool,
    AsyncWatch,
    News,
    aperform,
    connected_socket,
    in_own_thread,
    is_ready,
    on_async_lane,
)
from dlock_redis import _errors as errors
from dlock_redis._connections import ALL_MAX, NUDGE, NUDGE_S, PLACE_S, Inbox, Node, is_address, subscribing
from dlock_redis._resp import Answers, IncompleteError
from dlock_redis._servers import Locate, Request, Servers, Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LOOK_S = 0.5


class _AsyncLink(asyncio.Protocol):
    """A connection of the driver for asyncio. Once it is made, all that the server says comes here, and no more to the driver."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport = connection._writer.transport  # as in _Link
        self._socket = self._transport.get_extra_info("socket")
        self._loop = asyncio.get_running_loop()
        # An error is a result too: the loop complains of an exception that an interrupted request never fetches.
        self._answers: asyncio.Future[list[Any] | Exception] | None = None
        self._reader = Answers(1)  # a server that is full says so, and nothing else, before it is asked
        self._nudging: asyncio.TimerHandle | None = None
        self.fit, self._spoilt = True, False
        # Called with all that the server says unasked; with nothing at the end of the connection.
        self.hear: Callable[[bytes], None] = self._spoil
        self._transport.set_protocol(self)

    async def send(self, request: Request, deadline: float) -> list[Any]:
        """As :meth:`_Link.send`."""
        self.fit = False
        answers = await self.ask(request, deadline)
        self.fit = not errors.is_misplaced(answers[0])
        return answers

    async def ask(self, request: Request, deadline: float) -> list[Any]:
        """As :meth:`_Link.ask`."""
        if self._spoilt:
            raise self._ended(None)
        answers: asyncio.Future[list[Any] | Exception] = self._loop.create_future()
        self._answers = answers
        self._reader = Answers(request.answers, request.heard)
        timer = self._loop.call_later(deadline - time.monotonic(), _give_up, answers)
        self._transport.write(request.commands)
        if request.wait_s:
            self._nudging = self._loop.call_later(request.wait_s + NUDGE_S, self._nudge, 2 * NUDGE_S)
        try:
            answer = await answers
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self._answers = None
            timer.cancel()
            if self._nudging is not None:
                self._nudging.cancel()

    def _nudge(self, pause_s: float) -> None:
        if self._reader.expects_nudge():
            self._transport.write(NUDGE)
        self._nudging = self._loop.call_later(pause_s, self._nudge, 2 * pause_s)

    def data_received(self, data: bytes) -> None:
        """Read the answers, once they are whole. After an interrupt in here they may never be."""
        answers = self._answers
        if answers is None or answers.done():
            self.hear(data)
            return
        try:
            result = self._reader.read(data)
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
        self._fail(self._ended(error))
        self.hear(b"")

    def _ended(self, error: Exception | None) -> Exception:
        return self._reader.refusal() or error or ConnectionResetError("the server closed the connection")

    def _fail(self, error: Exception) -> None:
        if self._answers is not None:
            _settle(self._answers, error)

    def is_alive(self) -> bool:
        """As :meth:`_Link.is_alive`: nothing has come to the event loop, nor is still in the socket."""
        return not (self._spoilt or self._transport.is_closing() or is_ready(self._socket))

    def close(self) -> None:
        """Close at once, without waiting for the other side: TLS would shake hands once more, and the loop may end before it has."""
        self.hear = self._spoil
        self._transport.abort()
        self._connection._close()  # its disconnect() needs a running task, which a closing loop has not

    def _spoil(self, more: bytes) -> None:
        self._spoilt = True
        with suppress(IncompleteError, InvalidResponse):
            self._reader.read(more)


def _give_up(answers: asyncio.Future[list[Any] | Exception]) -> None:
    _settle(answers, TimeoutError("no answer in time"))


def _settle(answers: asyncio.Future[list[Any] | Exception], result: list[Any] | Exception) -> None:
    with suppress(asyncio.InvalidStateError):  # it ended meanwhile, or a signal handler has cancelled the request
        answers.set_result(result)


async def aconnected(source: Source, deadline: float, until: float = 0) -> _AsyncLink:
    """As :func:`~dlock_redis._connections.connected`."""
    with errors.connecting():
        timeout_s = max(deadline, until) - time.monotonic()
        connection = source.connection(timeout_s, max(deadline - time.monotonic(), PLACE_S))
        made: list[socket.socket] = []
        try:
            async with asyncio.timeout(timeout_s):
                with source.tls.lent(connection):
                    if not isinstance(connection, SentinelManagedConnection):  # which asks for its address first
                        await _reach(connection, made, deadline)
                    await _heeding(connection.connect())
        except BaseException as error:
            connection._close()  # as in _AsyncLink
            for unused in made:
                unused.close()
            if isinstance(error, (TimeoutError, redis.exceptions.TimeoutError)):
                raise source.late() from error
            raise
    return _AsyncLink(connection)


async def _heeding(driver: Awaitable[object]) -> None:
    """Await *driver*, and raise a cancellation that it swallowed: it waits by ``asyncio.wait_for``, which loses some in Python 3.11."""
    task = asyncio.current_task()
    assert task is not None  # of the caller
    cancellations = task.cancelling()
    await driver
    if task.cancelling() > cancellations:
        raise asyncio.CancelledError


async def _reach(connection: Any, made: list[socket.socket], deadline: float) -> None:
    """Make the socket of *connection* on a thread of dlock's own if its host is a name; it is in *made* until the connection takes it.

    The event loop would look the name up on the threads of its executor. Those are the user's, whose work may have all of them.
    """
    arguments: dict[str, Any] = getattr(connection, "_connection_arguments", dict)()
    host = arguments.pop("host", None)
    if host is None or is_address(host):
        return
    port = arguments.pop("port")
    connect = partial(connected_socket, (host, port), deadline, socket.socket, least_s=PLACE_S)
    try:
        made.append(await in_own_thread(connect, socket.socket.close))
    except TimeoutError:
        raise
    except (OSError, UnicodeError) as error:  # the latter for a name that no name server can be asked about
        raise redis.exceptions.ConnectionError(f"connecting to {host}:{port} failed: {error}") from error
    made[0].settimeout(0)
    tls = {"server_hostname": host} if arguments.get("ssl") else {}
    connection._connection_arguments = lambda: {**arguments, **tls, "sock": made.pop()}


class _AsyncSubscription:
    """As :class:`_Subscription`; it wakes the waiters from the event loop's own call, which spares them a task in between."""

    def __init__(self, link: _AsyncLink, wake: Callable[[str], None]) -> None:
        self._link, self._wake, self._inbox = link, wake, Inbox()
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        link.hear = self._hear

    def _hear(self, more: bytes) -> None:
        try:
            for place in self._inbox.places(more):
                self._wake(place)
        except (OSError, InvalidResponse) as error:
            if not self._broken.done():
                self._broken.set_result(error)

    async def try_next(self) -> None:
        await asyncio.wait([self._broken], timeout=_LOOK_S)
        if self._broken.done():
            raise self._broken.result()

    async def close(self) -> None:
        self._link.close()


class _AsyncNode(Node):
    async def close(self) -> None:
        await self.lane.close()
        await super().close()


def _node(channel: bytes, source: Source) -> Node:
    async def subscribed() -> _AsyncSubscription:
        return _AsyncSubscription(await aperform(subscribing(aconnected, source, channel)), watch.queues.wake)

    lane, watch = AsyncLane(ALL_MAX), AsyncWatch(News(subscribed, list, errors.FAILURES))
    connect = on_async_lane(lane, partial(aconnected, source), source.unconnected)
    return _AsyncNode.of(AsyncPool, lane, connect, watch)


class AsyncConnections(Servers):
    """The link for tasks of one event loop; as :class:`Connections`."""

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, channel: bytes) -> None:
        super().__init__(client, redis.asyncio, partial(_node, channel))
        self._asking: asyncio.Task[None] | None = None

    async def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """As :meth:`Connections.send`."""
        node = None
        try:
            await self._learn()
            if isinstance(request, Locate):
                return self.locate(request)
            node = self.node(request)
            answers: list[Any] = await node.send(request, timeout_s / request.share)
        except errors.FAILURES as error:
            self._refresh_after(error, node)
            raise
        if errors.is_misplaced(answers[0]):
            self._refresh_after(answers[0], node)
        return answers

    async def _learn(self) -> None:
        """Let the client of a Cluster learn the slots, the first time; the blocking one has when it was made."""
        if self.cluster:
            with errors.unsent(None):
                await _heeding(self._client.initialize())

    async def watch(self, key: str) -> AsyncWatch:
        """As :meth:`Connections.watch`."""
        await self._learn()
        watch: AsyncWatch = self.node(Request(key=key)).watch
        return watch

    async def close(self) -> None:
        """As :meth:`Connections.close`."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for node in self.end():
            await node.close()

    def _refresh_after(self, error: BaseException, node: Node | None) -> None:
        if self.wants_refresh(error, node):
            self._asking = asyncio.create_task(aperform(self.refresh()))
