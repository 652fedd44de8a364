"""Sockets whose every wait ends at one instant: neither an answer that trickles in nor a server that hangs can hold a caller."""

from __future__ import annotations

import math
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


_S = TypeVar("_S", bound=socket.socket)
_PLACE_S = 1.0


def connected_socket(
    address: tuple[str, int], deadline: float, make: Callable[..., _S], *, least_s: float = 0.001
) -> _S:
    """Return a socket of *make* that is connected to *address*: each place that its name stands for has a share of the time, or *least_s*.

    One that is not the last has a second at most: who makes a connection that others use has long for it, and a request waits meanwhile.
    The search for the name has a time-out of its own, which nothing can set.
    """
    places = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    while True:
        (family, kind, protocol, _, place), *places = places
        found = make(family, kind, protocol)
        try:
            share_s = (deadline - time.monotonic()) / (1 + len(places))
            found.settimeout(max(min(share_s, _PLACE_S) if places else share_s, least_s))
            found.connect(place)
        except OSError:
            found.close()
            if not places:
                raise
        else:
            break
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return found


class DeadlineSocket(socket.socket):
    """A socket whose every wait ends at *deadline*, on the monotonic clock."""

    deadline = math.inf

    @classmethod
    def connected(cls, address: tuple[str, int], deadline: float) -> Self:
        """As :func:`connected_socket`."""
        found = connected_socket(address, deadline, cls)
        found.deadline = deadline
        return found

    def recv(self, *arguments: Any) -> bytes:
        """Receive within what is left of the time."""
        self.limit()
        return super().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        """As :meth:`recv`."""
        self.limit()
        return super().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        """Send within what is left of the time."""
        self.limit()
        super().sendall(*arguments)

    def limit(self) -> None:
        """Let the next wait end at the deadline.

        Raises: TimeoutError: it is over.
        """
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time-out of the call is over")
        self.settimeout(None if left_s == math.inf else left_s)


class DeadlineTLSSocket(DeadlineSocket, ssl.SSLSocket):
    """The same, encrypted."""
