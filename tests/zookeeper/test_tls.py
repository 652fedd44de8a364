"""A server that takes TLS alone: both sides are verified, and the error says which certificate is at fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dlock_conformance.servers import free_port

from dlock_core import connect
from tests.certificates import make_certificates
from tests.cli.operator_support import Command
from tests.scripted import ScriptedServer

FAILING = """
import sys
from dlock_core.errors import StoreUnavailableError
from dlock_zookeeper import ZooKeeperStore
from tests.zookeeper.support import any_claim

for url in sys.argv[1:]:
    store = ZooKeeperStore(url)
    try:
        store.claim(any_claim("k"), timeout_s=3)
    except StoreUnavailableError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an authority and one certificate, for the server and for its clients."""
    folder = make_certificates(tmp_path_factory.mktemp("tls"))
    (folder / "both.pem").write_bytes((folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes())
    return folder


@pytest.fixture(scope="module")
def address(certificates: Path) -> Iterator[str]:
    """Return the address of a server that takes TLS with a certificate of the client."""
    port = free_port()
    lines = (
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={certificates}/both.pem",
        f"ssl.trustStore.location={certificates}/ca.pem",
    )
    server = ScriptedServer("zookeeper.sh", DLOCK_ZOOKEEPER_CONFIG="\n".join(lines))
    yield f"127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def url(address: str, certificates: Path) -> str:
    """Return the URL with all that the server wants."""
    own = f"tls_cert={certificates}/server.pem&tls_key={certificates}/server.key"
    return f"zookeeper://{address}/tests?tls=true&tls_ca={certificates}/ca.pem&{own}"


def failing(*urls: str) -> list[str]:
    """Return the error of a claim by each of *urls*, in a process of its own: kazoo leaves the sockets of such connections open."""
    command = [sys.executable, "-c", FAILING, *urls]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_tls_with_certificates_on_both_sides(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The lock is had, and the server is examined by TLS, too."""
    with connect(url, provision=True) as client, client.lock("k") as lease:
        assert lease.is_valid
        assert client.guarantees().version.count(".") == 2

    assert "answers as standalone" in str(Command(capsys).json("doctor", "--url", url))


def test_tls_that_fails_is_told(url: str, address: str, certificates: Path) -> None:
    """What is missing or wrong is named."""
    trusting = f"zookeeper://{address}/tests?tls=true&tls_ca={certificates}/ca.pem"
    urls = {
        f"zookeeper://{address}/tests": "closes the connection; is it the right port, is tls=true missing, or has",
        f"zookeeper://{address}/tests?tls=true": "its certificate is refused (unable to get local issuer certificate)",
        trusting: "it wants a certificate of the client (tls_cert and tls_key), or refuses this one",
        url.replace("server.key", "ca.key"): "TLS fails (KEY_VALUES_MISMATCH); see that tls_ca, tls_cert and tls_key",
    }

    told = failing(*urls)

    assert len(told) == len(urls)
    for line, wrong in zip(told, urls.values(), strict=True):
        assert f"nothing was written: no session; {address}: {wrong}" in line


def test_certificate_that_names_another_host_is_refused(url: str) -> None:
    """The same host by a name that the certificate does not have."""
    [told] = failing(url.replace("//127.0.0.1", "//127.1"))

    assert "its certificate is refused (Hostname mismatch" in told
