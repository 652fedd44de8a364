"""Locks in MongoDB: a replica set or a sharded cluster, through pymongo.

``mongodb://HOST,HOST/DATABASE?replicaSet=…&collection=…`` is the driver's own URL, with our *collection* among its query keys.
"""

from __future__ import annotations

from dlock_core.backend import importing

with importing("pymongo>=4.13.2", "mongodb"):
    import pymongo

    if pymongo.version_tuple < (4, 13, 2):
        raise ImportError(f"the asyncio client of pymongo {pymongo.version} is missing or unfit", name="pymongo")

from dlock_core.kit import Backend
from dlock_mongodb.options import MongoDBStoreOptions
from dlock_mongodb.store import AsyncMongoDBStore, MongoDBStore

__all__ = ["AsyncMongoDBStore", "MongoDBStore", "MongoDBStoreOptions", "backend"]


backend = Backend(
    MongoDBStoreOptions,
    open_store=MongoDBStore.opened,
    aopen_store=AsyncMongoDBStore.opened,
    learns=True,
    extra="mongodb",
    remedies={
        "mongodb-standalone": "start mongod with --replSet rs0 and run rs.initiate() once: a set of one server is enough"
    },
    policy=lambda options: {"roles": [{"role": "readWrite", "db": options.database}]},
)
