"""How one statement runs on a connection: sent, prepared where that pays, and its answer read, in steps for both colours."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg import capabilities
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus
from psycopg.pq.abc import PGconn

from dlock_postgres._addresses import Steps
from dlock_postgres._wire import Statement, decoded

__all__ = ["Answer", "running"]

# Nothing was run: the session has prepared it before, or has not, or its plan no longer fits the table.
_NOT_PREPARED = ("42P05", "26000", "0A000")
# The names of the statements that a connection has prepared; None where it should prepare none.
_prepared: WeakKeyDictionary[PGconn, set[bytes] | None] = WeakKeyDictionary()


class Answer(NamedTuple):
    """The rows of a result, and whether the connection leads straight to the server, not through a pooler."""

    rows: list[tuple[Any, ...]]
    backend_pid: int


def running(pg: PGconn, statement: Statement) -> Steps[Answer]:
    """Send *statement* and read its answer."""
    names = _prepared.setdefault(pg, set() if capabilities.has_pipeline() else None)
    if statement.prepared and names is not None:
        try:
            return (yield from _running_prepared(pg, statement, names))
        except psycopg.Error as error:
            if error.sqlstate not in _NOT_PREPARED:
                raise
        _prepared[pg] = None
    pg.send_query_params(statement.sql, statement.values, statement.types, [1] * len(statement.values), 1)
    return _answer(pg, (yield from _results(pg)))


def _running_prepared(pg: PGconn, statement: Statement, names: set[bytes]) -> Steps[Answer]:
    """Prepare *statement* in the same round trip if its name is not in *names*, those that this connection has prepared."""
    name = _name(statement.sql, statement.types)
    is_new = name not in names
    if is_new:
        pg.enter_pipeline_mode()
        pg.send_prepare(name, statement.sql, statement.types)
    pg.send_query_prepared(name, statement.values, [1] * len(statement.values), 1)
    if is_new:
        pg.pipeline_sync()
    results = yield from _results(pg)
    if is_new:
        pg.exit_pipeline_mode()
    answer = _answer(pg, results)
    names.add(name)
    return answer


@lru_cache(maxsize=256)
def _name(sql: bytes, types: tuple[int, ...]) -> bytes:
    """Return the name of a prepared statement: the same text has it in every client, so it never means another statement."""
    return b"dlock_" + hashlib.sha256(repr((sql, types)).encode()).hexdigest()[:32].encode()


def _results(pg: PGconn) -> Steps[list[Any]]:
    results: list[Any] = []
    while True:
        writes = pg.flush() == 1
        while not writes and not pg.is_busy():
            result = pg.get_result()
            if result is not None and result.status != ExecStatus.PIPELINE_SYNC:
                results.append(result)
            elif result is not None or pg.pipeline_status == PipelineStatus.OFF or pg.status != ConnStatus.OK:
                return results
        yield pg.socket, writes
        pg.consume_input()


def _answer(pg: PGconn, results: list[Any]) -> Answer:
    for result in results:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result)
    if not results:
        raise psycopg.OperationalError("the connection ended without an answer")
    result = results[-1]
    columns = [(column, result.ftype(column)) for column in range(result.nfields)]
    rows = [
        tuple(decoded(kind, result.get_value(row, column)) for column, kind in columns) for row in range(result.ntuples)
    ]
    return Answer(rows, pg.backend_pid)
