"""Who is cancelled while pymongo makes a connection leaves no socket behind."""

from __future__ import annotations

import asyncio
import secrets
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from dlock_mongodb import AsyncMongoDBStore
from tests.mongodb.support import COLLECTION, DATABASE, TIMEOUT_S, any_claim

WAIT_S = 0.3


async def wait_while_connections_take_long(url: str, monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Wait for a held lock, for less time than a second connection takes; return the sockets that took so long."""
    # Without a connection that measures the round trip, and comes when it likes.
    client: AsyncMongoClient[Any] = AsyncMongoClient(url, serverMonitoringMode="poll")
    store = AsyncMongoDBStore(client, database=DATABASE, collection=COLLECTION)
    record = (await store.claim(any_claim(f"tests/{secrets.token_hex(8)}"), timeout_s=TIMEOUT_S)).record
    assert record is not None
    connect, may_go_on, late = BaseSelectorEventLoop.sock_connect, asyncio.Event(), list[socket.socket]()

    async def slowly(loop: BaseSelectorEventLoop, sock: socket.socket, address: Any) -> None:
        await connect(loop, sock, address)
        late.append(sock)
        await may_go_on.wait()

    monkeypatch.setattr(BaseSelectorEventLoop, "sock_connect", slowly)
    await store.wait(record, ticket="t", timeout_s=WAIT_S)
    may_go_on.set()
    await store.close()
    await client.close()
    return late


@pytest.mark.usefixtures("raw")
def test_a_wait_that_ends_while_a_connection_is_made_closes_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is closed, and so is every socket."""
    late = asyncio.run(wait_while_connections_take_long(url, monkeypatch))

    left = [sock for sock in late if sock.fileno() >= 0]
    for sock in left:
        sock.close()
    assert late
    assert left == []
