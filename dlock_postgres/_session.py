"""A connection of the store: libpq's own, driven without blocking. What has to be waited for is written once; each colour waits in its way.

A statement that has no answer shortly before its time is over is cancelled, so that mostly the server says whether it was applied. A
connection on which that was done is not used again: the server may act on it late, and would cancel the next statement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from traceback import clear_frames
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PipelineStatus, PollingStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import DaemonThread, aperform, is_ready, perform
from dlock_postgres._errors import READ_ONLY, not_connected
from dlock_postgres._wire import Statement, decoded, prepared
from dlock_postgres.options import service_of, settings_of

_CONNECT_S = 3
# A name of the application that the user gives, also in the environment, stands.
_SETTINGS: dict[str, Any] = {
    "client_encoding": "UTF8",
    "fallback_application_name": "dlock",
    "target_session_attrs": "read-write",
}
# What the user's connection string, or the environment, may say otherwise. A listener, which sends nothing, finds out within a minute that
# its way is gone.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
# What psycopg does in the place of libpq, but for a service, whose file it does not read: libpq would then search for the name, while all
# threads stand, and try one host alone.
_PSYCOPGS = frozenset({"host", "hostaddr", "port", "connect_timeout", "load_balance_hosts"})
# A statement is cancelled so long before its time is over, or a quarter of it where that is less.
_CANCEL_S = 0.25
# Who says, beside an answer as of any commit, that no standby has confirmed it. What it says is in the server's language.
_UNCONFIRMED = b"SyncRepWaitForLSN"
# Nothing was run: the session has prepared it before, or has not, or its plan no longer fits the table.
_NOT_PREPARED = ("42P05", "26000", "0A000")
_T = TypeVar("_T")
Steps: TypeAlias = Generator[Any, Any, _T]


class Answer(NamedTuple):
    """The rows of a result, and whether the connection leads straight to the server, not through a pooler."""

    rows: list[tuple[Any, ...]]
    backend_pid: int


class _Opening(psycopg.Connection[Any]):
    """How psycopg connects: to one address after the other, whose names it searches for in Python. While libpq does, all threads stand."""

    def __del__(self, _: object = None) -> None:
        """Leave libpq's connection open: a session uses that alone."""


