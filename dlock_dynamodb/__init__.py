"""Locks in a table of Amazon DynamoDB: ``dynamodb://REGION/TABLE``, or :class:`DynamoDBStore` on a boto3 session or client of one's own."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("boto3", "dynamodb"):
    import boto3 as _boto3  # noqa: F401  # what it is missing for is told before the modules that use it are loaded

from dlock_core.kit import Backend
from dlock_dynamodb._credentials import open_session
from dlock_dynamodb.options import DynamoDBStoreOptions
from dlock_dynamodb.provision import policy
from dlock_dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore", "DynamoDBStoreOptions", "backend"]


backend = Backend(
    DynamoDBStoreOptions,
    open_store=lambda options: DynamoDBStore(open_session(options), **options.model_dump(exclude={"profile"})),
    extra="dynamodb",
    policy=policy,
    remedies={
        "dynamodb-global-table": "keep locks in a table of one region, or in a global table with strong consistency",
        "dynamodb-ttl": "turn time to live off for the table of the locks: aws dynamodb update-time-to-live",
    },
)
