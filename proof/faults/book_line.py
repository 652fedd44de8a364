"""A holder's connection to the book. It imports little: the command under ``dlock run`` starts with it."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

__all__ = ["Line"]


class Line:
    """One connection, for one thread or task of the process *who*."""

    def __init__(self, path: str, who: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self.tell("hello", who)

    def tell(self, verb: str, *values: object) -> None:
        """Send a message."""
        self._socket.sendall(json.dumps([verb, *values]).encode())

    def ask(self, verb: str, *values: object) -> Any:
        """Send a message, and return the answer."""
        self.tell(verb, *values)
        return json.loads(self._socket.recv(1 << 16))

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._socket.close()
