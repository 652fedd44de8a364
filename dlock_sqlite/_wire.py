"""What the SQLite store knows without a file: its SQL, the columns of a record, and what an error of SQLite means.

A step reads the row, decides and writes inside one ``BEGIN IMMEDIATE``, so no statement repeats the port's conditions, and a damaged row
is seen before anything could overwrite it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import Plain, damaged, plain_of, record_of
from dlock_sqlite._rights import missing_right

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.errors import StoreError
    from dlock_core.record import LockRecord

_T = TypeVar("_T")
Row = tuple[Any, ...]

# "dlok": tells our file from any other SQLite file before a byte of it is written.
APPLICATION_ID = 0x646C6F6B
SCHEMA_VERSION = 1
PAGE_ROWS = 500
# The key, and the fields of Plain in their order. TEXT compares by its UTF-8 bytes (collation BINARY), so the keys of one prefix stand side
# by side. Without a rowid a write changes one tree, not two.
_COLUMNS = "key, format, state, rvn, fencing_token, owner, lease_ms, context, payload"
SCHEMA = """
CREATE TABLE lock (
    key TEXT NOT NULL PRIMARY KEY,
    format INTEGER NOT NULL,
    state TEXT NOT NULL,
    rvn TEXT NOT NULL,
    fencing_token INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_ms INTEGER,
    context TEXT NOT NULL DEFAULT '',
    payload BLOB NOT NULL DEFAULT x'',
    written TEXT
) WITHOUT ROWID
"""
READ = f"SELECT {_COLUMNS}, written FROM lock WHERE key = ?"  # noqa: S608  # names of ours
WRITE = f"INSERT OR REPLACE INTO lock ({_COLUMNS}, written) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # names of ours
PAGE_FIRST = f"SELECT {_COLUMNS} FROM lock WHERE key >= ? AND key <> '' ORDER BY key LIMIT {PAGE_ROWS}"  # noqa: S608  # names of ours
PAGE_NEXT = f"SELECT {_COLUMNS} FROM lock WHERE key > ? ORDER BY key LIMIT {PAGE_ROWS}"  # noqa: S608  # names of ours
DELETE = "DELETE FROM lock WHERE key = ?"
# The row of the empty key, which is no lock's: its token is the least that a new record may have, above all that were removed.
READ_FLOOR = "SELECT fencing_token FROM lock WHERE key = ''"
WRITE_FLOOR = "INSERT OR REPLACE INTO lock (key, format, state, rvn, fencing_token, owner) VALUES ('', 0, 'floor', 'floor', ?, '')"


def decode(row: Row) -> LockRecord:
    """Return the record in *row*.

    Raises: RecordError: the row is not a record of dlock, or a damaged one.
    """
    key, *plain = row
    return record_of(key, Plain(*plain), where="the SQLite file")


def encode(record: LockRecord, written: str | None = None) -> Row:
    """Return *record*, and when it is *written*, as the values of :data:`WRITE`."""
    return (record.key, *plain_of(record), written)


# ---- trouble


def is_busy(error: Exception) -> bool:
    """Whether another process holds the file just now, so that trying again may help."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def with_room(work: Callable[[sqlite3.Connection], _T], connection: sqlite3.Connection) -> _T:
    """Return *work(connection)*; done again if there is no more space, after SQLite's log has been emptied into the file.

    The log then begins anew in the space that it has already: what is held can be renewed and released without any more.
    """
    try:
        return work(connection)
    except (OutcomeUnknownError, sqlite3.Error) as error:
        if getattr(error.__cause__ or error, "sqlite_errorcode", None) not in _NO_ROOM:
            raise
        with suppress(sqlite3.Error):  # the second try tells what is wrong
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("PRAGMA wal_checkpoint").fetchone()
    return work(connection)


def bytes_to_grow(connection: sqlite3.Connection, path: str) -> int:
    """Return how many bytes the file *path* lacks for the pages that the database has with the transaction of *connection*."""
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return max(0, pages * page_bytes - os.stat(path).st_size)  # noqa: PTH116  # each new key pays for it


def check_room(path: str, wanted: int) -> None:
    """Raise the error of a full disk if the file *path* cannot grow by *wanted* bytes."""
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < wanted + _SPARE_BYTES:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
        raise error


def keeps_connection(error: Exception) -> bool:
    """Whether the connection is as good as before *error*: the file was busy, or a row holds text that cannot be read."""
    return is_busy(error) or _is_unreadable(error)


def trouble(error: sqlite3.Error, path: str, key: str | None, *, at_commit: bool) -> StoreError:
    """Return the driver's *error* as ours.

    Before the commit nothing was written. At the commit the last frame may have reached the log, where a recovery finds it.
    """
    code = _code(error)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    reason, advice, setup = _ADVICE.get(code, (str(error), "try again; if it stays, open the store again", False))
    if code in _DENIED:
        advice = missing_right(path) or advice
    if _is_unreadable(error):
        return damaged(key or "?", f"text that is not UTF-8, {error}", where=f"SQLite file {path!r}")
    if "no such" in str(error):
        reason, advice, setup = f"its tables were changed ({error})", "put the file back from a backup", True
    if at_commit:
        message = f"SQLite file {path!r}: the commit failed, {reason} ({name}); it may have been written, {advice}"
        return OutcomeUnknownError(message, key=key)
    kind = StoreSetupError if setup else StoreUnavailableError
    return kind(f"SQLite file {path!r}: nothing was written, {reason} ({name}); {advice}", key=key)


def _is_unreadable(error: Exception) -> bool:
    return "decode to UTF-8" in str(error)


def _code(error: BaseException) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary result code, the rest says more about it.
    return None if code is None else code & 0xFF


# SQLite calls only a full disk full: a quota that is used up, and a file as large as the process may make it, are failed writes.
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
# For the log of a transaction that makes the file grow.
_SPARE_BYTES = 65_536
_DENIED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = "keep a copy and check it with: sqlite3 FILE 'PRAGMA integrity_check'"
# For each primary result code: what it means here, what to do, and whether the set-up has to be mended.
_ADVICE: dict[int | None, tuple[str, str, bool]] = {
    sqlite3.SQLITE_BUSY: ("another process kept it locked", "find out which with fuser, or allow more time", False),
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space", False),
    sqlite3.SQLITE_IOERR: (
        "the disk is full, or has reported an error",
        "check it (df, dmesg), and this user's quota (quota -s, ulimit -f)",
        False,
    ),
    sqlite3.SQLITE_READONLY: ("the file cannot be written", "mount its file system for writing", True),
    sqlite3.SQLITE_PERM: ("access was denied", "give this user read and write permission on it", True),
    sqlite3.SQLITE_CANTOPEN: (
        "it or its -wal and -shm files cannot be opened",
        "give this user write permission on its directory, and check the limit of open files (ulimit -n)",
        True,
    ),
    sqlite3.SQLITE_NOTADB: ("it is not a SQLite database", "give the path of a new file", True),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", _DAMAGED, True),
}
