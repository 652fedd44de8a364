"""The named pipes of those who wait for a lock in SQLite: what is left of them, and whom they wake."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from dlock_sqlite import _wake
from tests.sqlite.support import free, take

if TYPE_CHECKING:
    from dlock_sqlite import SqliteStore


def descriptors() -> list[str]:
    """Return the numbers of the files that this process has open."""
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


class TestPipes:
    """Each is a waiter, until its name is removed."""

    def test_a_place_that_is_taken_leaves_nothing_open(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pipe that cannot get its name is removed, and the row is looked at instead."""
        monkeypatch.setattr("dlock_sqlite._wake.secrets.token_hex", lambda size: "same")
        monkeypatch.setattr("dlock_sqlite._wake.now_ns", lambda: 1)
        record = take(store)
        directory = Path(store._file.wake_ups._of("k"))
        (directory / f"{1:020d}-same").mkdir(parents=True)
        before = descriptors()

        assert not store._file.wake_ups.wait("k", "t", 0, lambda: False)

        assert descriptors() == before
        assert [entry.name for entry in directory.iterdir()] == [f"{1:020d}-same"]
        # What is no pipe is passed over, too.
        free(store, record)

    def test_a_waiter_that_cannot_be_woken_now_is_left_alone(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a free descriptor, or before its pipe has its name, it is neither woken nor counted, and not taken for dead.

        Without one nobody can begin to wait either, and no pipe is left of the try.
        """
        take(store)
        name, pipe = store._file.wake_ups._enter("k", "t")
        hidden = Path(name).with_name(".hidden")
        os.mkfifo(hidden)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "too many")))
            assert not store._file.wake_ups.wake("k")
            assert not store._file.wake_ups.wait("k", "late", 0, lambda: False)

        assert sorted(hidden.parent.iterdir()) == [hidden, Path(name)]
        assert store._file.wake_ups.count("k") == 1
        assert [store._file.wake_ups.wake("k") for _ in range(2)] == [True, False]
        assert hidden.exists()
        hidden.unlink()
        store._file.wake_ups._leave("k", name, pipe, woken=True)

    def test_a_pipe_whose_name_another_removed_is_not_counted(self, store: SqliteStore) -> None:
        """Only who removes the name has woken the waiter; one that was gone before is no waiter at all."""
        take(store)
        name, pipe = store._file.wake_ups._enter("k", "t")

        # Through this name the pipe can be opened, and the name cannot be removed.
        assert not _wake._hang_up(f"/proc/self/fd/{pipe}")
        assert not _wake._hang_up(f"{name}-gone")

        assert _wake._hang_up(name)
        store._file.wake_ups._leave("k", name, pipe, woken=True)

    def test_an_exception_in_a_waiter_leaves_no_pipe(self, path: Path, store: SqliteStore) -> None:
        """A waiter that is interrupted is no longer listed."""
        take(store)

        def interrupted() -> bool:
            raise KeyboardInterrupt

        before = descriptors()
        with pytest.raises(KeyboardInterrupt):
            store._file.wake_ups.wait("k", "t", 5, interrupted)

        assert descriptors() == before
        assert not Path(f"{path}-wake").exists()
        assert store._file.wake_ups._pipes == set()
