"""Certificates: how often they are read, and what happens when a file of them is written anew under a client that runs."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from dlock_conformance.servers import free_port

from dlock_core.errors import StoreError, StoreUnavailableError
from tests.certificates import make_certificates
from tests.redis.support import Server, claim, granted, renew


class Certified(Server):
    """A server with TLS that asks for a certificate, and the files of a client."""

    def __init__(self, folder: Path) -> None:
        for name in ("one", "other"):
            (folder / name).mkdir()
            make_certificates(folder / name)
        self.folder = folder
        self.install("one")
        super().__init__(folder)
        self.certify(folder / "one")
        with redis.Redis.from_url(self.url) as admin:
            admin.config_set("tls-port", str(tls_port := free_port()))
        files = f"ssl_ca_certs={folder}/ca.pem&ssl_certfile={folder}/server.pem&ssl_keyfile={folder}/server.key"
        self.tls_url = f"rediss://127.0.0.1:{tls_port}/0?{files}"

    def certify(self, files: Path) -> None:
        """Have the server show another certificate."""
        with redis.Redis.from_url(self.url) as admin:
            admin.config_set("tls-ca-cert-file", str(files / "ca.pem"))
            admin.config_set("tls-cert-file", str(files / "server.pem"), "tls-key-file", str(files / "server.key"))

    def install(self, maker: str) -> None:
        """Have the client's files be those of *maker*."""
        for name in ("ca.pem", "server.pem", "server.key"):
            shutil.copyfile(self.folder / maker / name, self.folder / name)


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Certified]:
    """Start such a server."""
    server = Certified(tmp_path)
    yield server
    server.stop()


def test_a_store_reads_the_authorities_of_the_system_once(
    certified: Certified, open_store: Callable[..., Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time took 25 ms of a processor, for which an event loop stands still; all else of a connection takes 1 ms."""
    read: list[str] = []
    make = ssl.create_default_context

    def counted() -> ssl.SSLContext:
        read.append("system")
        return make()

    monkeypatch.setattr(ssl, "create_default_context", counted)
    store = open_store(certified.tls_url)
    record = granted(store, key)
    with redis.Redis.from_url(certified.url) as admin:
        admin.client_kill_filter(_type="normal", skipme=True)

    renew(store, record)

    assert len(read) == 1


def test_files_that_are_written_anew_are_read_for_the_next_connection(
    certified: Certified, open_store: Callable[..., Any], key: str
) -> None:
    """Certificates are renewed under programs that run for longer than they are good."""
    store = open_store(certified.tls_url)
    granted(store, key)
    with redis.Redis.from_url(certified.url) as admin:
        certified.install("other")
        admin.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StoreError, match=r"(?i)certificate|alert"):
            claim(store, key)
        certified.install("one")

    assert claim(store, key).record is not None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"names": "DNS:db.example"}, "the URL has to name the server as its certificate does"),
        ({"days": -1}, "see the dates of the server's certificate"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_told(
    certified: Certified, open_store: Callable[..., Any], tmp_path: Path, made: dict[str, Any], told: str
) -> None:
    """Not that another authority is needed, which would not help."""
    (tmp_path / "wrong").mkdir()
    certified.certify(make_certificates(tmp_path / "wrong", **made))
    store = open_store(certified.tls_url.replace("/ca.pem", "/wrong/ca.pem"), ssl_check_hostname=True)

    with pytest.raises(StoreUnavailableError, match=told):
        store.read("k", timeout_s=5.0)
