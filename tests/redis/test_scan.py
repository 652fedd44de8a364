"""What lists the records, while others come and go, and however large they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from dlock_redis import RedisStore
from dlock_redis import _wire as wire
from dlock_redis._servers import Request
from tests.redis.support import granted, held
from tests.redis.test_exchanges import end_of
from tests.redis.test_wire import row


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


def test_each_node_is_asked_for_its_own_names_and_whether_one_without_fields_is_there_still() -> None:
    """Another node would say that it is not."""
    record, sent = held("k/b", 3), list[Request]()
    pages = iter(wire.RedisVerbs().scan("k/"))
    for nodes, found in ((["n", "m"], [b"k/a", b"k/b"]), (None, [b"k/c"])):
        page = next(pages)
        asked = next(page) if nodes is None else [next(page), page.send(nodes)][1]
        rows = [row(record) if name == b"k/b" else [None] * 6 for name in found]
        sent += [asked, page.send([[b"0", found]]), page.send(rows)]
        assert list(end_of(page, [0])) == ([record] if nodes else [])

    assert [each.node for each in sent] == ["n"] * 3 + ["m"] * 3
    assert list(pages) == []
