"""A TCP proxy that loses replies or cuts them, holds requests back, lets answers trickle in, refuses or delays connections, or makes none.

It counts requests, and knows no protocol: a request is what a client says before the server answers. Where a driver talks in the
background too (monitoring), *is_request* tells by the first bytes which of it counts. Where a server begins to answer before it has done
what it was told, *is_answered* tells from the bytes so far whether the answer is whole: only then it is lost, or cut.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dlock_conformance.faults import SLOW_S, Fault

__all__ = ["LATE_S", "FaultProxy", "has_headers"]

# Of HTTP/2: how a connection begins, how long the head of a frame is, and the type of the first frame of each request and answer.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD = 9
_HEADERS = 1
_CHUNK = 1 << 16
_CONNECT_S = 5.0
# So long, at most, healing waits for the answers to what was held back.
LATE_S = 2.0
# When nobody is accepted, and what fills a queue of length 0, with one to spare.
_AWAY = (Fault.REFUSE, Fault.DROP)
_QUEUED = 2
# Between two bytes of an answer that trickles in.
_PACE_S = 0.2


class FaultProxy:
    """Listens on a free loopback port and passes on to *host*, *port*. Close it at the end.

    *greeted*: a connection begins with words of its own, as a login is, before it carries a request; so it can be slow to begin.
    """

    def __init__(
        self,
        host: str,
        port: int,
        is_request: Callable[[bytes], bool] = lambda _: True,
        is_answered: Callable[[bytes], bool] = lambda _: True,
        *,
        greeted: bool = False,
    ) -> None:
        self.kinds = frozenset(Fault) - {Fault.BUSY} - (set() if greeted else {Fault.SLOW_CONNECT})
        self._target = (host, port)
        self._is_request, self.is_answered = is_request, is_answered
        self._mutex = threading.Lock()
        self._fault: Fault | None = None
        self._pairs: set[_Pair] = set()
        self._requests = 0
        self._to_lose: int | None = None
        self.resets = self.used = False
        self._flows = threading.Event()  # answers do, and don't trickle
        self._flows.set()
        self._unaccepted: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    def requests(self) -> int:
        """How many requests have come until now."""
        with self._mutex:
            return self._requests

    def begin(self, fault: Fault) -> None:
        """Disturb the way from now on."""
        with self._mutex:
            self._fault, self._to_lose, self.resets = fault, None, False
            pairs = list(self._pairs)
        if fault is Fault.TRICKLE:
            self._flows.clear()
        if fault in _AWAY:
            self._stop_listening()
            if fault is Fault.DROP:
                self._listen_to_nobody()
        if fault in (*_AWAY, Fault.SLOW_CONNECT):
            for pair in pairs:
                pair.cut()

    def reset_at_the_end(self) -> None:
        """End each connection whose reply is lost by a reset, until another fault begins."""
        self.resets = True

    def lose_replies(self, count: int) -> None:
        """Let the next *count* requests through and lose their replies, each with its connection; then all is well again."""
        with self._mutex:
            self._fault, self._to_lose = Fault.LOSE_REPLY, count

    @property
    def replies_to_lose(self) -> int:
        """How many of those that :meth:`lose_replies` announced are still to come."""
        with self._mutex:
            return self._to_lose or 0

    def heal(self) -> None:
        """Let everything through; first what was held back, and it is answered when this returns."""
        with self._mutex:
            fault, self._fault, self._to_lose = self._fault, None, None
            pairs = list(self._pairs)
        self._flows.set()
        if fault in _AWAY:
            self._stop_listening()
            self._listener = self._listen(self.port)
        for pair in pairs:
            pair.deliver()
        until = time.monotonic() + LATE_S
        for pair in pairs:
            pair.wait_for_answer(until)

    def close(self) -> None:
        """End all connections."""
        self._stop_listening()
        with self._mutex:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        threading.Thread(target=self._accept, args=(listener,), name="fault-proxy", daemon=True).start()
        return listener

    def _listen_to_nobody(self) -> None:
        """Fill the queue of those whom nobody accepts: the system drops what comes after them."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=0)
        for _ in range(_QUEUED):
            self._unaccepted.append(filler := socket.socket())
            filler.setblocking(False)
            filler.connect_ex(self._listener.getsockname())

    def _stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()
        while self._unaccepted:
            self._unaccepted.pop().close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.used = True
                try:
                    server = socket.create_connection(self._target, _CONNECT_S)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = _Pair(self, client, server)
                with self._mutex:
                    self._pairs.add(pair)
                pair.start()

    def request(self, begins: bytes, *, first: bool) -> Fault | None:
        """Return what happens to what a client said, and count it if it *first* speaks."""
        counts = self._is_request(begins)
        with self._mutex:
            self._requests += first and counts
            fault = self._fault if counts or self._fault is Fault.HANG else None
            if fault is Fault.LOSE_REPLY and first and self._to_lose is not None:
                self._to_lose -= 1
                if not self._to_lose:
                    self._fault = self._to_lose = None
            return fault

    def flows(self, wait_s: float = 0) -> bool:
        """Whether answers need not trickle, now or within *wait_s*."""
        return self._flows.wait(wait_s)

    def begins_at(self) -> float:
        """Return the instant before which a connection that is made now hears nothing, as :func:`time.monotonic` counts."""
        return time.monotonic() + (SLOW_S if self._fault is Fault.SLOW_CONNECT else 0)

    def ended(self, pair: _Pair) -> None:
        """Forget a connection."""
        with self._mutex:
            self._pairs.discard(pair)


