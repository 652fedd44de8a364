"""Servers that are away, alone, read-only or forbidding, nodes of others, and forks: typed errors, and nothing half-written."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from dlock_conformance.servers import free_port
from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from dlock_core.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_zookeeper import ZooKeeperStore
from dlock_zookeeper._errors import error_of
from tests.scripted import ScriptedServer, stop
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, released, renewed, session

PASSWORD = "in-no-message"


@pytest.fixture
def own_server() -> Iterator[ScriptedServer]:
    """Start a server of the test's own."""
    server = ScriptedServer("zookeeper.sh")
    yield server
    server.stop()


@pytest.fixture
def crowded() -> Iterator[ScriptedServer]:
    """Start a server that lets one connection of each host in."""
    server = ScriptedServer("zookeeper.sh", DLOCK_ZOOKEEPER_CONFIG="maxClientCnxns=1")
    yield server
    server.stop()


@pytest.fixture
def lonely() -> Iterator[str]:
    """Start one of three servers, which has no majority; return its address."""
    config = "\n".join(
        [
            "initLimit=5",
            "syncLimit=2",
            *(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3)),
        ]
    )
    server = ScriptedServer(
        "zookeeper.sh",
        DLOCK_ZOOKEEPER_ID="1",
        DLOCK_ZOOKEEPER_CONFIG=config,
    )
    yield f"127.0.0.1:{server.port}"
    server.stop()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionLoss(), OutcomeUnknownError),
        (exceptions.SessionExpiredError(), OutcomeUnknownError),
        (exceptions.ConnectionClosedError(), OutcomeUnknownError),
        (exceptions.OperationTimeoutError(), OutcomeUnknownError),
        (KazooTimeoutError(), OutcomeUnknownError),
        (TimeoutError(), StoreUnavailableError),
        (exceptions.NoAuthError(), StoreSetupError),
        (exceptions.InvalidACLError(), StoreSetupError),
        (exceptions.AuthFailedError(), StoreSetupError),
        (exceptions.UnimplementedError(), StoreSetupError),
        (exceptions.SessionClosedRequireSaslError(), StoreSetupError),
        (exceptions.NotReadOnlyCallError(), StoreUnavailableError),
        (exceptions.QuotaExceededError(), StoreUnavailableError),
        (exceptions.ThrottledOpError(), StoreUnavailableError),
        (exceptions.NotEmptyError(), RecordError),
    ],
)
def test_only_what_is_certain_is_said_to_be_not_applied(error: Exception, kind: type[StoreError]) -> None:
    """A write whose connection or session ended may stand; the same end of a read is no unknown outcome."""
    told = error_of(error, "k", writes=True), error_of(error, "k", writes=False)

    assert [type(each) for each in told] == [kind, StoreUnavailableError if kind is OutcomeUnknownError else kind]
    assert [getattr(each, "key", None) for each in told] == ["k", "k"]


def test_error_that_is_not_of_the_driver_is_left_as_it_is() -> None:
    """It is a mistake of the program, which no second try mends."""
    assert error_of(ValueError("a mistake"), "k", writes=True) is None


def test_step_that_ends_while_it_looks_has_written_nothing(own_server: ScriptedServer, key: str) -> None:
    """A store that has not seen the record reads it first: without an answer to that, nothing is unknown."""
    store, other = ZooKeeperStore(own_server.told), ZooKeeperStore(own_server.told)
    store.provision()
    record = granted(store, key)
    other.read(f"{key}-2", timeout_s=TIMEOUT_S)

    stop(own_server.pid)
    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        other.replace(renewed(record), timeout_s=0.5)
    os.kill(own_server.pid, signal.SIGCONT)

    assert store.read(key, timeout_s=TIMEOUT_S) == record
    store.close()
    other.close()


def test_write_to_a_server_that_stands_still_is_unknown(own_server: ScriptedServer, key: str) -> None:
    """It may be applied when the server goes on, so the time-out is no refusal."""
    store = ZooKeeperStore(own_server.told)
    store.provision()
    claim = any_claim(key)
    store.read(key, timeout_s=TIMEOUT_S)

    stop(own_server.pid)
    with pytest.raises(OutcomeUnknownError, match="may be applied: no answer in time"):
        store.claim(claim, timeout_s=0.5)
    os.kill(own_server.pid, signal.SIGCONT)

    found = store.read(key, timeout_s=TIMEOUT_S)
    store.close()
    assert found is None or found.rvn == claim.record.rvn


def test_lock_outlives_the_session_of_its_holder(own_server: ScriptedServer, key: str) -> None:
    """No node is ephemeral: whoever has lost session and connection renews on a new one, with the token that it had."""
    store = ZooKeeperStore(own_server.told)
    store.provision()
    record = granted(store, key)
    client = store._link._client  # type: ignore[attr-defined]
    expired = client.client_id

    with session(f"127.0.0.1:{own_server.port}", client_id=expired):
        pass  # takes the session over, and ends it
    reply = None
    while reply is None:
        try:
            reply = store.replace(renewed(record), timeout_s=TIMEOUT_S)
        except OutcomeUnknownError:
            continue  # the request that met the end of the session

    assert reply.record is not None
    assert reply.record.fencing_token == record.fencing_token
    assert client.client_id != expired
    store.close()


