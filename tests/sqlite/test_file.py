"""The file of the SQLite store: made, opened, refused, and left as others expect it."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import (
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.store import Replace
from dlock_sqlite import SqliteStore, _rights
from tests.sqlite.support import SOON_S, free, held, mode_of, output, read, sql, start, take

if TYPE_CHECKING:
    from collections.abc import Callable


NOBODY = 65534


def uncovered() -> dict[str, str]:
    """Return the environment for a process that may not write here, and so cannot measure its coverage."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


class TestFile:
    """Making, finding and refusing the file."""

    def test_nothing_is_made_before_the_first_call(self, path: Path, store: SqliteStore) -> None:
        """A store that is not used leaves nothing behind."""
        store.close()

        assert list(path.parent.iterdir()) == []

    def test_a_new_file_is_for_its_owner_only(self, path: Path, store: SqliteStore) -> None:
        """The file and its helpers are 0600 under any umask."""
        before = os.umask(0)
        try:
            take(store)
        finally:
            os.umask(before)

        modes = {name: mode_of(path.with_name(name)) for name in ("locks.db", "locks.db-wal", "locks.db-shm")}
        assert modes == dict.fromkeys(modes, 0o600)

    def test_an_empty_file_is_taken_and_closed_to_others(self, path: Path, store: SqliteStore) -> None:
        """An empty file is nobody's data."""
        path.touch(0o644)

        take(store)

        assert mode_of(path) == 0o600

    def test_a_mode_that_the_owner_chose_stays(self, path: Path, store: SqliteStore) -> None:
        """Users who share a file through a group are not shut out by the next start."""
        take(store)
        store.close()
        path.chmod(0o660)

        with closing(SqliteStore(path)) as again:
            assert read(again) is not None
            assert (mode_of(path), mode_of(Path(f"{path}-wal"))) == (0o660, 0o660)

    @pytest.mark.parametrize(("synchronous", "number"), [("full", 2), ("extra", 3), ("normal", 1)])
    def test_the_settings_are_those_asked_for(
        self, path: Path, open_store: Callable[..., SqliteStore], synchronous: str, number: int
    ) -> None:
        """The log is write-ahead, the sync as asked, the marks ours."""
        store = open_store(path, synchronous=synchronous)

        def ask(connection: sqlite3.Connection) -> list[object]:
            names = ("journal_mode", "synchronous", "application_id", "user_version")
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

        assert store._file.run(ask, None, SOON_S) == ["wal", number, 0x646C6F6B, 1]

    def test_a_relative_path_and_links_are_resolved_once(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, open_store: Callable[..., SqliteStore]
    ) -> None:
        """A program that changes its directory keeps its file, and a link leads to the same locks."""
        link = path.with_name("link.db")
        link.symlink_to(path)
        monkeypatch.chdir(path.parent)
        store, linked = open_store(Path("locks.db")), open_store(link)
        monkeypatch.chdir("/")

        record = take(store)

        assert read(linked) == record
        assert store.path == linked.path == str(path)

    def test_odd_names_are_names(self, tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
        """What means something in a URI or in SQL is only a character in a path."""
        path = tmp_path / "a?mode=memory&b#c%41 'd\" é.db"

        take(open_store(path))

        assert path.stat().st_size > 0

    def test_another_programs_database_is_refused_untouched(self, path: Path, store: SqliteStore) -> None:
        """A foreign SQLite file is byte for byte what it was, and has no new neighbours."""
        sql(path, "CREATE TABLE precious (x)")
        before = path.read_bytes()

        with pytest.raises(StoreSetupError, match="another program's database") as caught:
            take(store)

        assert (path.read_bytes(), list(path.parent.iterdir())) == (before, [path])
        assert str(path) in str(caught.value)

    def test_another_programs_log_is_not_merged(self, path: Path, store: SqliteStore) -> None:
        """A foreign file in use, with a log that is not merged yet, keeps both as they are."""
        with closing(sqlite3.connect(path, isolation_level=None)) as theirs:
            theirs.execute("PRAGMA journal_mode = WAL")
            theirs.execute("CREATE TABLE precious (x)")
            files = sorted(path.parent.iterdir())
            before = [file.read_bytes() for file in files if not file.name.endswith("-shm")]

            with pytest.raises(StoreSetupError, match="another program's database"):
                take(store)

            assert sorted(path.parent.iterdir()) == files
            assert [file.read_bytes() for file in files if not file.name.endswith("-shm")] == before

    def test_another_programs_crash_is_not_recovered(self, path: Path, store: SqliteStore) -> None:
        """A foreign file that its program left with a log, as a crash does, is left for its program to recover."""
        used = path.with_name("used.db")
        with closing(sqlite3.connect(used, isolation_level=None)) as theirs:
            theirs.execute("PRAGMA journal_mode = WAL")
            theirs.execute("CREATE TABLE precious (x)")
            path.write_bytes(used.read_bytes())
            log = path.with_name("locks.db-wal")
            log.write_bytes(used.with_name("used.db-wal").read_bytes())
        before = [path.read_bytes(), log.read_bytes()]

        with pytest.raises(StoreSetupError, match="another program's database"):
            take(store)

        assert [path.read_bytes(), log.read_bytes()] == before
        assert len(before[1]) > 4096

    @pytest.mark.parametrize("content", [b"x", b"hello", b"\0" * 4096, b"# a text\n" * 1000])
    def test_what_is_no_database_is_refused_untouched(self, path: Path, store: SqliteStore, content: bytes) -> None:
        """A file of any other kind is byte for byte what it was."""
        path.write_bytes(content)

        with pytest.raises(StoreSetupError, match=r"not a SQLite database|another program's"):
            take(store)

        assert (path.read_bytes(), list(path.parent.iterdir())) == (content, [path])

    def test_a_newer_file_is_refused(self, path: Path, store: SqliteStore) -> None:
        """A file of a format to come names the update."""
        take(store)
        store.close()
        sql(path, "PRAGMA user_version = 2")

        with closing(SqliteStore(path)) as again, pytest.raises(StoreSetupError, match="pip install -U dlock-core"):
            read(again)

    def test_a_missing_directory_is_named(self, tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
        """The message has the command that makes the directory, for a shell: a blank does not end its name."""
        with pytest.raises(StoreSetupError, match=f"mkdir -p '{tmp_path}/no where'"):
            take(open_store(tmp_path / "no where" / "locks.db"))

    def test_a_directory_is_no_file(self, tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
        """A path that is something else is refused."""
        with pytest.raises(StoreSetupError, match="not a file"):
            take(open_store(tmp_path))

    @pytest.mark.parametrize("protected", ["file", "directory", "directory without a file"])
    def test_what_cannot_be_written_says_so(self, protected: str) -> None:
        """Without the right to write, the error names the path and the right that is missing."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "locks.db"
            if protected != "directory without a file":
                with closing(SqliteStore(path)) as store:
                    take(store)
            if path.exists():
                path.chmod(0o444 if protected == "file" else 0o666)
            path.parent.chmod(0o777 if protected == "file" else 0o555)
            # Rights mean nothing to root, so the store is asked by somebody else, for whom alone the effective user says so.
            program = f"""
if os.geteuid() == 0:
    os.setgroups([]); os.setegid({NOBODY}); os.seteuid({NOBODY})
try:
    take(store, "other")
except StoreSetupError as error:
    say(error)
store.close()
"""

            said = output(start(program, path, env=uncovered()))
            path.parent.chmod(0o755)

        assert str(path) in said
        right = {
            "file": f"give this user read and write permission on '{path}', or run as its owner",
            "directory": f"give this user write permission on the directory '{path.parent}'",
        }
        assert right[protected.partition(" ")[0]] in said

    @pytest.mark.parametrize("lacking", ["-wal", "way"])
    def test_what_stands_in_the_way_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
    ) -> None:
        """SQLite says of each that it cannot be opened; rights mean nothing to root, so the system's answer stands in."""
        path = tmp_path / "inner" / "locks.db"
        path.parent.mkdir()
        for name in (path, Path(f"{path}-wal")):
            name.touch()
        refused = f"{path}-wal" if lacking == "-wal" else str(tmp_path)
        monkeypatch.setattr(_rights, "_may", lambda name, _: name != refused)

        assert refused in str(_rights.missing_right(str(path)))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
    def test_an_empty_file_of_somebody_else_is_refused(self) -> None:
        """A file that cannot be closed to others does not become one of locks."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "locks.db"
            path.touch()
            path.chmod(0o666)
            path.parent.chmod(0o777)
            program = f"""
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    take(store)
except StoreSetupError as error:
    say(error)
store.close()
"""

            said = output(start(program, path, env=uncovered()))

            assert "cannot be closed to other users" in said
            assert path.stat().st_size == 0

    @pytest.mark.parametrize(
        ("code", "kind", "words"),
        [
            (errno.EACCES, StoreSetupError, "write permission on the directory"),
            (errno.EROFS, StoreSetupError, "write permission on the directory"),
            (errno.ENOSPC, StoreUnavailableError, "check the disk"),
        ],
    )
    def test_an_error_of_the_system_names_the_next_step(
        self, store: SqliteStore, code: int, kind: type[StoreError], words: str
    ) -> None:
        """What the user has to mend is told from what may pass."""
        error = store._file._system_error(OSError(code, os.strerror(code)))

        assert type(error) is kind
        assert words in str(error)
        assert os.strerror(code) in str(error)

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the proc file system")
    def test_a_file_system_that_takes_no_files_is_told(self, open_store: Callable[..., SqliteStore]) -> None:
        """A file that cannot be made there was not "removed"; who only looks is told, too."""
        path = Path("/proc/dlock-test.db")
        with pytest.raises(StoreSetupError, match="takes no files") as caught:
            take(open_store(path))

        assert "removed" not in str(caught.value)
        with pytest.raises(StoreSetupError, match="takes no files"):
            SqliteStore(path, creates=False).guarantees()

    def test_a_file_system_without_shared_memory_is_refused(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a write-ahead log there is no store; the driver's own layer without shared memory stands for such a disk."""
        connect = store._file._connect
        monkeypatch.setattr(store._file, "_connect", lambda query: connect(f"{query}&vfs=unix-none"))

        for _ in range(2):
            with pytest.raises(StoreSetupError, match="no shared memory"):
                take(store)

    def test_a_full_disk_is_told_and_passes(self, tmp_path: Path) -> None:
        """What is held is renewed and released in the space that there is, though the log has keys for which the file had to grow."""
        program = """
first = take(store)
for number in range(40):
    take(store, str(number))
with open(os.path.dirname(path) + "/filler", "wb", buffering=0) as filler:
    for size in (4096, 1):
        try:
            while True:
                filler.write(b"x" * size)
        except OSError:
            pass
try:
    for number in range(40, 2000):
        take(store, str(number))
except StoreUnavailableError as error:
    say("full", path in str(error) and "nothing was written, the disk is full" in str(error) and "free some space" in str(error))
record = first.record
for _ in range(200):
    wanted = dataclasses.replace(held(), fencing_token=record.fencing_token)
    record = store.replace(Replace(wanted, record.version), timeout_s=10).record
say("kept", free(store, record).applied)
os.unlink(os.path.dirname(path) + "/filler")
say("again", take(store).record.fencing_token > record.fencing_token, store.read("1999", timeout_s=5))
store.close()
say(sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone()[0])
os._exit(0)
"""
        # The mount is in a namespace of its own and ends with it.
        enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        mount = ["sh", "-c", f'mount -t tmpfs -o size=512k none {tmp_path} && exec "$@"', "sh"]

        said = output(start(program, tmp_path / "locks.db", *enter, *mount))

        assert said.split("\n") == ["full True", "kept True", "again True None", "ok", ""]

    def test_a_failing_write_is_told(self, path: Path) -> None:
        """An error of the file system at the commit leaves the outcome open, and the store usable."""
        program = """
import resource
record = take(store).record
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    free(store, record)
except OutcomeUnknownError as error:
    say("unknown", path in str(error), type(error.__cause__).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say(free(store, record).applied)
store.close()
"""
        assert output(start(program, path)).split("\n") == ["unknown True OperationalError", "True", ""]

    def test_a_damaged_file_is_told(self, path: Path, store: SqliteStore) -> None:
        """A page that makes no sense is an error that says how to look at it."""
        for number in range(200):
            take(store, f"k{number}", data=b"x" * 200)
        store.close()
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))

        with closing(SqliteStore(path)) as again, pytest.raises(StoreSetupError, match="integrity_check"):
            read(again, "k0")

    def test_a_file_that_another_process_is_writing_is_looked_at_again(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its first page speaks of pages that are not there yet: that is no damage before it stays so."""
        with_all = path.with_name("made.db")
        other = SqliteStore(with_all)
        free(other, take(other))
        other.close()
        whole = with_all.read_bytes()
        path.write_bytes(whole[:4096])
        monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(whole))

        assert take(store).fencing_token == 2

    def test_missing_tables_are_told(self, path: Path, store: SqliteStore) -> None:
        """A file without its table asks for its backup; that is no error of one lock in a batch."""
        record = take(store)
        sql(path, "DROP TABLE lock")

        with pytest.raises(StoreSetupError, match="backup"):
            take(store)
        with pytest.raises(StoreSetupError, match="backup"):
            store.replace_many([Replace(held(), record.version)], timeout_s=SOON_S)

    @pytest.mark.parametrize("replaced", [True, False])
    @pytest.mark.parametrize("reopened", [True, False])
    def test_a_file_that_is_taken_away_ends_its_store(
        self, path: Path, store: SqliteStore, replaced: bool, reopened: bool
    ) -> None:
        """Tokens would begin again in a new file, and its users not see this one's locks; also where the connection is another."""
        take(store)
        path.rename(path.with_name("away.db"))
        if replaced:
            with closing(SqliteStore(path)) as other:
                take(other)

        # A file that is used all the time is looked at ten times a second.
        store._file._check_at = 0
        if reopened:
            store._file._drop()
        for _ in range(2):
            with pytest.raises(StoreSetupError, match=r"removed|replaced") as refused:
                read(store)
            assert refused.value.key == "k"
        assert path.exists() == replaced
