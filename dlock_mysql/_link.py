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
import ssl
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CLIENT

from dlock_core.errors import ConfigurationError
from dlock_core.kit import DeadlineSocket, DeadlineTLSSocket, PooledLink, is_ready, leave_behind, mark_of
from dlock_mysql._errors import is_read_only, unconnected

if TYPE_CHECKING:
    from dlock_mysql._wire import Request, Row
    from dlock_mysql.options import MySQLStoreOptions

# Requests that are under way at once, at most: those that keep or free a lock that is held, and all others.
_CONNECTIONS = {"most": 16, "urgent": 8}
_GOODBYE_S = 1.0
# Part of the version of a server whose INSERT has RETURNING.
_RETURNING = "MariaDB"
# What a connection needs whatever the server's own settings are. A row is locked for the time of one commit; whoever locks it for longer,
# by hand, makes a request fail with certainty after a second, instead of being applied when nobody waits for it any more.
# A COMMIT that chains would begin a transaction, in which the next grant stays uncommitted. The limits on what a statement may look at, or
# show, would cut batches. One on its time would end it with an unknown outcome, before the wait for a row has ended with a certain one.
# MariaDB refuses, from 11.6.2 on, a statement that waited for a row which was changed meanwhile, at this isolation level too (error 1020).
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; "
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, "
    "completion_type = 'NO_CHAIN', sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = 18446744073709551615"
    "/*M!110602 , innodb_snapshot_isolation = OFF *//*M! , max_statement_time = 0 *//*!80000 , max_execution_time = 0 */"
)


class _Driver(pymysql.Connection):  # type: ignore[misc]  # published without types
    """PyMySQL's, which makes a context for each connection: it reads all authorities of the system, for 50 ms, and verifies nothing."""

    def __init__(self, context: ssl.SSLContext | None, **options: Any) -> None:
        self._context = context
        super().__init__(**options)

    def _create_ssl_ctx(self, _: object) -> ssl.SSLContext | None:
        return self._context


class _Connection:
    """An open connection. It belongs to one request at a time."""

    fit = True
    demoted = False

    def __init__(self, options: MySQLStoreOptions, context: ssl.SSLContext | None, deadline: float) -> None:
        driver = self._driver = _Driver(
            context,
            **options.model_dump(include={"host", "port", "user", "database"}),
            password=options.password.get_secret_value().encode(),
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            init_command=_SESSION,
            program_name="dlock",
            ssl=None if options.ssl_mode == "preferred" else context,  # with one, the driver demands encryption
            ssl_disabled=options.ssl_mode == "disabled",
            defer_connect=True,
        )
        if driver.ssl:
            driver.ctx.sslsocket_class = DeadlineTLSSocket
        driver.connect(DeadlineSocket.connected((options.host, options.port), deadline))
        self.has_returning = _RETURNING in driver.get_server_info()

    def send(self, request: Request, deadline: float) -> list[Row]:
        """Send *request* and return the rows of all its results."""
        self.fit = False
        self._driver._sock.deadline = deadline
        cursor = self._driver.cursor()
        try:
            cursor.execute(request.text(returning=self.has_returning))
            rows = list(cursor.fetchall())
            while cursor.nextset():
                rows += cursor.fetchall()
        except pymysql.Error as error:
            self.demoted = is_read_only(error)
            raise
        self.fit = True
        return rows

    def is_alive(self) -> bool:
        """Whether the server has said nothing since the last answer: a good-bye, or its end."""
        return self.fit and not is_ready(self._driver._sock)

    def close(self) -> None:
        """Close: with a good-bye, unless a request has not come to its end."""
        if self.fit:
            self._driver._sock.deadline = time.monotonic() + _GOODBYE_S
            self._driver.close()
        else:
            self._driver._force_close()

    def disown(self) -> None:
        """In a forked child: give back the descriptor, and nothing else. A thread of the parent may have locked the reader for ever."""
        if self._driver._sock is not None:
            os.close(self._driver._sock.detach())
        leave_behind(self._driver)


def link_of(options: MySQLStoreOptions) -> PooledLink:
    """Return the connections of a store."""
    contexts = _Contexts(options)
    return PooledLink(
        lambda deadline: _Connection(options, contexts.now(), deadline),
        partial(unconnected, options=options),
        **_CONNECTIONS,
    )


class _Contexts:
    """How to encrypt: made once, and anew when the file of the authorities is another, as authorities are replaced under programs that run.

    Raises: ConfigurationError: the file cannot be read.
    """

    def __init__(self, options: MySQLStoreOptions) -> None:
        self._options = options
        self._file = options.ssl_ca or ssl.get_default_verify_paths().cafile
        self._made = mark_of(self._file), _context_of(options)

    def now(self) -> ssl.SSLContext | None:
        """Return the one for a new connection; while the file cannot be read, that of before."""
        if self._options.ssl_mode == "verify_identity" and (mark := mark_of(self._file)) != self._made[0]:
            with suppress(ConfigurationError):
                self._made = mark, _context_of(self._options)
        return self._made[1]


def _context_of(options: MySQLStoreOptions) -> ssl.SSLContext | None:
    """Return how to encrypt.

    Raises: ConfigurationError: the file of the authority cannot be read.
    """
    if options.ssl_mode == "disabled":
        return None
    if options.ssl_mode == "verify_identity":
        try:
            return ssl.create_default_context(cafile=options.ssl_ca)
        except OSError as error:
            raise ConfigurationError(f"ssl_ca {options.ssl_ca!r} cannot be read: {error}") from error
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found
