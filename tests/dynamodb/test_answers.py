"""The answers that come the direct way, the connections that are kept, and what a server may do to both."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.kit import DeadlineSocket
from dlock_core.record import Version
from dlock_core.store import Claim, Expect, Replace
from dlock_dynamodb import DynamoDBStore, _direct
from tests.dynamodb.support import record, session, went_direct

# What a busy machine may add.
SLACK_S = 5.0


class Scripted:
    """A server that gives each request the next of its answers, with a pause after each byte, and counts what it accepted."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.pause_s = 0.0
        self.accepted = self.asked = 0
        self.hangs_up = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError), near, near.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    line = reader.readline()
                reader.read(length)
                self.asked += 1
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                for at in range(len(answer)) if self.pause_s else ():
                    near.sendall(answer[at : at + 1])
                    time.sleep(self.pause_s)  # the answer trickles in
                near.sendall(b"" if self.pause_s else answer)
                if self.hangs_up.is_set():
                    return


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """Run such a server."""
    server = Scripted()
    yield server
    server.close()


def http(body: bytes = b"{}", *fields: str, version: str = "1.1", length: bool = True) -> bytes:
    """Return an answer of status 200."""
    lines = [f"HTTP/{version} 200 OK", "x-amzn-RequestId: r", *fields, *([f"Content-Length: {len(body)}"] * length)]
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = http(b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False)


def kept_of(store: DynamoDBStore) -> DeadlineSocket:
    """Return the one connection that no request uses."""
    [kept] = [
        each for way in store._link._directs.values() if way for pool in way.pools for each in pool.shelf._connections
    ]
    peer: DeadlineSocket = kept._peer
    return peer


class TestAnswers:
    """What comes back."""

    @pytest.mark.parametrize(
        ("answer", "connections"),
        [
            (http(), 1),
            (CHUNKED, 1),
            (http(b"{}", "Connection: close"), 2),
            (http(version="1.0"), 2),
            (http() + b"HTTP/1.1 408 late\r\n", 2),
        ],
        ids=["length", "chunks", "close", "1.0", "more"],
    )
    def test_a_connection_is_kept_after_an_answer_that_ends_there(
        self, scripted: Scripted, key: str, answer: bytes, connections: int
    ) -> None:
        """What follows an answer would be taken for the next one: such a connection is closed."""
        scripted.answers = [answer]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)

        found = [store.read(key, timeout_s=10) for _ in range(2)]
        store.close()

        assert found == [None, None]
        assert (scripted.accepted, scripted.asked) == (connections, 2)
        assert went_direct(store)

    def test_a_connection_that_the_server_has_closed_is_not_used(self, scripted: Scripted, key: str) -> None:
        """Nobody could tell whether a write on it was applied."""
        scripted.answers = [http()]
        scripted.hangs_up.set()
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)
        store.read(key, timeout_s=10)
        kept = kept_of(store)
        kept.settimeout(60)
        kept.recv(1, socket.MSG_PEEK)  # the good-bye is there

        assert store.read(key, timeout_s=10) is None
        store.close()

        assert scripted.accepted == 2

    @pytest.mark.parametrize(
        "answer",
        [
            http()[:30],
            http(b"", "Content-Length: 2", length=False),
            http(b"1\r\n{\r\n", "Transfer-Encoding: chunked", length=False),
            http(b"ffff\r\n{\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False),
            http(b"{}", length=False),
            http(b"{}", "x-amz-crc32: no"),
            http(b"[]"),
            http(b'{"Item": {"key": "k"}, "Attributes": {"key": "k"}, "Responses": [7]}'),
            http(
                b'{"Item": {"key": {"B": "%"}}, "Attributes": {"key": {"B": "%"}}, "Responses": [{"Item": {"b": 1}}]}'
            ),
            http(b'{"Item": {"key": {}}, "Attributes": {"key": {}}, "Responses": [{"Item": {"key": null}}]}'),
            http(b'{"Item": {"key": {"X": 1}}, "Attributes": {"key": "S"}, "Responses": [{"Error": 7}]}'),
            b"SSH-2.0\r\n\r\n",
        ],
        ids=[
            "head",
            "body",
            "chunk",
            "chunks",
            "length",
            "checksum",
            "list",
            "values",
            "base64",
            "empty",
            "kinds",
            "ssh",
        ],
    )
    def test_an_answer_that_is_cut_or_none_proves_nothing(self, scripted: Scripted, key: str, answer: bytes) -> None:
        """A held lock is not absent, and a write is of unknown outcome; its connection is not used again."""
        scripted.answers = [answer]
        scripted.hangs_up.set()
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)
        change = Replace(record(key), Version("r", 1))

        with pytest.raises(StoreUnavailableError):
            store.read(key, timeout_s=10)
        with pytest.raises(OutcomeUnknownError):
            store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        with pytest.raises(OutcomeUnknownError):
            store.replace_many([change], timeout_s=10)
        store.close()

        assert scripted.asked <= 3  # a connection may end before its second request is read

    @pytest.mark.parametrize("body", [b'{"ConsumedCapacity": 7}', b'{"ConsumedCapacity": {"CapacityUnits": "1"}}'])
    def test_units_that_cannot_be_read_are_not_counted(self, scripted: Scripted, key: str, body: bytes) -> None:
        """As an emulator may say them."""
        scripted.answers = [http(body)]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)

        assert store.read(key, timeout_s=10) is None
        assert store.units == {"read": {"read": 0, "write": 0}}
        store.close()

    @pytest.mark.parametrize("body", [b"null", b"{}", b'{"Table": {}}'])
    def test_an_answer_that_describes_nothing_is_no_answer(self, scripted: Scripted, body: bytes) -> None:
        """Who opens a store, or lists what is in it, behind a gateway that says something else."""
        scripted.answers = [http(body).replace(b"x-amzn-RequestId: r\r\n", b"")]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)

        for ask in (store.guarantees, lambda: list(store.scan("", timeout_s=10))):
            with pytest.raises(StoreUnavailableError, match="the answer is not DynamoDB's"):
                ask()
        store.close()

    @pytest.mark.parametrize("pause_s", [0.05, 60.0], ids=["trickles", "hangs"])
    def test_an_answer_that_is_not_there_in_time_is_unknown(self, scripted: Scripted, key: str, pause_s: float) -> None:
        """Each byte comes in time, the last one would not; and the time-out of a socket is not that of a request never sent."""
        scripted.answers, scripted.pause_s = [http(b" " * 500 + b"{}")], pause_s
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)

        began = time.monotonic()
        with pytest.raises(OutcomeUnknownError):
            store.claim(Claim(record(key), Expect.ANY), timeout_s=1)
        took = time.monotonic() - began
        store.close()

        assert took < 1 + SLACK_S
        assert scripted.asked == 1


