"""Locks in MongoDB: a replica set or a sharded cluster, through pymongo.

``mongodb://HOST,HOST/DATABASE?replicaSet=…&collection=…`` is the driver's own URL, with our *collection* among its query keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.backend import missing_driver

try:
    import pymongo

    if pymongo.version_tuple < (4, 13):
        raise ImportError(f"pymongo {pymongo.version} has no asyncio client of its own", name="pymongo")
except ImportError as error:
    raise missing_driver("mongodb", "pymongo>=4.13", error) from error

from dlock_mongodb.options import MongoDBStoreOptions
from dlock_mongodb.store import AsyncMongoDBStore, MongoDBStore

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["AsyncMongoDBStore", "MongoDBStore", "MongoDBStoreOptions", "backend"]


class _Backend:
    options = MongoDBStoreOptions
    extra = "mongodb"

    @staticmethod
    def policy(options: MongoDBStoreOptions) -> dict[str, Any]:
        return {"roles": [{"role": "readWrite", "db": options.database}]}

    def open(self, options: MongoDBStoreOptions) -> LockStore:
        return MongoDBStore.connected(options)

    def aopen(self, options: MongoDBStoreOptions) -> Awaitable[AsyncLockStore] | None:
        return AsyncMongoDBStore.connected(options)


backend = _Backend()
