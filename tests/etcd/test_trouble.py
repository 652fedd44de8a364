"""Servers that refuse, hang, are full, or are none of etcd's: typed errors, and nothing half-written."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest
from dlock_conformance.servers import free_port

from dlock_core.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_etcd import AsyncEtcdStore, EtcdStore
from tests.etcd.support import TIMEOUT_S, any_claim, released
from tests.scripted import ScriptedServer, stop

QUOTA = 300_000


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    """Start a server of the test's own, with the options that it asks for."""
    server = ScriptedServer("etcd.sh", DLOCK_ETCD_ARGS=getattr(request, "param", ""))
    yield server
    server.stop()


def test_proxy_of_the_environment_is_named_as_a_cause(address: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for members on this host, too, unless no_proxy names them."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with (
        pytest.raises(StoreUnavailableError, match=r"check .*http_proxy"),
        closing(EtcdStore(f"etcd://{address}")) as store,
    ):
        store.read(key, timeout_s=2)

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with closing(EtcdStore(f"etcd://{address}")) as store:
        assert store.read(key, timeout_s=TIMEOUT_S) is None


def test_write_to_a_server_that_stands_still_is_unknown(own_server: ScriptedServer, key: str) -> None:
    """It may be applied when the server goes on, so the time-out is no refusal."""
    store = EtcdStore(own_server.told)
    claim = any_claim(key)
    store.read(key, timeout_s=TIMEOUT_S)

    stop(own_server.pid)
    with pytest.raises(OutcomeUnknownError, match="may be applied"):
        store.claim(claim, timeout_s=0.5)
    os.kill(own_server.pid, signal.SIGCONT)

    found = store.read(key, timeout_s=TIMEOUT_S)
    store.close()
    assert found is None or found.rvn == claim.record.rvn


@pytest.mark.parametrize("own_server", [f"--quota-backend-bytes={QUOTA}"], indirect=True)
def test_full_server_grants_nothing_that_is_forgotten(own_server: ScriptedServer, key: str) -> None:
    """The answer 'no space' is an unknown outcome; reads go on, each grant is there, and an operator sees the alarm."""
    store, granted = EtcdStore(own_server.told), []

    def fill() -> None:
        for number in range(500):  # the size that counts lags behind
            claim = any_claim(f"{key}/{number}", data=b"x" * 60_000)
            granted.append(store.claim(claim, timeout_s=TIMEOUT_S).record)

    with pytest.raises(OutcomeUnknownError, match=r"database space exceeded.*alarm disarm"):
        fill()

    alarms = [note for note in store.guarantees().notes if "NOSPACE" in note]
    assert alarms
    assert granted
    assert [store.read(f"{key}/{number}", timeout_s=TIMEOUT_S) for number in range(len(granted))] == granted
    store.close()


def test_wrong_ports_are_told(key: str) -> None:
    """A listener that never speaks, and nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = EtcdStore(f"etcd://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreError):
            store.claim(any_claim(key), timeout_s=0.5)
        store.close()
    store = EtcdStore("etcd://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.claim(any_claim(key), timeout_s=0.5)
    store.close()


def test_port_of_a_server_that_speaks_http_is_told(key: str) -> None:
    """Such as that of an etcd of version 2, or of etcd's metrics: nothing was written, and the error says what to look at."""
    metrics = free_port()
    server = ScriptedServer("etcd.sh", DLOCK_ETCD_ARGS=f"--listen-metrics-urls=http://127.0.0.1:{metrics}")
    store = EtcdStore(f"etcd://127.0.0.1:{metrics}")

    with pytest.raises(StoreUnavailableError, match="no gRPC is spoken there; is it etcd's client port"):
        store.claim(any_claim(key), timeout_s=1)

    store.close()
    server.stop()


def test_server_of_other_services_is_told(key: str) -> None:
    """It speaks gRPC, and has nothing of etcd's."""
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    store = EtcdStore(f"etcd://127.0.0.1:{port}")

    with pytest.raises(StoreSetupError, match="has no API of etcd"):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    store.close()
    other.stop(None).wait()


def test_host_that_has_no_address_was_not_asked(key: str) -> None:
    """A name that nobody knows is no unknown outcome, and the next endpoint is asked."""
    store = EtcdStore("etcd://host.invalid")

    with pytest.raises(StoreUnavailableError, match="check the host's name"):
        store.claim(any_claim(key), timeout_s=1)

    store.close()


@pytest.mark.parametrize("own_server", ["--max-txn-ops=16"], indirect=True)
def test_server_that_takes_small_transactions_is_told_at_its_set_up(own_server: ScriptedServer, key: str) -> None:
    """Locks are had there, but to renew many takes as many requests more: ``dlock init`` says so before that."""
    store = EtcdStore(own_server.told)

    with pytest.raises(StoreSetupError, match="leave --max-txn-ops at 128 or more"):
        store.provision()

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    store.close()


def test_member_that_cannot_be_reached_is_passed_over(address: str, key: str) -> None:
    """The first of the endpoints is down: the second answers within the same call."""
    store = EtcdStore(f"etcd://127.0.0.1:9,{address}/tests")

    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record

    assert record is not None
    assert store.release(released(record), timeout_s=TIMEOUT_S).applied
    store.close()