class TestConnections:
    """Who has which."""

    def test_requests_that_hang_leave_connections_for_renewals(self, scripted: Scripted, key: str) -> None:
        """Sixteen reads wait for their answers: one more is never sent, and a renewal is."""
        scripted.answers, scripted.pause_s = [http()], 60.0
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)

        def look() -> None:
            with suppress(StoreError):
                store.read(key, timeout_s=20)

        looks = [threading.Thread(target=look, daemon=True) for _ in range(16)]
        for each in looks:
            each.start()
        until = time.monotonic() + 15
        while scripted.asked < 16:
            assert time.monotonic() < until
            time.sleep(0.01)  # the server counts them
        with pytest.raises(StoreUnavailableError, match="nothing was sent"):
            store.read(key, timeout_s=0.5)
        with pytest.raises(OutcomeUnknownError):
            store.replace(Replace(record(key), Version("r", 1)), timeout_s=0.5)

        assert scripted.asked == 17
        store.close()

    def test_a_store_that_nobody_closed_leaves_no_connection(self, scripted: Scripted, key: str) -> None:
        """A client does not close a store that it was given."""
        scripted.answers = [http()]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)
        store.read(key, timeout_s=10)
        kept = kept_of(store)

        del store
        gc.collect()

        assert kept.fileno() == -1

    def test_a_handshake_that_hangs_ends_by_itself(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long before its caller's time is over: no thread of the store waits for a server that says nothing."""
        monkeypatch.setattr(_direct, "_CONNECT_S", 0.2)
        silent = socket.create_server(("127.0.0.1", 0))
        store = DynamoDBStore(session(), table="locks", endpoint_url=f"https://127.0.0.1:{silent.getsockname()[1]}")

        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="nothing was sent"):
            store.read(key, timeout_s=60)
        took = time.monotonic() - began
        store.close()
        silent.close()

        assert took < 30

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
    def test_a_forked_child_has_connections_of_its_own(self, scripted: Scripted, key: str) -> None:
        """It reads on one that it opens; the parent goes on with the one that it has."""
        scripted.answers = [http()]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)
        store.read(key, timeout_s=10)
        kept = kept_of(store)

        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if store.read(key, timeout_s=10) is None and kept.fileno() == -1 else 2
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        in_child = scripted.accepted
        store.read(key, timeout_s=10)
        store.close()

        assert (ended, in_child, scripted.accepted) == (0, 2, 2)

    def test_a_forked_child_leaves_a_closed_connection_alone(self, scripted: Scripted, key: str) -> None:
        """Some thread of the parent still had the object."""
        scripted.answers = [http()]
        store = DynamoDBStore(session(), table="locks", endpoint_url=scripted.endpoint)
        store.read(key, timeout_s=10)
        kept_of(store).close()

        for way in store._link._directs.values():
            if way is not None:
                way.after_fork_in_child()

        assert store.read(key, timeout_s=10) is None
        store.close()
