"""Connections of adapters that speak to a socket themselves."""

from __future__ import annotations

import socket
import time

import pytest

from dlock_core.kit import DeadlineSocket
from tests.deaf import deaf_place, found_at

# Far more than the test takes, also on a busy machine.
WITHIN_S = 60.0


def test_an_address_that_is_dead_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a way over IPv6 that leads nowhere, and one over IPv4 that works."""
    with deaf_place() as deaf, socket.create_server(("127.0.0.1", 0)) as server:
        places = found_at(deaf, server.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)

        began = time.monotonic()
        with DeadlineSocket.connected(("db.example", 3306), began + 0.5) as connection:
            assert connection.getpeername() == server.getsockname()
        places.pop()
        with pytest.raises(TimeoutError):
            DeadlineSocket.connected(("db.example", 3306), time.monotonic() + 0.01)
        assert time.monotonic() < began + WITHIN_S


def test_an_address_that_is_dead_takes_a_second_at_most_where_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has long to connect leaves a request of a short lease without a connection for no longer than that."""
    with deaf_place() as deaf, socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found_at(deaf, server.getsockname()))

        began = time.monotonic()
        DeadlineSocket.connected(("db.example", 3306), began + 10 * WITHIN_S).close()

        assert time.monotonic() < began + WITHIN_S
