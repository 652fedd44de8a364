"""A store that somebody wrote before the store kit existed still keeps every clause that its records can carry: the port is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from dlock_conformance import LockStoreConformance, StoreHarness
from old_example_store import DirectoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core.record import LockRecord


class TestOldExampleStore(LockStoreConformance):
    """The example of a store as it was then, on the port alone."""

    colours = ("sync",)
    lacks = (
        *(
            "batch_renew",
            "notify",
            "server_clock",
            "prune",
            "claim_wait",
            "atomic_multi",
            "several_processes",
            "busy",
            "lose_reply",
            "hang",
            "refuse",
            "trickle",
            "cut",
            "drop",
            "slow_connect",
        ),
        *("count_requests", "unprovisioned", "own_client", "plant_foreign", "plant_newer", "expires"),
    )
    cannot_carry: ClassVar[dict[str, str]] = {
        "session|times|as_many_as_a_record": "it was written before records had the fields of sessions, and times"
    }

    @pytest.fixture
    def harness(self, tmp_path: Path) -> StoreHarness:
        """Give each test a directory of its own."""
        return StoreHarness(
            open_store=lambda: DirectoryStore(tmp_path), restart=lambda: None, page=250, carried=without_sessions
        )


def without_sessions(record: LockRecord) -> LockRecord | None:
    """Return *record* as it is kept, or None where it has fields that were not there then."""
    later = (record.session, record.beat, record.members, record.times)
    return record if later == (None,) * len(later) else None
