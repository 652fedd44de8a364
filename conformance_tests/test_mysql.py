"""The MySQL store keeps every clause: on MariaDB, also with the statements for MySQL, or on the server of the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from dlock_conformance import (
    WAYS,
    LockClientConformance,
    LockStoreConformance,
    Opening,
    StoreHarness,
)
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import Server
from thorough import rounds

from dlock_core.record import Version

pymysql = pytest.importorskip("pymysql")

from dlock_mysql import MySQLStore, MySQLStoreOptions  # noqa: E402  # needs the driver

TABLE = "dlock_conformance"
# What a packet of the protocol has at its fifth byte: the command. Authentication has no such packet that begins with number 0.
_HEADER, _QUERY = 5, 3
_MORE_RESULTS = 8
_SETTINGS = (b"SET ", b"SET\t")


def url_of(server: Server, address: str, table: str = TABLE) -> str:
    """Return the URL of *table* through *address*."""
    parts = urlsplit(server.url)
    user = parts.netloc.rpartition("@")[0]
    return f"mysql://{user and user + '@'}{address}{parts.path}?table={table}&ssl_mode=disabled"


def is_verb(said: bytes) -> bool:
    """Whether what the driver says is a query of ours, and not a part of making a connection."""
    begins_anew = len(said) > _HEADER and said[3] == 0 and said[4] == _QUERY
    return begins_anew and not said[_HEADER:].startswith(_SETTINGS)


def is_whole(answer: bytes) -> bool:
    """Whether *answer* ends with an error, or with an OK or EOF packet that announces no further result."""
    packet = b""
    while len(answer) > _HEADER - 1:
        size = int.from_bytes(answer[:3], "little")
        packet, answer = answer[4 : 4 + size], answer[4 + size :]
    return packet[:1] == b"\xff" or (packet[:1] in {b"\0", b"\xfe"} and not packet[3] & _MORE_RESULTS)


@pytest.fixture(scope="module")
def server(dlock_server: Callable[[str], Server]) -> Server:
    """Find a server."""
    return dlock_server("mysql")


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Stand between the store and the server."""
    proxy = FaultProxy(*server.address, is_request=is_verb, is_answered=is_whole, greeted=True)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def run(server: Server) -> Callable[..., None]:
    """Provision the table, and return a function that runs SQL, to plant things with; its connections outlive no restart."""
    options = MySQLStoreOptions.from_url(url_of(server, "{}:{}".format(*server.address)))
    store = MySQLStore(**dict(options))
    store.provision()
    store.close()
    login = {"user": options.user, "password": options.password.get_secret_value(), "database": options.database}

    def run(sql: str, *values: object) -> None:
        with pymysql.connect(host=options.host, port=options.port, autocommit=True, **login) as connection:
            connection.cursor().execute(sql, values)

    return run


@pytest.fixture(scope="module")
def mysql_harness(server: Server, proxy: FaultProxy, run: Callable[..., None]) -> StoreHarness:
    """Open stores through the proxy."""

    def plant(key: str, form: int, rvn: str = "rvn", token: int = 1) -> None:
        columns = "k, format, state, rvn, token, owner, lease_ms, context, payload, write_id, written_at"
        sql = f"INSERT INTO {TABLE} ({columns}) VALUES (%s, %s, 'held', %s, %s, 'somebody', 1000, '', '', 0, UTC_TIMESTAMP(6))"  # noqa: S608
        run(sql, key, form, rvn, token)

    def plant_newer(key: str, version: Version) -> None:
        plant(key, 2, *version)

    return StoreHarness(
        url_of(server, proxy.address),
        found=server.found,
        lease_s=2.0,
        capabilities={"batch_renew", "server_clock"},
        race_rounds=rounds(100),
        several_processes=True,
        page=500,
        restart=server.restart,
        count_requests=proxy.requests,
        faults=proxy,
        plant_foreign=lambda key: plant(key, -1),
        remove=lambda key: run(f"DELETE FROM {TABLE} WHERE k = %s", key),  # noqa: S608  # a name of ours
        plant_newer=plant_newer,
        unprovisioned=Opening(url_of(server, proxy.address, "no_such_table")),
    )


class TestMySQLStore(LockStoreConformance):
    """``mysql://``, for threads; tasks use it through threads."""

    colours = ("sync",)
    lacks = ("busy", "notify", "prune", "claim_wait", "atomic_multi", "own_client", "expires")

    @pytest.fixture
    def harness(self, mysql_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the table."""
        return mysql_harness


class TestMySQLStoreWithoutReturning(LockStoreConformance):
    """The same with the statements for MySQL, which MariaDB understands, too."""

    colours = ("sync",)
    lacks = ("busy", "notify", "prune", "claim_wait", "atomic_multi", "own_client", "expires", "several_processes")

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def no_server_returns_rows(cls) -> Iterator[None]:
        """Take every server for one without RETURNING."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dlock_mysql._link._RETURNING", "no server says this")
            yield

    @pytest.fixture
    def harness(self, mysql_harness: StoreHarness) -> StoreHarness:
        """Only this process speaks so."""
        return replace(mysql_harness, name="mysql, statements for MySQL", several_processes=False)


class TestMySQLClient(LockClientConformance):
    """Both clients over ``mysql://``."""

    ways = WAYS

    @pytest.fixture
    def harness(self, mysql_harness: StoreHarness) -> StoreHarness:
        """Every test has keys of its own, so they share the server."""
        return mysql_harness
