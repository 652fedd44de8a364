"""Ports, connections and roots that are not those of the locks: the error says what is wrong there, and nothing was written."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
from dlock_conformance.servers import resolve
from kazoo.security import make_digest_acl

from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_zookeeper import ZooKeeperStore
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, session


def test_wrong_ports_are_told(key: str) -> None:
    """A listener that never speaks, and nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        store = ZooKeeperStore(f"zookeeper://{address}")
        with pytest.raises(StoreUnavailableError, match=f"{address}: no answer, though it takes connections"):
            store.claim(any_claim(key), timeout_s=1)
        silent.close()
        store.close()


def test_a_close_does_not_wait_for_a_server_that_is_silent(key: str) -> None:
    """Kazoo does, for as long as it waits for its session: its connection is still open behind the close."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = ZooKeeperStore(f"zookeeper://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreUnavailableError):
            store.claim(any_claim(key), timeout_s=0.5)
        with silent.accept()[0] as connection:
            store.close()
            connection.setblocking(False)
            assert connection.recv(4096)
            with pytest.raises(BlockingIOError):
                connection.recv(4096)


def test_call_that_a_close_overtakes_opens_no_connection(url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have asked once more, on a connection that nobody closes any more."""
    store = ZooKeeperStore(url)
    granted(store, key)
    store._verbs._hints.clear()  # type: ignore[attr-defined]
    send = store._link.send

    def send_and_close(request: Any, timeout_s: float) -> Any:
        answer = send(request, timeout_s)
        store.close()
        return answer

    monkeypatch.setattr(store._link, "send", send_and_close)
    with pytest.raises(StoreUnavailableError, match="nothing was written: the store was closed"):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    assert store._link._client is None  # type: ignore[attr-defined]


def test_port_of_another_server_is_told(key: str) -> None:
    """Here etcd's."""
    other = "{}:{}".format(*resolve("etcd").address)
    store = ZooKeeperStore(f"zookeeper://{other}/tests")

    with pytest.raises(StoreUnavailableError, match=f"{other}: closes the connection; is it the right port"):
        store.claim(any_claim(key), timeout_s=2)

    store.close()


def test_server_without_tls_is_told(address: str, key: str) -> None:
    """It answers, so the error says what is wrong with the connection."""
    program = f"""
from dlock_core import connect
with connect("zookeeper://{address}/tests?tls=true", prefix="") as client:
    client.try_acquire("{key}")
"""
    # A process of its own: kazoo leaves the sockets of such connections open.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "StoreUnavailableError" in done.stderr
    assert f"{address}: answers without TLS, which was asked for" in done.stderr


def test_root_that_a_user_may_not_use_is_told_at_its_set_up(address: str, key: str) -> None:
    """It is there, so nothing has to be made; ``dlock init`` says what is missing all the same."""
    with session(address) as client:
        client.create(f"/{key}", acl=[make_digest_acl("somebody", "else", all=True)])
    store = ZooKeeperStore(f"zookeeper://{address}/{key}")

    with pytest.raises(StoreSetupError, match="lacks a right"):
        store.provision()

    store.close()
