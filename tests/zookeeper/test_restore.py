"""Data that are put back from an older copy, or begin anew, under clients that have seen later transactions."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_zookeeper import ZooKeeperStore
from tests.scripted import ScriptedServer
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, released, renewed, session

SHORT_S = 2.0


class CopiedServer(ScriptedServer):
    """A server whose data can be put back."""

    def __init__(self, folder: Path) -> None:
        super().__init__("zookeeper.sh", DLOCK_TEST_DATA=str(folder))
        self._data, self._copy = folder / f"zookeeper-{self.port}.data", folder / "copy"

    def copy(self) -> None:
        """Copy the data as they are now."""
        self.crash()
        shutil.copytree(self._data, self._copy)
        self.start()

    def put_back(self) -> None:
        """Put the copy in the place of the data."""
        self.crash()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CopiedServer]:
    """Return a server with the root of the tests in its data."""
    server = CopiedServer(tmp_path)
    store = ZooKeeperStore(f"{server.told}/tests")
    store.provision()
    store.close()
    yield server
    server.stop()


def write(store: ZooKeeperStore, key: str) -> None:
    """Let the ensemble, and the client, go on by some transactions."""
    for number in range(5):
        granted(store, f"{key}-{number}")


def test_client_goes_on_after_an_older_copy_was_put_back(server: CopiedServer, key: str) -> None:
    """The server refuses who has seen more than it has: a running client had no session any more until its program was started anew."""
    store = ZooKeeperStore(f"{server.told}/tests")
    record = granted(store, key)
    server.copy()
    write(store, key)

    server.put_back()

    assert store.replace(renewed(record), timeout_s=TIMEOUT_S).applied
    store.close()


def test_waiter_is_woken_after_an_older_copy_was_put_back(server: CopiedServer, key: str) -> None:
    """It asks again, and its next wait is one at the server as that is now."""
    holder, other = ZooKeeperStore(f"{server.told}/tests"), ZooKeeperStore(f"{server.told}/tests")
    record = granted(holder, key)
    other.wait(record, ticket="t", timeout_s=0.2)
    server.copy()
    write(other, key)
    server.put_back()
    assert not other.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    woken = threading.Event()

    def wait() -> None:
        other.wait(record, ticket="t", timeout_s=TIMEOUT_S)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert holder.release(released(record), timeout_s=TIMEOUT_S).applied

    assert woken.wait(TIMEOUT_S / 2)
    holder.close()
    other.close()


def test_client_of_the_user_is_told_to_be_started_anew(server: CopiedServer, key: str) -> None:
    """It was said that there is no session, and that the server answers."""
    address = f"127.0.0.1:{server.port}"
    with session(address) as client:
        store = ZooKeeperStore(client, root="tests")
        granted(store, key)
        server.copy()
        write(store, key)
        server.put_back()

        with pytest.raises(
            StoreUnavailableError, match=r"later transactions than the servers have.*start\(\) it again"
        ):
            store.read(key, timeout_s=SHORT_S)
        client.stop()
        client.start()

        assert store.read(key, timeout_s=TIMEOUT_S) is not None
        store.close()
