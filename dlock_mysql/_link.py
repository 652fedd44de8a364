"""The way of a request to the server: PyMySQL connections whose every wait ends with the time-out of the verb.

A request runs on the thread of its caller, on a connection that no other request uses. The socket of a connection knows the deadline of
the request, so neither an answer that trickles in nor a server that hangs can hold a caller. The search for the server's name has no such
socket: a connection is made on a thread of a lane, and its caller goes on when its time is over.

Renewals and releases have seats and lanes of their own, which no waiter can take.

A connection is used again only where a request came to its end; after any error it is closed, and the server ends what it left open. One
that the server has closed while it was idle is not used, since nobody could tell whether a write that was sent on it was applied.
"""

from __future__ import annotations

import os
import select
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import pymysql
from pymysql.constants import CLIENT

from dlock_core.errors import ConfigurationError, StoreUnavailableError
from dlock_core.kit import (
    BeginsAnew,
    DeadlineSocket,
    DeadlineTLSSocket,
    Lane,
    Pool,
    Seats,
    Shelf,
    leave_behind,
    watch_forks,
)
from dlock_mysql._errors import unconnected

if TYPE_CHECKING:
    from dlock_mysql._wire import Request, Row
    from dlock_mysql.options import MySQLStoreOptions

__all__ = ["MySQLLink"]

# Requests that are under way at once, at most: those that keep or free a lock that is held, and all others.
_CONNECTIONS = {True: 8, False: 16}
_GOODBYE_S = 1.0
# A connection is made in this time, whether or not somebody still waits for it.
_CONNECT_S = 5.0
# Part of the version of a server whose INSERT has RETURNING.
_RETURNING = "MariaDB"
# What a connection needs whatever the server's own settings are. A row is locked for the time of one commit; whoever locks it for longer,
# by hand, makes a request fail with certainty after a second, instead of being applied when nobody waits for it any more.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
)


class _Connection:
    """An open connection. It belongs to one request at a time."""

    def __init__(self, options: MySQLStoreOptions, context: ssl.SSLContext | None, deadline: float) -> None:
        driver = self._driver = pymysql.Connection(
            **options.model_dump(include={"host", "port", "user", "database"}),
            password=options.password.get_secret_value().encode(),
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            init_command=_SESSION,
            program_name="dlock",
            ssl=context,
            ssl_disabled=options.ssl_mode == "disabled",
            defer_connect=True,
        )
        if driver.ssl:
            driver.ctx.sslsocket_class = DeadlineTLSSocket
        driver.connect(DeadlineSocket.connected((options.host, options.port), deadline))
        self._poll = select.poll()
        self._poll.register(driver._sock, select.POLLIN)
        self.has_returning = _RETURNING in driver.get_server_info()

    def query(self, request: Request, deadline: float) -> list[Row]:
        """Send *request* and return the rows of all its results."""
        self._driver._sock.deadline = deadline
        cursor = self._driver.cursor()
        cursor.execute(request.text(returning=self.has_returning))
        rows = list(cursor.fetchall())
        while cursor.nextset():
            rows += cursor.fetchall()
        return rows

    def is_alive(self) -> bool:
        """Whether the server has said nothing since the last answer: a good-bye, or its end."""
        return not self._poll.poll(0)

    def close(self) -> None:
        """Say good-bye and close."""
        self._driver._sock.deadline = time.monotonic() + _GOODBYE_S
        self._driver.close()

    def drop(self) -> None:
        """Close without a word."""
        self._driver._force_close()

    def disown(self) -> None:
        """In a forked child: give back the descriptor, and nothing else. A thread of the parent may have locked the reader for ever."""
        if self._driver._sock is not None:
            os.close(self._driver._sock.detach())
        leave_behind(self._driver)


class MySQLLink(BeginsAnew):
    """The connections of a store."""

    def __init__(self, options: MySQLStoreOptions) -> None:
        self._options = options
        self._context = _context_of(options)
        self._lanes = {keeps: Lane(count) for keeps, count in _CONNECTIONS.items()}
        self._made: WeakSet[_Connection] = WeakSet()
        self.after_fork_in_child()
        watch_forks(self)

    def send(self, request: Request, timeout_s: float) -> list[Row]:
        """Send *request* once; return the rows of the answer within *timeout_s* or raise the driver's error."""
        deadline = time.monotonic() + timeout_s
        pool = self.pools[request.keeps]
        seat = pool.seats.take(timeout_s)
        if seat is None:
            raise StoreUnavailableError("other requests had all connections all the time; nothing was sent")
        connection: _Connection | None = None
        usable = False
        try:
            connection = pool.shelf.take() or pool.opened(partial(self._connected, deadline, keeps=request.keeps))
            rows = connection.query(request, deadline)
            usable = True
            return rows
        finally:
            if connection is not None:
                pool.shelf.put(connection) if usable else connection.drop()
            pool.seats.leave(seat)

    def close(self) -> None:
        """Close the connections; those of requests under way are closed at their ends."""
        for pool in self.pools:
            pool.close()

    def after_fork_in_child(self) -> None:
        """Begin without connections: two processes must not speak on one."""
        for connection in self._made:
            connection.disown()
        urgent = _pool(_CONNECTIONS[True])
        self.pools = (_pool(_CONNECTIONS[False], urgent), urgent)

    def _connected(self, deadline: float, *, keeps: bool) -> _Connection:
        def connect() -> _Connection:
            patient = max(deadline, time.monotonic() + _CONNECT_S)
            made = _Connection(self._options, self._context, patient)
            self._made.add(made)
            return made

        try:
            connection: _Connection = self._lanes[keeps].run(
                connect, deadline - time.monotonic(), self.pools[keeps].shelf.keep_one
            )
        except StoreUnavailableError:
            raise
        except Exception as error:  # a server of another kind may have the driver raise anything; no request was sent
            raise unconnected(error, self._options) from error
        return connection


def _pool(size: int, reserve: Pool[_Connection] | None = None) -> Pool[_Connection]:
    return Pool(Seats(size), Shelf(_Connection.is_alive, _Connection.close), reserve)


def _context_of(options: MySQLStoreOptions) -> ssl.SSLContext | None:
    """Return how to encrypt; None leaves it to the driver, which encrypts where the server can, unless it is told not to.

    Raises: ConfigurationError: the file of the authority cannot be read.
    """
    if options.ssl_mode in {"disabled", "preferred"}:
        return None
    try:
        found = ssl.create_default_context(cafile=options.ssl_ca)
    except OSError as error:
        raise ConfigurationError(f"ssl_ca {options.ssl_ca!r} cannot be read: {error}") from error
    if options.ssl_mode == "required":
        found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found
