"""Each ``ssl_mode`` on a server with a certificate, and on one without."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError
from tests.certificates import make_certificates
from tests.mysql.support import TABLE, TIMEOUT_S, opened, plain
from tests.scripted import ScriptedServer, stop


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    """Return the folder of an authority and one certificate, which the server's own user may read."""
    folder = make_certificates(Path(tempfile.mkdtemp(prefix="dlock-tls-")))
    for each in (folder, *folder.iterdir()):
        each.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def certified(certificates: Path) -> Iterator[ScriptedServer]:
    """Start a server with a certificate for this host."""
    files = f"--ssl-cert={certificates}/server.pem", f"--ssl-key={certificates}/server.key"
    server = ScriptedServer("mariadb.sh", words=files)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def encrypting(certified: ScriptedServer) -> str:
    """Return the URL of a user whom it lets in with encryption alone."""
    with plain(certified.told) as cursor:
        cursor.execute("CREATE USER careful REQUIRE SSL")
        cursor.execute("GRANT ALL ON locks.* TO careful")
    return f"{certified.told.replace('root', 'careful')}?table={TABLE}"


@pytest.mark.parametrize("query", ["", "&ssl_mode=required", "&ssl_mode=verify_identity&ssl_ca={}/ca.pem"])
def test_the_connection_is_encrypted(encrypting: str, certificates: Path, query: str, key: str) -> None:
    """By default, too, where the server can."""
    with connect(encrypting + query.format(certificates), provision=True) as client, client.lock(key) as lease:
        assert lease.is_valid


@pytest.mark.parametrize("mode", ["preferred", "required"])
def test_connection_that_verifies_nothing_reads_no_authorities(
    encrypting: str, key: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read those of the system took 50 ms of a processor for each connection, and 1 ms all else."""
    monkeypatch.delattr(ssl, "create_default_context")
    store = opened(encrypting, ssl_mode=mode)
    store.provision()

    assert store.read(key, timeout_s=TIMEOUT_S) is None
    store.close()


def test_an_encrypted_call_ends_in_time_too(certified: ScriptedServer, encrypting: str, key: str) -> None:
    """By its own time-out, and not by that of the call that has connected."""
    store = opened(encrypting, ssl_mode="required")
    store.provision()
    store.read(key, timeout_s=TIMEOUT_S)

    stop(certified.pid)
    began = time.monotonic()
    try:
        with pytest.raises(StoreUnavailableError):
            store.read(key, timeout_s=0.3)
        took_s = time.monotonic() - began
    finally:
        os.kill(certified.pid, signal.SIGCONT)

    store.close()
    assert took_s < TIMEOUT_S / 2


def test_the_connection_is_not_encrypted_where_that_was_asked_for(encrypting: str) -> None:
    """So this user is refused."""
    with pytest.raises(StoreSetupError, match=r"demands encryption \(see ssl_mode\)"):
        connect(f"{encrypting}&ssl_mode=disabled")


def test_a_certificate_of_another_authority_is_told(encrypting: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(
        StoreSetupError, match=r"certificate is refused \(unable to get local issuer.*authority in ssl_ca"
    ):
        connect(f"{encrypting}&ssl_mode=verify_identity")


@pytest.mark.parametrize("is_named", [True, False], ids=["ssl_ca", "of the system"])
def test_an_authority_that_is_written_anew_is_read_for_the_next_connection(
    encrypting: str, certificates: Path, key: str, tmp_path: Path, *, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Authorities are replaced under programs that run: all their connections were refused, until they were started anew."""
    authority = tmp_path / "ca.pem"
    (tmp_path / "other").mkdir()
    shutil.copyfile(make_certificates(tmp_path / "other") / "ca.pem", authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    store = opened(encrypting, ssl_mode="verify_identity", ssl_ca=str(authority) if is_named else None)
    with pytest.raises(StoreSetupError, match="certificate is refused"):
        store.read(key, timeout_s=TIMEOUT_S)

    authority.unlink()
    with pytest.raises(StoreSetupError, match="certificate is refused"):
        store.read(key, timeout_s=TIMEOUT_S)
    shutil.copyfile(certificates / "ca.pem", authority)

    store.provision()
    assert store.read(key, timeout_s=TIMEOUT_S) is None
    store.close()


@pytest.mark.parametrize("mode", ["required", "verify_identity"])
def test_a_server_without_encryption_is_told(url: str, mode: str) -> None:
    """Nothing is sent in the clear where that was demanded."""
    with pytest.raises(StoreSetupError, match="the server has no encryption, and ssl_mode demands it"):
        connect(f"{url}?table={TABLE}&ssl_mode={mode}")
