"""The way to the book: a socket of this machine, with one message a packet, so that nobody who is stopped or killed holds it up.

:class:`Resource` listens in the process that has the book; :class:`Line` is one connection to it.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from proof.faults.book_line import Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from proof.faults.book import Book

__all__ = ["Resource"]

_LIMIT_S = 60.0


class Resource:
    """Takes messages at the socket *path* into *book*, one after the other."""

    def __init__(self, path: str, book: Book) -> None:
        self.path, self.book = path, book
        self.trouble: str | None = None
        self._open: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(512)
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="resource", daemon=True)
        self._thread.start()
        self._own = Line(path, "")

    def settle(self) -> None:
        """Return when all that was sent before is in the book."""
        # The first round may have begun before; the second ends with every connection accepted, and the third reads what they brought.
        for _ in range(4):
            self._own.ask("round")

    def settle_of(self, who: str) -> None:
        """Return when all that *who*, which has ended, had sent is in the book."""
        with self.book.changed:
            if not self.book.changed.wait_for(lambda: not self._open.get(who), _LIMIT_S):
                raise RuntimeError(f"the connections of process {who}, which has ended, stay open")
        self.settle()
        self.book.gone(who)

    def close(self) -> None:
        """End all connections."""
        self._closing = True
        with suppress(OSError):  # it may notice before it is woken
            self._own.tell("round")
        self._thread.join()
        self._own.close()

    def _serve(self) -> None:
        who: dict[socket.socket, str] = {}
        while not self._closing:
            for ready, _ in self._selector.select():
                source = ready.fileobj
                assert isinstance(source, socket.socket)
                if source is self._listener:
                    self._accept_all()
                else:
                    self._take_all(source, who)
        for registered in list(self._selector.get_map().values()):
            assert isinstance(registered.fileobj, socket.socket)
            registered.fileobj.close()
        self._selector.close()

    def _accept_all(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(0)
                self._selector.register(connection, selectors.EVENT_READ)

    def _take_all(self, source: socket.socket, who: dict[socket.socket, str]) -> None:
        with suppress(BlockingIOError):
            while said := _received(source):
                verb, *values = json.loads(said)
                if verb == "hello":
                    who[source] = values[0]
                    self._count(values[0], 1)
                    continue
                if verb == "round":  # one a round: the next is taken after all that is there by now
                    source.sendall(b"true")
                    return
                answer = self._take(verb, values, who.get(source, ""))
                if answer is not None:
                    with suppress(OSError):  # killed while it waited for the answer
                        source.sendall(json.dumps(answer).encode())
            self._selector.unregister(source)
            source.close()
            if source in who:
                self._count(who.pop(source), -1)

    def _count(self, who: str, change: int) -> None:
        with self.book.changed:
            self._open[who] = self._open.get(who, 0) + change
            self.book.changed.notify_all()

    def _take(self, verb: str, values: list[object], who: str) -> object:
        book = self.book
        if verb == "broken":
            with book.changed:
                self.trouble = f"{who}: {values[0]}"
                book.changed.notify_all()
            return None
        takes: dict[str, Callable[..., object]] = {
            "wait": lambda key, at: book.waiting(key, who, at),
            "grant": lambda key, token, at: book.granted(key, token, who, at),
            "end": book.ended,
            "over": book.body_over,
            "slot": book.slot,
            "begun": book.slot_begun,
            "finished": book.slot_finished,
            "done": book.slot_done,
            "cancel": book.cancelled,
            "fence": book.fence,
            "use": book.use,
            "naive": book.use_naively,
            "note": book.note,
            "child": book.forked,
        }
        return takes[verb](*values)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except ConnectionError:
        return b""