def test_server_without_a_majority_is_told_from_one_that_is_away(lonely: str, key: str) -> None:
    """Nothing is sent, and the error says what each server answers."""
    store = ZooKeeperStore(f"zookeeper://{lonely},127.0.0.1:9/tests")

    with pytest.raises(StoreUnavailableError, match="nothing was written") as caught:
        store.claim(any_claim(key), timeout_s=3)

    assert "127.0.0.1:9: Connection refused" in str(caught.value)
    assert f"{lonely}: answers, but has no majority" in str(caught.value)
    store.close()


def test_host_that_has_as_many_connections_as_it_may_is_told(crowded: ScriptedServer, key: str) -> None:
    """By default sixty: the next process of the host was asked about its port and about TLS."""
    with session(f"127.0.0.1:{crowded.port}"):
        store = ZooKeeperStore(crowded.told)
        with pytest.raises(StoreUnavailableError, match=r"closes the connection.*maxClientCnxns"):
            store.read(key, timeout_s=2)
    store.close()


def test_server_in_read_only_mode_is_not_used(address: str, key: str) -> None:
    """A client of the user's may have let itself in: what it reads there may be long past."""
    with session(address) as client:
        store = ZooKeeperStore(client)
        client._state = KeeperState.CONNECTED_RO

        for ask in (store.claim, lambda _, timeout_s: store.read(key, timeout_s=timeout_s)):
            with pytest.raises(StoreUnavailableError, match="read-only"):
                ask(any_claim(key), timeout_s=TIMEOUT_S)
        client._state = KeeperState.CONNECTED


def test_server_that_cannot_be_reached_is_passed_over(address: str, key: str) -> None:
    """One of the endpoints is down: the other answers within the same call."""
    store = ZooKeeperStore(f"zookeeper://127.0.0.1:9,{address}/tests")

    assert store.release(released(granted(store, key)), timeout_s=TIMEOUT_S).applied
    store.close()


def test_root_that_is_missing_is_told_with_what_makes_it(address: str, key: str) -> None:
    """By steps, reads and scans alike; afterwards all of it is there."""
    store = ZooKeeperStore(f"zookeeper://{address}/{key}/below")

    for ask in (
        lambda: store.claim(any_claim(key), timeout_s=TIMEOUT_S),
        lambda: store.read(key, timeout_s=TIMEOUT_S),
        lambda: list(store.scan("", timeout_s=TIMEOUT_S)),
    ):
        with pytest.raises(StoreSetupError, match="dlock init"):
            ask()
    store.provision()
    store.provision()

    assert store.read(key, timeout_s=TIMEOUT_S) is None
    granted(store, key)
    store.close()


def test_lock_of_another_recipe_is_refused(store: ZooKeeperStore, address: str, key: str) -> None:
    """The node of a lock of kazoo's, and children that such a lock has put beside the marker of a record."""
    record = granted(store, f"{key}-2")
    with session(address) as client:
        with (
            client.Lock(f"/tests/{key}", "somebody"),
            pytest.raises(RecordError, match=f"under key '{key}' is not a record"),
        ):
            store.claim(any_claim(key), timeout_s=TIMEOUT_S)
        with client.Lock(f"/tests/{key}-2", "somebody"), pytest.raises(RecordError, match=f"'{key}-2'.*2 children"):
            store.read(record.key, timeout_s=TIMEOUT_S)

    assert store.release(released(record), timeout_s=TIMEOUT_S).applied


def test_record_without_its_marker_is_damaged(store: ZooKeeperStore, address: str, key: str) -> None:
    """No step can expect it, and none hangs in trying."""
    record = granted(store, key)
    with session(address) as client:
        client.delete(f"/tests/{key}/{record.rvn}")
        client.create(f"/tests/{key}/another")

        with pytest.raises(RecordError, match="marker is missing"):
            store.release(released(record), timeout_s=TIMEOUT_S)
        assert client.exists(f"/tests/{key}").mzxid == record.fencing_token


