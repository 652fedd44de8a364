"""The link: how a request reaches the ensemble and its answer comes back.

A connection of kazoo carries all requests of a client at once, so nothing that waits can starve a renewal. Its mutexes are Python's, so no
call of it is made where a signal handler could interrupt it. Each is sent once. A request
that would have to wait for a connection is not handed to kazoo at all, which would send it later, whatever has become of its caller.

To kazoo each request is a sign of life of its own, so that it sends no ping and misses no answer: a server that is gone without a word
would keep a client that goes on asking for as long as the system sends. Here a request without an answer ends the connection.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL

from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_core.kit import BeginsAnew, DaemonThread, Hearing, Lane, leave_behind, watch_forks
from dlock_zookeeper._look import Look, look_at

if TYPE_CHECKING:
    from dlock_zookeeper._wire import Request
    from dlock_zookeeper.options import ZooKeeperStoreOptions

# How soon an idle connection that is dead is found out. Nothing is lost with a session but watches and places in queues.
_SESSION_S = 6.0
_GIVEN_SILENT_S = 1.0
# How long a host may take to take a connection, before the next one is tried.
_CONNECT_S = 2.0
_LOOK_EVERY_S = 0.01
# What of a call's time is left for asking each server why none takes the session.
_ASKING_S, _ASKING_SHARE = 0.5, 0.25
# Of the threads that make the calls of the main thread: one, beside the calls that signal handlers make or have interrupted.
_LANE_WIDTH, _CLOSE_S = 16, 10.0
# What kazoo tells of its connections: for those who listen to it, but not for the terminal of a program without logging.
_log = logging.getLogger("kazoo.dlock")
_log.addHandler(logging.NullHandler())


class News:
    """The nodes that have changed, as one-shot watches tell it; the stream of :class:`~dlock_core.kit.Watch`."""

    def __init__(self) -> None:
        self._came: SimpleQueue[Any] = SimpleQueue()

    def put(self, event: Any) -> None:
        """Take an event of kazoo's."""
        self._came.put(event)

    def try_next(self, timeout_s: float = 0.5) -> Any:
        """Return an event of a node that has changed, or without a path one of a connection that was lost; else None."""
        try:
            return self._came.get(timeout=timeout_s)
        except Empty:
            return None

    def close(self) -> None:
        """Do nothing: a watch ends with its first event."""


