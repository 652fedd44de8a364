"""A service file says where the server is, as libpq has it for every program."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_postgres import PostgresStore
from dlock_postgres._session import THREADS, Session
from tests.deaf import deaf_place
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have each name in Python lead to this host; return those that are searched for."""
    names: list[str] = []

    def search(name: str, port: Any, *_: object, **__: object) -> list[object]:
        names.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]

    monkeypatch.setattr(socket, "getaddrinfo", search)
    return names


@pytest.fixture(params=["environment", "folder"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the service file has to be; who names no service has the one of the environment."""
    monkeypatch.setenv("PGSERVICE", "locks")
    if request.param == "environment":
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        return tmp_path / "services"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PGSYSCONFDIR", str(tmp_path))
    return tmp_path / "pg_service.conf"


@pytest.mark.parametrize("source", ["service=locks", "dbname=postgres"])
def test_the_name_of_a_services_host_is_searched_for_in_python(
    url: str, file: Path, source: str, searched: list[str], key: str
) -> None:
    """While libpq does all threads of the program stand, and no time-out counts."""
    file.write_text(f"# one\n[locks]\nhost=db.example\nport={urlsplit(url).port}\nuser=postgres\n")

    with closing(PostgresStore(source, table=TABLE)) as store:
        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied

    assert set(searched) == {"db.example"}


@pytest.mark.usefixtures("searched")
def test_each_host_of_a_service_is_tried(url: str, file: Path, key: str) -> None:
    """Also where the one before it is silent, in the time that the service gives it."""
    with deaf_place() as (_, port):
        ports = f"{port},{urlsplit(url).port}"
        file.write_text(f"[locks]\nhost=silent.example,db.example\nport={ports}\nuser=postgres\nconnect_timeout=2\n")

        with closing(PostgresStore("service=locks dbname=postgres", table=TABLE)) as store:
            assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


def test_what_the_url_says_of_the_server_stands(url: str, file: Path) -> None:
    """The service says the rest."""
    file.write_text("[locks]\nhost=db.example\nport=1\nuser=postgres\napplication_name=of-the-service\n")
    place = urlsplit(url)

    with closing(Session(f"postgresql://127.0.0.1:{place.port}/postgres?service=locks", THREADS)) as session:
        assert session.pg.parameter_status(b"application_name") == b"of-the-service"

    file.write_text("[locks]\nhost=127.0.0.1\nport=1\nuser=postgres\n")
    with closing(Session(f"service=locks dbname=postgres port={place.port}", THREADS)) as session:
        assert session.pg.port == str(place.port).encode()


@pytest.mark.parametrize("text", ["", "no service", "[other]\nhost=db.example\n"])
def test_a_service_that_is_not_found_is_told_by_libpq(file: Path, text: str, key: str) -> None:
    """Whatever is wrong with the file."""
    file.write_text(text)

    with (
        closing(PostgresStore("service=locks", table=TABLE)) as store,
        pytest.raises(Exception, match="service") as caught,
    ):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    assert not isinstance(caught.value, StoreUnavailableError)
