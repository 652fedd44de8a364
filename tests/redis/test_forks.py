"""A forked child has connections of its own, and none of its parent's."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis

from dlock_redis import RedisStore
from tests.core.worlds import eventually
from tests.redis.support import Server, granted, idle

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


def test_child_of_a_fork_never_uses_its_parents_connections(url: str, key: str) -> None:
    """Parent and child would read each other's answers."""
    with redis.Redis.from_url(url) as client:
        store = RedisStore(client)
        record = granted(store, key)
        [link] = idle(store)
        pid = os.fork()
        if pid == 0:
            same = store.read(key, timeout_s=5.0) == record
            os._exit(0 if same and link not in idle(store) else 1)
        assert os.waitpid(pid, 0)[1] == 0

        assert store.read(key, timeout_s=5.0) == record
        assert idle(store) == [link]
        store.close()


def test_server_sees_the_end_of_a_parent_that_dies_though_a_child_lives_on(server: Server, admin: Any) -> None:
    """Else it grants a claim of the dead one, which waits there, and nobody else has the lock for a lease."""
    over, end = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(end)
        store = RedisStore(redis.Redis.from_url(server.url))
        store.read("k", timeout_s=5.0)
        if os.fork() == 0:
            os.read(over, 1)
        os._exit(0)
    assert os.waitpid(parent, 0)[1] == 0

    try:
        eventually(lambda: len(admin.client_list()) == 1, "the end of all connections but that of who asks")
    finally:
        os.close(end)
        os.close(over)
