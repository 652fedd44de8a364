"""What each error of the server means for the statement that it answers; no server is asked."""

from __future__ import annotations

import re

import psycopg
import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_postgres._errors import error_of, not_connected


class _Answered(psycopg.Error):
    """An error of the server."""

    def __init__(self, code: str | None) -> None:
        super().__init__("the first line\nDETAIL: a row")
        self.sqlstate = code


def _of(code: str | None, *, writes: bool = True) -> StoreError:
    error = error_of(_Answered(code), "k", writes=writes, grant="GRANT it")
    assert error is not None
    assert error.key == "k"
    assert str(error).startswith("PostgreSQL ")
    assert "the first line" in str(error)
    assert "a row" not in str(error)
    return error


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        (StoreUnavailableError, "25006 40001 40P01 53100 53300 54000 55P03 57014 57P03"),
        (StoreSetupError, "09000 0A000 23514 26000 28000 3D000 3F000 42501 42601 42703 42P01 P0001"),
        (RecordError, "22021 22003"),
        (OutcomeUnknownError, "08006 25P02 40003 57P01 57P02 57P05 58030 XX000"),
    ],
)
def test_the_code_decides_whether_a_write_was_applied(kind: type[StoreError], codes: str) -> None:
    """What rolls back is certain; what ends the session, and what nobody knows, leaves the outcome of a write unknown."""
    assert {code: type(_of(code)) for code in codes.split()} == dict.fromkeys(codes.split(), kind)


@pytest.mark.parametrize("code", [None, "57P01"])
def test_a_read_without_an_answer_wrote_nothing(code: str | None) -> None:
    """So its outcome is known."""
    assert type(_of(code)) is OutcomeUnknownError
    assert type(_of(code, writes=False)) is StoreUnavailableError


@pytest.mark.parametrize("said", ["server_login_retry", "query_wait_timeout", "cannot connect to server"])
def test_a_statement_for_which_a_pooler_has_no_session_was_not_sent(said: str) -> None:
    """Its answer has no code, and is certain all the same."""
    error = error_of(psycopg.OperationalError(f"FATAL:  {said}"), "k", writes=True, grant="")

    assert type(error) is StoreUnavailableError
    assert error.key == "k"


def test_a_right_that_lacks_comes_with_its_grant() -> None:
    """To be copied."""
    assert str(_of("42501")).endswith("GRANT it")


def test_an_error_without_a_word_is_named() -> None:
    """A time-out says nothing of itself."""
    assert "TimeoutError, no answer in time" in str(error_of(TimeoutError(), "k", writes=True, grant=""))


def test_an_error_of_another_library_is_left() -> None:
    """The caller sees it as it is."""
    assert error_of(KeyError("k"), "k", writes=True, grant="") is None


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (TimeoutError(), StoreUnavailableError, "no connection to db.example, port 5432, in time$"),
        (psycopg.errors.ConnectionTimeout("expired"), StoreUnavailableError, "db.example, port 5432, in time$"),
        (psycopg.OperationalError("connection\n  refused"), StoreUnavailableError, "connection refused$"),
        (
            psycopg.OperationalError("session is read-only"),
            StoreUnavailableError,
            "or default_transaction_read_only is on$",
        ),
    ],
)
def test_a_connection_that_was_not_made_is_told(error: Exception, kind: type[StoreError], said: str) -> None:
    """Nothing was sent."""
    with pytest.raises(kind, match=said):
        raise not_connected(error, "host=db.example")


@pytest.mark.parametrize(
    "said",
    [
        'role "x" is not permitted to log in',
        'permission denied for database "x"',
        'permission denied to set parameter "lc_messages"',
        'unrecognized configuration parameter "x"',
        'database "x" does not exist',
        'database "x" is not currently accepting connections',
        'password authentication failed for user "x"',
        "fe_sendauth: no password supplied",
        'no pg_hba.conf entry for host "h"',
        'pg_hba.conf rejects connection for host "h"',
        "server does not support SSL, but SSL was required",
        'invalid sslmode value: "x"',
        'weak sslmode "prefer" may not be used with sslnegotiation=direct',
        "certificate verify failed",
        "SSL error: tlsv1 alert unknown ca",
        "SSL error: tlsv1 alert protocol version",
        'private key file "x" has group or world access',
        "channel binding required, but SSL not in use",
        'authentication method requirement "scram-sha-256" failed: server did not complete authentication',
        "GSSAPI encryption required but no credential cache",
        'requirepeer specifies "x", but actual peer user name is "y"',
        'definition of service "x" not found',
        'service file "x" not found',
        "FATAL: no such database: x",
        "FATAL: login rejected",
        "FATAL: bouncer config error",
    ],
)
def test_what_no_second_try_mends_is_an_error_of_the_set_up(said: str) -> None:
    """Whoever waits for a lock is told, and does not ask for ever."""
    with pytest.raises(StoreSetupError, match=f"{re.escape(said)}; check the URL"):
        raise not_connected(psycopg.OperationalError(said), "host=db.example")


@pytest.mark.parametrize(
    ("variable", "conninfo", "said"),
    [
        (("PGHOST", "db.environment"), "dbname=x", "no connection to db.environment, port 5432, in time"),
        (("PGHOST", "db.environment"), "host=db.example", "no connection to db.example, port 5432, in time"),
        (("PGPORT", "6432"), "host=db.example", "no connection to db.example, port 6432, in time"),
        (("PGPORT", ""), "host=db.example", "no connection to db.example, port 5432, in time"),
        (("PGUSER", "x"), "service=locks", "no connection to the host of service 'locks', port 5432, in time"),
    ],
)
def test_a_server_without_an_answer_is_named_as_libpq_finds_it(
    monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str], conninfo: str, said: str
) -> None:
    """In the environment, where the connection string does not say."""
    monkeypatch.setenv(*variable)

    assert str(not_connected(TimeoutError(), conninfo)).endswith(said)
