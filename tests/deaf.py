"""A place that takes no connection and refuses none, as behind a firewall that drops what comes."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def deaf_place() -> Iterator[tuple[str, int]]:
    """Give the address of one."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # no more than these: whoever comes now gets no answer at all
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()


def found_at(*places: tuple[str, int]) -> list[tuple[Any, ...]]:
    """Return what ``socket.getaddrinfo`` says of a name that stands for *places*."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]
