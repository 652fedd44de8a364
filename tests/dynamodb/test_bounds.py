"""A verb ends in time whatever the driver waits for, a cut answer is none, and waiters leave room for what keeps a lock."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import botocore.session
import pytest
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.record import State, Version
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import Stub, claimed, ignore, operation_of, record, session, stubbed, watched

# What a busy machine may add.
SLACK_S = 2.0


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Run a server that says what it is told."""
    with stubbed() as said:
        yield said


class Refreshed:
    """A botocore session whose credentials are good for *minutes*; their refresh waits for *go*."""

    def __init__(self, minutes: float) -> None:
        self.go, self.asked = threading.Event(), threading.Event()
        expiry = datetime.now(UTC) + timedelta(minutes=minutes)
        self.credentials = RefreshableCredentials("old", "s", "t", expiry, self._refresh, "test")
        self.session = botocore.session.Session()
        self.session.register_component("credential_provider", self)

    def load_credentials(self) -> Any:
        """Return the credentials; botocore asks by this name."""
        return self.credentials

    def _refresh(self) -> dict[str, str]:
        self.asked.set()
        self.go.wait(60)
        return new_keys(hours=1)


def new_keys(hours: float) -> dict[str, str]:
    """Return what a source of credentials gives that are good for *hours*."""
    expiry = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
    return {"access_key": "new", "secret_key": "s", "token": "t", "expiry_time": expiry}


@pytest.mark.parametrize("minutes", [12, 5], ids=["advisory", "mandatory"])
@pytest.mark.parametrize("way", ["direct", "boto3"])
def test_no_verb_waits_for_credentials_that_are_refreshed(stub: Stub, key: str, minutes: float, way: str) -> None:
    """While the old ones are good every verb is signed with them; the new ones are taken when they are there."""
    refreshed = Refreshed(minutes)
    if way == "boto3":
        refreshed.session.register("before-send.dynamodb", ignore)
    stub.says((200, {}))
    store = DynamoDBStore(refreshed.session, table="locks", region="eu-west-1", endpoint_url=stub.endpoint)

    began = time.monotonic()
    for _ in range(3):
        assert store.read(key, timeout_s=10) is None
    took = time.monotonic() - began
    assert refreshed.asked.wait(10)
    refreshed.go.set()
    until = time.monotonic() + 30
    while "Credential=new/" not in stub.signatures[-1]:
        assert time.monotonic() < until
        store.read(key, timeout_s=10)
    store.close()

    assert took < 5
    assert "Credential=old/" in stub.signatures[0]


def test_credentials_that_have_expired_hold_a_verb_for_its_time_out_only(stub: Stub, key: str) -> None:
    """Nothing can be signed; nothing is sent when the caller has gone; and the refresh is not asked for once for each verb."""
    refreshed = Refreshed(minutes=-1)
    stub.says((200, {}))
    store = DynamoDBStore(refreshed.session, table="locks", region="eu-west-1", endpoint_url=stub.endpoint)

    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        store.claim(Claim(record(key), Expect.ANY), timeout_s=0.5)
    took = time.monotonic() - began
    refreshed.go.set()
    found = store.read(key, timeout_s=10)
    store.close()

    assert took < 0.5 + SLACK_S
    assert found is None
    assert [name for name, _ in stub.requests] == ["GetItem"]


