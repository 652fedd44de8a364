"""A renewal of what is waited for wakes; who is cancelled while pymongo makes a connection leaves no socket behind."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import AsyncWatch, Watch
from dlock_core.record import LockRecord
from dlock_core.store import Release, Replace
from dlock_mongodb import AsyncMongoDBStore
from dlock_mongodb._wire import SOUGHT
from dlock_mongodb.store import news_of
from tests.mongodb.support import COLLECTION, DATABASE, TIMEOUT_S, Face, Opener, any_claim, freed, fresh, held

WAIT_S = 0.3
# A wake-up that came returned long before.
LONG_S = 30.0


class Waiter:
    """A wait in a thread of its own."""

    def __init__(self, store: Face, record: LockRecord) -> None:
        self._store, self._record = store, record
        self._took_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def took_s(self) -> float:
        """Return how long it took."""
        self._thread.join()
        return self._took_s

    def _run(self) -> None:
        began = time.monotonic()
        self._store.wait(self._record, ticket=fresh(), timeout_s=LONG_S)
        self._took_s = time.monotonic() - began


def until_marked(raw: Any, key: str) -> None:
    """Return when somebody has marked the document as waited for."""
    until = time.monotonic() + LONG_S
    while SOUGHT not in raw.find_one({"_id": key}):
        assert time.monotonic() < until
        time.sleep(0.005)  # the mark comes when the stream is open


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in_a_batch"])
def test_a_renewal_of_what_is_waited_for_wakes(store: Face, raw: Any, key: str, *, batch: bool) -> None:
    """The waiter looks at the record anew; the renewal has dropped its mark, so the next one tells nobody."""
    store.guarantees()
    record = store.claim(any_claim(key)).record
    waiter = Waiter(store, record)
    until_marked(raw, key)

    renewal = Replace(held(key, fencing_token=record.fencing_token), record.version, keep_payload=True)
    reply = store.replace_many([renewal])[0] if batch else store.replace(renewal)

    assert reply.applied
    assert waiter.took_s() < LONG_S
    assert SOUGHT not in raw.find_one({"_id": key})


@pytest.mark.parametrize("level", ["local", "available", "linearizable"])
def test_a_client_with_a_read_concern_of_its_own_is_woken(opener: Opener, raw: Any, key: str, level: str) -> None:
    """A server refuses a change stream with any but that of a majority, and the waiters would poll."""
    store = opener.store(readConcernLevel=level, readPreference="secondaryPreferred")
    store.guarantees()
    record = store.claim(any_claim(key)).record
    waiter = Waiter(store, record)
    until_marked(raw, key)

    store.release(Release(freed(record), record.version))

    assert waiter.took_s() < LONG_S


def test_a_record_of_another_format_is_waited_for_unmarked(store: Face, raw: Any, key: str) -> None:
    """What a later version wrote is not ours to change."""
    store.guarantees()
    record = store.claim(any_claim(key)).record
    raw.update_one({"_id": key}, {"$set": {"v": 2}})
    before = raw.find_one({"_id": key})

    store.wait(record, ticket=fresh(), timeout_s=WAIT_S)

    assert raw.find_one({"_id": key}) == before


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


class Ended:
    """A change stream as pymongo's is once the server has ended its cursor (drop, rename): ``try_next`` gives None without waiting."""

    TRIES_MAX = 1000

    def __init__(self) -> None:
        self.tries = 0
        self.alive = True

    def close(self) -> None:
        """Do nothing."""

    def try_next(self) -> None:
        """Say that there is nothing, and learn that there never will be."""
        self.tries += 1
        self.alive = False
        if self.tries > self.TRIES_MAX:
            raise PyMongoError("asked again and again, without a pause")


class AsyncEnded(Ended):
    """Its twin."""

    async def try_next(self) -> None:  # type: ignore[override]  # as pymongo's
        """As :meth:`Ended.try_next`."""
        super().try_next()

    async def close(self) -> None:  # type: ignore[override]  # as pymongo's
        """Do nothing."""


def test_a_stream_that_the_server_ended_is_left_and_wakes_who_waits() -> None:
    """Asked on, it would answer at once for ever, and use up a core."""
    stream = Ended()

    class Collection:
        def watch(self, *_: object, **__: object) -> Ended:
            return stream

    watch: Any = Watch(news_of(Collection()))
    watch.wait("k", LONG_S, lambda: False)
    watch.close()

    assert stream.tries == 1


def test_a_stream_that_the_server_ended_does_not_keep_the_event_loop() -> None:
    """Asked on, it would never suspend: no lock of the loop would be renewed any more."""
    stream = AsyncEnded()

    class Collection:
        async def watch(self, *_: object, **__: object) -> AsyncEnded:
            return stream

    async def no() -> bool:
        return False

    async def main() -> None:
        watch = AsyncWatch(news_of(Collection()))
        await watch.wait("k", LONG_S, no)
        await watch.close()

    asyncio.run(main())

    assert stream.tries == 1


class Leaving(Ended):
    """A stream whose end fails, too."""

    def close(self) -> None:
        """Fail."""
        raise PyMongoError("it is gone")


def test_a_stream_that_cannot_be_closed_is_opened_anew() -> None:
    """Who waits next is not told of the old one."""
    streams = [Leaving(), Ended()]

    class Collection:
        def watch(self, *_: object, **__: object) -> Ended:
            return streams.pop(0)

    watch: Any = Watch(news_of(Collection()))
    for _ in range(2):
        watch.wait("k", LONG_S, lambda: False)
    watch.close()

    assert not streams


def test_a_thread_that_cannot_start_is_told_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process had no more threads for a moment."""

    class Collection:
        def watch(self, *_: object, **__: object) -> Ended:
            return Ended()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    watch: Any = Watch(news_of(Collection()))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(StoreUnavailableError, match="no more threads"):
            watch.wait("k", LONG_S, lambda: False)
    assert watch._run is None
    watch.close()
