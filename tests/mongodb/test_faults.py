"""What the stores say when a reply is lost, the server stands still, cannot be reached or was restarted. Our own server is disturbed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NetworkTimeout, PyMongoError, ServerSelectionTimeoutError

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore
from dlock_mongodb.options import MongoDBStoreOptions
from tests.mongodb.proxy import Proxy, Way
from tests.mongodb.support import COLLECTION, DATABASE, Face, Opener, any_claim, freed, fresh, held, url_of
from tests.scripted import ScriptedServer
from tests.stopping import stop

VERBS = ["claim", "replace", "release", "replace_many"]
# What a call may take beyond its time-out on a busy machine.
SLACK_S = 1.5
LONG_S = 30.0


@pytest.fixture(params=["sync", "async"])
def disturbed(server: ScriptedServer, proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Face]:
    """A store that reaches our own server through the proxy; its connections are warm."""
    with MongoClient[Any](url_of(server)) as client:
        plain = MongoDBStore(client, database=DATABASE, collection=COLLECTION)
        plain.provision()
        plain.close()
    opener = Opener(f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", asynchronous=request.param == "async")
    # The driver asks a server that it lost again after half a second, not after ten.
    store = opener.store(heartbeatFrequencyMS=500)
    store.guarantees()
    yield store
    proxy.heal()
    opener.close()


@contextmanager
def paused(server: ScriptedServer) -> Iterator[None]:
    """Stop the server's process, and continue it at the end."""
    pid = server.pid
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def asked(store: Face, verb: str, key: str, timeout_s: float) -> tuple[LockRecord, Callable[[], Any]]:
    """Return what *verb* will write under *key*, where what it needs stands, and the call."""
    if verb == "claim":
        mine = held(key)
        return mine, lambda: store.claim(Claim(mine, Expect.ANY), timeout_s=timeout_s)
    standing = store.claim(any_claim(key)).record
    if verb == "release":
        free = freed(standing)
        return free, lambda: store.release(Release(free, standing.version), timeout_s=timeout_s)
    mine = held(key)
    request = Replace(mine, standing.version)
    if verb == "replace":
        return mine, lambda: store.replace(request, timeout_s=timeout_s)
    return mine, lambda: store.replace_many([request], timeout_s=timeout_s)


@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_reply_is_an_unknown_outcome_of_one_write(
    disturbed: Face, proxy: Proxy, beside: MongoDBStore, key: str, verb: str
) -> None:
    """The write was sent once and applied; neither a grant nor a refusal is made up."""
    written, call = asked(disturbed, verb, key, 5.0)
    proxy.commands.clear()
    proxy.begin(Way.LOSE_REPLY)

    with pytest.raises(OutcomeUnknownError) as caught:
        call()

    assert isinstance(caught.value.__cause__, AutoReconnect)
    assert caught.value.key == (None if verb == "replace_many" else key)  # an error of a batch is of all its locks
    assert proxy.commands == {"update" if verb == "replace_many" else "findAndModify": 1}
    assert beside.read(key, timeout_s=5.0) == written


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_hundred_lost_replies_to_each_verb_lose_no_lock(
    server: ScriptedServer, proxy: Proxy, beside: MongoDBStore, key: str, asynchronous: bool
) -> None:
    """Sending the same again shows each time what the first send did: once granted, once renewed, once released."""
    beside.provision()
    opener = Opener(f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", asynchronous=asynchronous)
    # pymongo leaves a server alone for half a second after a broken connection: each verb of each round has its turn on another client.
    stores = itertools.cycle([opener.store() for _ in range(20)])
    proxy.commands.clear()

    for number in range(100):
        claim = any_claim(f"{key}/{number}")
        renewal = Replace(held(claim.record.key), claim.record.version)
        release = Release(freed(renewal.record), renewal.record.version)
        for verb, request in (("claim", claim), ("replace", renewal), ("release", release)):
            store = next(stores)
            store.guarantees()
            proxy.begin(Way.LOSE_REPLY)
            with pytest.raises(OutcomeUnknownError):
                getattr(store, verb)(request)
            proxy.heal()

            reply = getattr(beside, verb)(request, timeout_s=10.0)

            assert reply.record == request.record
    opener.close()

    assert proxy.commands["findAndModify"] == 300 + 2 * 20  # and the self-test of each store


@pytest.mark.parametrize("verb", [*VERBS, "read", "scan"])
def test_a_server_that_stands_still_holds_nobody_up(
    disturbed: Face, server: ScriptedServer, key: str, verb: str
) -> None:
    """The call ends in time and says that the write is unknown; a read has written nothing. The write arrives later."""
    written: LockRecord | None = None
    if verb in ("read", "scan"):
        call: Callable[[], Any] = lambda: getattr(disturbed, verb)(key, timeout_s=0.5)  # noqa: E731
    else:
        written, call = asked(disturbed, verb, key, 0.5)

    with paused(server):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError if written is None else OutcomeUnknownError) as caught:
            call()
        took = time.monotonic() - began

    assert isinstance(caught.value.__cause__, NetworkTimeout)
    assert took < 0.5 + SLACK_S
    if written is not None:
        _await_record(disturbed, written)


