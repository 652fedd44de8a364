"""The statements of the MySQL store, and what their rows mean. Pure.

**A step is one statement**, ``INSERT … ON DUPLICATE KEY UPDATE``: it inserts the row, or locks the one that stands. Its condition is
written once, in the first assignment: that gives the row the *write_id* of this step, a random number, or leaves the old one. MySQL
evaluates assignments from left to right, and later ones see what earlier ones have changed; so each of the rest compares the *write_id*,
and whoever reads the row sees from it whether the step was applied. A step that must not create a row selects its values from nothing
unless the row exists.

MariaDB returns the row from the statement itself. MySQL has no ``RETURNING``: there, the statement stands in a transaction with a
``SELECT``, and the four statements travel as one request.

**Literals** are plain text where they hold nothing but harmless characters, hexadecimal otherwise. So no SQL mode and no character set of a
connection changes what they mean, and nothing has to be escaped.
"""

# Every value goes through literal(), and every name is one that the options have checked.
# ruff: noqa: S608

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dlock_core.kit import Plain, damaged, is_urgent, kept, plain_of, record_of, written
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, LockRecord
from dlock_core.store import Claim, Expect, Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dlock_core.store import Release, Replace, Version
    from dlock_mysql.options import MySQLStoreOptions

Row = tuple[bytes, ...]
PAGE_ROWS = 500
_WHERE = "the table"

# Name and type of each column. Text of any bytes is binary: a collation would fold, trim or pad what must be compared exactly.
COLUMNS = {
    "k": "VARBINARY(1024) NOT NULL",
    "format": "INT NOT NULL",
    "state": "VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
    "rvn": "VARBINARY(256) NOT NULL",
    "token": "BIGINT NOT NULL",
    "owner": "MEDIUMTEXT NOT NULL",
    "lease_ms": "BIGINT",
    "context": "MEDIUMTEXT NOT NULL",
    "payload": "MEDIUMBLOB NOT NULL",
    "write_id": "BIGINT NOT NULL",
    "written_at": "DATETIME(6) NOT NULL",
}
# One value for a whole row: the driver spends more time on each column of a result than the server on all of them.
_ROW = "CONCAT(JSON_ARRAY(write_id, format, state, CONVERT(rvn USING utf8mb4), token, owner, lease_ms, context), X'0A', payload)"
# And its age in microseconds, both times by the server's clock.
_AGED_ROW = f"{_ROW}, TIMESTAMPDIFF(MICROSECOND, written_at, UTC_TIMESTAMP(6))"
# Not the condition's columns alone: also what a step writes besides. The state comes after the payload, which depends on it.
_ASSIGNED = ("rvn", "owner", "lease_ms", "context", "written_at", "state")
# A server that finds out the types of a union from literals empties those that are longer than its short types: beyond so many characters
# of SQL the types are those of the table. They cost a table on disk.
_ARM_SHORT = 16_000
_HARMLESS = re.compile(r"[A-Za-z0-9_.:/@-]*")


def literal(value: Any) -> str:
    """Return *value* as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return f"'{value}'" if _HARMLESS.fullmatch(value) else f"X'{value.encode().hex()}'"
    return f"X'{value.hex()}'"


def identifier(options: MySQLStoreOptions) -> str:
    """Return the table's name as SQL; the options have checked its parts."""
    return f"`{options.database}`.`{options.table}`"


