"""How old the rows of the SQLite store are: the clock, and files and writers that do not know of it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect
from dlock_sqlite import _clock as _sqlite_clock
from dlock_sqlite._clock import HostClock
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 10.0


class Instant:
    """A clock in nanoseconds that stands until it is moved."""

    def __init__(self) -> None:
        self.ns = 10**15

    def __call__(self) -> int:
        """Return what it shows."""
        return self.ns


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Instant:
    """Give the rows a clock that the test moves."""
    clock = Instant()
    monkeypatch.setattr(_sqlite_clock, "now_ns", clock)
    monkeypatch.setattr(_sqlite_clock, "wall_ms", lambda: clock() // 1_000_000)
    return clock


def held(rvn: str, token: int = 1) -> LockRecord:
    """Return a record that holds the one key."""
    return LockRecord("k", State.HELD, rvn, token, "owner", 20_000)


def age_of(store: SqliteStore) -> int:
    """Return the age of the one record, in ms."""
    found = store.read_age("k", timeout_s=SOON_S)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("boot", ["a boot", None], ids=["boot", "wall"])
def test_age_is_by_the_clock_that_the_host_can_name(
    instant: Instant, monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    """That of the boot, which nobody can set; else the wall clock."""
    monkeypatch.setattr(_sqlite_clock, "boot", lambda: boot)
    mark = HostClock().mark()

    instant.ns += 1_999_000_000

    assert mark.endswith(boot or "wall")
    assert HostClock().age_ms(mark) == 1_999


@pytest.mark.parametrize("mark", [None, b"1 here", 7, "", "1", "1 there", "x here", "-1 here", " here", "² here"])
def test_mark_that_says_nothing_of_this_clock_is_no_age(
    instant: Instant, monkeypatch: pytest.MonkeyPatch, mark: object
) -> None:
    """Another boot's, a damaged one, none: the record is watched."""
    monkeypatch.setattr(_sqlite_clock, "boot", lambda: "here")

    assert HostClock().age_ms(mark) == 0


def test_mark_of_the_future_is_no_age(instant: Instant) -> None:
    """Less than nothing is nothing."""
    mark = HostClock().mark()
    instant.ns -= 10**9

    assert HostClock().age_ms(mark) == 0


def test_refused_step_leaves_the_age_as_it_was(tmp_path: Path, instant: Instant) -> None:
    """What asks for a held lock does not make it younger."""
    with closing(SqliteStore(tmp_path / "locks.db")) as store:
        store.claim(Claim(held("a"), Expect.ANY), timeout_s=SOON_S)
        instant.ns += 3_000_000_000

        assert not store.claim(Claim(held("b"), Expect.ANY), timeout_s=SOON_S).applied
        assert age_of(store) == 3_000


def test_a_file_that_is_opened_again_has_the_clock_of_then(
    tmp_path: Path, instant: Instant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked child may have gone into a time namespace of its own."""
    monkeypatch.setattr(_sqlite_clock, "boot", lambda: "a namespace")
    with closing(SqliteStore(tmp_path / "locks.db")) as store:
        store.claim(Claim(held("a"), Expect.ANY), timeout_s=SOON_S)
        monkeypatch.setattr(_sqlite_clock, "boot", lambda: "another")
        store._file.before_fork()
        store._file.after_fork_in_child()
        instant.ns += 10**9

        assert age_of(store) == 0
