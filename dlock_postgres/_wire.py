"""The statements that PostgreSQL is sent, and how its answers are read: pure, without a connection.

One table holds the records, a row each. Each column but the key holds one plain value of the record (:class:`~dlock_core.kit.Plain`), or is
one of two that no condition compares: ``written``, the time of the last write by the server's clock, and ``sought``, the mark of a waiter.

Each step is one statement, a transaction of its own: the CTE ``done`` writes under its condition, and the outer SELECT shows the row as the
statement's snapshot has it. In READ COMMITTED the condition is checked on the newest version of the row, which may be newer than the
snapshot. So where a step was not applied although the row in the snapshot fits, another client's write came in between, and the row is
read once more: a refusal always shows a record that refuses. :func:`~dlock_core.kit.outcome` says whether a row fits.

A claim of a row that is held in the snapshot writes nothing and locks nothing, so waiters don't disturb the holder.
"""

# Only the name of the table, which the options have checked, is written into statements.
# ruff: noqa: S608

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import OutcomeUnknownError
from dlock_core.kit import Plain, outcome, plain_of, read_payload, record_of, written
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, LockRecord
from dlock_core.store import Claim, Expect, Release, Replace, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_LIMIT = 500
# The code of an error that claims of several keys end in on purpose: division by zero.
OVERTAKEN = "22012"
PAGE_SIZE = 500
_WHERE = "the table"
# In the order of Plain.
COLUMNS = {
    "v": "integer",
    "state": "text",
    "rvn": "text",
    "token": "bigint",
    "owner": "text",
    "lease_ms": "integer",
    "context": "text",
    "payload": "bytea",
}
_NAMES = ", ".join(COLUMNS)
_SHOWN = ", ".join(f"s.{name}" for name in COLUMNS)
_AGE = "floor(extract(epoch FROM clock_timestamp() - s.written) * 1000)::bigint"
# The types of parameters and results, by their numbers in PostgreSQL's catalogue.
_BOOL, _BYTEA, _BIGINT, _TEXT = 16, 17, 20, 25
_INTEGERS = frozenset({_BIGINT, 21, 23, 26})


class Statement(NamedTuple):
    """One statement with its parameters in binary. An *urgent* one keeps a lock or gives it back.

    It is cancelled when its time is almost over, if it *cancels*. One that is *prepared* is parsed and planned once on each connection.
    """

    sql: bytes
    values: tuple[bytes | None, ...] = ()
    types: tuple[int, ...] = ()
    urgent: bool = False
    cancels: bool = True
    prepared: bool = False


def statement(sql: str, *values: Any, urgent: bool = False) -> Statement:
    """Return the statement for plain *values*."""
    encoded = [_encoded(value) for value in values]
    return Statement(sql.encode(), tuple(value for _, value in encoded), tuple(kind for kind, _ in encoded), urgent)


def _encoded(value: Any) -> tuple[int, bytes | None]:
    if type(value) is str:
        return _TEXT, value.encode()
    if value is None:
        return 0, None
    if type(value) is bytes:
        return _BYTEA, value
    return _BIGINT, value.to_bytes(8, "big", signed=True)


def decoded(kind: int, value: bytes | None) -> Any:
    """Return a value of a result, by the number of its type."""
    if value is None:
        return None
    if kind in _INTEGERS:
        return int.from_bytes(value, "big", signed=True)
    if kind == _BOOL:
        return value == b"\x01"
    return bytes(value) if kind == _BYTEA else value.decode()


# ---- statements


def claim(table: str, request: Claim, *, sought: bool) -> Statement:
    """Return the statement of a claim (clauses S2 to S4). *sought*: somebody else waits for the key, and the row is marked at once."""
    plain = plain_of(request.record)
    expected = request.expect if not isinstance(request.expect, Expect) else ()
    sql = _claim_sql(table, request.expect if not expected else None, request.must_exist, request.keep_payload, sought)
    return statement(sql, request.record.key, *plain, *expected)


