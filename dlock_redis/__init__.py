"""The Redis store: ``redis://``, ``rediss://``; also for Valkey. Needs the extra ``redis``."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("redis-py", "redis"):
    import redis
    import redis.asyncio

from dlock_core.kit import Backend
from dlock_redis._errors import ACL_RULES
from dlock_redis.options import RedisStoreOptions
from dlock_redis.provision import REMEDIES
from dlock_redis.store import AsyncRedisStore, RedisStore

__all__ = ["AsyncRedisStore", "RedisStore", "RedisStoreOptions", "backend"]

backend = Backend(
    RedisStoreOptions,
    open_store=lambda options: RedisStore(options.client(redis)),
    aopen_store=lambda options: AsyncRedisStore(options.client(redis.asyncio)),
    extra="redis",
    remedies=REMEDIES,
    policy=f"ACL SETUSER NAME on >PASSWORD resetchannels ~PREFIX* -@all {ACL_RULES}",
)