class _Pair:
    """A client's connection and ours to the server, with a thread for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._mutex = threading.Lock()
        self._held = bytearray()
        self._begins_at = proxy.begins_at()
        self._spoke = False  # the client did, and has no answer yet
        self._loses: Fault | None = None
        self._answered = threading.Event()  # what was delivered, if anything was
        self._answered.set()
        self._client_left = False
        self._end = socket.SHUT_RDWR  # of the client's side: what is said to it when it is cut

    def start(self) -> None:
        """Begin to pass on."""
        for pump in (self._from_client, self._from_server):
            threading.Thread(target=pump, name="fault-proxy", daemon=True).start()

    def cut(self) -> None:
        """End both connections at once."""
        for each, end in ((self._client, self._end), (self._server, socket.SHUT_RDWR)):
            with suppress(OSError):
                each.shutdown(end)
            each.close()
        self._answered.set()  # no answer comes any more
        self._proxy.ended(self)

    def deliver(self) -> None:
        """Pass on what was held back."""
        with self._mutex:
            held, self._held = bytes(self._held), bytearray()
            if not held:
                return
            self._answered.clear()
        try:
            self._server.sendall(held)
        except OSError:
            self._answered.set()

    def wait_for_answer(self, until: float) -> None:
        """Return when what was delivered is answered, at the latest *until*."""
        self._answered.wait(max(until - time.monotonic(), 0))
        self._answered.set()
        if self._client_left:
            self.cut()

    def _from_client(self) -> None:
        try:
            while said := self._client.recv(_CHUNK):
                self._pass_on(said)
        except OSError:
            pass  # a reset is an end, too
        self._client_left = True
        with self._mutex:
            waits = bool(self._held) or not self._answered.is_set()
        if not waits:
            self.cut()

    def _pass_on(self, said: bytes) -> None:
        with self._mutex:
            fault = self._proxy.request(said, first=not self._spoke)
            self._spoke = True
            if fault is Fault.HANG or self._held:
                self._held += said
                return
            if fault in (Fault.LOSE_REPLY, Fault.CUT):
                self._loses = self._loses or fault
        self._server.sendall(said)

    def _from_server(self) -> None:
        lost = b""
        try:
            while answered := self._server.recv(_CHUNK):
                time.sleep(max(self._begins_at - time.monotonic(), 0))
                with self._mutex:
                    self._spoke = False
                    self._answered.set()
                if self._loses:
                    lost += answered
                    if self._proxy.is_answered(lost):
                        if self._loses is Fault.CUT:
                            self._client.sendall(lost[: len(lost) // 2])
                        if self._proxy.resets:
                            self._reset()
                        break
                    continue
                if not self._client_left:
                    self._answer(answered)
        except OSError:
            pass  # a reset is an end, too
        self.cut()

    def _reset(self) -> None:
        """Have the client's side end by a reset: nothing else is said to it, and its close drops what lingers."""
        with suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end = socket.SHUT_RD

    def _answer(self, answered: bytes) -> None:
        """Pass on an answer, byte by byte for as long as it has to trickle in."""
        while len(answered) > 1 and not self._proxy.flows(_PACE_S):
            self._client.sendall(answered[:1])
            answered = answered[1:]
        self._client.sendall(answered)


def has_headers(said: bytes) -> bool:
    """Whether a request of gRPC, or an answer to one, begins in *said*: all else are settings, windows and pings of the connection."""
    said = said.removeprefix(_PREFACE)
    while len(said) >= _FRAME_HEAD:
        if said[3] == _HEADERS:
            return True
        said = said[_FRAME_HEAD + int.from_bytes(said[:3], "big") :]
    return False
