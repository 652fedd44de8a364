"""The Redis store: ``redis://``, ``rediss://``; also for Valkey. Needs the extra ``redis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.backend import missing_driver

try:
    import redis
    import redis.asyncio
except ImportError as error:
    raise missing_driver("redis", "redis-py", error) from error

from dlock_redis._errors import ACL_RULES
from dlock_redis.options import RedisStoreOptions
from dlock_redis.store import AsyncRedisStore, RedisStore

if TYPE_CHECKING:
    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["AsyncRedisStore", "RedisStore", "RedisStoreOptions", "backend"]


class _Backend:
    options = RedisStoreOptions
    extra = "redis"
    policy = f"ACL SETUSER NAME on >PASSWORD resetchannels ~PREFIX* -@all {ACL_RULES}"

    def open(self, options: RedisStoreOptions) -> LockStore:
        return RedisStore(options.client(redis))

    async def aopen(self, options: RedisStoreOptions) -> AsyncLockStore:
        return AsyncRedisStore(options.client(redis.asyncio))


backend = _Backend()
