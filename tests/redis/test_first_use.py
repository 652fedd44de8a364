"""What a person meets who tries dlock on a Redis that others use, too, and what the doctor says of a server that is refused."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis

from dlock_core import Cost, LockClient, aconnect, connect
from dlock_core.errors import ConfigurationError, RecordError, StoreSetupError, StoreUnavailableError
from dlock_redis import RedisStore
from tests.cli.operator_support import Command
from tests.redis.support import Server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dlock(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return the command."""
    return Command(capsys)


def test_the_default_prefix_keeps_out_of_the_way_of_others(url: str, raw: redis.Redis, key: str) -> None:
    """The lock of redis-py has the plain name, and both can be used; a client that is brought has the same prefix."""
    with connect(url) as client, client.lock(key), raw.lock(key, timeout=10, blocking=False) as theirs:
        assert theirs.owned()
        assert raw.exists(f"dlock:{key}")
        with (
            redis.Redis.from_url(url) as brought,
            closing(RedisStore(brought)) as store,
            LockClient(store) as other,
        ):
            assert other.try_acquire(key) is None


def test_the_health_of_a_client_counts_its_connections(url: str, key: str) -> None:
    """Without a request."""
    with connect(url) as client, client.lock(key):
        connections = client.health().connections

    assert connections is not None
    assert connections.busy <= 1
    assert 1 <= connections.idle < connections.limit


def test_the_cost_of_a_client_counts_its_requests(url: str, key: str) -> None:
    """By verb, in both colours the same. A script that the server did not know yet takes another request."""

    async def use() -> Cost:
        async with aconnect(url, lease_duration=60) as client:
            async with client.lock(key):
                await client.get(key)
            return client.cost()

    with connect(url, lease_duration=60) as client, client.lock(key) as lease:
        client.get(key)
        lease.renew()
        assert min(client.cost().requests.get(verb, 0) for verb in ("inspect", "claim", "read", "replace")) >= 1
    cost = asyncio.run(use())

    assert [cost.requests[verb] for verb in ("claim", "read", "release")] == [1, 1, 1]
    assert cost.units == {}


@pytest.mark.parametrize("how", ["option", "url"])
def test_the_prefix_can_be_another_or_none(url: str, raw: redis.Redis, key: str, how: str) -> None:
    """An empty one, too."""
    client = connect(url, prefix="") if how == "option" else connect(f"{url}?prefix=")
    with client, client.lock(key):
        assert raw.exists(key)
        assert not raw.exists(f"dlock:{key}")


@pytest.mark.parametrize(
    ("value", "name"),
    [(b"0123456789abcdef" * 2, "redis-py"), (b"Zm9vYmFyZm9vYmFyZm9vYmFy", "python-redis-lock")],
)
def test_a_lock_of_another_library_is_named_as_theirs(
    url: str, raw: redis.Redis, key: str, value: bytes, name: str
) -> None:
    """By its value, which only looks so."""
    raw.set(key, value, px=60_000)

    with connect(url, prefix="") as client:
        for call in (client.try_acquire, client.get):
            with pytest.raises(RecordError, match=f"it is a lock of {name}, which may hold it now"):
                call(key)


def test_another_string_is_another_programs(url: str, raw: redis.Redis, key: str) -> None:
    """Nothing is said that is not known."""
    raw.set(key, "hello", px=60_000)

    with connect(url, prefix="") as client, pytest.raises(RecordError, match="a string of another program"):
        client.try_acquire(key)


def test_both_locks_are_held_while_programs_change_over(url: str, raw: redis.Redis, key: str) -> None:
    """The step of the migration page: an old program and a new one exclude each other, whichever comes first."""
    with connect(url) as client:
        with raw.lock(key, timeout=10), client.lock(key, lease_duration=10, timeout=5):
            assert not raw.lock(key, timeout=10, blocking=False).acquire()
        old = raw.lock(key, timeout=10)
        assert old.acquire()
        new = raw.lock(key, timeout=10, blocking_timeout=0.1)
        assert not new.acquire()
        old.release()


def test_a_missing_password_is_said_first(admin: redis.Redis, server: Server) -> None:
    """So is one that is wrong, or too much."""
    with pytest.raises(StoreSetupError, match=r"^Redis knows no password; take it out of the URL"):
        connect(server.url.replace("redis://", "redis://:needless@"))
    admin.config_set("requirepass", secrets.token_hex(8))

    with pytest.raises(StoreSetupError, match=r"^Redis wants a password; write it into the URL"):
        connect(server.url)
    with pytest.raises(StoreSetupError, match=r"^Redis refuses this user or password"):
        connect(server.url.replace("redis://", "redis://:wrong@"))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_hangs_is_given_up_within_the_request_time_out(colour: str) -> None:
    """Also by the look at it with which a client opens, which may take 10 s otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            connect(url, request_timeout=0.3) if colour == "sync" else asyncio.run(opened(url))
        took_s = time.monotonic() - began

    assert took_s < 6


async def opened(url: str) -> None:
    """Open a client for asyncio."""
    await aconnect(url, request_timeout=0.3)


def test_a_bad_port_is_named() -> None:
    """It may be a password whose host is missing, so a text is not shown."""
    for port in ("99999", "secret"):
        with pytest.raises(ConfigurationError, match="its port is not a number from 0 to 65535") as caught:
            connect(f"redis://user:{port}/0")
        assert "secret" not in str(caught.value)


def test_doctor_examines_a_server_that_is_refused(admin: redis.Redis, server: Server, dlock: Command) -> None:
    """With the reason, the remedy, and the name that accepts it; the exit code tells."""
    admin.config_set("maxmemory-policy", "allkeys-lru")

    out = dlock.refused(server.url, "redis-allkeys-policy")

    for words in ("redis-allkeys-policy: its", "remedy: CONFIG SET", "-> C:"):
        assert words in out


def test_doctor_examines_a_server_with_a_replica(
    admin: redis.Redis, server: Server, dlock: Command, tmp_path: Path
) -> None:
    """From either end; a replica that is accepted still takes no lock."""
    (tmp_path / "replica").mkdir()
    replica = Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port))
    until = time.monotonic() + 20
    while not admin.info("replication")["connected_slaves"]:
        assert time.monotonic() < until
        time.sleep(0.05)  # the replica connects when it likes

    of_primary = dlock.refused(server.url, "redis-replica")
    of_replica = dlock.refused(replica.url, "redis-replica", accepted=69)

    replica.stop()
    assert "remedy: keep locks on a server that has no replica" in of_primary
    assert "role: slave" in of_replica


def test_a_policy_that_drops_only_what_expires_is_not_refused(admin: redis.Redis, server: Server) -> None:
    """Records have no expiry."""
    admin.config_set("maxmemory-policy", "volatile-lru")

    with connect(server.url) as client, client.lock("k"):
        assert admin.ttl("dlock:k") == -1


def test_config_that_is_refused_in_any_words_is_not_known(server: Server, admin: redis.Redis) -> None:
    """As managed services do, which rename the command."""
    admin.shutdown(nosave=True)
    server.process.wait(20)
    server._options = ("--rename-command", "CONFIG", "")
    server.start()

    with connect(server.url) as client:
        assert not client.guarantees().durable
