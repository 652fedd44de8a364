"""Fences: each writes only if no later holder has written, in the one request that has the effect.

A holder that was paused may write after its lease has ended. The store of the lock can't prevent that; the system that is written
to can, if it keeps the greatest fencing token beside the data and refuses an older one. The functions here build such a request for
SQL, DynamoDB, MongoDB, Redis and S3 as plain strings and dicts, which your own driver sends. The middleware refuses older tokens of
HTTP requests.
"""

from dlock_core.fence.http import HEADER, FencedASGI, FencedWSGI, http_headers
from dlock_core.fence.tokens import MemoryTokens, SQLTokens, TokenStore
from dlock_core.fence.writes import (
    PARAMSTYLES,
    RedisScript,
    dynamodb_put,
    dynamodb_update,
    mongodb_update,
    redis_write,
    s3_put,
    sql_update,
)

__all__ = [
    "HEADER",
    "PARAMSTYLES",
    "FencedASGI",
    "FencedWSGI",
    "MemoryTokens",
    "RedisScript",
    "SQLTokens",
    "TokenStore",
    "dynamodb_put",
    "dynamodb_update",
    "http_headers",
    "mongodb_update",
    "redis_write",
    "s3_put",
    "sql_update",
]
