"""What each error of the server means for the statement that it answers; no server is asked."""

from __future__ import annotations

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
        (psycopg.OperationalError('role "x" is not permitted to log in'), StoreSetupError, "check the URL"),
        (psycopg.OperationalError('permission denied for database "x"'), StoreSetupError, "check the URL"),
        (psycopg.OperationalError('database "x" does not exist'), StoreSetupError, "check the URL"),
        (psycopg.OperationalError('password authentication failed for user "x"'), StoreSetupError, "check the URL"),
        (psycopg.OperationalError("fe_sendauth: no password supplied"), StoreSetupError, "check the URL"),
        (psycopg.OperationalError('no pg_hba.conf entry for host "h"'), StoreSetupError, "check the URL"),
        (
            psycopg.OperationalError("server does not support SSL, but SSL was required"),
            StoreSetupError,
            "check the URL",
        ),
        (psycopg.OperationalError('invalid sslmode value: "x"'), StoreSetupError, "check the URL"),
        (psycopg.OperationalError("FATAL: no such database: x"), StoreSetupError, "check the URL"),
        (psycopg.OperationalError("FATAL: bouncer config error"), StoreSetupError, "check the URL"),
        (psycopg.OperationalError("certificate verify failed"), StoreSetupError, "check the URL"),
    ],
)
def test_a_connection_that_was_not_made_is_told(error: Exception, kind: type[StoreError], said: str) -> None:
    """Nothing was sent; what no second try mends is an error of the set-up."""
    with pytest.raises(kind, match=said):
        raise not_connected(error, "host=db.example")


@pytest.mark.parametrize(
    ("variable", "conninfo", "said"),
    [
        (("PGHOST", "db.environment"), "dbname=x", "no connection to db.environment, port 5432, in time"),
        (("PGHOST", "db.environment"), "host=db.example", "no connection to db.example, port 5432, in time"),
        (("PGUSER", "x"), "service=locks", "no connection to the host of service 'locks', port 5432, in time"),
    ],
)
def test_a_server_without_an_answer_is_named_as_libpq_finds_it(
    monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str], conninfo: str, said: str
) -> None:
    """In the environment, where the connection string does not say."""
    monkeypatch.setenv(*variable)

    assert str(not_connected(TimeoutError(), conninfo)).endswith(said)
