"""Where the middleware keeps the greatest token of each resource."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import Any, Protocol

from dlock_core.errors import StoreError
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
    """Tokens in a table, by a DB-API 2.0 *connection* that nothing else uses.

    ``sqlite3.connect(path, check_same_thread=False)`` is one; *paramstyle* is that of the driver (``driver.paramstyle``). A resource
    stands there as its SHA-256, so that its length and its case don't matter to the database.

    Raises: ConfigurationError: *table* is no identifier, or *paramstyle* no style.
    """

    def __init__(self, connection: Any, *, table: str = "fencing_tokens", paramstyle: str = "qmark") -> None:
        self._connection, self._table, self._paramstyle = connection, checked_identifier(table, "table"), paramstyle
        sql("", [], paramstyle)
        self._mutex = threading.Lock()

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
        try:
            self._run(text, name, token)
        except self._connection.IntegrityError:
            return False
        return True

    def _run(self, text: str, *values: object, reads: bool = False) -> tuple[int, list[Any]]:
        """Return how many rows the statement has changed, and those that it *reads*."""
        # Each statement is a transaction of its own: in one transaction, update and insert of two servers could end in a deadlock.
        cursor = self._connection.cursor()
        try:
            cursor.execute(*sql(text, list(values), self._paramstyle))
            # Before the commit: the DB-API lets a driver drop a cursor's result, and its count, at the end of the transaction.
            result = cursor.rowcount, list(cursor.fetchall()) if reads else []
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return result
