"""A program on its way from redis-py's lock: it holds both until the last old program is gone, and then drops the first line of the two."""

from __future__ import annotations

import os

import redis

from dlock_core import connect

url = os.environ["DLOCK_URL"]  # redis://HOST:6379/0
with (
    redis.Redis.from_url(url) as old,
    connect(url) as client,
    old.lock("report", timeout=60, blocking_timeout=5),
    client.lock("report", timeout=5) as lease,
):
    print("held by both:", old.exists("report") == 1 and lease.is_valid)