def child_reads(store: DynamoDBStore, key: str, fact: Callable[[], bool]) -> bool:
    """Return whether a forked child can read, and *fact* is then true in it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # it may hang
            store.read(key, timeout_s=10)
            code = 0 if fact() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_child_that_was_forked_during_a_refresh_makes_its_own(stub: Stub, key: str) -> None:
    """The thread that refreshes is the parent's: nobody in the child would ever end what that has begun, nor give botocore's lock back."""
    refreshed = Refreshed(minutes=5)
    stub.says((200, {}))
    store = DynamoDBStore(refreshed.session, table="locks", region="eu-west-1", endpoint_url=stub.endpoint)
    store.read(key, timeout_s=10)
    assert refreshed.asked.wait(10)
    refreshed.credentials._expiry_time = datetime.now(UTC)  # the child lives on for longer than they are good
    refreshed.credentials._refresh_using = partial(new_keys, hours=1)

    assert child_reads(store, key, lambda: refreshed.credentials._frozen_credentials.access_key == "new")
    refreshed.go.set()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_child_that_was_forked_while_units_were_counted_counts_on(stub: Stub, key: str) -> None:
    """Another thread of the parent has the mutex, and is not there in the child."""
    stub.says((200, {"ConsumedCapacity": {"CapacityUnits": 0.5}}))
    store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)
    store.read(key, timeout_s=10)
    counting, go = threading.Event(), threading.Event()

    def count() -> None:
        with store._link.units._mutex:
            counting.set()
            go.wait(60)

    thread = threading.Thread(target=count)
    thread.start()
    assert counting.wait(10)
    try:
        assert child_reads(store, key, lambda: store.units["read"]["read"] == 1.0)
    finally:
        go.set()
        thread.join()
    store.close()


def failing(error: Exception) -> Callable[[], Any]:
    """Return a source of credentials that raises *error*."""

    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (partial(new_keys, hours=-0.1), r"of test \(RuntimeError\)"),
        (
            failing(ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole")),
            r"of test \(AssumeRole: AccessDenied\)",
        ),
        (failing(FileNotFoundError(2, "No such file", "/token")), r"of test \(FileNotFoundError: /token\)"),
        (failing(ReadTimeoutError(endpoint_url="https://sts.test")), r"of test \(ReadTimeoutError\)"),
        (failing(KeyError("AccessKeyId")), r"of test \(KeyError\)"),
        (failing(EndpointConnectionError(endpoint_url="https://sts.test")), "no connection"),
    ],
    ids=["expired by this clock", "refused", "no file", "no answer", "another answer", "no connection"],
)
def test_credentials_that_cannot_be_refreshed_are_told_as_such(
    stub: Stub, key: str, source: Callable[[], Any], told: str
) -> None:
    """Whatever their source raises, nothing was sent, and DynamoDB has refused nothing; the message names what failed."""
    refreshed = Refreshed(minutes=-1)
    refreshed.credentials._refresh_using = source
    store = DynamoDBStore(refreshed.session, table="locks", region="eu-west-1", endpoint_url=stub.endpoint)

    with pytest.raises(StoreUnavailableError, match=f"{told}.*nothing was sent"):
        store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
    store.close()

    assert stub.requests == []


def test_a_name_that_is_not_resolved_holds_a_verb_for_its_time_out_only(
    stub: Stub, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver has time-outs of its own, which nothing can set."""
    go, port = threading.Event(), stub.endpoint.rpartition(":")[2]
    resolve = socket.getaddrinfo

    def slow(host: Any, *more: Any, **named: Any) -> Any:
        if host == "dynamodb.test":
            go.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return resolve(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    store = DynamoDBStore(session(), table="locks", endpoint_url=f"http://dynamodb.test:{port}")

    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        store.read(key, timeout_s=0.5)
    with pytest.raises(StoreUnavailableError):
        store.release(Release(record(key, State.FREE), Version("r", 1)), timeout_s=0.5)
    took = time.monotonic() - began
    go.set()
    store.close()

    assert took < 1.0 + SLACK_S
    assert stub.requests == []


def test_making_a_client_holds_a_verb_for_its_time_out_only(
    stub: Stub, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 reads its models from the disk for it; and nothing is sent for a caller who has gone."""
    go = threading.Event()
    stub.says((200, {}))
    store = DynamoDBStore(watched([]), table="locks", endpoint_url=stub.endpoint)
    create = store._link._create

    def slow(seconds: float) -> Any:
        go.wait(60)
        return create(seconds)

    monkeypatch.setattr(store._link, "_create", slow)

    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        store.claim(Claim(record(key), Expect.ANY), timeout_s=0.4)
    took = time.monotonic() - began
    go.set()
    assert store.read(key, timeout_s=3) is None
    store.close()

    assert took < 0.4 + SLACK_S
    assert [name for name, _ in stub.requests] == ["GetItem"]


def half(answer: bytes) -> tuple[int, bytes, int | None]:
    """Announce the whole answer, send a half and close: what a connection that breaks leaves."""
    return len(answer), answer[: len(answer) // 2], None


def reframed(answer: bytes) -> tuple[int, bytes, int | None]:
    """Announce the half as the whole, as a proxy may; only the checksum knows better."""
    return len(answer) // 2, answer[: len(answer) // 2], zlib.crc32(answer)


def garbled(answer: bytes) -> tuple[int, bytes, int | None]:
    """Send an answer that is whole and reads well, and is not the one that was checked."""
    return 2, b"{}", zlib.crc32(answer)


@pytest.mark.parametrize("way", [session, partial(watched, [])], ids=["direct", "boto3"])
@pytest.mark.parametrize("cut", [half, reframed, garbled])
def test_an_answer_that_was_cut_is_none(
    stub: Stub, key: str, cut: Callable[[bytes], Any], way: Callable[[], Any]
) -> None:
    """A held lock is not absent, a table is not empty, and a write is of unknown outcome; nothing is sent again."""
    stub.says((200, {"Item": {"key": {"S": key}, "v": {"N": "1"}}, "Items": [], "Responses": [{}], "Attributes": {}}))
    stub.cut = cut
    store = DynamoDBStore(way(), table="locks", endpoint_url=stub.endpoint)
    change = Replace(record(key), Version("r", 1))

    with pytest.raises(StoreUnavailableError):
        store.read(key, timeout_s=10)
    with pytest.raises(StoreUnavailableError):
        list(store.scan("", timeout_s=10))
    with pytest.raises(OutcomeUnknownError):
        store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
    with pytest.raises(OutcomeUnknownError):
        store.replace(change, timeout_s=10)
    with pytest.raises(OutcomeUnknownError):
        store.replace_many([change], timeout_s=10)
    store.close()

    assert len(stub.requests) == 5


def test_waiters_that_hang_leave_room_for_renewals_and_releases(
    open_store: Callable[..., DynamoDBStore], key: str
) -> None:
    """Forty threads hang in reads: one more is told that no thread is free, and locks are renewed and released as ever."""
    go, driver, hanging = threading.Event(), session(), list[str]()

    def send(request: Any, **_: Any) -> None:
        if operation_of(request) == "GetItem":
            hanging.append("GetItem")
            go.wait(60)

    driver.events.register("before-send.dynamodb", send)
    store = open_store(driver)
    held = claimed(store, key)

    def look() -> str:
        try:
            store.read(f"{key}/other", timeout_s=30)
        except StoreError as error:
            return str(error)
        return "read"

    with ThreadPoolExecutor(40) as pool:
        looks = [pool.submit(look) for _ in range(40)]
        with pytest.raises(StoreUnavailableError, match="nothing was sent"):
            store.read(key, timeout_s=1)
        at_once = len(hanging)
        began = time.monotonic()
        renewed = store.replace(Replace(record(key), held.version), timeout_s=10).record
        assert renewed is not None
        [again] = store.replace_many([Replace(record(key), renewed.version)], timeout_s=10)
        took = time.monotonic() - began
        go.set()
        seen = {each.result() for each in looks}

    assert not isinstance(again, StoreError)
    assert again.applied
    assert took < 5
    assert at_once == 16
    assert seen == {"read"}
