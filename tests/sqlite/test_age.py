"""How old the rows of the SQLite store are: the clock, and files and writers that do not know of it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Replace
from dlock_sqlite import _clock as _sqlite_clock
from dlock_sqlite import _file as _sqlite_file
from dlock_sqlite import _wire as wire
from dlock_sqlite._clock import HostClock
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 10.0
# What a dlock without the column makes and writes.
OLD_SCHEMA = wire.SCHEMA.replace(",\n    written TEXT", "")
OLD_COLUMNS = "key, format, state, rvn, fencing_token, owner, lease_ms, stamp, process, broken, attributes, data"
OLD_WRITE = f"INSERT OR REPLACE INTO lock ({OLD_COLUMNS}) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608


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


def old_write(path: Path, record: LockRecord) -> None:
    """Write *record* as a dlock without the column does."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(OLD_WRITE, wire.encode(record)[:-1])


def old_file(path: Path) -> None:
    """Make the file of a dlock without the column, with a record in it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {wire.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {wire.SCHEMA_VERSION}")
        connection.execute(OLD_SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
    old_write(path, held("old"))


def age_of(store: SqliteStore) -> int:
    """Return the age of the one record, in ms."""
    found = store.read_age("k", timeout_s=SOON_S)
    assert found is not None
    return found[1]


def test_file_of_an_earlier_dlock_is_completed_and_stays_its_own(tmp_path: Path, instant: Instant) -> None:
    """Its records have no known age until they are written anew; both versions go on working with it, in turns."""
    path = tmp_path / "locks.db"
    old_file(path)
    with closing(SqliteStore(path)) as store:
        ages = [age_of(store)]
        assert store.replace(Replace(held("new"), held("old").version), timeout_s=SOON_S).applied
        instant.ns += 5_000_000_000
        ages.append(age_of(store))

        old_write(path, held("renewed by the old one"))
        ages.append(age_of(store))

        assert store.read("k", timeout_s=SOON_S) == held("renewed by the old one")
    assert ages == [0, 5_000, 0]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


def test_processes_that_complete_a_file_at_the_same_time_all_do(tmp_path: Path) -> None:
    """Whoever comes second finds it done."""
    path = tmp_path / "locks.db"
    old_file(path)
    ready, ages = threading.Barrier(8), []

    def look() -> None:
        with closing(SqliteStore(path)) as store:
            ready.wait(SOON_S)
            ages.append(age_of(store))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ages == [0] * 8


def test_file_that_is_completed_by_another_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    """Between the look and the right to write somebody was faster."""
    path = tmp_path / "locks.db"
    old_file(path)

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE":
                with closing(SqliteStore(path)) as faster:
                    faster.provision()
            return super().execute(sql, *values)

    with closing(sqlite3.connect(path, isolation_level=None, factory=Overtaken)) as connection:
        _sqlite_file._complete(connection)

        assert connection.execute(wire.LACKS_WRITTEN).fetchone() == (0,)


def test_who_may_only_read_an_earlier_file_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator without the right to write sees the locks, as before."""
    path = tmp_path / "locks.db"
    old_file(path)
    connect = _sqlite_file.SqliteFile._connect
    monkeypatch.setattr(_sqlite_file.SqliteFile, "_connect", lambda self, _: connect(self, "mode=ro"))

    with closing(SqliteStore(path)) as store:
        assert list(store.scan("", timeout_s=SOON_S)) == [held("old")]


def test_trouble_while_a_file_is_completed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails is not passed over: the next call begins anew."""
    path = tmp_path / "locks.db"
    old_file(path)
    with closing(SqliteStore(path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(wire, "ADD_WRITTEN", "ALTER TABLE no_such_table ADD COLUMN written TEXT")
            with pytest.raises(Exception, match="no such table"):
                age_of(store)

        assert age_of(store) == 0


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