@lru_cache(maxsize=64)
def _claim_sql(table: str, expect: Expect | None, must_exist: bool, keep_payload: bool, sought: bool) -> str:  # noqa: FBT001
    """Return the text of a claim; without *expect* it expects the version in the parameters 10 and 11."""
    states = "'free'" if must_exist else "'free', 'gone'"
    fits = f"t.v = {FORMAT_VERSION} AND t.state IN ({states}) AND t.token BETWEEN 1 AND {TOKEN_MAX - 1}"
    payload = "CASE WHEN t.state = 'free' THEN t.payload ELSE $9 END" if keep_payload else "$9"
    changes = _changes("GREATEST(t.token + 1, $5)", payload, f"sought = {sought}")
    shown = f"SELECT (SELECT token FROM done), {'(SELECT payload FROM done)' if keep_payload else 'NULL::bytea'}, {_AGE}, {_SHOWN}"
    creates = expect is not None and not must_exist
    if not creates:
        fits += (
            " AND false" if expect is Expect.ABSENT else " AND t.rvn = $10 AND t.token = $11" if expect is None else ""
        )
        return (
            f"WITH done AS (UPDATE {table} AS t SET {changes} WHERE t.key = $1 AND {fits} RETURNING token, payload) "
            f"{shown} FROM {table} AS s WHERE s.key = $1"
        )
    refuses = "" if expect is Expect.ABSENT else " AND s.state = 'held'"
    conflict = "NOTHING" if expect is Expect.ABSENT else f"UPDATE SET {changes} WHERE {fits}"
    return (
        f"WITH done AS (INSERT INTO {table} AS t (key, {_NAMES}, written) "
        f"SELECT $1, $2::int, $3, $4, $5, $6, $7::int, $8, $9, clock_timestamp() "
        f"WHERE NOT EXISTS (SELECT FROM {table} AS s WHERE s.key = $1{refuses}) "
        f"ON CONFLICT (key) DO {conflict} RETURNING token, payload) "
        f"{shown} FROM (SELECT) AS one LEFT JOIN {table} AS s ON s.key = $1"
    )


def claims(table: str, requests: Sequence[Claim], sought: Sequence[bool]) -> Statement:
    """Return the statement of several claims, which expect nothing: all or none (clauses M1 to M3).

    Keys that the snapshot shows as held have nothing written. Where another client's write came in between, the statement ends in
    :data:`OVERTAKEN`, and is rolled back. Rows are locked in the order of their keys.
    """
    asked = []
    for number, (request, is_sought) in enumerate(zip(requests, sought, strict=True)):
        plain = plain_of(request.record)
        asked.append(
            {
                **dict(zip(COLUMNS, plain, strict=True)),
                "payload": plain.payload.hex(),
                "n": number,
                "key": request.record.key,
                "must": request.must_exist,
                "keeps": request.keep_payload,
                "sought": is_sought,
            }
        )
    return statement(_claims_sql(table), json.dumps(asked))


@lru_cache(maxsize=8)
def _claims_sql(table: str) -> str:
    given = {**COLUMNS, "payload": "text", "n": "int", "key": "text", "must": "bool", "keeps": "bool", "sought": "bool"}
    columns = ", ".join(f"{name} {kind}" for name, kind in given.items())
    values = ", ".join("decode(a.payload, 'hex')" if name == "payload" else f"a.{name}" for name in COLUMNS)
    new = {name: f"excluded.{name}" for name in (*COLUMNS, "written", "sought")} | {
        "token": "GREATEST(t.token + 1, excluded.token)",
        "payload": f"CASE WHEN t.state = 'free' AND {_asked('keeps')} THEN t.payload ELSE excluded.payload END",
    }
    changes = ", ".join(f"{name} = {value}" for name, value in new.items())
    return (
        f"WITH asked AS MATERIALIZED (SELECT * FROM json_to_recordset($1::json) AS a({columns})), "
        f"shown AS MATERIALIZED (SELECT a.n, a.must, s.key, {_AGE} AS age, {_SHOWN} "
        f"FROM asked AS a LEFT JOIN {table} AS s ON s.key = a.key), "
        f"good AS MATERIALIZED (SELECT bool_and(CASE WHEN s.key IS NULL THEN NOT s.must ELSE {_fits('s', 's.must')} END) AS ok "
        f"FROM shown AS s), "
        f"done AS (INSERT INTO {table} AS t (key, {_NAMES}, written, sought) "
        f"SELECT a.key, {values}, clock_timestamp(), a.sought FROM asked AS a CROSS JOIN good WHERE good.ok "
        f'ORDER BY a.key COLLATE "C" '
        f"ON CONFLICT (key) DO UPDATE SET {changes} WHERE {_fits('t', _asked('must'))} RETURNING key, token, payload) "
        f"SELECT 1 / CASE WHEN good.ok AND (SELECT count(*) FROM done) < (SELECT count(*) FROM asked) THEN 0 ELSE 1 END, "
        f"done.token, done.payload, s.age, {_SHOWN} "
        f"FROM asked AS a JOIN shown AS s USING (n) CROSS JOIN good LEFT JOIN done ON done.key = a.key ORDER BY n"
    )