class Request(NamedTuple):
    """What is sent at once: one or more statements. An *urgent* one keeps or frees a lock that is held.

    A step has a *write_id*, and is answered with the columns *shown* of the row that *stands* then: by the statement itself, or by another.
    """

    sql: str
    urgent: bool = False
    shown: str = ""
    stands: str = ""
    write_id: int = 0

    def text(self, *, returning: bool) -> str:
        """Return the SQL for a server that has RETURNING, or has not."""
        if not self.shown:
            return self.sql
        if returning:
            return f"{self.sql} RETURNING {self.shown}"
        return f"START TRANSACTION; {self.sql}; SELECT {self.shown} {self.stands}; COMMIT"

    def reply(self, rows: Sequence[Row], request: Claim | Replace | Release) -> Reply:
        """Return what *rows*, the answer to the step, say about *request*."""
        record = request.record
        if not rows:
            return Reply(applied=False, record=None)
        # Galera runs a statement again where another member was faster: the answer has the rows of both runs, and the last one counts.
        row = rows[-1]
        write_id, plain = _parsed(record.key, row[0])
        applied = write_id == self.write_id
        if applied:
            token, payload = plain.token, plain.payload
            stands = kept(record, token, payload) if request.keep_payload else written(record, token, None)
            return Reply(applied=True, record=stands)
        age_ms = age_ms_of(row) if type(request) is Claim else None
        return Reply(applied=False, record=record_of(record.key, plain, where=_WHERE), age_ms=age_ms)


class Arm(NamedTuple):
    """A replace, as a row in the request that does many."""

    key: str
    sql: str

    @classmethod
    def of(cls, request: Replace) -> Self:
        """Return that of *request*."""
        record, (old_rvn, old_token), keep, _ = request
        values = {"k": record.key, "old_rvn": old_rvn, "old_token": old_token, "keep": keep}
        plain = plain_of(record)._replace(payload=b"") if keep else plain_of(record)
        named = (values | plain._asdict()).items()
        return cls(record.key, "SELECT " + ", ".join(f"{literal(value)} AS {name}" for name, value in named))


