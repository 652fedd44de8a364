"""A client keeps its locks, and gives them back, while others of it wait, and when Ctrl-C comes in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from dlock_core import LockClient
from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.store import Release, Replace
from dlock_mongodb import MongoDBStore
from tests.core.worlds import eventually
from tests.mongodb.proxy import Proxy, Way
from tests.mongodb.support import COLLECTION, DATABASE, Opener, any_claim, freed, held
from tests.scripted import ScriptedServer

SLACK_S = 1.5
LONG_S = 30.0


@contextmanager
def unanswered_reads(proxy: Proxy, store: Any, keys: Sequence[str], *, only: bytes, sent: int) -> Iterator[None]:
    """Read all *keys* at once, with no answer to what has *only* in it; the block begins when so many were *sent*, and heals the way."""
    asked = proxy.commands["find"]
    proxy.begin(Way.HANG, only=only)
    readers = [threading.Thread(target=store.read, args=(key,), kwargs={"timeout_s": LONG_S}) for key in keys]
    for reader in readers:
        reader.start()
    until = time.monotonic() + LONG_S
    while proxy.commands["find"] < asked + sent and time.monotonic() < until:
        time.sleep(0.005)  # it is another thread that counts
    yield
    proxy.heal()
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_no_waiter_takes_the_connection_of_a_renewal(
    proxy: Proxy, beside: MongoDBStore, key: str, asynchronous: bool
) -> None:
    """Twelve that wait for an answer leave a client of five connections one for renewals and releases; others stand in line, and say so."""
    beside.provision()
    opener = Opener(f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", asynchronous=asynchronous)
    store = opener.store(maxPoolSize=5)
    record = store.claim(any_claim(key)).record
    with unanswered_reads(proxy, store, [f"stuck/{number}" for number in range(12)], only=b"stuck/", sent=3):
        renewal = Replace(held(key, fencing_token=record.fencing_token), record.version)
        results = [*store.replace_many([renewal], timeout_s=5.0)]
        results.append(store.release(Release(freed(renewal.record), renewal.record.version), timeout_s=5.0))
        with pytest.raises(StoreUnavailableError, match="3 other requests of this client"):
            store.read(key, timeout_s=0.1)

    opener.close()
    assert [result.applied for result in results] == [True, True]


def test_what_takes_no_seat_gives_none_back(opener: Opener, key: str) -> None:
    """Else those who wait have one more after each renewal, at last those of the renewals. A second look makes no second stream."""
    store = opener.store()
    store.guarantees()
    link: Any = store.raw._link
    watch, record = link.watch, store.claim(any_claim(key)).record

    store.release(Release(freed(record), record.version))
    store.provision()

    assert link._seats.taken == 0
    assert watch is not None
    assert link.watch is watch


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt this process. A job in the background, which a test run may be, begins with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupt_once_asked(proxy: Proxy) -> threading.Thread:
    """Interrupt the main thread when its next write has come as far as the proxy."""
    before, main = proxy.commands["findAndModify"], threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while proxy.commands["findAndModify"] == before:
            time.sleep(0.005)  # it is another thread that counts
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("verb", ["release", "close"])
def test_an_interrupted_release_or_close_frees_the_lock_within_its_lease(
    server: ScriptedServer, proxy: Proxy, beside: MongoDBStore, key: str, verb: str
) -> None:
    """The request is on its way when Ctrl-C comes. Nobody renews the lock any more, and closing again takes no time."""
    beside.provision()
    lease_s = 2.0
    with MongoClient[Any](f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true") as driver:
        client = LockClient(MongoDBStore(driver, database=DATABASE, collection=COLLECTION), lease_duration=lease_s)
        lease = client.acquire(key)
        proxy.begin(Way.HANG)
        thread = _interrupt_once_asked(proxy)

        with pytest.raises(KeyboardInterrupt):
            lease.release() if verb == "release" else client.close()

        thread.join()
        proxy.heal()
        with LockClient(beside, lease_duration=lease_s) as other:
            other.acquire(key, timeout=lease_s + 2).release()
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < SLACK_S


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:UserWarning")
def test_a_forked_child_does_not_wait_for_what_its_parent_has_under_way(
    proxy: Proxy, beside: MongoDBStore, key: str
) -> None:
    """All seats are taken by threads that only the parent has: nobody in the child would ever give them back."""
    beside.provision()
    with MongoClient[Any](f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", maxPoolSize=3) as server:
        store = MongoDBStore(server, database=DATABASE, collection=COLLECTION)
        store.read(key, timeout_s=LONG_S)
        proxy.begin(Way.HANG, only=b"another")
        asking = threading.Thread(target=store.read, args=("another",), kwargs={"timeout_s": LONG_S})
        asked = proxy.commands["find"]
        asking.start()
        eventually(lambda: proxy.commands["find"] > asked)
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if store.read(key, timeout_s=SLACK_S) is None else 2
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        proxy.heal()
        asking.join()
        store.close()

    assert ended == 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_way_that_is_gone_costs_a_lock_one_renewal_however_many_connections_were_idle(
    proxy: Proxy, beside: MongoDBStore, key: str, asynchronous: bool
) -> None:
    """The renewal after the one that got no answer has a new connection: a lease has time for two."""
    beside.provision()
    opener = Opener(f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", asynchronous=asynchronous)
    store = opener.store()
    record = store.claim(any_claim(key)).record
    with unanswered_reads(proxy, store, [key] * 6, only=key.encode(), sent=6):
        pass

    proxy.strand()
    renewal = Replace(held(key, fencing_token=record.fencing_token), record.version)
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewal, timeout_s=0.5)
    renewed = store.replace(renewal, timeout_s=5.0)
    opener.close()
    assert renewed.applied
