"""The link for threads: how a request reaches its server, and how a waiter hears that it is woken.

redis-py connects, encrypts and signs in; from then on its socket is used directly. Only a connection whose answers were read to their end
is kept; any other is closed, so no answer is ever taken for that to another request.

Each server has connections for claims and reads, others for renewals and releases, so nothing that waits can starve a lock that is held,
and one that all waiters share: it is subscribed to the channel of the store, and followed by a thread of its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import redis

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import BeginsAnew, DaemonThread, Lane, News, Pool, Watch, is_idle, on_lane, perform, watch_forks
from dlock_redis import _errors as errors
from dlock_redis._resp import Answers, IncompleteError, answer_in, pack
from dlock_redis._servers import Locate, Request, Servers, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlock_core.kit import Exchange, Shelf

# Connections to one server at most: for claims and reads, and for renewals and releases.
_CONNECTIONS_MAX = 16
_URGENT_MAX = 8
# And for claims that wait in the server; who finds none free waits by the connection that all share.
_WAITING_MAX = 4
ALL_MAX = _CONNECTIONS_MAX + _URGENT_MAX + _WAITING_MAX
# How long each address of a server, or all Sentinels, may take at least, where the connection is of use after its request, too.
PLACE_S = 1.0
# How long subscribing may take, and how soon the end of a store is seen by the thread that listens for it.
_SUBSCRIBE_S = 10.0
_LOOK_S = 0.1
# A time-out of the socket that differs by less is left as it is, which saves a system call.
_NEGLIGIBLE = 0.01
_READ_SIZE = 65536
# A server without other work looks ten times a second, by its setting hz, whether a wait is over, and at each thing that it hears; it is
# nudged when the wait should be, and after twice the time again. What it hears is a whole command: a proxy may answer an empty line, too.
NUDGE, NUDGE_S = pack(b"TIME"), 0.002
# Closing waits so long for a thread that asks a Cluster for its slots: it uses the client, which its owner may close next.
_SLOTS_END_S = 5.0


class Inbox:
    """Bytes of a subscribed connection that are not read yet."""

    def __init__(self) -> None:
        self._bytes = b""

    def places(self, more: bytes) -> Iterator[str]:
        """Yield the places that are woken in the messages up to *more*."""
        if not more:
            raise ConnectionResetError("the server closed the connection")
        self._bytes += more
        while self._bytes:
            try:
                answer, end = answer_in(self._bytes, 0)
            except IncompleteError:
                return
            self._bytes = self._bytes[end:]
            if type(answer) is list and answer[0] == b"message":
                yield answer[2].decode(errors="replace")


class _Link(BeginsAnew):
    """A connection of the blocking driver."""

    def __init__(self, connection: Any) -> None:
        self.close = connection.disconnect
        self._socket = connection._sock  # redis-py has no public way to a time-out for one request
        self._timeout_s = -1.0
        self.fit = True
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Give back the descriptor: else the server grants a claim that waits on it to the parent, though that has died."""
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def is_alive(self) -> bool:
        """Whether the server has neither closed the connection nor said something unasked."""
        return is_idle(self._socket)

    def send(self, request: Request, deadline: float) -> list[Any]:
        """Send *request*, and read its answers. A server that says that another one has to be asked is not asked again."""
        self.fit = False
        answers = self.ask(request, deadline)
        self.fit = not errors.is_misplaced(answers[0])
        return answers

    def ask(self, request: Request, deadline: float) -> list[Any]:
        """Send *request*, and read its answers by *deadline*."""
        timeout_s = deadline - time.monotonic()
        if abs(timeout_s - self._timeout_s) > timeout_s * _NEGLIGIBLE:
            self._limit(timeout_s)
        self._socket.sendall(request.commands)
        answers, waits_until = Answers(request.answers, request.heard), time.monotonic() + request.wait_s
        while True:
            try:
                if request.wait_s:
                    more = self._more_after(waits_until, deadline, answers)
                else:
                    if time.monotonic() > deadline - timeout_s * 0.9:
                        self._limit(deadline - time.monotonic())
                    more = self._socket.recv(_READ_SIZE)
                if not more:
                    raise ConnectionResetError("the server closed the connection")
                return answers.read(more)
            except IncompleteError:
                continue
            except ConnectionError as error:
                raise answers.refusal() or error  # noqa: B904  # that says more

    def _more_after(self, waits_until: float, deadline: float, answers: Answers) -> bytes:
        """Return what the server says by *deadline*; it is nudged when its wait is over, and answers that in *answers*, too."""
        pause_s = NUDGE_S
        while (nudge_at := max(waits_until, time.monotonic()) + pause_s) < deadline:
            try:
                return self.more(nudge_at - time.monotonic())
            except TimeoutError:
                if answers.expects_nudge():
                    self._socket.sendall(NUDGE)
                pause_s *= 2
        return self.more(deadline - time.monotonic())

    def more(self, timeout_s: float) -> bytes:
        """Return what the server says within *timeout_s*."""
        self._limit(timeout_s)
        return self._socket.recv(_READ_SIZE)  # type: ignore[no-any-return]

    def _limit(self, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(timeout_s)
        self._timeout_s = timeout_s


def connected(source: Source, deadline: float, until: float = 0) -> _Link:
    """Return a new connection, in time for a request that ends at *deadline*, or later, *until* when it is of use to others."""
    with errors.connecting():
        places, until = _places(source), max(deadline, until)
        timeout_s = max(until - time.monotonic(), 0.001)
        own_s = deadline - time.monotonic()
        place_s = min(max(own_s / places, PLACE_S), timeout_s)
        connection = source.connection(timeout_s, max(own_s, PLACE_S), socket_connect_timeout=place_s)
        try:
            with source.tls.lent(connection):
                connection.connect()
            if time.monotonic() >= until:
                raise redis.TimeoutError("connecting took all of the time")
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis.TimeoutError):
                raise source.late() from error
            raise
    return _Link(connection)


