"""What lists the records, while others come and go, and however large they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from dlock_redis import RedisStore
from tests.redis.support import granted


@pytest.fixture
def scanned(url: str) -> Iterator[RedisStore]:
    """Open a store."""
    with redis.Redis.from_url(url) as client, closing(RedisStore(client)) as store:
        yield store


def test_record_that_is_removed_while_it_is_listed_is_none(
    scanned: RedisStore, raw: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dlock prune` removes some at any time; nobody has damaged them."""
    for number in range(3):
        granted(scanned, f"{key}/{number}")
    send = scanned._link.send

    def sending(request: Any, timeout_s: float) -> Any:
        if b"HMGET" in getattr(request, "commands", b""):
            raw.delete(f"{key}/1")
        return send(request, timeout_s)

    monkeypatch.setattr(scanned._link, "send", sending)

    assert {record.key for record in scanned.scan(key, timeout_s=5.0)} == {f"{key}/0", f"{key}/2"}