def test_the_time_out_is_of_each_call(disturbed: Face, server: ScriptedServer, key: str) -> None:
    """A long one before does not stretch a short one."""
    disturbed.read(key, timeout_s=30.0)

    with paused(server):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            disturbed.read(key, timeout_s=0.2)
        took = time.monotonic() - began

    assert took < 0.2 + SLACK_S


def test_a_server_that_cannot_be_reached_has_written_nothing(disturbed: Face, proxy: Proxy, key: str) -> None:
    """Once the driver knows that there is no server, nothing is sent; when it is back the same store goes on."""
    proxy.begin(Way.REFUSE)

    errors = []
    for _ in range(3):
        with pytest.raises((StoreUnavailableError, OutcomeUnknownError)) as caught:
            disturbed.claim(any_claim(key), timeout_s=0.3)
        errors.append(caught.value)
    proxy.heal()

    assert isinstance(errors[-1], StoreUnavailableError)
    assert isinstance(errors[-1].__cause__, ServerSelectionTimeoutError)
    assert disturbed.claim(any_claim(key), timeout_s=10.0).applied


def test_a_store_is_told_of_a_server_that_is_not_there() -> None:
    """Opening it says so; nothing of the driver comes out, and no password."""
    opener = Opener("mongodb://user:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=300", asynchronous=False)
    store = opener.store()

    with pytest.raises(StoreUnavailableError, match="Connection refused") as caught:
        store.guarantees()

    assert isinstance(caught.value.__cause__, PyMongoError)
    assert "hunter2" not in str(caught.value)
    opener.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_short_search_for_a_server_leaves_time_for_the_connection(server: ScriptedServer, asynchronous: bool) -> None:
    """To log in by TLS at a distant server takes longer than to choose it: no client could be opened with such a URL."""
    opener = Opener(f"{url_of(server)}&serverSelectionTimeoutMS=1", asynchronous=asynchronous)

    assert opener.store().guarantees().grade
    opener.close()


def test_a_wrong_password_is_a_matter_of_setup(server: ScriptedServer) -> None:
    """It names the user's part, and does not repeat the password."""
    url = f"mongodb://nobody:hunter2@127.0.0.1:{server.port}/?directConnection=true&authMechanism=SCRAM-SHA-256"
    opener = Opener(url, asynchronous=False)
    store = opener.store()

    with pytest.raises(StoreSetupError, match="user, password and authSource") as caught:
        store.guarantees()

    assert "hunter2" not in str(caught.value)
    opener.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (10107, StoreUnavailableError),
        (13435, StoreUnavailableError),
        (91, OutcomeUnknownError),
        (11600, OutcomeUnknownError),
        (11602, OutcomeUnknownError),
        (189, OutcomeUnknownError),
        (50, OutcomeUnknownError),
        (262, OutcomeUnknownError),
        (13, StoreSetupError),
        (99999, OutcomeUnknownError),
    ],
)
def test_an_error_code_of_the_server_means_what_it_does(
    disturbed: Face, server: ScriptedServer, key: str, code: int, error: type[Exception]
) -> None:
    """Injected where the server has fail points: on a write, and on a read, which never is of unknown outcome."""
    with MongoClient[Any](url_of(server)) as client:
        asks: list[tuple[str, Callable[[], Any], type[Exception]]] = [
            ("findAndModify", lambda: disturbed.claim(any_claim(key)), error),
            ("find", lambda: disturbed.read(key), StoreUnavailableError if error is OutcomeUnknownError else error),
        ]
        for command, ask, raised in asks:
            fault = {"failCommands": [command], "errorCode": code}
            client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fault})

            with pytest.raises(raised):
                ask()

            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def test_what_was_granted_survives_a_crash(disturbed: Face, server: ScriptedServer, key: str) -> None:
    """The store goes on with the restarted server, and the token too."""
    record = disturbed.claim(any_claim(key, fencing_token=9)).record

    server.crash()
    server.start()

    seen = None
    until = time.monotonic() + 20
    while seen is None and time.monotonic() < until:
        try:
            seen = disturbed.read(key, timeout_s=5.0)
        except StoreUnavailableError:
            time.sleep(0.1)  # the driver has still to find out
    assert seen == record
    disturbed.release(Release(freed(record), record.version))
    assert disturbed.claim(any_claim(key)).record.fencing_token == 10


