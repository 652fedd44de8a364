"""Servers that ask for users, and what ``dlock init`` finds or makes: where it can't, the error says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError
from tests.scripted import ScriptedServer


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
