"""An account in each kind of database, on real servers, written by the function that the page on fences shows."""

from __future__ import annotations

import json
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
import psycopg
import pymysql
from dlock_conformance.servers import free_port, resolve
from pymongo import MongoClient
from pymysql.constants import CLIENT
from redis import Redis

from tests.documentation import Block, Names, shown

REGION = {"region_name": "eu-west-1", "aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
SERVER_S = 60


class Account(NamedTuple):
    """*write* takes balance and token, and says whether it wrote; *balance* reads."""

    write: Callable[[int, int], bool]
    balance: Callable[[], int]


def function(block: Block) -> Callable[..., bool]:
    """Return the function ``set_balance`` that a block of the page defines."""
    names: Names = {}
    block.run(names)
    found: Callable[..., bool] = names["set_balance"]
    return found


def sql_account(connection: Any, paramstyle: str) -> Account:
    """Make the table and the row; the page's function with another paramstyle."""
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS fenced_account")
    cursor.execute("CREATE TABLE fenced_account (name VARCHAR(40) PRIMARY KEY, balance BIGINT, fencing_token BIGINT)")
    cursor.execute("INSERT INTO fenced_account (name, balance) VALUES ('anna', 0)")
    connection.commit()
    write = function(shown("docs/howto/fence.md", "sql_update"))
    build = write.__globals__["sql_update"]

    def in_this_style(table: str, *given: Any, **_: str) -> Any:
        return build(f"fenced_{table}", *given, paramstyle=paramstyle)

    write.__globals__["sql_update"] = in_this_style

    def balance() -> int:
        cursor.execute("SELECT balance FROM fenced_account")
        found: int = cursor.fetchone()[0]
        return found

    return Account(partial(write, connection, "anna"), balance)


@contextmanager
def on_sqlite() -> Iterator[Account]:
    """In memory."""
    with closing(sqlite3.connect(":memory:")) as connection:
        yield sql_account(connection, sqlite3.paramstyle)


def connected_postgres() -> Any:
    """Connect by psycopg."""
    return psycopg.connect(resolve("postgres").url)


def connected_mysql() -> Any:
    """Connect by PyMySQL, as the page says."""
    parts = urlsplit(resolve("mysql").url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
        client_flag=CLIENT.FOUND_ROWS,
    )


@contextmanager
def on_postgres() -> Iterator[Account]:
    """With parameters by position, as the driver takes them, too."""
    with closing(connected_postgres()) as connection:
        yield sql_account(connection, "format")


@contextmanager
def on_mysql() -> Iterator[Account]:
    """With parameters by name."""
    with closing(connected_mysql()) as connection:
        yield sql_account(connection, pymysql.paramstyle)


@contextmanager
def on_dynamodb() -> Iterator[Account]:
    """A table of its own."""
    resource = boto3.Session(**REGION).resource("dynamodb", endpoint_url=resolve("dynamodb").url)
    table = resource.create_table(
        TableName=f"fenced-{secrets.token_hex(4)}",
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield Account(
        partial(function(shown("docs/howto/fence.md", "dynamodb_update")), table, "anna"),
        lambda: int(table.get_item(Key={"name": "anna"}, ConsistentRead=True)["Item"]["balance"]),
    )
    table.delete()
    resource.meta.client.close()


@contextmanager
def on_mongodb() -> Iterator[Account]:
    """A collection of its own; the document has no token yet."""
    with MongoClient[dict[str, Any]](resolve("mongodb").url) as client:
        collection = client["dlock-tests"][f"fenced-{secrets.token_hex(4)}"]
        collection.insert_one({"_id": "anna", "balance": 0})
        yield Account(
            partial(function(shown("docs/howto/fence.md", "mongodb_update")), collection, "anna"),
            lambda: (collection.find_one({"_id": "anna"}) or {})["balance"],
        )
        collection.drop()


@contextmanager
def on_redis() -> Iterator[Account]:
    """A hash."""
    key = f"fenced-{secrets.token_hex(4)}"
    with Redis.from_url(resolve("redis").url) as client:
        yield Account(
            partial(function(shown("docs/howto/fence.md", "redis_write")), client, key),
            lambda: int(client.hget(key, "balance") or 0),
        )
        client.delete(key)


@contextmanager
def s3_bucket() -> Iterator[Any]:
    """Run moto, a stand-in for S3 that knows conditional writes, and make the bucket of the page there."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if "Running on" in line:
                    break
            assert "Running on" in "".join(said[-1:]), "".join(said)
            client = boto3.Session(**REGION).client("s3", endpoint_url=f"http://127.0.0.1:{port}")
            client.create_bucket(Bucket="accounts", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
            yield client
            client.close()
        finally:
            server.kill()


@contextmanager
def on_s3() -> Iterator[Account]:
    """An object; the first write makes it."""
    with s3_bucket() as client:

        def balance() -> int:
            found: int = json.load(client.get_object(Bucket="accounts", Key="anna")["Body"])["balance"]
            return found

        yield Account(partial(function(shown("docs/howto/fence.md", "s3_put")), client, "anna"), balance)


ACCOUNTS = {
    "sqlite": on_sqlite,
    "postgres": on_postgres,
    "mysql": on_mysql,
    "dynamodb": on_dynamodb,
    "mongodb": on_mongodb,
    "redis": on_redis,
    "s3": on_s3,
}