def test_a_waiter_outlives_its_change_stream(
    disturbed: Face, server: ScriptedServer, beside: MongoDBStore, key: str
) -> None:
    """A stream that breaks wakes its waiters, or goes on by itself: who waits again is told of the release."""
    record = beside.claim(any_claim(key), timeout_s=10.0).record
    assert record is not None
    woken = threading.Event()

    def wait() -> None:
        while not woken.is_set():
            try:
                disturbed.wait(record, ticket=fresh(), timeout_s=20.0)
                if not disturbed.read(key).held:
                    woken.set()
            except (StoreUnavailableError, OutcomeUnknownError):
                time.sleep(0.1)  # as the core does: the wait is over, a poll comes later

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)  # it waits now; there is no sign of it
    server.crash()
    server.start()
    time.sleep(1.0)  # the stream finds out

    until = time.monotonic() + 20
    while True:
        try:
            beside.release(Release(freed(record), record.version), timeout_s=10.0)
            break
        except (StoreUnavailableError, OutcomeUnknownError):
            assert time.monotonic() < until
            time.sleep(0.1)  # the driver has still to find out

    assert woken.wait(10)
    thread.join()


def _await_record(store: Face, record: LockRecord) -> None:
    """Return when *record* stands; the server still has to take the request from its socket."""
    until = time.monotonic() + 10
    while store.read(record.key) != record:
        assert time.monotonic() < until
        time.sleep(0.02)


async def cancelled_while_asked(store: AsyncMongoDBStore, proxy: Proxy, timeout_s: float = LONG_S) -> None:
    """Cancel a read whose request has come as far as the proxy."""
    asked_before = proxy.commands["find"]
    task = asyncio.create_task(store.read("cancelled", timeout_s=timeout_s))
    while proxy.commands["find"] == asked_before:  # noqa: ASYNC110  # it is another thread that counts
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def commands_under_way() -> int:
    """Count the tasks that wait for an answer to a command of a store's; the driver has others."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(coroutine.__qualname__ == "_TaskLink._bounded" for coroutine in coroutines)


async def left_after_closing(store: AsyncMongoDBStore, proxy: Proxy) -> tuple[int, int]:
    """Return how many commands a cancelled call leaves under way, and how many of them a close does, which waits for none."""
    await store.read("warm-up", timeout_s=LONG_S)
    proxy.begin(Way.HANG)
    await cancelled_while_asked(store, proxy)
    left = commands_under_way()
    async with asyncio.timeout(LONG_S / 2):
        await store.close()
    return left, commands_under_way()


async def _left_of_a_client_of_its_own(proxy: Proxy) -> tuple[int, int]:
    url = SecretStr(f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true")
    return await left_after_closing(AsyncMongoDBStore.opened(MongoDBStoreOptions(url=url, database=DATABASE)), proxy)


@pytest.mark.parametrize("disturbed", ["async"], indirect=True)
def test_closing_leaves_nothing_of_a_cancelled_call_behind(disturbed: Face, proxy: Proxy) -> None:
    """A loop that ends next would say of a task that it was destroyed. A client of the user's keeps it: its pool must not be harmed."""
    assert disturbed.loop is not None
    assert isinstance(disturbed.raw, AsyncMongoDBStore)
    assert disturbed.loop.run(_left_of_a_client_of_its_own(proxy)) == (1, 0)
    proxy.heal()

    assert disturbed.loop.run(left_after_closing(disturbed.raw, proxy)) == (1, 1)


@pytest.mark.parametrize("disturbed", ["async"], indirect=True)
def test_a_cancelled_call_costs_no_connection(disturbed: Face, proxy: Proxy) -> None:
    """The driver is not interrupted, whose pool could be locked for ever: the call ends by itself, and the next has its connection."""
    assert disturbed.loop is not None
    assert isinstance(disturbed.raw, AsyncMongoDBStore)
    disturbed.read("warm-up")
    connected = proxy.connected
    proxy.begin(Way.HANG)

    disturbed.loop.run(cancelled_while_asked(disturbed.raw, proxy))
    proxy.heal()

    assert disturbed.read("next", timeout_s=LONG_S) is None
    assert proxy.connected >= connected


async def _closed_while_it_hangs(store: AsyncMongoDBStore, proxy: Proxy, record: LockRecord) -> None:
    """Close *store*, whose stream is open, when the server is gone without a word."""
    waiter = asyncio.create_task(store.wait(record, ticket=fresh(), timeout_s=LONG_S))
    while proxy.commands["getMore"] == 0:  # noqa: ASYNC110  # it is another thread that counts
        await asyncio.sleep(0.005)
    proxy.begin(Way.HANG)
    async with asyncio.timeout(LONG_S):
        await store.close()
    waiter.cancel()  # it may still ask for the record
    await asyncio.gather(waiter, return_exceptions=True)


@pytest.mark.parametrize("disturbed", ["async"], indirect=True)
def test_closing_waits_for_no_server_that_hangs(disturbed: Face, proxy: Proxy, key: str) -> None:
    """The driver says good-bye to the change stream, and its server may never hear that."""
    assert disturbed.loop is not None
    assert isinstance(disturbed.raw, AsyncMongoDBStore)
    record = disturbed.claim(any_claim(key)).record
    disturbed.loop.run(_closed_while_it_hangs(disturbed.raw, proxy, record))
    proxy.heal()
