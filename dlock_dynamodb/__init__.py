"""Locks in a table of Amazon DynamoDB: ``dynamodb://REGION/TABLE``, or :class:`DynamoDBStore` on a boto3 session or client of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.backend import missing_driver

try:
    import boto3 as _boto3  # noqa: F401  # what it is missing for is told before the modules that use it are loaded
except ImportError as error:
    raise missing_driver("dynamodb", "boto3", error) from error

from dlock_dynamodb._credentials import open_session
from dlock_dynamodb.options import DynamoDBStoreOptions
from dlock_dynamodb.provision import policy
from dlock_dynamodb.store import DynamoDBStore

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["DynamoDBStore", "DynamoDBStoreOptions", "backend"]


class _Backend:
    options = DynamoDBStoreOptions
    extra = "dynamodb"
    policy = staticmethod(policy)

    def open(self, options: DynamoDBStoreOptions) -> LockStore:
        named = options.model_dump(exclude={"profile"})
        return DynamoDBStore(open_session(options), **named)

    def aopen(self, options: DynamoDBStoreOptions) -> Awaitable[AsyncLockStore] | None:
        return None


backend = _Backend()
