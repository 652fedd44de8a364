"""The log of a SQLite file, in which its last writes are: a lock is in the file and its log together."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import StoreSetupError
from dlock_sqlite import SqliteStore, _file
from tests.sqlite.support import output, read, start, take

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path


@pytest.mark.parametrize("kinds", [["wal", "shm"], ["shm"], ["wal"]])
def test_a_log_that_is_taken_away_ends_its_store(path: Path, store: SqliteStore, kinds: list[str]) -> None:
    """Who opens the file after that sees none of the locks in it, and is granted them too: no holder goes on for ever."""
    take(store)
    for kind in kinds:
        path.with_name(f"{path.name}-{kind}").unlink()

    store._file._check_at = 0  # a file that is used all the time is looked at ten times a second
    for _ in range(2):
        with pytest.raises(StoreSetupError, match="-wal or -shm was removed"):
            read(store)


def test_what_is_held_is_renewed_where_no_file_may_grow(path: Path) -> None:
    """As on a full disk. SQLite says something else where a quota is used up, for which a limit of the process stands in."""
    program = """
import resource
record = take(store).record
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))
for _ in range(100):
    wanted = dataclasses.replace(held(), fencing_token=record.fencing_token)
    record = store.replace(Replace(wanted, record.version), timeout_s=10).record
say("kept", free(store, record).applied)
store.close()
"""
    assert output(start(program, path)).split("\n") == ["kept True", ""]


# Where *kill_at* was called the kernel kills the process at its first write beyond so many bytes of a file.
KILLED = """
import resource
def kill_at(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def fill(*keys):
    store = SqliteStore(path)
    for key in keys:
        store.claim(Claim(dataclasses.replace(held(key), data=b"x" * 1000), Expect.ANY), timeout_s=10)
    store.close()
"""


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        ("kill_at(4096); fill('new')", []),
        ("fill(*map(str, range(200))); kill_at(os.stat(path).st_size); fill(*map(str, range(200, 220)))", range(201)),
    ],
    ids=["as it is made", "as the log is brought into it"],
)
def test_a_process_that_is_killed_leaves_no_damage(
    path: Path, open_store: Callable[..., SqliteStore], program: str, kept: Sequence[int]
) -> None:
    """The first page, written first, speaks of pages that are not there: the file was refused for ever, with all that is held."""
    process = start(KILLED + program, path)
    _, trouble = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGXFSZ, trouble
    pages = int.from_bytes(path.read_bytes()[28:32], "big")
    assert path.stat().st_size < 4096 * pages

    store = open_store(path)
    assert all(read(store, str(number)) is not None for number in kept)
    take(store, "new")


def test_a_file_that_another_made_meanwhile_is_taken_as_it_is(
    path: Path, store: SqliteStore, open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found it empty; who comes second looks once more when it has the file for itself."""
    other, is_blank = open_store(path), _file._is_blank

    def overtaken(connection: sqlite3.Connection) -> bool:
        found = is_blank(connection)
        monkeypatch.setattr(_file, "_is_blank", is_blank)
        take(other)
        return found

    monkeypatch.setattr(_file, "_is_blank", overtaken)

    assert read(store) is not None