class Table:
    """The statements on one table."""

    def __init__(self, options: MySQLStoreOptions) -> None:
        self._table = identifier(options)

    def claim(self, request: Claim) -> Request:
        """Return the step of *request*."""
        condition = f"format = {FORMAT_VERSION} AND token < {TOKEN_MAX} AND state "
        condition += "= 'free'" if request.must_exist else "IN ('free', 'gone')"
        if request.expect is Expect.ABSENT:
            condition = "FALSE"
        elif isinstance(request.expect, tuple):
            condition += f" AND {_is(request.expect)}"
        creates = not request.must_exist and isinstance(request.expect, Expect)
        minted = "GREATEST(token + 1, VALUES(token))"
        payload = "IF(state = 'gone', VALUES(payload), payload)" if request.keep_payload else "VALUES(payload)"
        return self._step(request.record, condition, minted, payload, creates=creates, shown=_AGED_ROW)

    def change(self, request: Replace | Release) -> Request:
        """Return the step of *request*."""
        condition = f"format = {FORMAT_VERSION} AND state = 'held' AND {_is(request.expected)}"
        payload = "payload" if request.keep_payload else "VALUES(payload)"
        urgent = is_urgent(request)
        return self._step(request.record, condition, "VALUES(token)", payload, creates=False, urgent=urgent)

    def read(self, keys: Sequence[str]) -> Request:
        """Return the request for the rows of *keys*, each with its key."""
        return Request(f"SELECT {_ROW}, k FROM {self._table} WHERE k IN ({', '.join(map(literal, keys))})")

    def read_age(self, key: str) -> Request:
        """Return the request for a row and its age, which :func:`age_ms_of` reads."""
        return Request(f"SELECT {_AGED_ROW} FROM {self._table} WHERE k = {literal(key)}")

    def unlocked(self, keys: Sequence[str]) -> Request:
        """Return the request that shows each of *keys* that has a row, and once more if no other transaction has locked that."""
        rows = f"SELECT k FROM {self._table} WHERE k IN ({', '.join(map(literal, sorted(keys)))})"
        return Request(f"{rows}; {rows} FOR UPDATE SKIP LOCKED", urgent=True)

    def page(self, prefix: str, after: str | None) -> Request:
        """Return the request for the rows from *prefix* on, or *after* a key, in the order of the keys' bytes."""
        begin = f">= {literal(prefix)}" if after is None else f"> {literal(after)}"
        return Request(f"SELECT {_ROW}, k FROM {self._table} WHERE k {begin} ORDER BY k LIMIT {PAGE_ROWS}")

    def changes(self, rows: Iterable[Arm]) -> Request:
        """Return the request that does each replace, given as its :class:`Arm`, and answers with all their rows, each with its key."""
        keys, arms = map(list, zip(*sorted(rows), strict=True))
        write_id = secrets.randbits(63)
        if any(len(arm) > _ARM_SHORT for arm in arms):
            columns = f"k, rvn AS old_rvn, token AS old_token, 0 AS keep, {', '.join(Plain._fields)}"
            arms.insert(0, f"SELECT {columns} FROM {self._table} WHERE FALSE")
        stands = (
            "t.k = n.k AND t.format = n.format AND t.state = 'held' AND t.rvn = n.old_rvn AND t.token = n.old_token"
        )
        fields = ", ".join(f"t.{name} = n.{name}" for name in Plain._fields if name != "payload")
        # Row by row, whatever a plan would cost: one that looks at each row of a small table waits for those that it does not write.
        joined = f"({' UNION ALL '.join(arms)}) n STRAIGHT_JOIN {self._table} t FORCE INDEX (PRIMARY)"
        return Request(
            f"START TRANSACTION; UPDATE {joined} ON {stands} SET {fields}, "
            f"t.payload = IF(n.keep, t.payload, n.payload), t.write_id = {write_id}, t.written_at = UTC_TIMESTAMP(6); "
            f"{self.read(keys).sql}; COMMIT",
            urgent=True,
            write_id=write_id,
        )

    def _step(
        self,
        record: LockRecord,
        condition: str,
        token: str,
        payload: str,
        *,
        creates: bool,
        urgent: bool = False,
        shown: str = _ROW,
    ) -> Request:
        plain, key, write_id = plain_of(record), literal(record.key), secrets.randbits(63)
        if payload == "payload":  # the one that stands is kept
            plain = plain._replace(payload=b"")
        values = f"{key}, {', '.join(map(literal, plain))}, {write_id}, UTC_TIMESTAMP(6)"
        stands = f"FROM {self._table} WHERE k = {key}"
        source = f"VALUES ({values})" if creates else f"SELECT {values} FROM DUAL WHERE EXISTS (SELECT 1 {stands})"
        assigned = {"token": token, "payload": payload} | {name: f"VALUES({name})" for name in _ASSIGNED}
        changes = ", ".join(
            f"{name} = IF(write_id = VALUES(write_id), {value}, {name})" for name, value in assigned.items()
        )
        sql = (
            f"INSERT INTO {self._table} ({', '.join(COLUMNS)}) {source} "
            f"ON DUPLICATE KEY UPDATE write_id = IF({condition}, VALUES(write_id), write_id), {changes}"
        )
        return Request(sql, urgent, shown, stands, write_id)


def decode(key: str, row: bytes | None) -> LockRecord:
    """Return the record in *row*, which a statement of :class:`Table` selected.

    Raises: RecordError: the row is not a record of dlock, or a damaged one.
    """
    return record_of(key, _parsed(key, row)[1], where=_WHERE)


def age_ms_of(row: Row) -> int:
    """Return the age in ms in a *row* that shows it."""
    return max(0, int(row[1]) // 1000)


def _parsed(key: str, row: bytes | None) -> tuple[int, Plain]:
    if row is None:  # so says the server
        raise damaged(key, "it is longer than the server's max_allowed_packet", where=_WHERE)
    head, _, payload = row.partition(b"\n")
    try:
        write_id, *fields = json.loads(head)
        return write_id, Plain._make((*fields, payload))
    except (TypeError, ValueError) as error:
        raise damaged(key, str(error), where=_WHERE) from error


def _is(version: Version) -> str:
    return f"rvn = {literal(version.rvn)} AND token = {literal(version.fencing_token)}"
