"""Version numbers in the rows of the Node client: a guid has 64 bytes, and a row with another one could be read by nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlock_core.errors import UnsupportedError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Replace
from dlock_dynamodb._wire import Table
from dlock_dynamodb.dialects.node import NodeClosedRows, NodeOpenRows

PLAIN = Table("table", "key", None, "dlock")
FRESH = "feedfacefeedfacefeedfacefeedface"
ROWS = {"open": (NodeOpenRows(PLAIN, lambda: 0), 2_000), "closed": (NodeClosedRows(PLAIN), None)}


@pytest.mark.parametrize("rvn", ["r", "0" * 31, "0" * 63])
@pytest.mark.parametrize("mode", ROWS)
def test_number_that_makes_no_guid_is_written_by_no_verb(mode: str, rvn: str) -> None:
    """Nor by a batch. One that is expected is only another one than stands there."""
    rows: Any = ROWS[mode][0]
    record = LockRecord("k", State.HELD, FRESH, 1, "o", ROWS[mode][1])
    bad, version = replace(record, rvn=rvn), Version(FRESH, 1)

    asked: list[tuple[str, Any]] = [("claim", Claim(bad, Expect.ABSENT)), ("change", Replace(bad, version))]
    if mode == "open":
        asked.append(("statement", Replace(bad, version)))
    for verb, request in asked:
        with pytest.raises(UnsupportedError, match=f"32 hexadecimal digits or 64 bytes, not '{rvn}'"):
            getattr(rows, verb)(request)

    assert rows.change(Replace(record, Version(rvn, 1))) is not None
    assert rows.claim(Claim(replace(record, rvn="0" * 64), Expect.ABSENT)) is not None
