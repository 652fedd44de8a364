"""What is between a client and etcd goes without a word: a balancer's host, or a firewall that forgets connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dlock_core.errors import OutcomeUnknownError
from dlock_etcd import AsyncEtcdStore, EtcdStore
from tests.etcd.support import TIMEOUT_S, any_claim, renewed


class Balancer:
    """Passes bytes on. After :meth:`forget` it takes what comes by the connections that it has, and passes nothing on."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target, self._forgotten = (host, int(port)), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"etcd://127.0.0.1:{self._listener.getsockname()[1]}/tests"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

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
        with suppress(OSError):
            while came := source.recv(65_536):
                if number >= self._forgotten:
                    to.sendall(came)
            to.shutdown(socket.SHUT_WR)


@pytest.fixture
def balancer(address: str) -> Iterator[Balancer]:
    """Return one, on the way to the server."""
    balancer = Balancer(address)
    yield balancer
    balancer.close()


def test_renewal_after_one_without_an_answer_goes_by_a_new_connection(balancer: Balancer, key: str) -> None:
    """To find out that a connection is dead takes gRPC longer than many a lease: the lock was lost."""
    store = EtcdStore(balancer.url)
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None

    balancer.forget()
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewed(record), timeout_s=0.3)

    assert store.replace(renewed(record), timeout_s=2.0).applied
    store.close()


def test_renewal_by_asyncio_too(balancer: Balancer, key: str) -> None:
    """The same way."""

    async def renew() -> bool:
        store = AsyncEtcdStore(balancer.url)
        record = (await store.claim(any_claim(key), timeout_s=TIMEOUT_S)).record
        assert record is not None
        balancer.forget()
        with pytest.raises(OutcomeUnknownError):
            await store.replace(renewed(record), timeout_s=0.3)
        reply = await store.replace(renewed(record), timeout_s=2.0)
        await store.close()
        return reply.applied

    assert asyncio.run(renew())
