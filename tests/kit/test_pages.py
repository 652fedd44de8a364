"""A scan goes on past a record that cannot be read, to its last page, and then tells of it."""

from __future__ import annotations

import pytest

from dlock_core.errors import RecordError
from dlock_core.kit import Exchange, pages
from dlock_core.record import LockRecord, State


def test_damaged_record_ends_no_scan() -> None:
    """All others are given, and the first fault is raised at the end."""
    begun: list[int | None] = []

    def reads(key: str) -> LockRecord:
        if key.startswith("damaged"):
            raise RecordError(key)
        return LockRecord(key, State.HELD, "0" * 32, 1, "", None)

    def page(after: int | None) -> Exchange[object]:
        begun.append(after)
        keys = [["a", "damaged 1"], [], ["damaged 2", "b"]][after or 0]
        yield "a request"
        return [lambda key=key: reads(key) for key in keys], None if after == 2 else (after or 0) + 1

    found: list[str] = []

    def scan() -> None:
        for exchange in pages(page):  # type: ignore[arg-type]
            next(exchange)
            with pytest.raises(StopIteration) as ended:
                exchange.send("its answer")
            found.extend(record.key for record in ended.value.value)

    with pytest.raises(RecordError, match="damaged 1"):
        scan()

    assert (found, begun) == (["a", "b"], [None, 1, 2])
