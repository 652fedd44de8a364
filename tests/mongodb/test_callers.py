"""What the caller of a lock does in MongoDB at the same time is no part of the lock, nor the lock a part of that."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any

import pymongo
import pytest
from pydantic import SecretStr
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidOperation

from dlock_core.errors import StoreUnavailableError
from dlock_core.store import Release
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore
from dlock_mongodb.options import MongoDBStoreOptions
from tests.core.worlds import PATIENCE_S
from tests.mongodb.support import COLLECTION, DATABASE, TIMEOUT_S, Opener, any_claim, freed


def _within(opener: Opener, way: str, client: Any, call: Callable[[Any], Any], store: Any) -> Any:
    """Return what *call* returns, in code of the user's that has bound a session of *client*, or set a time-out, in a thread of theirs."""
    if opener.loop is None and threading.current_thread() is threading.main_thread():
        with ThreadPoolExecutor() as threads:
            return threads.submit(_within, opener, way, client, call, store).result()
    if way == "time-out":
        with pymongo.timeout(0.001):
            return opener.loop.run(call(store)) if opener.loop is not None else call(store)

    async def bound() -> Any:
        async with client.start_session() as session, session.bind():
            if way == "transaction":
                await session.start_transaction()
            return await call(store)

    if opener.loop is not None:
        return opener.loop.run(bound())
    with client.start_session() as session, session.bind():
        if way == "transaction":
            session.start_transaction()
        return call(store)


@pytest.mark.parametrize("way", ["session of another client", "transaction", "time-out"])
def test_a_step_is_no_part_of_what_its_caller_does_in_mongodb(opener: Opener, key: str, way: str) -> None:
    """A session that the caller has bound, its transaction, which then is aborted, and the time-out of the caller's own requests."""
    if way != "time-out" and not hasattr(ClientSession, "bind"):
        pytest.skip("this pymongo binds no session")
    store = opener.store()
    link: Any = store.raw._link
    client = link.client if way == "transaction" else opener.client()
    request = any_claim(key)

    reply = _within(opener, way, client, lambda raw: raw.claim(request, timeout_s=TIMEOUT_S), store.raw)
    assert reply.applied
    assert store.read(key) == reply.record
    release = Release(freed(reply.record), reply.record.version)
    assert _within(opener, way, client, lambda raw: raw.release(release, timeout_s=TIMEOUT_S), store.raw).applied
    assert not store.read(key).held


def test_a_store_of_a_url_closes_its_client() -> None:
    """A client that is given stays open."""
    store = MongoDBStore.opened(MongoDBStoreOptions.from_url("mongodb://127.0.0.1:1/dlock"))

    store.close()

    with pytest.raises(InvalidOperation, match="after close"):
        store._link.client.admin.command("ping")


@pytest.mark.skipif(
    pymongo.version_tuple < (4, 18), reason="this pymongo drops all connections when one comes too late"
)
@pytest.mark.usefixtures("raw")
@pytest.mark.parametrize("kind", [MongoDBStore, AsyncMongoDBStore])
def test_a_server_that_takes_longer_to_connect_to_than_a_request_may_take_is_asked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, url: str, key: str, kind: Any
) -> None:
    """The driver gives up a connection with the request that it was begun for: a short lease was never granted."""
    search = socket.getaddrinfo

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.4)  # the fault itself
        return search(*arguments, **options)

    async def asked(call: Callable[[], Any]) -> bool:
        try:
            came = call()
            return (await came if isawaitable(came) else came) is None
        except StoreUnavailableError:
            return False

    async def scene() -> None:
        store = kind.opened(MongoDBStoreOptions(url=SecretStr(url), database=DATABASE, collection=COLLECTION))
        until = time.monotonic() + PATIENCE_S
        try:
            while not await asked(lambda: store.read(key, timeout_s=0.3)):
                assert time.monotonic() < until
        finally:
            closed = store.close()
            if closed is not None:
                await closed

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.run(scene())
