"""The bounds of the format: a record checks itself before it is written and after it is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlock_core import LockRecord, RecordError, State
from dlock_core.record import DATA_MAX_BYTES, LEASE_MAX_MS, NO_TOKEN, TOKEN_MAX

SOUND = LockRecord("k", State.HELD, "r", 1, "owner", 20_000)


@pytest.mark.parametrize(
    "fields",
    [
        *({"fencing_token": token} for token in (0, -1, TOKEN_MAX + 1, True, 1.0, "1")),
        *({"lease_ms": lease} for lease in (0, -1, LEASE_MAX_MS + 1, True, 1.5)),
        *({"delay_ms": delay} for delay in (0, 20_000, 1.5)),
        {"delay_ms": 1, "lease_ms": None},
        *({"rvn": rvn} for rvn in ("", "r" * 65, 7)),
        *({"state": state} for state in ("held", "lost")),
        {"owner": None},
        *({"data": data} for data in (bytearray(b"x"), "x", b"x" * (DATA_MAX_BYTES + 1))),
        *({"attributes": pairs} for pairs in ((("b", 1), ("a", 1)), (("a", 1), ("a", 2)), (("", 1),), ((1, 1),))),
        *({"attributes": (("a", value),)} for value in (None, 1.5, 2**63, -(2**63), "x" * 65_536)),
        {"attributes": (("a", "x" * 40_000), ("b", b"x" * 40_000))},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_beyond_the_format_is_refused(fields: Any) -> None:
    """Such a record is damage, or another program's: the message names the key, and what is wrong."""
    with pytest.raises(RecordError, match=r"^record under key 'k': .*; inspect it with the store's own tools"):
        replace(SOUND, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        *({"fencing_token": token} for token in (1, TOKEN_MAX, NO_TOKEN)),
        *({"lease_ms": lease} for lease in (1, LEASE_MAX_MS, None)),
        *({"delay_ms": delay} for delay in (1, 19_999)),
        {"rvn": "r" * 64},
        {"owner": ""},
        *({"data": data} for data in (b"", b"x" * DATA_MAX_BYTES)),
        {"attributes": (("a", 2**63 - 1), ("b", -(2**63) + 1), ("c", True), ("d", b""), ("e", ""))},
        {"attributes": (("a", "x" * 65_535),)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_at_the_edge_of_the_format_is_a_record(fields: Any) -> None:
    """Each bound is one that a record may have."""
    assert replace(SOUND, **fields).key == "k"
