"""The pages of a scan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dlock_core.errors import RecordError
from dlock_core.kit import Exchange, pages
from dlock_core.record import LockRecord, State

KEYS = ["a", "bad", "c", "worse", "e"]
SIZE = 2


def read(key: str) -> LockRecord:
    """Return the record under *key*."""
    if key in {"bad", "worse"}:
        raise RecordError(key)
    return LockRecord(key, State.HELD, "rvn", 1, "owner", None)


def page(after: str | None) -> Exchange[tuple[list[Callable[[], LockRecord]], str | None]]:
    """Ask for the keys behind *after*."""
    found = yield after
    return [partial(read, key) for key in found], found[-1] if len(found) == SIZE else None


def test_all_readable_records_come_before_the_first_fault() -> None:
    """Page by page, each with the key after which it begins."""
    asked: list[Any] = []
    came: list[str] = []

    def scan() -> None:
        for exchange in pages(page):
            asked.append(next(exchange))
            begin = KEYS.index(asked[-1]) + 1 if asked[-1] else 0
            with pytest.raises(StopIteration) as end:
                exchange.send(KEYS[begin : begin + SIZE])
            came.extend(record.key for record in end.value.value)

    with pytest.raises(RecordError, match="bad"):
        scan()

    assert asked == [None, "bad", "worse"]
    assert came == ["a", "c", "e"]


def test_nothing_found_is_one_page() -> None:
    """And no fault."""
    exchanges = pages(page)
    exchange = next(exchanges)
    next(exchange)

    with pytest.raises(StopIteration) as end:
        exchange.send([])

    assert end.value.value == []
    assert list(exchanges) == []
