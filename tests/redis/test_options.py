"""URLs, brought clients, and what they may not change."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlock_core.backend import backend_for
from dlock_core.errors import ConfigurationError
from dlock_redis import AsyncRedisStore, RedisStore, RedisStoreOptions
from dlock_redis._servers import source_of
from tests.redis.support import claim, granted, release


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:70000/0",
        "redis://h/first",
        "redis://h/0?socket_timout=3",
        "redis://h/0?protocol=4",
        "redis://h/0?db=x",
        "redis://u:p#q@h/0",
    ],
)
def test_url_that_is_wrong_is_refused_without_its_secrets(url: str) -> None:
    """Each part is checked before anything is connected."""
    with pytest.raises(ConfigurationError) as caught:
        RedisStoreOptions.from_url(url.replace("redis://h", "redis://user:hunter2@h"))

    assert "hunter2" not in str(caught.value)


def test_option_that_nobody_knows_is_named() -> None:
    """In words of ours, not as an argument of the driver's own making."""
    with pytest.raises(ConfigurationError, match=r"neither dlock nor redis-py knows its option 'socket_timout'$"):
        RedisStoreOptions.from_url("redis://h/0?socket_timout=3")
    with pytest.raises(ConfigurationError, match=r"its option 'socket_timout' of \[store\]$"):
        RedisStoreOptions.from_url("redis://h/0", socket_timout=3)


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://h",
        "redis://:p@h:1/2",
        "rediss://h/0?ssl_cert_reqs=none",
        "unix:///tmp/r.sock?db=1",
        "redis://h?protocol=2",
    ],
)
def test_url_of_the_driver_is_taken(url: str) -> None:
    """Nothing of ours is needed in it."""
    assert RedisStoreOptions.from_url(url).client(redis) is not None


def test_settings_of_the_table_yield_to_the_url() -> None:
    """A password may stand in the file and the host in the URL."""
    options = RedisStoreOptions.from_url("redis://h:7", port=8, password="hunter2")

    kwargs = options.client(redis).connection_pool.connection_kwargs
    assert (kwargs["port"], kwargs["password"]) == (7, "hunter2")
    assert "hunter2" not in repr(options)
    with pytest.raises(ConfigurationError, match="pasword"):
        RedisStoreOptions.from_url("redis://h", pasword="hunter2")
    with pytest.raises(ConfigurationError, match=r"db of \[store\] is not the number of a database$"):
        RedisStoreOptions.from_url("redis://h", db="first")


def test_missing_driver_is_named_with_its_install_line() -> None:
    """Whoever has not installed redis-py is told what to type."""
    program = "import sys; sys.modules['redis'] = None; import dlock_redis"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert "MissingDriverError" in done.stderr
    assert "pip install 'dlock-core[redis]'" in done.stderr


def test_both_schemes_lead_to_this_backend() -> None:
    """With and without TLS."""
    assert backend_for("redis://h") is backend_for("rediss://h")


@pytest.mark.parametrize(
    "options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 2, "decode_responses": True}]
)
def test_client_that_decodes_or_speaks_resp2_is_neutral(
    open_store: Callable[..., Any], url: str, key: str, options: dict[str, Any]
) -> None:
    """The store has connections of its own: the same bytes, whatever the client does with answers."""
    store = open_store(url, **options)

    record = granted(store, key, fields={"data": b"\xff\x00", "attributes": (("a", b"\xfe"),)})

    assert store.read(key, timeout_s=5.0) == record
    assert claim(store, key).record == record
    assert [each.key for each in store.scan(key, timeout_s=5.0)] == [key]
    assert release(store, record).applied


def test_client_cannot_bring_its_retries_and_time_outs() -> None:
    """What would send again, outlast a call, or decode is replaced."""
    client = redis.Redis(
        retry=Retry(NoBackoff(), 5),
        retry_on_error=[OSError],
        socket_timeout=99,
        health_check_interval=1,
        decode_responses=True,
    )
    pool = client.connection_pool

    connection = source_of(pool.connection_class, pool.connection_kwargs).connection(0.5, 0.5)

    assert connection.retry._retries == 0
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.5, 0.5)
    assert connection.health_check_interval == 0
    assert not connection.encoder.decode_responses
    client.close()


@pytest.mark.parametrize(
    "given", [{"socket_keepalive": None}, {"socket_keepalive": None, "socket_keepalive_options": None}]
)
@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_a_connection_that_is_gone_without_a_word_is_found_by_keepalive(module: Any, given: dict[str, Any]) -> None:
    """Also by a redis-py before 8, which has none unless it is told to; what was told of it stays."""
    pool, own = module.Redis(**given).connection_pool, module.Redis(socket_keepalive_options={1: 2}).connection_pool

    found = source_of(pool.connection_class, pool.connection_kwargs).connection(0.5, 0.5)
    kept = source_of(own.connection_class, own.connection_kwargs).connection(0.5, 0.5)

    assert found.socket_keepalive
    assert found.socket_keepalive_options[socket.TCP_KEEPIDLE] == 30
    assert kept.socket_keepalive_options == {1: 2}


def test_a_server_is_found_without_parsing_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 fails at times where several threads call ast.parse at once, and several threads may be the first to ask a server."""
    client = redis.Redis()
    pool = client.connection_pool

    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", None)
        source = source_of(pool.connection_class, pool.connection_kwargs)

    assert source.settings["retry_on_error"] == []
    client.close()


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({}, "localhost:6379"),
        ({"host": "h", "port": 7}, "h:7"),
        ({"path": "/r.sock"}, "/r.sock"),
    ],
)
def test_a_server_that_does_not_answer_is_named_by_its_place(settings: dict[str, Any], place: str) -> None:
    """Also where the settings leave it to the driver."""
    assert str(source_of(redis.Connection, settings).late()) == f"no connection to {place} in time"


@pytest.mark.parametrize(
    ("store", "client"),
    [(RedisStore, redis.asyncio.Redis()), (AsyncRedisStore, redis.Redis()), (RedisStore, "redis://h")],
)
def test_client_of_the_other_colour_is_refused(store: Any, client: Any) -> None:
    """With the name of the right one; a URL, which the stores of PostgreSQL and etcd take, is a client's affair here."""
    with pytest.raises(ConfigurationError, match=r"needs a redis.*Redis or .*; a URL goes to connect\(\)"):
        store(client)


def test_client_that_was_brought_stays_open(url: str, key: str) -> None:
    """Closing the store closes what the store has opened."""
    with redis.Redis.from_url(url) as client:
        store = RedisStore(client)
        granted(store, key)

        store.close()

        assert client.ping()


@pytest.mark.parametrize(
    ("query", "checked"), [("", True), ("?ssl_cert_reqs=none", False), ("?ssl_check_hostname=false", False)]
)
def test_url_has_the_name_of_its_server_verified(query: str, checked: bool) -> None:
    """Whatever redis-py does by itself; who says that nothing is to be verified is obeyed."""
    pool = RedisStoreOptions.from_url(f"rediss://db.example{query}").client(redis).connection_pool
    client = pool.connection_class(**pool.connection_kwargs)

    assert (client.check_hostname and client.cert_reqs != ssl.CERT_NONE) is checked
