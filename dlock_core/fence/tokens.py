"""Where the middleware keeps the greatest token of each resource."""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from typing import Any, Protocol
from weakref import WeakMethod

from dlock_core.errors import LeaseStateError, StoreError
from dlock_core.fence.writes import checked_identifier, sql

_TRIES = 3


class TokenStore(Protocol):
    """Keeps the greatest token of each resource; called by several threads at once."""

    def admit(self, resource: str, token: int) -> int:
        """Keep *token* if it is the greatest so far of *resource*, in one atomic step; return the greatest."""


class MemoryTokens:
    """Tokens in the memory of one process: a restart forgets them, and other processes don't see them."""

    def __init__(self) -> None:
        self._greatest: dict[str, int] = {}
        self._mutex = threading.Lock()

    def admit(self, resource: str, token: int) -> int:
        """Keep *token* if it is the greatest so far; return the greatest."""
        with self._mutex:
            greatest = self._greatest[resource] = max(token, self._greatest.get(resource, 0))
            return greatest


class SQLTokens:
    """Tokens in a table, by a DB-API 2.0 *connection* that nothing else uses, or a function that opens one.

    ``lambda: sqlite3.connect(path, check_same_thread=False)`` is such a function: it is called at the first use in each process, and again
    where the connection was lost. A connection itself is refused in a forked child. *paramstyle* is that of the driver
    (``driver.paramstyle``). A resource stands there as its SHA-256, so that its length and its case don't matter to the database.

    Raises: ConfigurationError: *table* is no identifier, or *paramstyle* no style.
    """

    def __init__(self, connection: Any, *, table: str = "fencing_tokens", paramstyle: str = "qmark") -> None:
        self._table, self._paramstyle = checked_identifier(table, "table"), paramstyle
        sql("", [], paramstyle)
        # A connection of sqlite3 can be called, too.
        self._open = connection if callable(connection) and not hasattr(connection, "cursor") else None
        self._connection = None if self._open else connection
        self._parents: list[Any] = []
        self._mutex = threading.Lock()
        if hasattr(os, "register_at_fork"):
            begin_anew = WeakMethod(self._begin_anew)
            os.register_at_fork(after_in_child=lambda: (method := begin_anew()) and method())

    def create_table(self) -> None:
        """Create the table, unless there is one."""
        columns = "resource CHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL"
        with self._mutex:
            self._run(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")

    def admit(self, resource: str, token: int) -> int:
        """Keep *token* if it is the greatest so far; return the greatest.

        Raises: what the driver raises.
        """
        name = sha256(resource.encode()).hexdigest()
        with self._mutex:
            # A second try is needed where another server made the row after the update of the first.
            for _ in range(_TRIES):
                if self._raise(name, token):
                    return token
                greatest = self._read(name)
                if greatest >= token:
                    return greatest
                if not greatest and self._insert(name, token):
                    return token
        raise StoreError(f"the tokens in the table {self._table!r} fall; let nothing delete or change its rows")

    def _raise(self, name: str, token: int) -> bool:
        text = f"UPDATE {self._table} SET token = {{}} WHERE resource = {{}} AND token < {{}}"  # noqa: S608  # a checked name
        count, _ = self._run(text, token, name, token)
        return count == 1

    def _read(self, name: str) -> int:
        text = f"SELECT token FROM {self._table} WHERE resource = {{}}"  # noqa: S608  # a checked name
        _, rows = self._run(text, name, reads=True)
        return int(rows[0][0]) if rows else 0

    def _insert(self, name: str, token: int) -> bool:
        text = f"INSERT INTO {self._table} (resource, token) VALUES ({{}}, {{}})"  # noqa: S608  # a checked name
        exists = self._connected().IntegrityError
        try:
            self._run(text, name, token)
        except exists:
            return False
        return True

    def _run(self, text: str, *values: object, reads: bool = False) -> tuple[int, list[Any]]:
        """Return how many rows the statement has changed, and those that it *reads*."""
        # Each statement is a transaction of its own: in one transaction, update and insert of two servers could end in a deadlock.
        connection = self._connected()
        try:
            cursor = connection.cursor()
            cursor.execute(*sql(text, list(values), self._paramstyle))
            # Before the commit: the DB-API lets a driver drop a cursor's result, and its count, at the end of the transaction.
            result = cursor.rowcount, list(cursor.fetchall()) if reads else []
            connection.commit()
        except BaseException:
            self._undo(connection)
            raise
        return result

    def _connected(self) -> Any:
        if self._connection is None:
            if self._open is None:
                raise LeaseStateError(
                    "the connection of these tokens belongs to the process that was forked, whose answers would come here; "
                    "give SQLTokens a function that opens one: SQLTokens(lambda: driver.connect(…))"
                )
            self._connection = self._open()
        return self._connection

    def _begin_anew(self) -> None:
        """In a forked child: a thread that is not here may have had the mutex."""
        self._mutex = threading.Lock()
        self._parents.append(self._connection)  # a driver may say good-bye to the server when it is freed
        self._connection = None

    def _undo(self, connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:
            if self._open is None:
                raise
            self._connection = None  # it was lost: the next statement has another one
