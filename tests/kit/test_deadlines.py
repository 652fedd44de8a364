"""Connections of adapters that speak to a socket themselves."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from dlock_core.kit import DeadlineSocket

# Far more than the test takes, also on a busy machine.
WITHIN_S = 60.0


def test_an_address_that_is_dead_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a way over IPv6 that leads nowhere, and one over IPv4 that works."""
    with ExitStack() as opened:
        deaf = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        waiting = [opened.enter_context(socket.socket()) for _ in range(2)]
        for each in waiting:  # no more than these: whoever comes now gets no answer at all
            each.setblocking(False)
            each.connect_ex(deaf.getsockname())
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each.getsockname()) for each in (deaf, server)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)

        began = time.monotonic()
        connection = opened.enter_context(DeadlineSocket.connected(("db.example", 3306), began + 0.5))

        assert connection.getpeername() == server.getsockname()
        places.pop()
        with pytest.raises(TimeoutError):
            DeadlineSocket.connected(("db.example", 3306), time.monotonic() + 0.01)
        assert time.monotonic() < began + WITHIN_S
