"""A forked child has connections of its own."""

from __future__ import annotations

import os

import pytest

from dlock_postgres import PostgresStore
from dlock_postgres._wire import statement
from tests.postgres.support import TIMEOUT_S, any_claim

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


def _session_of(store: PostgresStore) -> int:
    """Return the process of the server that answers this client."""
    found: int = store._link.send(statement("SELECT 1"), TIMEOUT_S).backend_pid
    return found


def test_child_of_a_fork_never_uses_its_parents_connections(store: PostgresStore, key: str) -> None:
    """Parent and child would read each other's answers."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    session = _session_of(store)

    child = os.fork()
    if child == 0:
        found = store.read(key, timeout_s=TIMEOUT_S)
        os._exit(0 if found == record and _session_of(store) != session else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert store.read(key, timeout_s=TIMEOUT_S) == record
    assert _session_of(store) == session
