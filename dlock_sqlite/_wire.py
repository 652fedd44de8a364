"""What the SQLite store knows without a file: its SQL, row and record, the conditions of the port.

Everything here is a function of its arguments. A step reads the row, decides and writes inside one ``BEGIN IMMEDIATE``, so no statement
repeats the conditions, and a damaged row is seen before anything could overwrite it.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreSetupError, StoreUnavailableError
from dlock_core.record import (
    FORMAT_VERSION,
    TOKEN_MAX,
    Attributes,
    Broken,
    LockRecord,
    ProcessIdentity,
    Stamp,
    State,
    newer_format,
)
from dlock_core.store import Claim, Expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.errors import StoreError
    from dlock_core.store import Release, Replace

__all__ = [
    "ADD_WRITTEN",
    "APPLICATION_ID",
    "LACKS_WRITTEN",
    "PAGE_FIRST",
    "PAGE_NEXT",
    "PAGE_ROWS",
    "READ",
    "READ_AGED",
    "SCHEMA",
    "SCHEMA_VERSION",
    "WRITE",
    "Row",
    "changed",
    "decode",
    "encode",
    "is_busy",
    "is_ours",
    "is_read_only",
    "trouble",
]

Row = tuple[Any, ...]
_T = TypeVar("_T")

# "dlok": tells our file from any other SQLite file before a byte of it is written.
APPLICATION_ID = 0x646C6F6B
SCHEMA_VERSION = 1
PAGE_ROWS = 500
_COLUMNS = "key, format, state, rvn, fencing_token, owner, lease_ms, stamp, process, broken, attributes, data"
# TEXT compares by its UTF-8 bytes (collation BINARY), so the keys of one prefix stand side by side. Without a rowid a write changes one
# tree, not two.
SCHEMA = """
CREATE TABLE lock (
    key TEXT NOT NULL PRIMARY KEY,
    format INTEGER NOT NULL,
    state TEXT NOT NULL,
    rvn TEXT NOT NULL,
    fencing_token INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_ms INTEGER,
    stamp TEXT,
    process TEXT,
    broken TEXT,
    attributes TEXT,
    data BLOB,
    written TEXT
) WITHOUT ROWID
"""
# Files made before rows said when they were written have no such column. The format stays: an older dlock names its columns, so it does
# without this one, and leaves it empty in what it writes.
LACKS_WRITTEN = "SELECT NOT EXISTS (SELECT 1 FROM pragma_table_info('lock') WHERE name = 'written')"
ADD_WRITTEN = "ALTER TABLE lock ADD COLUMN written TEXT"
READ = f"SELECT {_COLUMNS} FROM lock WHERE key = ?"  # noqa: S608  # names of ours
READ_AGED = f"SELECT written, {_COLUMNS} FROM lock WHERE key = ?"  # noqa: S608  # names of ours
WRITE = (
    f"INSERT OR REPLACE INTO lock ({_COLUMNS}, written) VALUES (?, {FORMAT_VERSION}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # names of ours
)
PAGE_FIRST = f"SELECT {_COLUMNS} FROM lock WHERE key >= ? ORDER BY key LIMIT {PAGE_ROWS}"  # noqa: S608  # names of ours
PAGE_NEXT = f"SELECT {_COLUMNS} FROM lock WHERE key > ? ORDER BY key LIMIT {PAGE_ROWS}"  # noqa: S608  # names of ours

_HELD, _GONE = State.HELD, State.GONE
_STATES: dict[Any, State] = {state.value: state for state in State}


def decode(row: Row) -> LockRecord:
    """Return the record in *row*.

    Raises: RecordError: the row is not a record of dlock, or a damaged one.
    """
    key, version, state, rvn, token, owner, lease_ms, stamp, process, broken, attributes, data = row
    if version != FORMAT_VERSION:
        if type(version) is int and version > FORMAT_VERSION:
            return newer_format(key, version, rvn, token)
        raise RecordError(_damage(key, f"format {version!r} is not a version of dlock"), key=key)
    known = _STATES.get(state)
    if known is None:
        raise RecordError(_damage(key, f"unknown state {state!r}"), key=key)
    return LockRecord(
        key,
        known,
        rvn,
        token,
        owner,
        lease_ms,
        data,
        () if attributes is None else _part(key, "attributes", attributes, _attributes),
        None if stamp is None else _part(key, "stamp", stamp, _stamp),
        None if process is None else _part(key, "process", process, _process),
        None if broken is None else _part(key, "broken", broken, _broken),
    )


def is_ours(row: Row) -> bool:
    """Whether this version may write over *row*: a row of a newer format is only waited for."""
    return bool(row[1] == FORMAT_VERSION)


def encode(record: LockRecord, written: str | None = None) -> Row:
    """Return *record*, and when it is *written*, as the values of :data:`WRITE`."""
    stamp, process, broken = record.stamp, record.process, record.broken
    return (
        record.key,
        record.state.value,
        record.rvn,
        record.fencing_token,
        record.owner,
        record.lease_ms,
        None if stamp is None else json.dumps({"at_ms": stamp.at_ms, "rvn": stamp.rvn}),
        None if process is None else json.dumps({name: getattr(process, name) for name in _PROCESS_FIELDS}),
        None if broken is None else json.dumps({"by": broken.by, "at_ms": broken.at_ms}),
        json.dumps({name: _tagged(value) for name, value in record.attributes}) if record.attributes else None,
        record.data,
        written,
    )


def changed(old: LockRecord | None, request: Claim | Replace | Release) -> LockRecord | None:
    """Return what *request* writes over *old*, or None where it is refused (clauses S2 to S6)."""
    if isinstance(request, Claim):
        return _claimed(old, request)
    record, expected = request.record, request.expected
    if old is None or old.state is not _HELD or old.rvn != expected.rvn or old.fencing_token != expected.fencing_token:
        return None
    return _standing(record, record.fencing_token, old if request.keep_payload else None)


def _claimed(old: LockRecord | None, request: Claim) -> LockRecord | None:
    record, expect = request.record, request.expect
    if old is None:
        refused = request.must_exist or (expect is not Expect.ANY and expect is not Expect.ABSENT)
        return None if refused else record
    if (
        old.state is _HELD
        or expect is Expect.ABSENT
        or (expect is not Expect.ANY and expect != old.version)
        or (request.must_exist and old.state is _GONE)
    ):
        return None
    token = max(old.fencing_token + 1, record.fencing_token)
    if token > TOKEN_MAX:
        message = f"the fencing token of key {record.key!r} has reached its end, {TOKEN_MAX}; use another key"
        raise StoreUnavailableError(message, key=record.key)
    keeps = request.keep_payload and old.state is not _GONE
    return _standing(record, token, old if keeps else None)


def _standing(record: LockRecord, token: int, kept: LockRecord | None) -> LockRecord:
    """Return *record* as it is written: with *token*, and with the payload of *kept* where there is one."""
    payload = record if kept is None else kept
    if token == record.fencing_token and payload.data == record.data and payload.attributes is record.attributes:
        return record
    return LockRecord(
        record.key,
        record.state,
        record.rvn,
        token,
        record.owner,
        record.lease_ms,
        payload.data,
        payload.attributes,
        record.stamp,
        record.process,
        record.broken,
    )


_PROCESS_FIELDS = ("boot_id", "pid_namespace", "pid", "started_at", "child_group")


def _part(key: str, name: str, text: str, make: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        return make(json.loads(text))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RecordError(_damage(key, f"{name} {str(text)[:60]!r} cannot be read ({error})"), key=key) from error


def _tagged(value: str | int | bytes) -> object:
    # JSON keeps text, integers and truth values apart by itself; only bytes need a tag, and no text or number is an object.
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _attributes(found: dict[str, Any]) -> Attributes:
    return tuple((name, _untagged(value) if type(value) is dict else value) for name, value in found.items())


def _untagged(value: dict[str, Any]) -> bytes:
    [(tag, text)] = value.items()
    if tag != "base64":
        raise ValueError(f"unknown tag {tag!r}")
    return base64.b64decode(text, validate=True)


def _stamp(found: dict[str, Any]) -> Stamp:
    return Stamp(_typed(found["at_ms"], int), _typed(found["rvn"], str))


def _process(found: dict[str, Any]) -> ProcessIdentity:
    boot_id, *numbers, group = (found[name] for name in _PROCESS_FIELDS)
    namespace, pid, started_at = (_typed(number, int) for number in numbers)
    return ProcessIdentity(
        _typed(boot_id, str), namespace, pid, started_at, None if group is None else _typed(group, int)
    )


def _broken(found: dict[str, Any]) -> Broken:
    return Broken(_typed(found["by"], str), _typed(found["at_ms"], int))


def _typed(value: object, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def _damage(key: object, what: str) -> str:
    return f"record under key {key!r}: {what}; inspect it with the sqlite3 program, dlock never overwrites it"


# ---- trouble


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process holds the file just now, so that trying again may help."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_read_only(error: sqlite3.Error) -> bool:
    """Whether this user may read the file, and not write it."""
    return _code(error) == sqlite3.SQLITE_READONLY


def trouble(error: sqlite3.Error, path: str, key: str | None, *, at_commit: bool) -> StoreError:
    """Return the driver's *error* as ours.

    Before the commit nothing was written. At the commit the last frame may have reached the log, where a recovery finds it.
    """
    code = _code(error)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    reason, advice, setup = _ADVICE.get(code, (str(error), "try again; if it stays, open the store again", False))
    if code is None and "decode to UTF-8" in str(error):
        return RecordError(_damage(key, f"text that is not UTF-8 in {path!r} ({error})"), key=key)
    if code == sqlite3.SQLITE_ERROR and "no such" in str(error):
        reason, advice, setup = f"its tables were changed ({error})", "put the file back from a backup", True
    if at_commit:
        message = f"SQLite file {path!r}: the commit failed, {reason} ({name}); it may have been written, {advice}"
        return OutcomeUnknownError(message, key=key)
    kind = StoreSetupError if setup else StoreUnavailableError
    return kind(f"SQLite file {path!r}: nothing was written, {reason} ({name}); {advice}", key=key)


def _code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary result code, the rest says more about it.
    return None if code is None else code & 0xFF


_DAMAGED = "keep a copy and check it with: sqlite3 FILE 'PRAGMA integrity_check'"
# For each primary result code: what it means here, what to do, and whether the set-up has to be mended.
_ADVICE: dict[int | None, tuple[str, str, bool]] = {
    sqlite3.SQLITE_BUSY: ("another process kept it locked", "find out which with fuser, or allow more time", False),
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space", False),
    sqlite3.SQLITE_IOERR: ("the disk or the file system reported an error", "check them (dmesg)", False),
    sqlite3.SQLITE_READONLY: ("the file cannot be written", "give this user write permission on it: chmod u+w", True),
    sqlite3.SQLITE_PERM: ("access was denied", "give this user read and write permission on it", True),
    sqlite3.SQLITE_CANTOPEN: (
        "it or its -wal and -shm files cannot be opened",
        "give this user write permission on its directory, and check the limit of open files (ulimit -n)",
        True,
    ),
    sqlite3.SQLITE_NOTADB: ("it is not a SQLite database", "give the path of a new file", True),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", _DAMAGED, True),
}
