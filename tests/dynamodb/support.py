"""What the tests of the adapter share: records, sessions, a proxy that cuts, a server that says what it is told to."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import boto3

from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Reply
from dlock_dynamodb import DynamoDBStore

TABLE = "dlock-tests"
REGION = "eu-west-1"

# For 127.0.0.1, signed by itself, good for a hundred years: no client trusts it, and no server but ours has it.
SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWnnXRTZ1vBgZ8BUT
PkHAlj9p5E/E934OdEElFl4d8yehRANCAAQOfquNEVfKY2Edue7urupj64We+Rvw
AfTJc1Byb97CQNymTYmVpTD/2w0UTaCGX/wnkw42o4RcdCBParPDctFw
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkTCCATigAwIBAgIUflzvTI1vMATrf5lxmdoFwlS/qq0wCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKZGxvY2stdGVzdDAgFw0yNjExMjEwNDMyMzZaGA8yMTI2MTAy
ODA0MzIzNlowFTETMBEGA1UEAwwKZGxvY2stdGVzdDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABA5+q40RV8pjYR257u6u6mPrhZ75G/AB9MlzUHJv3sJA3KZNiZWl
MP/bDRRNoIZf/CeTDjajhFx0IE9qs8Ny0XCjZDBiMB0GA1UdDgQWBBQxAQxooYCI
M4a5Mx2NL9JxzQZayDAfBgNVHSMEGDAWgBQxAQxooYCIM4a5Mx2NL9JxzQZayDAP
BgNVHRMBAf8EBTADAQH/MA8GA1UdEQQIMAaHBH8AAAEwCgYIKoZIzj0EAwIDRwAw
RAIgNYEOAUFwwCpJavTxu/UnfbmBzbQBWlqJNs1NyP+3xt4CIGaLHfPp5fRQzkGq
L3HKXcdNxTDNZQfepKdr0HdaND62
-----END CERTIFICATE-----
"""

# The requests of an acquire with tokens in a row of their own, where no row of the lock stands.
STEPS = ("PutItem", "UpdateItem", "UpdateItem")

_serial = itertools.count(1)


def comes_true(fact: Callable[[], bool], what: str, within_s: float = 100.0) -> None:
    """Wait until *fact* is true, which a clean-up brings about that looks again with growing pauses."""
    until = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < until, f"{what} did not come true within {within_s:g} s"
        time.sleep(0.05)  # the fact is in the server


def session(key_id: str = "testing", secret: str = "testing") -> Any:  # noqa: S107  # it opens nothing
    """Return a boto3 session of its own, with credentials that a local server takes."""
    return boto3.Session(key_id, secret, region_name=REGION)


@contextmanager
def bare_table(endpoint: str, table: str) -> Iterator[Any]:
    """Make *table* and give a plain client of the server, for what no dialect would write."""
    store = DynamoDBStore(session(), table=table, endpoint_url=endpoint)
    store.provision()
    store.close()
    client = session().client("dynamodb", endpoint_url=endpoint)
    yield client
    client.close()


def watched(seen: list[str]) -> Any:
    """Return a session whose clients note the operation of each request that they send."""
    watching = session()
    watching.events.register("before-send.dynamodb", lambda request, **_: seen.append(operation_of(request)))
    return watching


def ignore(**_: object) -> None:
    """Handle an event of a session by doing nothing: boto3 then sends every request."""


def went_direct(store: DynamoDBStore) -> bool:
    """Return whether requests go the direct way."""
    return any(store._link._directs.values())


def operation_of(request: Any) -> str:
    """Return what a prepared request asks for."""
    target = request.headers["X-Amz-Target"]
    return (target.decode() if isinstance(target, bytes) else str(target)).rpartition(".")[2]


