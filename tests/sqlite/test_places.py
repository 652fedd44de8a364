"""Places in which no SQLite file can be used, whatever rights this user has: the error says what is wrong with the place."""

from __future__ import annotations

import os
import types
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import ConfigurationError, StoreSetupError
from dlock_sqlite import SqliteStore, _rights
from tests.sqlite.support import read, take

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_file_system_that_cannot_be_written_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No right of this user's would help. Only root can mount one, so the system's answer stands in."""
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_flag=os.ST_RDONLY))

    assert _rights.missing_right(str(tmp_path / "locks.db")) == f"mount the file system of '{tmp_path}' for writing"


def test_a_working_directory_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means nothing there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(ConfigurationError, match="working directory was removed"):
        SqliteStore("locks.db")


def test_a_directory_that_is_renamed_under_an_open_file_is_not_to_be_made(
    tmp_path: Path, open_store: Callable[..., SqliteStore]
) -> None:
    """In a new one there would be a new file, whose users are granted what this one's hold."""
    home = tmp_path / "home"
    home.mkdir()
    store = open_store(home / "locks.db")
    held = take(store)
    home.rename(tmp_path / "elsewhere")

    store._file._check_at = 0  # a file that is used all the time is looked at ten times a second
    with pytest.raises(StoreSetupError, match="its directory, was removed or replaced while it was open; put it back"):
        read(store)

    (tmp_path / "elsewhere").rename(home)
    assert read(store) == held


def test_a_link_that_is_turned_to_another_directory_ends_the_store(
    tmp_path: Path, open_store: Callable[..., SqliteStore]
) -> None:
    """As a deployment does it: who begins after that has another file, in which none of the locks are."""
    old, new, current = tmp_path / "1", tmp_path / "2", tmp_path / "current"
    for each in (old, new):
        each.mkdir()
    current.symlink_to(old)
    store = open_store(current / "locks.db")
    held = take(store)
    current.unlink()
    current.symlink_to(new)
    take(open_store(current / "locks.db"))

    store._file._check_at = 0  # as above
    with pytest.raises(StoreSetupError, match="replaced while it was open"):
        read(store)

    current.unlink()
    current.symlink_to(old)
    assert read(store) == held


@pytest.mark.parametrize(
    "name", ["n" * 248, "n" * 256, "/".join(["n" * 100] * 5)], ids=["with SQLite's end", "file system", "SQLite"]
)
def test_path_that_is_too_long_is_told_as_that(tmp_path: Path, name: str) -> None:
    """Whoever reads of permissions and open files looks there in vain."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)

    with closing(SqliteStore(path)) as store, pytest.raises(StoreSetupError, match="give a shorter path"):
        store.guarantees()