def _places(source: Source) -> int:
    """Return for how many addresses the name of the server stands: redis-py gives each of them the time-out, until one answers."""
    host = source.settings.get("host")
    if host is None or is_address(host):
        return 1
    with suppress(OSError, UnicodeError):  # which connecting tells
        return len(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    return 1


def is_address(host: str) -> bool:
    """Whether *host* is no name, which has to be looked up."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def subscribing(connect: Callable[[Source, float], Any], source: Source, channel: bytes) -> Exchange[Any]:
    """Return a new connection of *connect* that is subscribed to *channel*, in steps."""
    deadline = time.monotonic() + _SUBSCRIBE_S
    link = yield connect(source, deadline)
    try:
        errors.check((yield link.ask(Request(pack(b"SUBSCRIBE", channel)), deadline)), None)
    except BaseException:
        link.close()
        raise
    return link


class _Subscription:
    """The stream of :class:`~dlock_core.kit.Watch`: a connection that is subscribed to *channel*."""

    def __init__(self, source: Source, channel: bytes) -> None:
        self._link, self._inbox = perform(subscribing(connected, source, channel)), Inbox()
        self.close = self._link.close

    def try_next(self) -> list[str] | None:
        try:
            return list(self._inbox.places(self._link.more(_LOOK_S)))
        except TimeoutError:
            return None


class Node(NamedTuple):
    """One server: its connections for what is not urgent, what is, and claims that wait; the one for waiters; the lane that makes them."""

    pools: tuple[Any, Any, Any]
    watch: Any
    lane: Any

    @classmethod
    def of(cls, pool: type[Any], lane: Any, connect: Callable[[Shelf, float], Any], watch: Any) -> Self:
        """Return the node of *watch*, whose pools are of the class *pool*; *connect* makes a connection on *lane*, as they want it."""
        urgent = pool(_URGENT_MAX, connect)
        pools = pool(_CONNECTIONS_MAX, connect, urgent), urgent, pool(_WAITING_MAX, connect, urgent)
        return cls(pools, watch, lane)

    def send(self, request: Request, timeout_s: float) -> Any:
        """Send *request* on one of the connections for such."""
        return self.pools[2 if request.wait_s else request.urgent].send(request, timeout_s, waits=not request.wait_s)

    def close(self) -> Any:
        """Close all of them; for asyncio what this returns is awaited."""
        for pool in self.pools:
            pool.close()
        for link in list(self.pools[2].lent):
            link.close()  # the server drops the claim that waits on it
        return self.watch.close()


def _node(channel: bytes, source: Source) -> Node:
    lane = Lane(ALL_MAX)  # the search for the server's name has no bound of its own
    connect = on_lane(lane, partial(connected, source), source.unconnected)
    return Node.of(Pool, lane, connect, Watch(News(partial(_Subscription, source, channel), list, errors.FAILURES)))


class Connections(Servers):
    """The link for threads; *channel* is where waiters of this store hear that they are woken."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, channel: bytes) -> None:
        super().__init__(client, redis, partial(_node, channel))
        self._asking: threading.Thread | None = None

    def send(self, request: Request | Locate, timeout_s: float) -> Any:
        """Send *request* once; return its answers, or what is asked for of the topology."""
        node = None
        try:
            if isinstance(request, Locate):
                return self.locate(request)
            node = self.node(request)
            answers: list[Any] = node.send(request, timeout_s / request.share)
        except errors.FAILURES as error:
            self._refresh_after(error, node)
            raise
        if errors.is_misplaced(answers[0]):
            self._refresh_after(answers[0], node)
        return answers

    def watch(self, key: str) -> Watch:
        """Return where one waits for *key*: on the connection of its server."""
        watch: Watch = self.node(Request(key=key)).watch
        return watch

    def close(self) -> None:
        """Close all connections."""
        for node in self.end():
            node.close()
        if (asking := self._asking) is not None:
            asking.join(_SLOTS_END_S)

    def _refresh_after(self, error: BaseException, node: Node | None) -> None:
        if not self.wants_refresh(error, node):
            return
        thread = DaemonThread("dlock-redis-slots", perform, self.refresh())
        try:
            thread.begin()
            self._asking = thread
        except StoreUnavailableError:
            self.refreshed()  # the interpreter is shutting down, and starts no thread any more
        except BaseException:  # of a signal handler
            self.refreshed()
            raise