class Session:
    """A connection to a server that can be written to, for *colour*. It belongs to one statement at a time.

    Raises: StoreError: none was made; nothing was sent.
    """

    def __init__(self, conninfo: str, colour: Colour) -> None:
        self.colour = colour
        try:
            given, known = conninfo_to_dict(conninfo), settings_of(conninfo)
            more = {name: value for name, value in _DEFAULTS.items() if name not in known}
            more |= {name: value for name, value in service_of(conninfo).items() if name in _PSYCOPGS - given.keys()}
            self.pg: PGconn = _Opening.connect(conninfo, **_SETTINGS, **more).pgconn
        except psycopg.Error as error:
            # They hold each other, and the connection of an attempt without an answer: it would stay open until garbage is collected.
            clear_frames(error.__traceback__)
            raise not_connected(error, conninfo) from error
        # What it says besides an answer; not by a method of self, which libpq's connection would keep alive.
        self._noticed = noticed = list[bytes | None]()
        self.pg.notice_handler = lambda notice: noticed.append(notice.error_field(DiagnosticField.SOURCE_FUNCTION))
        # The names of the statements that were prepared; None where none should be.
        self.prepared: set[bytes] | None = set() if capabilities.has_pipeline() else None
        self._cancels = self._cancelled = self.demoted = False

    @property
    def fit(self) -> bool:
        """Whether the last statement's answer was read to its end, outside of a transaction, nothing was cancelled, and it takes writes."""
        pg = self.pg
        is_over = pg.transaction_status == TransactionStatus.IDLE and pg.pipeline_status == PipelineStatus.OFF
        return is_over and not self._cancelled and not self.demoted

    def is_alive(self) -> bool:
        """Whether it is fit, and the server has neither closed it, nor said something unasked."""
        return self.fit and not is_ready(self.pg.socket)

    def close(self) -> None:
        """Close it; a statement whose answer was not read to its end is cancelled if it may be."""
        if self._cancels and self.pg.transaction_status == TransactionStatus.ACTIVE:
            cancel(self.pg)
        self.pg.finish()

    def disown(self) -> None:
        """Do nothing: psycopg leaves the copy of a connection alone."""

    def send(self, statement: Statement, deadline: float) -> Any:
        """Send *statement*, and return its :class:`Answer` by *deadline*."""
        return self.colour.perform(self._running(statement, deadline))

    def _running(self, statement: Statement, deadline: float) -> Steps[Answer]:
        self._cancels = statement.cancels
        self._noticed.clear()
        if statement.prepared and self.prepared is not None:
            sql, name = prepared(statement.sql, statement.types)
            try:
                answer = yield from self._asking(statement, deadline, name, sql if name not in self.prepared else None)
            except psycopg.Error as error:
                if error.sqlstate not in _NOT_PREPARED:
                    raise
            else:
                self.prepared.add(name)
                return answer
            self.prepared = None
        answer = yield from self._asking(statement, deadline)
        if statement.asks_primary and answer.rows[0][0]:
            self.demoted = True
            raise psycopg.errors.ReadOnlySqlTransaction("its records may be old")
        return answer

    def _asking(
        self, statement: Statement, deadline: float, name: bytes | None = None, sql: bytes | None = None
    ) -> Steps[Answer]:
        """Send *statement*, as the one that is prepared under *name*, or first prepares it from *sql*; all in one round trip."""
        pg, values, types = self.pg, list(statement.values), list(statement.types)  # psycopg 3.2 takes no tuples
        limits = not statement.cancels and capabilities.has_pipeline()
        in_parts = limits or sql is not None
        if in_parts:
            pg.enter_pipeline_mode()
        if limits:
            pg.send_query_params(_limits(statement, deadline - time.monotonic()), [])
        if sql is not None:
            assert name is not None
            pg.send_prepare(name, sql, types)
        if name is not None:
            pg.send_query_prepared(name, values, [1] * len(values), 1)
        else:
            pg.send_query_params(statement.sql.encode(), values, types, [1] * len(values), 1)
        if in_parts:
            pg.pipeline_sync()
        results = yield from self._results(deadline)
        if in_parts:
            pg.exit_pipeline_mode()
        return self._answer(results)

    def _results(self, deadline: float) -> Steps[list[Any]]:
        pg, results = self.pg, list[Any]()
        until = deadline - max(min(_CANCEL_S, (deadline - time.monotonic()) / 4), 0) if self._cancels else deadline
        while True:
            writes = pg.flush() == 1
            while not writes and not pg.is_busy():
                result = pg.get_result()
                if result is not None and result.status != ExecStatus.PIPELINE_SYNC:
                    results.append(result)
                elif result is not None or pg.pipeline_status == PipelineStatus.OFF or pg.status != ConnStatus.OK:
                    return results
            while not (yield self.colour.is_ready(pg.socket, until - time.monotonic(), writes=writes)):
                if not self._cancels:
                    raise TimeoutError("no answer in time")
                self._cancels, self._cancelled, until = False, True, deadline
                cancel(pg)
            try:
                pg.consume_input()
            except psycopg.OperationalError as error:
                # Why the server ends a session it says before, with a code that would tell of a statement that was rolled back.
                told = results[-1].error_message if results else b""
                raise psycopg.OperationalError(told.decode(errors="replace") or str(error)) from error

    def _answer(self, results: list[Any]) -> Answer:
        for result in results:
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                error = error_from_result(result)
                self.demoted = error.sqlstate == READ_ONLY
                raise error
        if not results:
            raise psycopg.OperationalError("the connection ended without an answer")
        if _UNCONFIRMED in self._noticed:
            raise psycopg.OperationalError("the wait for a synchronous standby was cancelled")
        value, columns = result.get_value, list(enumerate(map(result.ftype, range(result.nfields))))
        rows = [tuple([decoded(kind, value(row, column)) for column, kind in columns]) for row in range(result.ntuples)]
        return Answer(rows, self.pg.backend_pid)

    def heard(self, timeout_s: float) -> Steps[list[str]]:
        """Return what was notified within *timeout_s*."""
        if not (told := self._notified()) and (yield self.colour.is_ready(self.pg.socket, timeout_s)):
            self.pg.consume_input()
            told = self._notified()
        return told

    def _notified(self) -> list[str]:
        return [told.extra.decode() for told in iter(self.pg.notifies, None)]


def _limits(statement: Statement, left_s: float) -> bytes:
    """Return what goes before *statement*, in its transaction, where that is not cancelled.

    It waits for no lock longer than its time, so no session of the server stays behind for that. And the server says what no standby has
    confirmed, whatever the role is set to hear. A statement that need not last waits for no standby.
    """
    wait_ms = max(int((left_s - min(_CANCEL_S, left_s / 4)) * 1000), 1)
    settings = {"lock_timeout": wait_ms, "client_min_messages": "warning"}
    settings |= {} if statement.lasts else {"synchronous_commit": "off"}
    return (
        "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    ).encode()


def cancel(pg: PGconn) -> None:
    """Ask the server to end the statement on *pg*, in a thread of its own: that takes a connection, and may take long."""
    if not capabilities.has_cancel_safe():
        return  # an older libpq would stop all threads meanwhile
    asking = pg.cancel_conn()

    def ask() -> None:
        end = time.monotonic() + _CONNECT_S
        # Where that fails the statement goes on, and its outcome is unknown as it was.
        with suppress(psycopg.Error, OSError):
            asking.start()
            while (state := asking.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
                if not is_ready(asking.socket, end - time.monotonic(), writes=state == PollingStatus.WRITING):
                    break
        asking.finish()

    with suppress(StoreUnavailableError):  # the interpreter is shutting down, and starts no thread any more
        DaemonThread("dlock-postgres-cancel", ask).begin()


async def _aready(fd: int, timeout_s: float, *, writes: bool = False) -> bool:
    """As :func:`~dlock_core.kit.is_ready`."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        with suppress(asyncio.InvalidStateError):  # it was called before, or the task is cancelled
            ready.set_result(None)

    loop.add_reader(fd, wake)
    if writes:
        loop.add_writer(fd, wake)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        if writes:
            loop.remove_writer(fd)
    return True


class Colour(NamedTuple):
    """How steps are performed, and how they wait for the socket."""

    perform: Callable[[Steps[Any]], Any]
    is_ready: Callable[..., Any]


THREADS, TASKS = Colour(perform, is_ready), Colour(aperform, _aready)