def test_record_beyond_the_limit_is_refused_before_it_is_sent(
    store: ZooKeeperStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would end the connection, and with it all that is under way."""
    monkeypatch.setattr("dlock_zookeeper._wire._VALUE_BYTES", 10_000)

    with pytest.raises(RecordError, match="nothing was written") as caught:
        store.claim(any_claim(key, data=b"x" * 10_000), timeout_s=TIMEOUT_S)

    assert caught.value.key == key
    assert store.read(key, timeout_s=TIMEOUT_S) is None


def test_nodes_of_a_user_are_for_no_other(address: str, key: str) -> None:
    """With the rights that ``dlock doctor --policy`` names, its owner can do everything; a stranger reads and writes nothing."""
    store = ZooKeeperStore(f"zookeeper://locker:{PASSWORD}@{address}/{key}")
    store.provision()
    with session(address, auth_data=[("digest", f"locker:{PASSWORD}")]) as client:
        [acl] = client.get_acls(f"/{key}")[0]
        client.set_acls(f"/{key}", [acl._replace(perms=0b01111)])  # cdrw
    record = granted(store, key)
    record = store.replace(renewed(record), timeout_s=TIMEOUT_S).record or record
    assert list(store.scan("", timeout_s=TIMEOUT_S)) == [record]
    store.wait(record, ticket="t", timeout_s=0.1)

    for login in ("", "locker:wrong@"):
        stranger = ZooKeeperStore(f"zookeeper://{login}{address}/{key}")
        for ask in (
            lambda stranger=stranger: stranger.claim(any_claim(f"{key}-2"), timeout_s=TIMEOUT_S),
            lambda stranger=stranger: stranger.read(key, timeout_s=TIMEOUT_S),
            lambda stranger=stranger: list(stranger.scan("", timeout_s=TIMEOUT_S)),
        ):
            with pytest.raises(StoreSetupError, match="lacks a right") as caught:
                ask()
            assert PASSWORD not in str(caught.value)
        stranger.close()

    assert store.release(released(record), timeout_s=TIMEOUT_S).applied
    store.close()


def test_scan_goes_on_past_nodes_of_another_user(store: ZooKeeperStore, address: str, key: str) -> None:
    """What a stranger may not read is an error that names it, behind all that he may."""
    other = ZooKeeperStore(f"zookeeper://locker:{PASSWORD}@{address}/tests")
    granted(other, f"{key}-1")
    other.close()
    ours = granted(store, f"{key}-2")
    scan = store.scan(key, timeout_s=TIMEOUT_S)

    assert next(scan) == ours
    with pytest.raises(RecordError, match=f"key '{key}-1' what this user may not read") as caught:
        next(scan)
    assert caught.value.key == f"{key}-1"


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://host:no",
        "zookeeper://host:99999",
        "zookeeper://host/a?unknown=1",
        "zookeeper://host/a/../b",
        "zookeeper://host/zookeeper/locks",
        "zookeeper://host?tls_ca=/nowhere",
        "zookeeper://host?tls=true&tls_cert=/nowhere",
        "zookeeper://u:in-no-message@h@host",
        "host:2181",
    ],
)
def test_url_that_cannot_be_used_is_told(url: str) -> None:
    """Before anything is sent, and without a secret."""
    with pytest.raises(ConfigurationError) as caught:
        ZooKeeperStore(url)

    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("source", [object(), None])
def test_what_is_no_client_is_refused(source: Any) -> None:
    """With the name of what is wanted."""
    with pytest.raises(ConfigurationError, match="works with a URL"):
        ZooKeeperStore(source)


def test_client_that_was_not_started_is_told(address: str, key: str) -> None:
    """It is the user's to start."""
    with pytest.raises(StoreUnavailableError, match="not started"):
        ZooKeeperStore(KazooClient(address)).claim(any_claim(key), timeout_s=0.5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("own", [False, True])
def test_forked_child_has_a_connection_of_its_own(address: str, key: str, own: bool) -> None:
    """It reads what its parent wrote, whose session goes on; with a client of the user's it is refused."""
    with session(address) as client:
        store = ZooKeeperStore(client if own else f"zookeeper://{address}/tests", root="tests")
        record = granted(store, key)

        child = os.fork()
        if child == 0:
            try:
                found = store.read(key, timeout_s=TIMEOUT_S)
            except StoreUnavailableError as error:
                os._exit(3 if "does not survive a fork" in str(error) else 4)
            os._exit(0 if found == record else 5)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (3 if own else 0)
        assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied
        store.close()


def test_waiter_is_woken_after_the_server_was_away(own_server: ScriptedServer, key: str) -> None:
    """The watches end with the connection, and whoever waits again has another."""
    store, other = ZooKeeperStore(own_server.told), ZooKeeperStore(own_server.told)
    store.provision()
    record = granted(store, key)
    other.wait(record, ticket="t", timeout_s=0.2)
    own_server.crash()
    own_server.start()
    store.read(key, timeout_s=TIMEOUT_S)
    freed = threading.Event()

    def wait() -> None:
        while not freed.is_set():
            try:
                other.wait(record, ticket="t", timeout_s=TIMEOUT_S)
                found = other.read(key, timeout_s=TIMEOUT_S)
            except StoreUnavailableError:
                continue  # it has not found its way back yet
            if found is not None and not found.held:
                freed.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert store.release(released(record), timeout_s=TIMEOUT_S).applied

    assert freed.wait(TIMEOUT_S)
    waiting.join()
    store.close()
    other.close()


def test_client_of_the_user_outlives_the_store(address: str, key: str) -> None:
    """Who started it stops it."""
    with session(address) as client:
        ZooKeeperStore(client, root=key).provision()
        store = ZooKeeperStore(client, root=key)

        granted(store, key)
        store.close()

        assert client.connected