def _fits(row: str, must: str) -> str:
    return (
        f"({row}.v = {FORMAT_VERSION} AND ({row}.state = 'free' OR {row}.state = 'gone' AND NOT {must}) "
        f"AND {row}.token BETWEEN 1 AND {TOKEN_MAX - 1})"
    )


def _asked(what: str) -> str:
    return f"(SELECT a.{what} FROM asked AS a WHERE a.key = t.key)"


def change(table: str, channel: str, request: Replace | Release, *, urgent: bool) -> Statement:
    """Return the statement of a replace or a release (clauses S4 to S6)."""
    plain = plain_of(request.record)
    sql = _change_sql(table, request.keep_payload)
    return statement(sql, request.record.key, *plain, *request.expected, channel, urgent=urgent)


@lru_cache(maxsize=64)
def _change_sql(table: str, keep_payload: bool) -> str:  # noqa: FBT001
    return (
        f"WITH done AS (UPDATE {table} AS t SET {_changes('$5', 't.payload' if keep_payload else '$9', _told('$12'))} "
        f"WHERE t.key = $1 AND {_matches('$10', '$11')} RETURNING token) "
        f"SELECT (SELECT token FROM done), NULL::bytea, NULL::bigint, {_SHOWN} FROM {table} AS s WHERE s.key = $1"
    )


def changes_of(table: str, channel: str, requests: Sequence[tuple[int, Replace]], *, waits: bool) -> Statement:
    """Return the statement of all *requests*. Unless it *waits*, it passes over the rows that other transactions have locked."""
    asked = []
    for number, request in requests:
        plain = plain_of(request.record)
        asked.append(
            {
                **dict(zip(COLUMNS, plain, strict=True)),
                "payload": plain.payload.hex(),
                "n": number,
                "key": request.record.key,
                "was_rvn": request.expected.rvn,
                "was_token": request.expected.fencing_token,
                "keeps": request.keep_payload,
            }
        )
    return statement(_batch_sql(table, waits), json.dumps(asked), channel, urgent=True)


@lru_cache(maxsize=8)
def _batch_sql(table: str, waits: bool) -> str:  # noqa: FBT001
    given = {**COLUMNS, "payload": "text", "n": "int", "key": "text", "was_rvn": "text", "was_token": "bigint"}
    columns = ", ".join(f"{name} {kind}" for name, kind in given.items())
    new = ", ".join(
        f"{name} = a.{name}"
        if name != "payload"
        else "payload = CASE WHEN a.keeps THEN t.payload ELSE decode(a.payload, 'hex') END"
        for name in COLUMNS
    )
    return (
        f"WITH asked AS MATERIALIZED (SELECT * FROM json_to_recordset($1::json) AS a({columns}, keeps bool)), "
        f"mine AS MATERIALIZED (SELECT a.n, t.key, {', '.join(f't.{name}' for name in COLUMNS)} FROM asked AS a "
        f"JOIN {table} AS t ON t.key = a.key ORDER BY t.key FOR NO KEY UPDATE OF t{'' if waits else ' SKIP LOCKED'}), "
        f"done AS (UPDATE {table} AS t SET {new}, written = clock_timestamp(), {_told('$2')} "
        f"FROM asked AS a JOIN mine ON mine.n = a.n WHERE t.key = a.key AND {_matches('a.was_rvn', 'a.was_token')} RETURNING a.n) "
        f"SELECT a.n, done.n IS NOT NULL, mine.n IS NOT NULL, EXISTS (SELECT FROM {table} AS t WHERE t.key = a.key), "
        f"{', '.join(f'mine.{name}' for name in COLUMNS)} "
        f"FROM asked AS a LEFT JOIN mine ON mine.n = a.n LEFT JOIN done ON done.n = a.n ORDER BY a.n"
    )


