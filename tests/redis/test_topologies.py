"""Other ways to a server: Sentinel, a socket in the file system, TLS. Each is used for real, and says what it is."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from dlock_conformance.servers import free_port

from dlock_core.errors import StoreUnavailableError
from dlock_core.store import Replace
from dlock_redis import AsyncRedisStore, RedisStore
from dlock_redis._servers import Request, Servers
from tests.certificates import make_certificates
from tests.cli.operator_support import Command
from tests.documentation import Names, shown
from tests.redis.support import (
    Blocking,
    Server,
    binary,
    claim,
    exercise,
    granted,
    held,
    renew,
)


def sentinels(module: Any, port: int) -> Any:
    """Return the driver's object for one sentinel."""
    return module.Sentinel([("127.0.0.1", port)])


@contextmanager
def running_sentinel(server: Server, folder: Path, *settings: str, **tls: Any) -> Iterator[int]:
    """Run a sentinel that knows *server* as "locks", with more *settings*; yield its port, at which it speaks *tls* if that is given."""
    port, way = free_port(), "port 0\ntls-port" if tls else "port"
    lines = (f"{way} {port}", "bind 127.0.0.1", f"dir {folder}", f"sentinel monitor locks 127.0.0.1 {server.port} 1")
    (folder / "sentinel.conf").write_text("\n".join([*lines, *settings, ""]))
    with subprocess.Popen(
        [binary(), str(folder / "sentinel.conf"), "--sentinel"], stdout=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + 20
            with redis.Redis(port=port, **tls) as asking:
                while True:
                    with suppress(redis.ConnectionError):
                        asking.ping()
                        break
                    assert time.monotonic() < until
                    time.sleep(0.05)  # it comes up when it likes
            yield port
        finally:
            process.kill()


@pytest.fixture
def sentinel(server: Server, tmp_path: Path) -> Iterator[int]:
    """Start a sentinel; return its port."""
    with running_sentinel(server, tmp_path) as port:
        yield port


def test_sentinel_is_asked_over_tls(colour: str, server: Server, tmp_path: Path) -> None:
    """As the client that is brought asks it, whose settings name the authority."""
    files = make_certificates(tmp_path)
    shows = (f"tls-cert-file {files}/server.pem", f"tls-key-file {files}/server.key")
    tls = {"ssl": True, "ssl_ca_certs": f"{files}/ca.pem"}
    with running_sentinel(
        server, tmp_path, *shows, f"tls-ca-cert-file {files}/ca.pem", "tls-auth-clients no", **tls
    ) as port:
        module: Any = redis.sentinel if colour == "sync" else redis.asyncio.sentinel
        client = module.Sentinel([("127.0.0.1", port)], sentinel_kwargs=tls).master_for("locks")
        store: Any = RedisStore(client) if colour == "sync" else Blocking(lambda: AsyncRedisStore(client))

        granted(store, "k")

        store.close()
        if isinstance(store, Blocking):
            store.end()


def test_sentinel_leads_to_its_primary(colour: str, sentinel: int) -> None:
    """The address comes from the sentinels with every connection; it must be asked for by name."""
    driver = sentinels(redis.sentinel if colour == "sync" else redis.asyncio.sentinel, sentinel)
    client = driver.master_for("locks")
    store: Any = RedisStore(client) if colour == "sync" else Blocking(lambda: AsyncRedisStore(client))

    exercise(store, "s/")

    [(name, reason)] = store.guarantees().unsafe
    assert name == "redis-sentinel"
    assert "accepting it does not help" not in reason
    store.close()
    for each in driver.sentinels:
        if isinstance(store, Blocking):
            store.run(each.aclose())
        else:
            each.close()
    if isinstance(store, Blocking):
        store.end()


def test_client_of_the_replicas_leads_to_the_primary_too(
    server: Server, sentinel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica grants nothing; here a server of its own stands for one."""
    (tmp_path / "other").mkdir()
    other, driver = Server(tmp_path / "other"), sentinels(redis.sentinel, sentinel)
    monkeypatch.setattr(driver, "discover_slaves", lambda _: [("127.0.0.1", other.port)])
    with closing(RedisStore(driver.slave_for("locks"))) as store, redis.Redis(port=server.port) as primary:
        granted(store, "k")

        assert primary.exists("k")
    other.stop()


def test_sentinel_that_is_reached_in_the_wrong_way_is_named(colour: str, sentinel: int) -> None:
    """redis-py names it by all the settings of its client, which is a page for each."""
    module: Any = redis.sentinel if colour == "sync" else redis.asyncio.sentinel
    driver = module.Sentinel([("127.0.0.1", sentinel)], sentinel_kwargs={"password": "not-set-there"})
    client = driver.master_for("locks")
    store: Any = RedisStore(client) if colour == "sync" else Blocking(lambda: AsyncRedisStore(client))

    with pytest.raises(StoreUnavailableError, match=f"'locks' : 127.0.0.1:{sentinel} - .*sentinel_kwargs") as caught:
        claim(store, "k")

    assert "<redis" not in str(caught.value)
    store.close()
    if isinstance(store, Blocking):
        store.end()


def test_sentinel_that_hangs_takes_a_share_of_the_time(colour: str, sentinel: int) -> None:
    """Another one is asked within the time-out of the call, whatever that of the user's client is, and is asked first from then on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        module = redis.sentinel if colour == "sync" else redis.asyncio.sentinel
        driver: Any = module.Sentinel([silent.getsockname(), ("127.0.0.1", sentinel)])
        client = driver.master_for("locks")
        store: Any = RedisStore(client) if colour == "sync" else Blocking(lambda: AsyncRedisStore(client))
        began = time.monotonic()

        record = granted(store, "k", timeout_s=1.5)

        assert time.monotonic() - began < 1.5
        assert driver.sentinels[0].connection_pool.connection_kwargs["port"] == sentinel
        assert renew(store, record, timeout_s=3.0).applied
        store.close()
        if isinstance(store, Blocking):
            store.end()


@pytest.mark.parametrize("setting", [("min-replicas-to-write", 1), ("replica-serve-stale-data", "no")])
def test_sentinel_is_asked_again_after_a_primary_that_was_cut_off(
    colour: str, server: Server, sentinel: int, tmp_path: Path, setting: tuple[str, Any]
) -> None:
    """It refuses all requests, on connections that stand, while the Sentinels have long made another server the primary."""
    (tmp_path / "other").mkdir()
    with ExitStack() as stack:
        other = Server(tmp_path / "other")
        stack.callback(other.stop)
        client = sentinels(redis.sentinel if colour == "sync" else redis.asyncio.sentinel, sentinel).master_for("locks")
        store: Any = RedisStore(client) if colour == "sync" else Blocking(lambda: AsyncRedisStore(client))
        record = granted(store, "k")
        with redis.Redis(port=server.port) as cut_off, redis.Redis(port=sentinel) as asking:
            cut_off.config_set(*setting)
            if setting[1] == "no":
                cut_off.execute_command("REPLICAOF", "127.0.0.1", free_port())
            asking.execute_command("SENTINEL", "REMOVE", "locks")
            asking.execute_command("SENTINEL", "MONITOR", "locks", "127.0.0.1", other.port, 1)

        with pytest.raises(StoreUnavailableError, match=r"fewer replicas|a replica"):
            renew(store, record)

        assert not renew(store, record).applied
        store.close()
        if isinstance(store, Blocking):
            store.end()


def test_server_that_takes_no_connection_in_time_is_named(open_store: Callable[..., Any]) -> None:
    """As one that refuses it is; a queue of connections that is full stands for a host that is cut off."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        port = full.getsockname()[1]
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        store = open_store(f"redis://127.0.0.1:{port}")

        with pytest.raises(StoreUnavailableError, match=f"no connection to 127.0.0.1:{port} in time"):
            store.read("k", timeout_s=0.3)


def test_the_pages_client_behind_a_sentinel(sentinel: int) -> None:
    """It is accepted by the two names."""
    replaced = {
        '("sentinel.example", 26379)': f'("127.0.0.1", {sentinel})',
        "mymaster": "locks",
        "...": 'held = client.acquire("pages")',
    }
    names: Names = {}

    shown("docs/stores.md", "redis.Sentinel(").run(names, replaced)

    assert names["held"].fencing_token > 0
    for own in (names["primary"], *names["sentinels"].sentinels):
        own.connection_pool.disconnect()


def test_doctor_examines_a_sentinel(sentinel: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It leads to a primary, and keeps nothing itself: accepting it does not help, a client of redis-py does."""
    out = Command(capsys).refused(f"redis://127.0.0.1:{sentinel}", "redis-sentinel", accepted=69)

    assert "LockClient(RedisStore(sentinel.master_for(NAME)))" in out
    assert "the server at this URL is itself a Sentinel, and keeps no locks: accepting it does not help" in out


def test_socket_in_the_file_system(tmp_path: Path, open_store: Any) -> None:
    """The ``unix`` URL is the driver's own."""
    server = Server(tmp_path, "--unixsocket", str(tmp_path / "r.sock"))

    exercise(open_store(f"unix://{tmp_path}/r.sock?db=1"), "u/")

    server.stop()


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Start a server with a certificate of our own; return its TLS port and the certificate."""
    certificate, secret, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    where = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(secret), "-out", str(certificate)]
    subprocess.run([*request.split(), *where], check=True, capture_output=True)
    options = [
        "--tls-port",
        str(port),
        "--tls-cert-file",
        str(certificate),
        "--tls-key-file",
        str(secret),
        "--tls-auth-clients",
        "no",
    ]
    server = Server(tmp_path, *options, "--tls-ca-cert-file", str(certificate))
    yield port, certificate
    server.stop()


def test_tls_with_the_right_certificate(tls: tuple[int, Path], open_store: Any) -> None:
    """Big payloads too: they come in several records of TLS."""
    port, certificate = tls
    store = open_store(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")

    exercise(store, "t/")
    record = granted(store, "big", fields={"data": secrets.token_bytes(65536)})
    assert store.read("big", timeout_s=5.0) == record


def test_tls_that_cannot_be_verified_is_refused(tls: tuple[int, Path], open_store: Any) -> None:
    """Nothing was sent to whoever that is."""
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        claim(open_store(f"rediss://127.0.0.1:{tls[0]}/0"), "k")


def test_tls_that_fails_for_want_of_a_certificate_names_the_options(
    tls: tuple[int, Path], open_store: Any, tmp_path: Path
) -> None:
    """The server only closes the connection, and the driver names no file: nobody could know which part of the URL is missing."""
    port, certificate = tls
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
    with redis.Redis.from_url(url) as admin:
        admin.config_set("tls-auth-clients", "yes")
    missing = f"&ssl_certfile={tmp_path / 'none.pem'}&ssl_keyfile={tmp_path / 'none.key'}"

    for more in ("", missing):
        with pytest.raises(StoreUnavailableError, match="ssl_certfile and ssl_keyfile"):
            open_store(url + more).read("k", timeout_s=5.0)


@pytest.mark.parametrize("password", ["", ":secret@"])
def test_url_without_tls_for_a_server_with_tls_says_how_to_write_it(
    tls: tuple[int, Path], open_store: Any, password: str
) -> None:
    """The server only closes the connection; whoever is given the address of a managed one does not know why."""
    with pytest.raises(StoreUnavailableError, match="a server that speaks TLS wants rediss://"):
        open_store(f"redis://{password}127.0.0.1:{tls[0]}/0").read("k", timeout_s=5.0)


def test_primary_that_became_a_replica_decides_nothing(
    open_store: Callable[..., Any], server: Server, tmp_path: Path
) -> None:
    """It may be behind: a read and a refusal from it are errors, as a write is."""
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other")
    with ExitStack() as stack:
        stack.callback(other.stop)
        store = open_store(server.url)
        record = granted(store, "k")
        demoted = stack.enter_context(redis.Redis.from_url(server.url))
        demoted.config_set("repl-diskless-load", "disabled")
        promoted = stack.enter_context(redis.Redis.from_url(other.url))
        promoted.execute_command("REPLICAOF", "127.0.0.1", server.port)
        until = time.monotonic() + 20
        while promoted.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < until
            time.sleep(0.05)  # the replica connects when it likes
        promoted.execute_command("REPLICAOF", "NO", "ONE")
        demoted.execute_command("REPLICAOF", "127.0.0.1", other.port)
        assert renew(open_store(other.url), record).applied

        refused = Replace(held("k"), record.version._replace(rvn="other"))
        for ask in (
            lambda: store.read("k", timeout_s=5.0),
            lambda: store.read_age("k", timeout_s=5.0),
            lambda: claim(store, "k"),
            lambda: claim(store, "none", must_exist=True),
            lambda: store.replace(refused, timeout_s=5.0),
        ):
            with pytest.raises(StoreUnavailableError, match="replica"):
                ask()
        assert isinstance(store.replace_many([refused], timeout_s=5.0)[0], StoreUnavailableError)
        assert not open_store(other.url).guarantees().refusal_linearizable


def test_the_node_with_the_most_requests_under_way_is_asked_last_for_the_slots_before_one_is_silent() -> None:
    """The others may say that the Cluster is down before the first request to it has taken its time."""
    asked: list[str | None] = []

    class Manager:
        """As redis-py's, of a version that shuffles."""

        startup_nodes: ClassVar[dict[str, str]] = {name: name for name in ("first", "stuck", "other")}
        nodes_cache = startup_nodes

        def initialize(self, last_failed_node_name: str | None) -> None:
            asked.append(last_failed_node_name)

    servers = Servers(redis.RedisCluster.__new__(redis.RedisCluster), redis, str)
    servers._client = SimpleNamespace(nodes_manager=Manager())
    list(servers.refresh())
    for name, count in (("first", 0), ("stuck", 3), ("other", 1)):
        servers._nodes[name] = SimpleNamespace(pools=[SimpleNamespace(lent=range(count)), SimpleNamespace(lent=())])

    for order in (["first", "other", "stuck"], ["first", "stuck", "other"]):
        list(servers.refresh())
        assert list(servers._client.nodes_manager.startup_nodes) == order
        assert servers.wants_refresh(TimeoutError(), servers._nodes["other"])

    assert asked == [None, "stuck", "other"]


@pytest.mark.parametrize("said", ["TRYAGAIN Multiple keys request during rehashing of slot", "MOVED 1 h:1"])
def test_a_slot_whose_place_nobody_knows_is_told_as_one_that_moves(said: str) -> None:
    """The server names no node, or one that the client does not know yet: certainly not applied, and to be tried again."""
    servers = Servers(redis.RedisCluster.__new__(redis.RedisCluster), redis, str)
    manager = SimpleNamespace(remap_host_port=lambda host, port: (host, port))
    servers._client = SimpleNamespace(nodes_manager=manager, get_node=lambda host, port: None)

    with pytest.raises(StoreUnavailableError, match="the slot of key 'k' is being moved") as caught:
        servers.node(Request(key="k", node=said))

    assert caught.value.key == "k"


def test_a_store_that_was_closed_asks_a_cluster_for_nothing() -> None:
    """Its owner may have closed the client as well."""
    servers = Servers(redis.RedisCluster.__new__(redis.RedisCluster), redis, str)
    servers.end()

    assert not servers.wants_refresh(StoreUnavailableError("the Redis store was closed"), None)
