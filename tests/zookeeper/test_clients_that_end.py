"""A client of kazoo that has ended is not the end of the store: the next request has another one."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from dlock_core.errors import OutcomeUnknownError, StoreSetupError
from dlock_zookeeper import ZooKeeperStore
from tests.scripted import ScriptedServer
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, released, renewed

PASSWORD = "in-no-message"


def test_login_that_the_server_does_not_take_is_an_error_of_the_set_up(key: str) -> None:
    """As where digests are switched off: no second try mends it, until somebody has switched them on."""
    off = "-Dzookeeper.DigestAuthenticationProvider.enabled=false"
    server = ScriptedServer("zookeeper.sh", JAVA_TOOL_OPTIONS=off)
    store = ZooKeeperStore(f"zookeeper://locker:{PASSWORD}@127.0.0.1:{server.port}/tests")
    try:
        for _ in range(2):
            with pytest.raises(StoreSetupError, match="user and password"):
                store.claim(any_claim(key), timeout_s=TIMEOUT_S)
        server.crash()
        server._variables["JAVA_TOOL_OPTIONS"] = ""
        server.start()

        store.provision()
        assert granted(store, key).held
    finally:
        store.close()
        server.stop()


def test_login_of_the_users_client_that_the_server_does_not_take_is_one_too(key: str) -> None:
    """No second try mends it: its owner makes another client."""
    refused = KazooClient("127.0.0.1:9")
    refused._state = KeeperState.AUTH_FAILED

    with pytest.raises(StoreSetupError, match="refused user and password"):
        ZooKeeperStore(refused).claim(any_claim(key), timeout_s=0.5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_end_of_the_thread_of_kazoo_is_not_that_of_the_store(store: ZooKeeperStore, key: str) -> None:
    """An error that kazoo does not expect ends it, and nothing was sent any more by that client."""
    record = granted(store, key)
    connection = store._link._client._connection  # type: ignore[attr-defined]

    def fails(_: float) -> None:
        raise RuntimeError("xids do not match")

    connection._read_socket = fails
    with pytest.raises(OutcomeUnknownError):
        store.replace(renewed(record), timeout_s=TIMEOUT_S)
    connection._connection_routine.join()

    assert store.release(released(store.read(key, timeout_s=TIMEOUT_S) or record), timeout_s=TIMEOUT_S).applied
