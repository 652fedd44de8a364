"""The log of a SQLite file, in which its last writes are: a lock is in the file and its log together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import StoreSetupError
from tests.sqlite.support import output, read, start, take

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_sqlite import SqliteStore


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
