"""What the store says of its server: grade, durability, and what has to be accepted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_core.store import Grade, TokenOrder
from dlock_redis.provision import guarantees_of
from tests.redis.support import Server, claim
from tests.redis.test_exchanges import INFORMED


@pytest.mark.parametrize(
    ("config", "grade", "note"),
    [
        ([b"no-appendfsync-on-rewrite", b"no", b"appendfsync", b"always"], Grade.B, "append-only file: always"),
        ([b"appendfsync", b"always"], Grade.B, "append-only file: always"),
        (
            [b"no-appendfsync-on-rewrite", b"yes", b"appendfsync", b"always"],
            Grade.C,
            "append-only file: always, but never while a child process writes (no-appendfsync-on-rewrite yes)",
        ),
        ([b"no-appendfsync-on-rewrite", b"yes", b"appendfsync", b"everysec"], Grade.C, "append-only file: everysec"),
        ([], Grade.C, "append-only file: unknown"),
        (None, Grade.C, "append-only file: unknown: CONFIG GET is forbidden"),
    ],
)
def test_only_a_server_that_syncs_each_write_is_durable(config: list[bytes] | None, grade: Grade, note: str) -> None:
    """Redis syncs nothing while a child process rewrites its log, if it is told so, also with appendfsync always."""
    found = guarantees_of(INFORMED % b"noeviction", config, "")

    assert (found.grade, found.durable, found.notes[0]) == (grade, grade is Grade.B, note)


def test_guarantees_of_one_server_that_writes_every_change(tmp_path: Any, open_store: Callable[..., Any]) -> None:
    """Durable, and no trait that has to be accepted."""
    server = Server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    found = open_store(server.url).guarantees()
    server.stop()

    assert (found.grade, found.durable, found.unsafe, found.token) == (Grade.B, True, (), TokenOrder.ORDERED)
    assert "for waits below a lease, it measures ages, and must not step ahead" in found.clock


def test_guarantees_of_a_server_that_syncs_nothing_while_it_rewrites_its_log(
    open_store: Callable[..., Any], server: Server, admin: Any
) -> None:
    """It may forget what it acknowledged meanwhile."""
    settings = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "yes"}
    for name, value in settings.items():
        admin.config_set(name, value)

    found = open_store(server.url).guarantees()

    assert (found.grade, found.durable) == (Grade.C, False)


def test_guarantees_name_what_is_unsafe(
    open_store: Callable[..., Any], server: Server, admin: Any, tmp_path: Any
) -> None:
    """An evicting policy, and replicas, from either end."""
    admin.config_set("maxmemory-policy", "allkeys-lru")
    (tmp_path / "replica").mkdir()
    replica = Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port))
    until = time.monotonic() + 20
    while not admin.info("replication")["connected_slaves"] and time.monotonic() < until:
        time.sleep(0.05)  # the replica connects when it likes

    names = [[name for name, _ in open_store(each.url).guarantees().unsafe] for each in (server, replica)]

    with pytest.raises(StoreUnavailableError, match=r"replica|LOADING|MASTERDOWN"):
        claim(open_store(replica.url), "k")
    replica.stop()
    assert names == [["redis-replica", "redis-allkeys-policy"], ["redis-replica"]]


def test_guarantees_without_the_right_to_ask(open_store: Callable[..., Any], server: Server, admin: Any) -> None:
    """CONFIG is often forbidden: then durability is not claimed."""
    admin.config_set("appendonly", "yes")
    admin.execute_command("ACL", "SETUSER", "locks", "on", ">pw", "~*", "+@all", "-config")

    found = open_store(f"redis://locks:pw@127.0.0.1:{server.port}/0").guarantees()

    assert not found.durable
    assert any("forbidden" in note for note in found.notes)
