"""Who is cancelled while pymongo makes a connection leaves no socket behind."""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from dlock_mongodb import AsyncMongoDBStore
from tests.mongodb.support import COLLECTION, DATABASE, TIMEOUT_S, any_claim

WAIT_S = 0.3


async def wait_while_connections_take_long(url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Wait for a held lock, for less time than a second connection takes; return how many connections took so long."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(url)
    store = AsyncMongoDBStore(client, database=DATABASE, collection=COLLECTION)
    record = (await store.claim(any_claim(f"tests/{secrets.token_hex(8)}"), timeout_s=TIMEOUT_S)).record
    assert record is not None
    connect, may_go_on, late = BaseSelectorEventLoop.sock_connect, asyncio.Event(), 0

    async def slowly(loop: BaseSelectorEventLoop, sock: socket.socket, address: Any) -> None:
        nonlocal late
        await connect(loop, sock, address)
        late += 1
        await may_go_on.wait()

    monkeypatch.setattr(BaseSelectorEventLoop, "sock_connect", slowly)
    await store.wait(record, ticket="t", timeout_s=WAIT_S)
    may_go_on.set()
    await store.close()
    await client.close()
    return late


@pytest.mark.usefixtures("raw")
def test_a_wait_that_ends_while_a_connection_is_made_closes_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector finds nothing open: pytest would turn its warning into a failure."""
    late = asyncio.run(wait_while_connections_take_long(url, monkeypatch))

    gc.collect()
    assert late