class ThreadLink(BeginsAnew):
    """The link for threads. A *client* of the user's is neither started nor stopped."""

    watch: Any = None

    def __init__(self, options: ZooKeeperStoreOptions, client: Any) -> None:
        self._options, self._given = options, client
        self._client = client
        # Why no client is made any more.
        self._ended = ""
        # The client whose user and password were refused; kazoo itself forgets it at once.
        self._refused: Any = None
        # A client of the user's has others who count on its connection.
        self._hearing = Hearing() if client is None else Hearing(_GIVEN_SILENT_S)
        # The connection that was ended; kazoo may not know it yet.
        self._ended_way: Any = None
        self._mutex = threading.Lock()
        self._lane = Lane(_LANE_WIDTH)
        self.news = News()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin without a client: its threads are the parent's, and so is its session."""
        leave_behind(self._client)
        if self._given is not None:
            self._ended = "a client of ZooKeeper does not survive a fork; make it in the child"
        self._client, self._mutex, self.news = None, threading.Lock(), News()

    @property
    def zxid(self) -> int:
        """The last transaction that the server has told of."""
        return getattr(self._client, "last_zxid", 0)

    @property
    def chroot(self) -> str:
        """The node below which all paths of a client of the user's are; "" without one."""
        return "" if self._given is None else self._given.chroot

    def rearm(self, path: str) -> None:
        """Watch *path* once more, for those who still wait."""
        with suppress(StoreUnavailableError):
            self._ready(0).get_async(path, watch=self.news.put)

    def send(self, request: Request, timeout_s: float) -> list[Any]:
        """Send *request* once; an answer that is an error is raised."""
        answers: list[Any] = self._lane.aside(partial(self._send, request, time.monotonic() + timeout_s), timeout_s)
        return answers

    def _send(self, request: Request, deadline: float) -> list[Any]:
        client = self._ready(deadline - time.monotonic())
        way, asked_at = client._connection._socket, time.monotonic()
        came = []
        try:
            for answer in request(client, self.news.put):
                came.append(answer.get(timeout=max(deadline - time.monotonic(), 0)))
                self._hearing.answered(asked_at)
        except KazooTimeoutError:
            self._doubt(client, way, asked_at)
            raise
        except KazooException:
            self._hearing.heard()
            raise
        return came

    def _doubt(self, client: Any, way: Any, asked_at: float) -> None:
        """End the connection *way* of a request that had no answer, if it is silent: kazoo makes another, for the session."""
        is_used = isinstance(way, socket.socket) and client._connection._socket is way
        if is_used and self._hearing.is_silent(asked_at):
            _log.warning("no answer to what was asked %.1f s ago, connecting anew", time.monotonic() - asked_at)
            self._ended_way = way
            with suppress(OSError):  # it was closed meanwhile
                socket.socket.shutdown(way, socket.SHUT_RDWR)  # not that of TLS, which goes on without encryption

    def looks(self, timeout_s: float) -> list[Look]:
        """Ask each server for itself, all together within *timeout_s*."""
        endpoints = self._options.endpoints or [f"{host}:{port}" for host, port in self._given.hosts]
        each_s = max(timeout_s / len(endpoints), 0.01)
        client = self._client or self._given or _client_of(self._options)
        return [look_at(endpoint, each_s, client) for endpoint in endpoints]

    def close(self) -> None:
        """End the session, unless it is the user's."""
        self._lane.aside(self._close, _CLOSE_S)

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
        if self._given is not None:
            return
        with self._mutex:  # so that none is made behind the end, for a call that is still under way
            client, self._client, self._ended = self._client, None, "the store was closed"
        if client is not None:
            if client.connected:
                _end(client)
            else:  # there is no session to end, and kazoo waits as long for a server that is silent as it does in connecting
                with suppress(StoreUnavailableError):
                    DaemonThread("dlock-zookeeper-end", _end, client).begin()

    def _ready(self, timeout_s: float) -> Any:
        """Return the client, connected.

        Raises: StoreUnavailableError: there is no connection within *timeout_s*; the message says what each server answered.
        """
        asking_s = min(_ASKING_S, timeout_s * _ASKING_SHARE)
        until = time.monotonic() + timeout_s - asking_s
        client = self._client
        if client is None or self._has_ended(client):
            client = self._started()
        while not client.connected or client._connection._socket is self._ended_way:
            if client is self._refused or client.client_state == KeeperState.AUTH_FAILED:
                raise StoreSetupError("ZooKeeper refused user and password, nothing was written")
            if time.monotonic() > until:
                raise _unasked(self._why(asking_s)) from ConnectionLoss(client.client_state)
            time.sleep(_LOOK_EVERY_S)
        if client.client_state == KeeperState.CONNECTED_RO:
            raise _unasked("the server is read-only: it has lost its majority")
        return client

    def _started(self) -> Any:
        with self._mutex:  # for as long as it takes to start threads
            if self._ended:
                raise _unasked(self._ended)
            if self._client is not None and self._has_ended(self._client):
                DaemonThread("dlock-zookeeper-end", _end, self._client).begin()
                self._client = None
            if self._client is None:
                client = _client_of(self._options)
                client.add_listener(partial(self._note, client))
                client.start_async()
                self._client = client
            return self._client

    def _has_ended(self, client: Any) -> bool:
        """Whether kazoo has given up on a client of the store's own: user and password were refused, or it has met a mistake of its own."""
        thread = client._connection._connection_routine
        return self._given is None and thread is not None and not thread.is_alive()

    def _note(self, client: Any, _: Any) -> None:
        if client.client_state == KeeperState.AUTH_FAILED:
            self._refused = client
        elif not client.connected:
            # A server refuses who has seen later transactions than it has, for ever where an older copy of the data was put back. It may
            # let this client in: what its steps expect is checked, and its reads follow a sync.
            client.last_zxid = 0

    def _why(self, asking_s: float) -> str:
        looks = self.looks(asking_s)
        has = [look.zxid for look in looks if look.zxid is not None]
        why = "no session"
        if self._given is not None and self._given.client_state == KeeperState.CLOSED:
            why = "the client given is not started"
        elif self._given is not None and has and self._given.last_zxid > max(has):
            why = (
                "the client given has seen later transactions than the servers have, which let it in no more, as where an older copy "
                "of their data was put back: stop() it, and start() it again"
            )
        return "; ".join([why, *map(str, looks)])


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # published without types
    """As kazoo's, which waits a whole session for a host that is gone without a word: meanwhile short leases end."""

    def create_connection(self, *address: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*address, timeout=min(timeout, _CONNECT_S), **options)


def _end(client: Any) -> None:
    client.stop()
    client.close()


def _unasked(why: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"ZooKeeper was not asked, nothing was written: {why}")


def _client_of(options: Any) -> Any:
    login = [("digest", f"{options.user}:{options.password.get_secret_value()}")] if options.user else None
    patient = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}
    return KazooClient(
        ",".join(options.endpoints),
        timeout=_SESSION_S,
        auth_data=login,
        default_acl=CREATOR_ALL_ACL if login else None,
        connection_retry=patient,
        handler=_Handler(),
        logger=_log,
        use_ssl=options.tls,
        ca=options.tls_ca,
        certfile=options.tls_cert,
        keyfile=options.tls_key,
        check_hostname=options.tls,
    )
