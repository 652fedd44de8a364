"""Servers that ask for users, and what ``dlock init`` finds or makes: where it can't, the error says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from kazoo.security import make_acl, make_digest_acl

from dlock_core import connect
from dlock_core.errors import StoreSetupError
from dlock_zookeeper import ZooKeeperStore
from tests.scripted import ScriptedServer
from tests.zookeeper.support import TIMEOUT_S, any_claim, session


@pytest.fixture
def guarded() -> Iterator[str]:
    """Start a server that ends the session of whoever has not logged in; return its address."""
    server = ScriptedServer(
        "zookeeper.sh", DLOCK_ZOOKEEPER_CONFIG="enforce.auth.enabled=true\nenforce.auth.schemes=digest"
    )
    yield f"127.0.0.1:{server.port}"
    server.stop()


def test_server_that_asks_for_a_user_says_so(guarded: str, key: str) -> None:
    """A URL without one is an error of the set-up that shows how it is written; with one the lock is had."""
    with pytest.raises(StoreSetupError, match="zookeeper://USER:PASSWORD@HOST"):
        connect(f"zookeeper://{guarded}/tests")

    with connect(f"zookeeper://locker:secret@{guarded}/tests", provision=True) as client, client.lock(key) as lease:
        assert lease.is_valid


def test_root_that_stands_below_a_node_of_others_is_set_up(address: str, key: str) -> None:
    """An administrator has made it for the user, who may make nothing beside it."""
    with session(address) as client:
        client.create(f"/{key}")
        client.create(f"/{key}/locks", acl=[make_digest_acl("locker", "secret", all=True)])
        client.set_acls(f"/{key}", [make_acl("world", "anyone", read=True)])
    store = ZooKeeperStore(f"zookeeper://locker:secret@{address}/{key}/locks")

    store.provision()

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    store.close()


@pytest.mark.filterwarnings("ignore:No chroot path exists")
def test_chroot_of_a_client_of_the_user_is_made_or_named(address: str, key: str) -> None:
    """Where more than its last node is missing, kazoo makes none."""
    with session(f"{address}/{key}/below") as client, pytest.raises(StoreSetupError, match="make the chroot"):
        ZooKeeperStore(client).provision()

    with session(f"{address}/{key}") as client:
        store = ZooKeeperStore(client)
        store.provision()

        assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


def test_root_that_is_gone_below_a_chroot_is_named_as_the_servers_have_it(address: str, key: str) -> None:
    """An operator has removed the chroot under a client of the user's: what was named then was a node that nobody had to make."""
    with session(address) as operator:
        operator.create(f"/{key}")
    with session(address) as operator, session(f"{address}/{key}") as client:
        store = ZooKeeperStore(client, root="locks")
        store.provision()
        operator.delete(f"/{key}", recursive=True)

        with pytest.raises(StoreSetupError, match=f"no node '/{key}/locks'"):
            store.claim(any_claim(key), timeout_s=TIMEOUT_S)


def test_kazoo_that_is_too_old_is_named_with_its_install_line() -> None:
    """Before 2.11 it does not know all errors of the server."""
    program = "import kazoo.exceptions; del kazoo.exceptions.ThrottledOpError; import dlock_zookeeper"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "MissingDriverError: the zookeeper store needs kazoo>=2.11" in done.stderr
    assert "pip install 'dlock-core[zookeeper]'" in done.stderr
