"""How much one key takes that was locked once and is free: ``python -m benchmarks.growth URL…``, each of a store that is empty.

SQLite, Redis, PostgreSQL and MySQL tell what their files or memory have grown by. Of MongoDB it is the size of the document as BSON, before
the storage engine compresses it and without the index; of DynamoDB that of the item by AWS's rule, with the 100 bytes that AWS adds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dlock_core import connect
from dlock_core.backend import backend_for

KEYS = 20_000
KEY = "billing/00001"  # 13 characters, without the prefix that some stores add


def lock_once(url: str, keys: int) -> None:
    """Lock and release so many keys, each once."""
    with connect(url, provision=True) as client:
        for number in range(1, keys + 1):
            with client.lock(f"billing/{number:05}"):
                pass


def growth(size: Callable[[str], float], url: str) -> float:
    """Return by how much the store at *url* grows for a key."""
    lock_once(url, 0)
    before = size(url)
    lock_once(url, KEYS)
    return (size(url) - before) / KEYS


def of_sqlite(url: str) -> float:
    """Return the growth of the file, which must not be there yet."""
    return growth(lambda url: Path(urlsplit(url).path).stat().st_size, url)


def of_redis(url: str) -> float:
    """Return the growth of the server's memory."""
    import redis

    with redis.Redis.from_url(url) as server:
        return growth(lambda _: float(server.info("memory")["used_memory"]), url)


def of_postgres(url: str) -> float:
    """Return the growth of table and index."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        ask = "SELECT pg_total_relation_size(to_regclass('dlock'))"
        return growth(lambda _: float(connection.execute(ask).fetchone()[0]), url)  # type: ignore[index]  # one row


def of_mysql(url: str) -> float:
    """Return the growth of table and index, as the server estimates them."""
    import pymysql

    options: Any = backend_for(url).options.from_url(url)
    password = options.password.get_secret_value()
    names = {"host": options.host, "port": options.port, "user": options.user, "database": options.database}
    with pymysql.connect(**names, password=password, autocommit=True) as connection:
        cursor = connection.cursor()

        def size(_: str) -> float:
            cursor.execute(f"ANALYZE TABLE `{options.table}`")
            cursor.execute(
                "SELECT data_length + index_length FROM information_schema.tables WHERE table_name = %s AND table_schema = %s",
                (options.table, options.database),
            )
            return float(cursor.fetchone()[0])

        return growth(size, url)


def of_mongodb(url: str) -> float:
    """Return the size of the document."""
    import bson
    import pymongo

    lock_once(url, 1)
    options: Any = backend_for(url).options.from_url(url)
    with pymongo.MongoClient[dict[str, Any]](options.url.get_secret_value()) as client:
        [document] = client[options.database][options.collection].find({"_id": KEY})
    return float(len(bson.encode(document)))


def of_dynamodb(url: str) -> float:
    """Return the size of the item: names and values in UTF-8, two digits of a number in a byte, and a byte for each number."""
    import boto3

    lock_once(url, 1)
    options: Any = backend_for(url).options.from_url(url)
    client = boto3.client("dynamodb", region_name=options.region, endpoint_url=options.endpoint_url)
    item = client.get_item(TableName=options.table, Key={options.partition_key: {"S": KEY}})["Item"]
    sizes = []
    for name, typed in item.items():
        [(kind, value)] = typed.items()
        raw = value if isinstance(value, bytes) else value.encode()
        sizes.append(len(name.encode()) + ((len(raw) + 1) // 2 + 1 if kind == "N" else len(raw)))
    return float(sum(sizes) + 100)


MEASURES = {
    "sqlite": of_sqlite,
    "redis": of_redis,
    "postgresql": of_postgres,
    "mysql": of_mysql,
    "mongodb": of_mongodb,
    "dynamodb": of_dynamodb,
}


def main() -> None:
    """Measure each store that is named."""
    for url in sys.argv[1:]:
        scheme = urlsplit(url).scheme
        print(f"{scheme}: {MEASURES[scheme](url):.0f} bytes a key", flush=True)


if __name__ == "__main__":
    main()