def test_member_that_takes_connections_and_says_nothing_is_passed_over(address: str, key: str) -> None:
    """To find that out takes gRPC as long as a member that comes back is waited for; there is time left for the other one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = EtcdStore(f"etcd://127.0.0.1:{silent.getsockname()[1]},{address}/tests")

        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
        store.close()


def test_two_requests_that_a_member_leaves_unanswered_lead_to_the_next_member(
    own_server: ScriptedServer, address: str, key: str
) -> None:
    """Each of them goes on by one, and of two members the second step would lead back to the one that stands still."""
    store = EtcdStore(f"etcd://127.0.0.1:{own_server.port},{address}/tests")
    store.read(key, timeout_s=TIMEOUT_S)

    def read() -> None:
        with pytest.raises(StoreUnavailableError, match=f"asked: 127.0.0.1:{own_server.port}"):
            store.read(key, timeout_s=1)

    stop(own_server.pid)
    asking = [threading.Thread(target=read) for _ in range(2)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()

    assert store.claim(any_claim(key), timeout_s=1).applied
    os.kill(own_server.pid, signal.SIGCONT)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "etcd://host:no",
        "etcd://host:99999",
        "etcd://host/a?unknown=1",
        "etcd://host/%0A",
        "etcd://host?tls_ca=/nowhere",
        "etcd://host?tls=true&tls_cert=/nowhere",
        "etcd://host?tls=true&tls_ca=/nowhere",
        "etcd://u:in-no-message@h@host",
        "host:2379",
        "etcd:host/locks",
        "https://u:in-no-message@host:2379",
    ],
)
def test_url_that_cannot_be_used_is_told(url: str) -> None:
    """Before anything is sent, and without a secret."""
    with pytest.raises(ConfigurationError) as caught:
        EtcdStore(url)

    assert "in-no-message" not in str(caught.value)


@pytest.mark.parametrize("source", [object(), None])
def test_what_is_no_channel_is_refused(source: Any) -> None:
    """With the name of what is wanted."""
    with pytest.raises(ConfigurationError, match="works with a URL"):
        EtcdStore(source)


def test_asyncio_takes_no_channel_of_threads() -> None:
    """Their calls would block the loop."""

    async def make() -> None:
        with (
            grpc.insecure_channel("127.0.0.1:9") as channel,
            pytest.raises(ConfigurationError, match="works with a URL"),
        ):
            AsyncEtcdStore(channel)

    asyncio.run(make())


def test_call_under_way_ends_with_an_error_of_the_store_where_it_is_closed(key: str) -> None:
    """No cancellation comes out that nobody has asked for: of a write it is not known whether it was applied."""

    async def close_during_a_claim(address: str) -> None:
        store = AsyncEtcdStore(f"etcd://{address}")
        claiming = asyncio.ensure_future(store.claim(any_claim(key), timeout_s=TIMEOUT_S))
        await asyncio.sleep(0.2)  # the call waits for a connection by now
        await store.close()
        with pytest.raises(StoreError):
            await claiming

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(close_during_a_claim(f"127.0.0.1:{silent.getsockname()[1]}"))


def test_channel_of_the_user_outlives_the_store(address: str, key: str) -> None:
    """Who made it closes it."""
    with grpc.insecure_channel(address) as channel:
        EtcdStore(channel).close()
        other = EtcdStore(channel)

        assert other.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
        other.close()


def test_closed_channel_of_the_user_is_an_error_of_the_store(address: str, key: str) -> None:
    """Nothing was sent."""
    channel = grpc.insecure_channel(address)
    store = EtcdStore(channel)
    channel.close()

    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_forked_child_is_refused(store: EtcdStore, key: str) -> None:
    """A live channel does not survive a fork; the parent goes on."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record

    child = os.fork()
    if child == 0:
        try:
            store.read(key, timeout_s=TIMEOUT_S)
        except StoreUnavailableError as error:
            os._exit("does not survive a fork" not in str(error))
        os._exit(2)

    assert os.waitpid(child, 0)[1] == 0
    assert store.read(key, timeout_s=TIMEOUT_S) == record


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_store_that_has_asked_nothing_before_a_fork_can_be_used_in_the_child(address: str, key: str) -> None:
    """It was made where a program is loaded, before its workers; another one has asked, and is used on by the parent."""
    program = f"""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads
from dlock_core import connect
from dlock_etcd import EtcdStore
from tests.etcd.support import any_claim
with connect("etcd://{address}/tests", prefix="") as client, client.lock("{key}/parent") as lease:
    store = EtcdStore("etcd://{address}/tests")
    child = os.fork()
    if child == 0:
        os._exit(not store.claim(any_claim("{key}"), timeout_s=10).applied)
    assert os.waitpid(child, 0)[1] == 0
    lease.renew()
    store.close()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_forks_leave_the_requests_of_the_parent_alone(address: str, key: str) -> None:
    """Whether gRPC runs its handlers of forks, or says that it skips them, since a request is under way."""
    program = f"""
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # as above
from dlock_core import connect
with connect("etcd://{address}/tests", prefix="") as client:
    lease = client.acquire("{key}")
    looking = threading.Thread(target=lambda: [client.get("{key}") for _ in range(500)])
    looking.start()
    while looking.is_alive():
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        lease.renew()
    lease.release()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


def test_waiter_is_woken_after_the_server_was_away(own_server: ScriptedServer, key: str) -> None:
    """The watch breaks with the connection, and whoever waits again opens it again."""
    store, other = EtcdStore(own_server.told), EtcdStore(own_server.told)
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    other.wait(record, ticket="t", timeout_s=0.2)
    own_server.crash()
    own_server.start()
    store.read(key, timeout_s=TIMEOUT_S)
    freed = threading.Event()

    def wait() -> None:
        while not freed.is_set():
            other.wait(record, ticket="t", timeout_s=TIMEOUT_S)
            found = other.read(key, timeout_s=TIMEOUT_S)
            if found is not None and not found.held:
                freed.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert store.release(released(record), timeout_s=TIMEOUT_S).applied

    assert freed.wait(TIMEOUT_S / 2)
    waiting.join()
    store.close()
    other.close()
