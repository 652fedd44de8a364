"""A way to the server that can lose replies, hold requests back and refuse connections, and that counts commands."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from enum import Enum, auto

_OP_MSG = 2013
# What the driver sends by itself.
_OWN = frozenset({"hello", "isMaster", "ismaster", "ping", "endSessions", "killCursors"})


class Way(Enum):
    """What happens to requests."""

    OPEN = auto()
    LOSE_REPLY = auto()
    HANG = auto()
    REFUSE = auto()


class Proxy:
    """Listens on a port of its own and passes whole messages on."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.way = Way.OPEN
        self._passing = threading.Event()
        self._passing.set()
        self._held_back = b""
        self.commands: Counter[str] = Counter()
        self._open: set[socket.socket] = set()
        self._stranded: frozenset[socket.socket] = frozenset()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, way: Way, *, only: bytes = b"") -> None:
        """Disturb the way; requests hang if *only* is in them."""
        self.way = way
        self._held_back = only
        if way is Way.HANG:
            self._passing.clear()
        if way is Way.REFUSE:
            self._cut()

    def heal(self) -> None:
        """Let everything through; what was held back goes first."""
        self.way = Way.OPEN
        self._passing.set()

    def strand(self) -> None:
        """Let the connections that are there lead nowhere, without a word; new ones are served."""
        self._stranded = self.connected

    def close(self) -> None:
        """End it."""
        self.heal()
        self._listener.close()
        self._cut()

    @property
    def connected(self) -> frozenset[socket.socket]:
        """The connections that are there, on both sides."""
        return frozenset(self._open)

    def _cut(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._server()
                if server is None:
                    client.close()
                    continue
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open |= {client, server}
                lost: set[int] = set()
                for work in (self._requests, self._replies):
                    threading.Thread(target=work, args=(client, server, lost), daemon=True).start()

    def _server(self) -> socket.socket | None:
        if self.way is Way.REFUSE:
            return None
        try:
            return socket.create_connection(self._target)
        except OSError:
            return None

    def _requests(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        try:
            while message := _message(client):
                number, _, code = struct.unpack_from("<iii", message, 4)
                name = message[26 : message.index(0, 26)].decode() if code == _OP_MSG else "hello"
                if name not in _OWN:
                    self.commands[name] += 1
                    if self.way is Way.LOSE_REPLY:
                        lost.add(number)
                if self._held_back in message:
                    self._passing.wait()
                if client not in self._stranded:
                    server.sendall(message)
        except OSError:
            pass
        finally:
            self._end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        try:
            while message := _message(server):
                if struct.unpack_from("<i", message, 8)[0] in lost:
                    break
                if client not in self._stranded:
                    client.sendall(message)
        except OSError:
            pass
        finally:
            self._end(client, server)

    def _end(self, *pair: socket.socket) -> None:
        for each in pair:
            self._open.discard(each)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _message(source: socket.socket) -> bytes:
    """Return the next message, or nothing where the connection ends before its end."""
    head = _exactly(source, 4)
    rest = head and _exactly(source, int.from_bytes(head, "little") - 4)
    return rest and head + rest


def _exactly(source: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = source.recv(size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
