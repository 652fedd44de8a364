"""What is between a client and its server, and goes without a word: a balancer's host, or a firewall that forgets connections."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

__all__ = ["Balancer"]


class Balancer:
    """Passes bytes on, answers so many seconds late.

    After :meth:`forget` it takes what comes by the connections that it has, and passes nothing on.
    """

    delay_s = 0.0

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target, self._forgotten = (host, int(port)), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_used(self) -> bool:
        """Whether somebody has connected."""
        return bool(self._ends)

    def forget(self) -> None:
        """Leave all connections that there are without an answer; new ones are passed on."""
        self._forgotten = len(self._ends)

    def close(self) -> None:
        """End it, and all its connections."""
        for each in (self._listener, *self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._target)
                number = len(self._ends)
                self._ends += near, far
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(number, *pair), daemon=True).start()

    def _pass(self, number: int, source: socket.socket, to: socket.socket) -> None:
        answers = source is self._ends[number + 1]
        with suppress(OSError):
            while came := source.recv(65_536):
                time.sleep(self.delay_s if answers else 0)  # as a server that is slow
                if number >= self._forgotten:
                    to.sendall(came)
            to.shutdown(socket.SHUT_WR)