def mark(table: str, key: str) -> Statement:
    """Return the statement that marks the held row of *key* as waited for, and shows what it was before."""
    sql = (
        f"WITH s AS MATERIALIZED (SELECT v, state, sought FROM {table} WHERE key = $1), "
        f"done AS (UPDATE {table} AS t SET sought = true WHERE t.key = $1 AND t.v = {FORMAT_VERSION} AND t.state = 'held' "
        f"AND NOT EXISTS (SELECT FROM s WHERE s.state = 'held' AND s.sought) RETURNING true) "
        f"SELECT EXISTS (SELECT FROM done), s.v, s.state = 'held' AND s.sought FROM (SELECT) AS one LEFT JOIN s ON true"
    )
    return statement(sql, key)


def read(table: str, key: str) -> Statement:
    """Return the statement that reads *key*."""
    return statement(f"SELECT {_SHOWN} FROM {table} AS s WHERE s.key = $1", key)


def read_aged(table: str, key: str) -> Statement:
    """Return the statement that reads *key* and its age in ms."""
    return statement(f"SELECT {_AGE}, {_SHOWN} FROM {table} AS s WHERE s.key = $1", key)


def page(table: str, prefix: str, after: str | None) -> Statement:
    """Return the statement that reads a page of keys from *prefix* on, or past *after*, in the order of code points."""
    beyond = ">=" if after is None else ">"
    sql = f"SELECT s.key, {_SHOWN} FROM {table} AS s WHERE s.key {beyond} $1 ORDER BY s.key LIMIT {PAGE_SIZE}"
    return statement(sql, prefix if after is None else after)


def _matches(rvn: str, token: str) -> str:
    return f"t.v = {FORMAT_VERSION} AND t.state = 'held' AND t.rvn = {rvn} AND t.token = {token}"


def _changes(token: str, payload: str, sought: str) -> str:
    """Return the assignments of a step; *sought* is that of the mark."""
    new = f"v = $2::int, state = $3, rvn = $4, token = {token}, owner = $6, lease_ms = $7::int, context = $8, payload = {payload}"
    return f"{new}, written = clock_timestamp(), {sought}"


def _told(channel: str) -> str:
    # Tells the waiters, if one has marked the row. Evaluated on the version of the row that is replaced, so a mark that came after the
    # snapshot is seen, too. The value is false.
    return f"sought = (CASE WHEN t.sought THEN pg_notify({channel}, t.key) IS NULL ELSE false END)"


# ---- answers


def found(key: str, row: Sequence[Any]) -> LockRecord:
    """Return the record in *row*, which has the columns of a record."""
    return record_of(key, Plain(*row), where=_WHERE)


def standing_in(request: Claim, row: Sequence[Any]) -> LockRecord | None:
    """Return the record in the answer to one of several claims."""
    return None if row[4] is None else found(request.record.key, row[4:])


def judged(request: Claim | Replace | Release, rows: Sequence[Sequence[Any]]) -> Reply | None:
    """Return the reply in the answer to a step; None where another client's write came in between, and what stands must be read.

    Raises: RecordError: the row is no record. OutcomeUnknownError: it was written, with a damaged payload that it keeps.
    """
    key = request.record.key
    if not rows:
        return Reply(applied=False, record=None)
    token, payload, age_ms, *row = rows[0]
    if token is not None:
        if request.keep_payload:
            kept = payload if type(request) is Claim else row[-1]
            return Reply(applied=True, record=_granted(request.record, token, kept))
        return Reply(applied=True, record=written(request.record, token, None))
    standing = None if row[0] is None else found(key, row)
    reply = outcome(standing, request)
    if reply.applied:
        return None
    return reply if age_ms is None else reply._replace(age_ms=max(0, age_ms))


def _granted(record: LockRecord, token: int, payload: bytes) -> LockRecord:
    """Return *record* as it stands, with the payload that was kept."""
    try:
        data, attributes = read_payload(payload)
        return replace(record, fencing_token=token, data=data, attributes=attributes)
    except (ValueError, TypeError, LookupError) as error:
        # It was applied: an error that says the opposite would leave a held record behind.
        problem = f"lock {record.key!r} was written, but its payload is damaged ({error})"
        raise OutcomeUnknownError(problem, key=record.key) from error
