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

import hashlib
import json
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.kit import Plain, is_urgent, kept, outcome, plain_of, record_of, wakes, written
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, LockRecord
from dlock_core.store import Claim, Expect, Release, Replace, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BATCH_LIMIT = 500
# The code of an error that claims of several keys end in on purpose: division by zero.
OVERTAKEN = "22012"
# And of one that would notify, where the server has no room: another program's listener may have filled the queue of all databases.
QUEUE_FULL = "54000"
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


def _columns(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in COLUMNS)


# The parameters of a step, behind its key.
_PLACES = {name: f"${number}" for number, name in enumerate(COLUMNS, 2)} | {"written": "clock_timestamp()"}
_ROW = _columns("s")
_AGE = "floor(extract(epoch FROM clock_timestamp() - s.written) * 1000)::bigint"
# The types of parameters and results, by their numbers in PostgreSQL's catalogue.
_BOOL, _BYTEA, _BIGINT, _TEXT = 16, 17, 20, 25


class Statement(NamedTuple):
    """One statement with its parameters in binary. An *urgent* one keeps a lock or gives it back.

    It is cancelled when its time is almost over, if it *cancels*. One that is *prepared* is parsed and planned once on each connection.
    What one writes that does not *last* may be lost with the server. One that *asks_primary* shows first whether the server takes no
    writes: then another one may be the primary, and have newer records.
    """

    sql: str
    values: tuple[bytes | None, ...]
    types: tuple[int, ...]
    urgent: bool = False
    cancels: bool = True
    prepared: bool = False
    lasts: bool = True
    asks_primary: bool = False


def statement(sql: str, *values: Any, urgent: bool = False) -> Statement:
    """Return the statement for plain *values*."""
    encoded = [_ENCODERS[type(value)](value) for value in values]
    return Statement(sql, tuple([value for _, value in encoded]), tuple([kind for kind, _ in encoded]), urgent)


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes | None]]] = {
    str: lambda value: (_TEXT, value.encode()),
    int: lambda value: (_BIGINT, value.to_bytes(8, "big", signed=True)),
    bytes: lambda value: (_BYTEA, value),
    type(None): lambda value: (_BIGINT, value),
}