def disturbed(step: int, before: Callable[[], object] | None, after: Callable[[], object] | None) -> Any:
    """Return a session that calls *before* ahead of write number *step*, and *after* when it was answered; either may raise."""
    writes: list[str] = []
    driver = session()

    def sending(request: Any, **_: Any) -> None:
        if operation_of(request) in STEPS:
            writes.append(operation_of(request))
            if before is not None and len(writes) == step + 1:
                before()

    def answered(**_: Any) -> None:
        if after is not None and len(writes) == step + 1:
            after()

    driver.events.register("before-send.dynamodb", sending)
    for operation in set(STEPS):
        driver.events.register(f"after-call.dynamodb.{operation}", answered)
    return driver


def record(key: str, state: State = State.HELD, token: int = 1, **fields: Any) -> LockRecord:
    """Return a record with an RVN of its own."""
    lease_ms = fields.pop("lease_ms", 20_000 if state is State.HELD else None)
    return LockRecord(key, state, f"{next(_serial):032x}", token, "tester", lease_ms, **fields)


def claimed(store: DynamoDBStore, key: str, **fields: Any) -> LockRecord:
    """Claim *key* and return the record that stands."""
    reply = store.claim(Claim(record(key, **fields), Expect.ANY), timeout_s=10)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def raised(results: Sequence[Reply | StoreError]) -> None:
    """Raise the result of a batch of one."""
    [result] = results
    assert isinstance(result, StoreError)
    raise result


class CuttingProxy:
    """Forwards to a server. While *cutting*, it closes the connection when the answer has come, instead of passing that on.

    Requests wait until *passing* is set.
    """

    def __init__(self, endpoint: str) -> None:
        self.target = (urlsplit(endpoint).hostname, urlsplit(endpoint).port)
        self.cutting = False
        self.passing = threading.Event()
        self.passing.set()
        self.connected: set[socket.socket] = set()
        self._stranded: set[socket.socket] = set()
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def strand(self) -> None:
        """Let the connections that are there lead nowhere, without a word; new ones are served."""
        self._stranded |= self.connected

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connected.add(near)
                far = socket.create_connection(self.target)
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=self._answer, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                self.requests += data.count(b"POST / HTTP/1.1")
                self.passing.wait()
                if near not in self._stranded:
                    far.sendall(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                if self.cutting:
                    break
                near.sendall(data)
        for end in (near, far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Stub:
    """An HTTP server that gives the answers it was told, in order, and the last one for ever; it keeps the requests.

    *cut* turns an answer into its length and checksum as they are announced, and the bytes that are sent.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: deque[tuple[int, bytes]] = deque()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[Any] = []
        self.cut: Callable[[bytes], tuple[int, bytes, int | None]] | None = None
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.headers.append(self.headers)
                stub.requests.append((self.headers["X-Amz-Target"].rpartition(".")[2], body))
                status, answer = stub.answers.popleft() if len(stub.answers) > 1 else stub.answers[0]
                length, sent, checksum = stub.cut(answer) if stub.cut else (len(answer), answer, None)
                self.close_connection = length != len(sent)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(length))
                if checksum is not None:
                    self.send_header("x-amz-crc32", str(checksum))
                if status != 200 or answer.startswith(b"{"):
                    self.send_header("x-amzn-RequestId", "stub")
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}"
        if tls is not None:
            # The handshake is the handler's: in accept() it would stop everybody.
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def signatures(self) -> list[str]:
        """What proved who had sent each request."""
        return [headers["Authorization"] for headers in self.headers]

    def says(self, *answers: tuple[int, Any]) -> None:
        """Set the answers: a status, and what is sent as JSON (or bytes as they are)."""
        self.answers = deque(
            (status, body if isinstance(body, bytes) else json.dumps(body).encode()) for status, body in answers
        )

    def fails(self, code: str, status: int = 400, message: str = "no") -> None:
        """Answer every request with an error."""
        self.says((status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}))


@contextmanager
def stubbed(tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """Run a stub."""
    stub = Stub(tls)
    thread = threading.Thread(target=stub.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.server.shutdown()
        stub.server.server_close()
        thread.join()
