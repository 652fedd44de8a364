"""A server that refuses connections, by password, for want of TLS, or since all are taken: a typed error without a secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_postgres._errors import not_connected
from tests.scripted import ScriptedServer

CONNECTIONS = 8  # of which the server keeps three for superusers
PASSWORD = "in-no-message"
RULES = (
    "host all postgres 127.0.0.1/32 trust",
    "host all guarded 127.0.0.1/32 scram-sha-256",
    "hostssl all encrypted 127.0.0.1/32 trust",
    "host all plain 127.0.0.1/32 trust",
    "host all rejected 127.0.0.1/32 reject",
)


@pytest.fixture(scope="module")
def strict() -> Iterator[ScriptedServer]:
    """Start a server with rules for its users."""
    server = ScriptedServer(
        "postgres.sh", DLOCK_SERVER="postgres", DLOCK_POSTGRES_ARGS=f"-c max_connections={CONNECTIONS}"
    )
    with psycopg.connect(server.told, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}-not'")
        admin.execute("CREATE ROLE encrypted LOGIN")
        admin.execute("CREATE ROLE plain LOGIN")
        [file] = admin.execute("SHOW hba_file").fetchone() or ()
        admin.execute(f"COPY (SELECT unnest(ARRAY{list(RULES)})) TO '{file}'")
        admin.execute("SELECT pg_reload_conf()")
        _wait_for_rules(server.told, admin)
    yield server
    server.stop()


def _wait_for_rules(url: str, admin: psycopg.Connection[Any]) -> None:
    for _ in range(1000):
        try:
            psycopg.connect(url_for("guarded", url)).close()
        except psycopg.OperationalError:
            return
        admin.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("the server does not take its rules")


def url_for(user: str, url: str) -> str:
    """Return *url* for another user."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}").geturl()


@pytest.mark.parametrize(
    ("user", "told"),
    [
        (f"guarded:{PASSWORD}", "password authentication failed"),
        ("guarded", "no password supplied"),
        ("encrypted", "no encryption"),
        ("unknown", "no pg_hba.conf entry"),
        ("rejected", "pg_hba.conf rejects connection"),
        ("plain", "permission denied to set parameter"),
    ],
)
def test_a_user_whom_the_server_refuses_is_told_why(strict: ScriptedServer, user: str, told: str) -> None:
    """It is an error of the set-up, which no second try mends."""
    with pytest.raises(StoreSetupError, match=told) as caught:
        connect(url_for(user, strict.told) + "?options=-c%20lc_messages%3DC")

    assert PASSWORD not in str(caught.value)


def test_a_server_whose_connections_are_all_taken_may_be_asked_again(strict: ScriptedServer) -> None:
    """Nothing was written. It can be reached, since it answers."""
    url = url_for("plain", strict.told)
    taken = [psycopg.connect(url) for _ in range(CONNECTIONS - 3)]

    with pytest.raises(StoreUnavailableError, match=r"refuses the connection, nothing was written.*connection slots"):
        connect(url)

    for connection in taken:
        connection.close()


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen",
        'ВАЖНО:  пользователь "x" не прошёл проверку подлинности (по паролю)',
    ],
)
def test_what_a_server_says_in_another_language_is_known_as_an_answer(said: str) -> None:
    """It has no code, so what it means is not known; but who is told that the server cannot be reached looks in the wrong place."""
    error = psycopg.OperationalError(
        f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {said}'
    )

    told = str(not_connected(error, ""))

    assert told.startswith("PostgreSQL refuses the connection, nothing was written")
    assert said.rpartition("  ")[2] in told


def test_a_full_server_costs_no_lock(strict: ScriptedServer) -> None:
    """The connection on which it was claimed renews and releases it."""
    connect(strict.told, provision=True).close()
    with psycopg.connect(strict.told, autocommit=True) as admin:
        admin.execute("GRANT SELECT, INSERT, UPDATE ON public.dlock TO plain")
    url = url_for("plain", strict.told)
    with connect(url) as client:
        lease = client.acquire("k")
        taken = [psycopg.connect(url) for _ in range(CONNECTIONS - 4)]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)

        lease.renew()
        lease.release()
    for connection in taken:
        connection.close()
