"""Whether a socket is ready is asked in the way that the platform has; TLS may say something on an idle connection."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlock_core.kit import is_idle, is_ready
from tests.certificates import make_certificates


@pytest.fixture(params=["poll", "select"])
def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends of a connection, with ``select.poll`` and as on Windows, which lacks it."""
    if request.param == "select":
        monkeypatch.delattr(select, "poll")
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_silent_connection_is_not_ready(pair: tuple[socket.socket, socket.socket]) -> None:
    """Neither by the socket nor by its descriptor; a wait whose time is over ends at once."""
    assert not is_ready(pair[0])
    assert not is_ready(pair[0].fileno(), 0.001)
    assert not is_ready(pair[0], -1.0)


def test_a_connection_with_something_to_read_is_ready(pair: tuple[socket.socket, socket.socket]) -> None:
    """It has not to be read for that."""
    pair[1].sendall(b"x")

    assert is_ready(pair[0], 10.0)


def test_a_connection_that_was_closed_is_ready(pair: tuple[socket.socket, socket.socket]) -> None:
    """Reading would tell of the end."""
    pair[1].close()

    assert is_ready(pair[0], 10.0)


def test_a_connection_with_room_is_ready_for_writes_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    """Who only reads goes on waiting."""
    assert is_ready(pair[0], 10.0, writes=True)
    assert not is_ready(pair[0])


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Give both ends of a new connection with TLS 1.3; the server has sent the tickets, and the client has read nothing."""
    folder = make_certificates(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem", folder / "server.key")
    here, there = socket.socketpair()
    server = serving.wrap_socket(there, server_side=True, do_handshake_on_connect=False)
    greeting = threading.Thread(target=server.do_handshake)
    greeting.start()
    client = ssl.create_default_context(cafile=folder / "ca.pem").wrap_socket(here, server_hostname="localhost")
    greeting.join()
    client.settimeout(7.0)
    assert is_ready(client, 10.0)
    with client, server:
        yield client, server


def test_a_connection_whose_server_says_nothing_is_idle(
    pair: tuple[socket.socket, socket.socket], encrypted: tuple[ssl.SSLSocket, ssl.SSLSocket]
) -> None:
    """What TLS says for itself does not count, and the time-out of the socket stays as it was."""
    assert is_idle(pair[0])
    assert is_idle(encrypted[0])
    assert encrypted[0].gettimeout() == 7.0


@pytest.mark.parametrize("says", [b"more", b""], ids=["something", "its end"])
def test_a_connection_whose_server_says_something_is_not_idle(
    pair: tuple[socket.socket, socket.socket], encrypted: tuple[ssl.SSLSocket, ssl.SSLSocket], says: bytes
) -> None:
    """The next request would take that for its answer."""
    for here, there in (pair, encrypted):
        there.sendall(says) if says else there.close()

        assert is_ready(here, 10.0)
        assert not is_idle(here)