@lru_cache(maxsize=256)
def prepared(sql: str, types: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the text and the name of a prepared statement: the same text has it in every client, so it never means another statement."""
    return sql.encode(), b"dlock_" + hashlib.sha256(repr((sql, types)).encode()).hexdigest()[:32].encode()


def decoded(kind: int, value: bytes | None) -> Any:
    """Return a value of a result, by the number of its type."""
    return None if value is None else _DECODERS.get(kind, bytes.decode)(value)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _BOOL: lambda value: value == b"\x01",
    _BYTEA: bytes,
    **dict.fromkeys((_BIGINT, 21, 23, 26), partial(int.from_bytes, byteorder="big", signed=True)),
}


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
    fits = _fits("t", str(must_exist))
    payload = "CASE WHEN t.state = 'free' THEN t.payload ELSE $9 END" if keep_payload else "$9"
    new = _PLACES | {"token": "GREATEST(t.token + 1, $5)", "payload": payload, "sought": str(sought)}
    if must_exist or expect is None:
        fits += " AND t.rvn = $10 AND t.token = $11" if expect is None else f" AND {expect is Expect.ANY}"
        return _shown(table, f"UPDATE {table} AS t SET {_set(new)} WHERE t.key = $1 AND {fits}", _AGE)
    refuses = "" if expect is Expect.ABSENT else " AND s.state = 'held'"
    conflict = "NOTHING" if expect is Expect.ABSENT else f"UPDATE SET {_set(new)} WHERE {fits}"
    return _shown(
        table,
        f"INSERT INTO {table} AS t (key, {_NAMES}, written) SELECT $1, {', '.join(_PLACES.values())} "
        f"WHERE NOT EXISTS (SELECT FROM {table} AS s WHERE s.key = $1{refuses}) ON CONFLICT (key) DO {conflict}",
        _AGE,
    )


def change(table: str, channel: str, request: Replace | Release) -> Statement:
    """Return the statement of a replace or a release (clauses S4 to S6). Who joins a shared lock leaves the mark for who leaves it."""
    told = channel if request.record.members is None or wakes(request) else ""
    values = (request.record.key, *_sent(request), *request.expected, told)
    return statement(_change_sql(table, request.keep_payload), *values, urgent=is_urgent(request))


@lru_cache(maxsize=64)
def _change_sql(table: str, keep_payload: bool) -> str:  # noqa: FBT001
    new = _PLACES | {"payload": "t.payload" if keep_payload else "$9", "sought": _told("$12")}
    step = f"UPDATE {table} AS t SET {_set(new)} WHERE t.key = $1 AND {_matches('$10', '$11')}"
    return _shown(table, step, "NULL::bigint")


def _shown(table: str, step: str, age: str) -> str:
    """Return the text of *step*, which shows the token and the payload that it wrote, or *age* and row where it was not applied."""
    return (
        f"WITH done AS ({step} RETURNING t.token, t.payload) SELECT done.token, done.payload, {age}, {_ROW} "
        f"FROM (SELECT) AS one LEFT JOIN done ON true LEFT JOIN {table} AS s ON s.key = $1 AND done.token IS NULL"
    )


def claims(table: str, requests: Sequence[Claim], sought: Sequence[bool]) -> Statement:
    """Return the statement of several claims, which expect nothing: all or none (clauses M1 to M3).

    Keys that the snapshot shows as held have nothing written. Where another client's write came in between, the statement ends in
    :data:`OVERTAKEN`, and is rolled back. Rows are locked in the order of their keys.
    """
    more = [
        {"must": request.must_exist, "sought": is_sought} for request, is_sought in zip(requests, sought, strict=True)
    ]
    return statement(_claims_sql(table), _asked(enumerate(requests), more))


@lru_cache(maxsize=8)
def _claims_sql(table: str) -> str:
    def asked(what: str) -> str:
        return f"(SELECT a.{what} FROM asked AS a WHERE a.key = t.key)"

    new = {name: f"excluded.{name}" for name in (*COLUMNS, "written", "sought")} | {
        "token": "GREATEST(t.token + 1, excluded.token)",
        "payload": f"CASE WHEN t.state = 'free' AND {asked('keeps')} THEN t.payload ELSE excluded.payload END",
    }
    return (
        f"WITH {_asking(must='bool', sought='bool')}, "
        f"shown AS MATERIALIZED (SELECT a.n, a.must, s.key, {_AGE} AS age, {_ROW} "
        f"FROM asked AS a LEFT JOIN {table} AS s ON s.key = a.key), "
        f"good AS MATERIALIZED (SELECT bool_and(CASE WHEN s.key IS NULL THEN NOT s.must ELSE {_fits('s', 's.must')} END) AS ok "
        f"FROM shown AS s), "
        f"done AS (INSERT INTO {table} AS t (key, {_NAMES}, written, sought) "
        f"SELECT a.key, {_columns('a')}, clock_timestamp(), a.sought FROM asked AS a CROSS JOIN good WHERE good.ok "
        f'ORDER BY a.key COLLATE "C" '
        f"ON CONFLICT (key) DO UPDATE SET {_set(new)} WHERE {_fits('t', asked('must'))} RETURNING key, token, payload) "
        f"SELECT 1 / CASE WHEN good.ok AND (SELECT count(*) FROM done) < (SELECT count(*) FROM asked) THEN 0 ELSE 1 END, "
        f"done.token, done.payload, s.age, {_ROW} "
        f"FROM asked AS a JOIN shown AS s USING (n) CROSS JOIN good LEFT JOIN done ON done.key = a.key ORDER BY n"
    )


def changes_of(table: str, channel: str, requests: Sequence[tuple[int, Replace]], *, waits: bool) -> Statement:
    """Return the statement of all *requests*. Unless it *waits*, it passes over the rows that other transactions have locked."""
    more = [{"seen_rvn": request.expected.rvn, "seen_at": request.expected.fencing_token} for _, request in requests]
    return statement(_batch_sql(table, waits), _asked(requests, more), channel, urgent=True)


@lru_cache(maxsize=8)
def _batch_sql(table: str, waits: bool) -> str:  # noqa: FBT001
    new = {name: f"a.{name}" for name in COLUMNS} | {
        "payload": "CASE WHEN a.keeps THEN t.payload ELSE a.payload END",
        "written": "clock_timestamp()",
        "sought": _told("$2"),
    }
    return (
        f"WITH {_asking(seen_rvn='text', seen_at='bigint')}, "
        f"mine AS MATERIALIZED (SELECT a.n, t.key, {_columns('t')} FROM asked AS a "
        f"JOIN {table} AS t ON t.key = a.key ORDER BY t.key FOR NO KEY UPDATE OF t{'' if waits else ' SKIP LOCKED'}), "
        f"done AS (UPDATE {table} AS t SET {_set(new)} FROM asked AS a JOIN mine ON mine.n = a.n "
        f"WHERE t.key = a.key AND {_matches('a.seen_rvn', 'a.seen_at')} RETURNING a.n, t.token, t.payload) "
        f"SELECT a.n, mine.n IS NULL AND EXISTS (SELECT FROM {table} AS t WHERE t.key = a.key), "
        f"done.token, done.payload, NULL::bigint, {_columns('mine')} "
        f"FROM asked AS a LEFT JOIN mine ON mine.n = a.n LEFT JOIN done ON done.n = a.n ORDER BY a.n"
    )


def _asked(requests: Iterable[tuple[int, Claim | Replace]], more: Iterable[dict[str, Any]]) -> str:
    """Return numbered *requests* as JSON, with what each has *more*."""
    rows = []
    for (number, request), extra in zip(requests, more, strict=True):
        plain = _sent(request)
        named = plain._replace(payload="\\x" + plain.payload.hex())  # type: ignore[arg-type]  # bytes as PostgreSQL reads them
        key, keeps = request.record.key, request.keep_payload
        rows.append({**dict(zip(COLUMNS, named, strict=True)), "n": number, "key": key, "keeps": keeps, **extra})
    return json.dumps(rows)


def _sent(request: Claim | Replace | Release) -> Plain:
    """Return the plain values of *request*'s record; one that is held has a payload, which a write that keeps it need not send."""
    plain = plain_of(request.record)
    return plain._replace(payload=b"") if request.keep_payload and type(request) is not Claim else plain


def _asking(**more: str) -> str:
    """Return the CTE that reads what :func:`_asked` wrote, with the types of what each has *more*."""
    given = {**COLUMNS, "n": "int", "key": "text", "keeps": "bool", **more}
    columns = ", ".join(f"{name} {kind}" for name, kind in given.items())
    return f"asked AS MATERIALIZED (SELECT * FROM json_to_recordset($1::json) AS a({columns}))"


def mark(table: str, seen: LockRecord) -> Statement:
    """Return the statement that marks the row of the record *seen* as waited for, and says whether it is free, or held in another version.

    Of those who mark a row at the same time one writes. The others wait for that, find the mark, and are told nothing.
    """
    sql = (
        f"WITH done AS (UPDATE {table} AS t SET sought = true WHERE t.key = $1 AND t.v = {FORMAT_VERSION} AND t.state = 'held' "
        f"AND t.rvn = $2 AND NOT t.sought RETURNING true) "
        f"SELECT CASE WHEN s.key IS NULL OR s.v = {FORMAT_VERSION} AND (s.state <> 'held' OR s.rvn <> $2) THEN true "
        f"WHEN s.v <> {FORMAT_VERSION} OR s.sought OR EXISTS (SELECT FROM done) THEN false END "
        f"FROM (SELECT) AS one LEFT JOIN {table} AS s ON s.key = $1"
    )
    return statement(sql, seen.key, seen.rvn)._replace(lasts=False)


def read(table: str, key: str) -> Statement:
    """Return the statement that reads whether the server takes no writes, and the age of *key* in ms and its row: empty for no row."""
    asked = f"current_setting('transaction_read_only') = 'on', {_AGE}, {_ROW}"
    sql = f"SELECT {asked} FROM (SELECT) AS one LEFT JOIN {table} AS s ON s.key = $1"
    return statement(sql, key)._replace(asks_primary=True)


def page(table: str, prefix: str, after: str | None) -> Statement:
    """Return the statement that reads a page of keys from *prefix* on, or past *after*, in the order of code points."""
    beyond = ">=" if after is None else ">"
    sql = f"SELECT s.key, {_ROW} FROM {table} AS s WHERE s.key {beyond} $1 ORDER BY s.key LIMIT {PAGE_SIZE}"
    return statement(sql, prefix if after is None else after)


def _fits(row: str, must_exist: str) -> str:
    return (
        f"({row}.v = {FORMAT_VERSION} AND ({row}.state = 'free' OR {row}.state = 'gone' AND NOT {must_exist}) "
        f"AND {row}.token BETWEEN 1 AND {TOKEN_MAX - 1})"
    )


def _matches(rvn: str, token: str) -> str:
    return f"t.v = {FORMAT_VERSION} AND t.state = 'held' AND t.rvn = {rvn} AND t.token = {token}"


def _set(values: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _told(channel: str) -> str:
    # Tells the waiters, if one has marked the row; without a channel the mark stays. Evaluated on the version of the row that is replaced,
    # so a mark that came after the snapshot is seen, too. Once it was told the value is false.
    return f"(CASE WHEN {channel} = '' THEN t.sought WHEN t.sought THEN pg_notify({channel}, t.key) IS NULL ELSE false END)"


def untold(change: Statement) -> Statement:
    """Return *change*, of one record or many, as it tells nobody: its channel is the last value."""
    return change._replace(values=(*change.values[:-1], b""))


# ---- answers


def found(key: str, row: Sequence[Any]) -> LockRecord:
    """Return the record in *row*, which has the columns of a record."""
    return record_of(key, Plain._make(row), where=_WHERE)


def standing_in(key: str, row: Sequence[Any]) -> LockRecord | None:
    """Return the record that *row*, the answer to a step, shows."""
    return None if row[3] is None else found(key, row[3:])


def judged(request: Claim | Replace | Release, row: Sequence[Any]) -> Reply | None:
    """Return the reply in *row*, the answer to a step; None where what it shows does not refuse the step, which was not applied.

    Raises: RecordError: the row is no record. OutcomeUnknownError: it was written, with a damaged payload that it keeps.
    """
    record, token, age_ms = request.record, row[0], row[2]
    if token is not None:
        stands = kept(record, token, row[1]) if request.keep_payload else written(record, token, None)
        return Reply(applied=True, record=stands)
    reply = outcome(standing_in(record.key, row), request)
    if reply.applied:
        return None
    return reply if age_ms is None else reply._replace(age_ms=max(0, age_ms))
