"""Whether a socket is ready is asked in the way that the platform has."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from dlock_core.kit import is_ready


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
