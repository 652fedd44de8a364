"""The proxy does to a way what it says, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from dlock_conformance import Fault
from dlock_conformance.faults import SLOW_S
from dlock_conformance.proxy import LATE_S, FaultProxy


class Echo:
    """A server that remembers what it was told, and says it back."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except OSError:
            return

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while said := connection.recv(1024):
                    self.heard.append(said)
                    connection.sendall(said)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Start a server."""
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    """Stand before it."""
    with closing(FaultProxy("127.0.0.1", echo.port)) as proxy:
        yield proxy


def connected(proxy: FaultProxy) -> socket.socket:
    """Return a connection through the proxy."""
    connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
    connection.settimeout(5)
    return connection


def test_what_is_said_is_passed_on_and_counted(proxy: FaultProxy) -> None:
    """A request is what is said before the answer comes."""
    with connected(proxy) as connection:
        for number in range(1, 4):
            connection.sendall(b"hello")

            assert connection.recv(100) == b"hello"
            assert proxy.requests() == number


def test_a_lost_reply_is_lost_after_the_server_had_the_request(proxy: FaultProxy, echo: Echo) -> None:
    """The client sees the end of the connection, the server the request."""
    with connected(proxy) as connection:
        proxy.begin(Fault.LOSE_REPLY)
        connection.sendall(b"write")

        assert connection.recv(100) == b""

    proxy.heal()
    assert echo.heard == [b"write"]


def test_what_was_held_back_arrives_late_also_when_the_client_has_left(proxy: FaultProxy, echo: Echo) -> None:
    """And it has arrived when the way is healed."""
    with connected(proxy) as connection:
        proxy.begin(Fault.HANG)
        connection.sendall(b"ghost")
        while proxy.requests() == 0:
            time.sleep(0.01)  # a busy machine lets the proxy read late
    assert echo.heard == []

    proxy.heal()

    assert echo.heard == [b"ghost"]


@pytest.mark.parametrize("ends", ["answer", "hang up"])
def test_healing_waits_for_the_server_also_when_the_client_leaves_meanwhile(ends: str) -> None:
    """The request that was held back is not cut off, and healing ends with its answer, or when the server hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server, closing(FaultProxy(*server.getsockname())) as proxy:
        client = connected(proxy)
        served, _ = server.accept()
        served.settimeout(5)
        proxy.begin(Fault.HANG)
        client.sendall(b"late")
        while proxy.requests() == 0:
            time.sleep(0.01)

        began = time.monotonic()
        healing = threading.Thread(target=proxy.heal)
        healing.start()
        heard = served.recv(100)
        client.close()
        served.settimeout(0.2)
        with pytest.raises(TimeoutError):
            served.recv(100)  # would be the end of the connection
        assert healing.is_alive()
        if ends == "answer":
            served.sendall(b"done")
            served.settimeout(5)
            assert served.recv(100) == b""
        served.close()
        healing.join()
        took = time.monotonic() - began

    assert heard == b"late"
    assert took < LATE_S


def test_a_refused_way_refuses_and_comes_back(proxy: FaultProxy) -> None:
    """Connections that were open end, new ones are refused, until it is healed."""
    with connected(proxy) as connection:
        connection.sendall(b"hello")
        connection.recv(100)
        proxy.begin(Fault.REFUSE)
        with pytest.raises(OSError, match=r"refused|reset"):
            connected(proxy)

    proxy.heal()

    with connected(proxy) as connection:
        connection.sendall(b"again")
        assert connection.recv(100) == b"again"


def test_a_connection_that_is_slow_to_begin_hears_its_first_answer_late(proxy: FaultProxy) -> None:
    """Those that were open end. From its first answer on it is as quick as any, and so is each one that is made after the way is healed."""
    with connected(proxy) as open_before:
        took_to_answer(open_before)
        proxy.begin(Fault.SLOW_CONNECT)
        assert open_before.recv(100) == b""
    with connected(proxy) as slow:
        took = [took_to_answer(slow) for _ in range(2)]
    proxy.heal()
    with connected(proxy) as connection:
        took.append(took_to_answer(connection))

    assert [each > 0.9 * SLOW_S for each in took] == [True, False, False]


def took_to_answer(connection: socket.socket) -> float:
    """Return how many seconds an answer takes."""
    began = time.monotonic()
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
    return time.monotonic() - began


def test_only_connections_that_begin_with_words_of_their_own_can_be_slow(echo: Echo) -> None:
    """Of any other the first answer is that to a request."""
    with closing(FaultProxy("127.0.0.1", echo.port, greeted=True)) as greeted:
        assert Fault.SLOW_CONNECT in greeted.kinds
    with closing(FaultProxy("127.0.0.1", echo.port)) as proxy:
        assert Fault.SLOW_CONNECT not in proxy.kinds


def test_so_many_replies_are_lost_and_no_more(proxy: FaultProxy, echo: Echo) -> None:
    """Each takes its connection along; what follows is answered without anybody healing the way."""
    proxy.lose_replies(2)
    for said in (b"one", b"two"):
        with connected(proxy) as connection:
            connection.sendall(said)
            assert connection.recv(64) == b""
    assert proxy.replies_to_lose == 0

    with connected(proxy) as connection:
        connection.sendall(b"three")
        assert connection.recv(64) == b"three"

    assert echo.heard == [b"one", b"two", b"three"]
