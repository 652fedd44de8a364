"""What the SQLite store removes: rows of an earlier boot, and the floor that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core.clock import now_ns, wall_ms
from dlock_core.record import LockRecord, State, Times
from dlock_core.store import Claim, Expect, Release
from dlock_sqlite import _clock
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 10.0
HOUR_MS = 3_600_000


def freed(store: SqliteStore, key: str, times: Times | None, token: int = 5) -> LockRecord:
    """Return the record of *key* after a claim and a release, whose writers' clocks showed *times*."""
    held = LockRecord(key, State.HELD, f"{key}-1", token, "o", 1000, times=times)
    store.claim(Claim(held, Expect.ANY), timeout_s=SOON_S)
    free = LockRecord(key, State.FREE, f"{key}-2", token, "o", None, times=times)
    assert store.release(Release(free, held.version), timeout_s=SOON_S).applied
    return free


def pruned(store: SqliteStore, *records: LockRecord) -> int:
    """Remove what is older than an hour."""
    return store.prune(records, older_than_ms=HOUR_MS, dry_run=False, timeout_s=SOON_S)


def test_a_row_of_an_earlier_boot_is_as_old_as_the_wall_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock that stamped it is gone; without the writer's time it stays."""
    monkeypatch.setattr(_clock, "boot", lambda: "before")
    before = SqliteStore(tmp_path / "locks.db")
    now_s = wall_ms() // 1000
    old, young = freed(before, "old", Times(0, now_s - 7200)), freed(before, "young", Times(0, now_s))
    timeless = freed(before, "timeless", None)
    before.close()
    monkeypatch.setattr(_clock, "boot", lambda: "after")
    after = SqliteStore(tmp_path / "locks.db")

    assert pruned(after, old, young, timeless) == 1
    assert sorted(record.key for record in after.scan("", timeout_s=SOON_S)) == ["timeless", "young"]
    after.close()


@pytest.mark.parametrize("together", [False, True])
def test_the_floor_outlives_the_store_and_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """It is the row of a key that no lock can have, above all that were removed, together or in turn."""
    store = SqliteStore(tmp_path / "locks.db")
    high, low = freed(store, "high", None, token=700), freed(store, "low", None, token=3)
    monkeypatch.setattr(_clock, "now_ns", lambda: now_ns() + 2 * HOUR_MS * 10**6)
    assert (pruned(store, high, low) if together else pruned(store, high) + pruned(store, low)) == 2
    store.close()
    again = SqliteStore(tmp_path / "locks.db")

    assert list(again.scan("", timeout_s=SOON_S)) == []
    claim = Claim(LockRecord("new", State.HELD, "r", 1, "o", 1000), Expect.ABSENT)
    granted = again.claim(claim, timeout_s=SOON_S).record
    assert granted is not None
    assert granted.fencing_token == 701
    again.close()
