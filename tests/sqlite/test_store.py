"""The SQLite store: its file, its steps, its trouble, its forks and its wake-ups."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.backend import backend_for
from dlock_core.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.memory import MemoryStore
from dlock_core.record import TOKEN_MAX, Attributes, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import Claim, Expect, Grade, Release, Replace, Reply
from dlock_sqlite import SqliteOptions, SqliteStore, _wake, backend, provision
from dlock_sqlite import _wire as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
NOBODY = 65534
SOON_S = 5.0
_numbers = count(1)

# What the processes of these tests begin with; argv[1] is the path of the file.
PRELUDE = """
import os, signal, sqlite3, sys, threading, time
from dlock_core.errors import *
from dlock_core.record import LockRecord, State
from dlock_sqlite.store import SqliteStore
from dlock_core.store import Claim, Expect, Release, Replace

def held(key="k", token=1, lease_ms=20000):
    return LockRecord(key, State.HELD, os.urandom(16).hex(), token, f"pid {os.getpid()}", lease_ms)

def take(store, key="k"):
    return store.claim(Claim(held(key), Expect.ANY), timeout_s=10)

def free(store, record):
    tombstone = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
    return store.release(Release(tombstone, record.version), timeout_s=10)

def say(*words):
    print(*words, flush=True)

path = sys.argv[1]
store = SqliteStore(path)
"""


def fresh_rvn() -> str:
    """Return an RVN that no other record has."""
    return f"rvn-{next(_numbers)}"


def held(key: str = "k", token: int = 1, **fields: Any) -> LockRecord:
    """Return a record to claim with."""
    return LockRecord(key, State.HELD, fresh_rvn(), token, "owner", fields.pop("lease_ms", 20_000), **fields)


def take(store: SqliteStore, key: str = "k", ticket: str | None = None, **fields: Any) -> LockRecord:
    """Claim *key*, which must be free."""
    reply = store.claim(Claim(held(key, **fields), Expect.ANY, ticket=ticket), timeout_s=SOON_S)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def free(store: SqliteStore, record: LockRecord, state: State = State.FREE) -> LockRecord:
    """Release *record*, which must stand."""
    tombstone = LockRecord(record.key, state, fresh_rvn(), record.fencing_token, "", None)
    reply = store.release(Release(tombstone, record.version), timeout_s=SOON_S)
    assert reply == Reply(applied=True, record=tombstone)
    return tombstone


def read(store: SqliteStore, key: str = "k") -> LockRecord | None:
    """Read *key* with time enough."""
    return store.read(key, timeout_s=SOON_S)


def mode_of(path: Path) -> int:
    """Return the permission bits of *path*."""
    return stat.S_IMODE(path.stat().st_mode)


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    """Run *statement* on the file from outside of the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def start(program: str, path: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Start a process that runs *program* after the prelude."""
    return subprocess.Popen(
        [*words, sys.executable, "-W", "error", "-c", PRELUDE + program, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def uncovered() -> dict[str, str]:
    """Return the environment for a process that may not write here, and so cannot measure its coverage."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


def output(process: subprocess.Popen[str]) -> str:
    """Return what *process* said, once it has ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    return out


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that *process* says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def eventually(condition: Callable[[], object]) -> None:
    """Return once *condition()* is true; looking for it is the only way to see another thread begin to wait."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def pipes(path: Path) -> list[Path]:
    """Return the named pipes of the waiters at *path*, the one that has waited longest first."""
    return sorted(Path(f"{path}-wake").glob("*/[0-9]*"), key=lambda pipe: pipe.name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path for a file."""
    return tmp_path / "locks.db"


@pytest.fixture
def open_store() -> Iterator[Callable[..., SqliteStore]]:
    """Open stores that are closed at the end."""
    stores: list[SqliteStore] = []

    def opened(path: Path, **options: Any) -> SqliteStore:
        stores.append(SqliteStore(path, **options))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def store(path: Path, open_store: Callable[..., SqliteStore]) -> SqliteStore:
    """Return a store on a new file."""
    return open_store(path)


class TestOptions:
    """From a URL to options."""

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///relative.db", "relative.db"),
            ("sqlite:///some/folder/relative.db", "some/folder/relative.db"),
            ("sqlite:////abs/path.db", "/abs/path.db"),
            ("sqlite:////abs/with%20space%3F%23%25.db", "/abs/with space?#%.db"),
            ("sqlite:///caf%C3%A9.db", "café.db"),
            ("sqlite:///%FF.db", os.fsdecode(b"\xff.db")),
            ("SQLITE:///a.db?synchronous=extra", "a.db"),
        ],
    )
    def test_the_path_of_a_url_is_decoded(self, url: str, path: str) -> None:
        """Three slashes are relative, four absolute, and percent signs give any byte."""
        assert SqliteOptions.from_url(url).path == path

    def test_the_url_wins_over_settings(self) -> None:
        """A setting of the file yields to the query."""
        assert SqliteOptions.from_url("sqlite:///a?synchronous=normal", synchronous="extra").synchronous == "normal"
        assert SqliteOptions.from_url("sqlite:///a", synchronous="extra").synchronous == "extra"
        assert SqliteOptions.from_url("sqlite:///a").synchronous == "full"

    @pytest.mark.parametrize(
        ("url", "settings", "words"),
        [
            ("sqlite://", {}, "no file"),
            ("sqlite:///", {}, "no file"),
            ("sqlite:///:memory:", {}, "memory://"),
            ("sqlite:///%3Amemory%3A", {}, "memory://"),
            ("sqlite://relative.db", {}, "sqlite:///relative.db"),
            ("sqlite://host/path.db", {}, "has a host"),
            ("sqlite://user:secret@host/path.db", {}, "has a host"),
            ("sqlite:///a%00b.db", {}, "zero byte"),
            ("sqlite:///folder/", {}, "directory"),
            ("sqlite:///a.db?mode=ro", {}, "unknown query key 'mode'"),
            ("sqlite:///a.db?synchronous=off", {}, "'off' is not one of full, extra, normal"),
            ("sqlite:///a.db?synchronous=full&synchronous=extra", {}, "twice"),
            ("sqlite:///a.db#b", {}, "fragment"),
            ("sqlite:///a.db", {"table": "x"}, "no setting 'table'"),
            ("sqlite:///a.db", {"path": "x"}, "no setting 'path'"),
            ("sqlite:///a.db", {"synchronous": 2}, "2 is not one of"),
        ],
    )
    def test_what_is_wrong_is_said(self, url: str, settings: dict[str, Any], words: str) -> None:
        """Every mistake is a ConfigurationError that shows no secret."""
        with pytest.raises(ConfigurationError) as caught:
            SqliteOptions.from_url(url, **settings)

        assert words in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_the_store_refuses_what_the_url_refuses(self) -> None:
        """Who makes the store without a URL gets the same errors."""
        for path in ("", ":memory:", "a\0b", "folder/"):
            with pytest.raises(ConfigurationError):
                SqliteStore(path)
        with pytest.raises(ConfigurationError, match="not one of"):
            SqliteStore("a.db", synchronous="off")  # type: ignore[arg-type]

    def test_the_scheme_opens_the_store(self, path: Path) -> None:
        """The entry point leads here, and threads serve asyncio."""
        found: object = backend_for("sqlite:///a.db")
        options = SqliteOptions.from_url(f"sqlite:///{path}?synchronous=extra")

        store = backend.open(options)

        assert found is backend
        assert isinstance(store, SqliteStore)
        assert (store.path, store.synchronous) == (str(path), "extra")
        assert backend.aopen(options) is None
        store.close()


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
        """The message has the command that makes the directory."""
        with pytest.raises(StoreSetupError, match=f"mkdir -p {tmp_path}/no/where"):
            take(open_store(tmp_path / "no" / "where" / "locks.db"))

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
            # Rights mean nothing to root, so the store is asked by somebody else.
            program = f"""
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    take(store, "other")
except StoreSetupError as error:
    say(error)
store.close()
"""

            said = output(start(program, path, env=uncovered()))
            path.parent.chmod(0o755)

        assert str(path) in said
        assert "write permission" in said

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
        error = store._file._system_error(OSError(code, os.strerror(code)), "k")

        assert type(error) is kind
        assert words in str(error)
        assert os.strerror(code) in str(error)

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the proc file system")
    def test_a_file_system_that_takes_no_files_is_told(self, open_store: Callable[..., SqliteStore]) -> None:
        """A file that cannot be made there was not "removed"."""
        with pytest.raises(StoreSetupError, match="takes no files") as caught:
            take(open_store(Path("/proc/dlock-test.db")))

        assert "removed" not in str(caught.value)

    def test_a_name_that_no_file_can_have_is_told(self, tmp_path: Path, open_store: Callable[..., SqliteStore]) -> None:
        """The system's words are passed on."""
        with pytest.raises(StoreUnavailableError, match="too long"):
            take(open_store(tmp_path / ("x" * 300)))

    def test_a_file_system_without_shared_memory_is_refused(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a write-ahead log there is no store; the driver's own layer without shared memory stands for such a disk."""
        connect = store._file._connect
        monkeypatch.setattr(store._file, "_connect", lambda query: connect(f"{query}&vfs=unix-none"))

        with pytest.raises(StoreSetupError, match="no shared memory"):
            take(store)

    def test_a_full_disk_is_told_and_passes(self, tmp_path: Path) -> None:
        """The commit that meets a full disk is in doubt, not lost; with space again the file works and its tokens go on."""
        program = """
first = take(store)
free(store, first.record)
with open(os.path.dirname(path) + "/filler", "wb", buffering=0) as filler:
    for size in (4096, 1):
        try:
            while True:
                filler.write(b"x" * size)
        except OSError:
            pass
try:
    for _ in range(100):
        free(store, take(store).record)
except OutcomeUnknownError as error:
    say("unknown", path in str(error) and "free some space" in str(error))
before = store.read("k", timeout_s=5).fencing_token
os.unlink(os.path.dirname(path) + "/filler")
record = store.read("k", timeout_s=5)
if record.held:
    free(store, record)
say("again", take(store).record.fencing_token > before)
store.close()
say(sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone()[0])
os._exit(0)
"""
        # The mount is in a namespace of its own and ends with it.
        enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        mount = ["sh", "-c", f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"', "sh"]

        said = output(start(program, tmp_path / "locks.db", *enter, *mount))

        assert said.split("\n") == ["unknown True", "again True", "ok", ""]

    def test_a_failing_write_is_told(self, path: Path) -> None:
        """An error of the file system at the commit leaves the outcome open, and the store usable."""
        program = """
import resource
record = take(store).record
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal"), resource.RLIM_INFINITY))
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
        """A file without its table asks for its backup."""
        take(store)
        sql(path, "DROP TABLE lock")

        with pytest.raises(StoreSetupError, match="backup"):
            take(store)

    @pytest.mark.parametrize("replaced", [True, False])
    def test_a_file_that_is_taken_away_ends_its_store(self, path: Path, store: SqliteStore, replaced: bool) -> None:
        """Tokens would begin again in a new file, and its users not see this one's locks."""
        take(store)
        path.rename(path.with_name("away.db"))
        if replaced:
            with closing(SqliteStore(path)) as other:
                take(other)

        # A file that is used all the time is looked at ten times a second.
        store._file._check_at = 0
        for _ in range(2):
            with pytest.raises(StoreSetupError, match=r"removed|replaced"):
                read(store)
        assert path.exists() == replaced


class TestSteps:
    """The conditions and effects of the port."""

    def test_a_thousand_steps_agree_with_the_reference(self, store: SqliteStore, rng: random.Random) -> None:
        """Whatever is asked, the answer and the records are those of the memory store."""
        reference = MemoryStore()
        versions = [Version("rvn-0", 1)]
        granted = 0
        for _ in range(1500):
            request = _request(rng, versions)
            verb = type(request).__name__.lower()

            ours = getattr(store, verb)(request, timeout_s=SOON_S)
            theirs = getattr(reference, verb)(request, timeout_s=SOON_S)

            assert ours == theirs, request
            granted += ours.applied
            if ours.record is not None:
                versions = [*versions[-3:], ours.record.version]
        assert 300 < granted < 1400
        assert list(store.scan("", timeout_s=SOON_S)) == list(reference.scan("", timeout_s=SOON_S))

    @pytest.mark.parametrize("data", [None, b"", b"\0", b"x" * 65536, bytes(range(256))])
    def test_data_is_exact(self, store: SqliteStore, data: bytes | None) -> None:
        """None is not empty, and no byte is special."""
        record = take(store, data=data)

        assert read(store) == record
        assert record.data == data

    def test_every_field_is_exact(self, path: Path, store: SqliteStore) -> None:
        """Each kind of attribute keeps its type, and the optional parts come back."""
        attributes: Attributes = (
            ("a", ""),
            ("b", b""),
            ("c", b"\0\xff"),
            ("d", True),
            ("e", 1),
            ("f", 0),
            ("g", False),
            ("h", 2**63 - 1),
            ("i", -(2**63) + 1),
            ("j", '{"base64": "AA=="}'),
            ("k", "é\0\U0001f600\ud800"),
        )
        written = take(
            store,
            lease_ms=None,
            attributes=attributes,
            stamp=Stamp(1, "r"),
            process=ProcessIdentity("boot", 2, 3, 4, None),
            broken=Broken("é", 5),
        )
        store.close()

        with closing(SqliteStore(path)) as again:
            found = read(again)

        assert found == written
        assert found is not None
        assert [type(value) for _, value in found.attributes] == [type(value) for _, value in attributes]
        assert found.process == ProcessIdentity("boot", 2, 3, 4, None)

    def test_a_child_group_is_exact(self, store: SqliteStore) -> None:
        """The group of a command's child is kept, zero too."""
        for number in (0, 77):
            record = take(store, f"k{number}", process=ProcessIdentity("boot", 2, 3, 4, number))

            assert read(store, f"k{number}") == record

    def test_keys_are_bytes(self, store: SqliteStore) -> None:
        """No two keys that differ in a byte meet, and each is found again."""
        keys = [
            "a",
            "A",
            "a ",
            " a",
            "\u00e1",
            "a\u0301",
            "a%",
            "a_",
            "a*",
            "a'",
            "ß",
            "ss",
            "\U0010ffff",
            "k" * 1024,
            "a\0",
            "1",
            "01",
            "1.0",
        ]

        for key in keys:
            assert take(store, key).fencing_token == 1

        assert [record.key for record in store.scan("", timeout_s=SOON_S)] == sorted(keys, key=str.encode)

    @pytest.mark.parametrize("prefix", ["", "a", "a/", "a%", "a_", "A", "\U0010ffff", "é", "none", "a/0499"])
    def test_scan_compares_bytes(self, path: Path, store: SqliteStore, prefix: str) -> None:
        """Nothing in a prefix is a wildcard, and pages have no seams."""
        keys = [f"a/{number:04d}" for number in range(1203)]
        keys += ["a", "a%b", "aXb", "a_b", "A/1", "b", "é1", "e1", "\U0010ffff", "\U0010ffffz", "\U0010fffe"]
        rows = [wire.encode(held(key)) for key in keys]
        store.provision()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executemany(wire.WRITE, rows)

        found = [record.key for record in store.scan(prefix, timeout_s=SOON_S)]

        assert found == sorted((key for key in keys if key.startswith(prefix)), key=str.encode)

    def test_scan_ends_at_keys_that_are_no_text(self, path: Path, store: SqliteStore) -> None:
        """A row with a key of bytes is nobody's key."""
        take(store)
        sql(
            path,
            "INSERT INTO lock SELECT x'ff', format, state, rvn, fencing_token, owner, 1, '', '', '' FROM lock",
        )

        assert [record.key for record in store.scan("", timeout_s=SOON_S)] == ["k"]

    def test_tokens_survive_everything(self, path: Path, store: SqliteStore) -> None:
        """Release, logical deletion and a restart leave the token where it was."""
        free(store, take(store), State.GONE)
        store.close()
        store.close()

        with closing(SqliteStore(path)) as again:
            assert take(again).fencing_token == 2

    def test_the_last_token_is_the_end(self, store: SqliteStore) -> None:
        """A key whose tokens are used up is never granted again."""
        last = take(store, token=TOKEN_MAX)
        tombstone = free(store, last)

        with pytest.raises(StoreUnavailableError, match="reached its end"):
            take(store)

        assert read(store) == tombstone

    def test_a_batch_is_one_transaction_with_a_result_each(self, path: Path, store: SqliteStore) -> None:
        """Refusals and damage in a batch are results of their own; the rest is written by one commit."""
        records = [take(store, f"k{number}") for number in range(6)]
        sql(path, "UPDATE lock SET state = 'odd' WHERE key = 'k2'")
        requests = [Replace(held(record.key), record.version) for record in records]
        requests[1] = requests[1]._replace(expected=Version("other", 1))
        requests[3] = requests[3]._replace(record=held("absent"))
        requests[4] = requests[4]._replace(record=LockRecord("k4", State.FREE, fresh_rvn(), 1, "", None))
        with closing(sqlite3.connect(path)) as watcher:
            before = watcher.execute("PRAGMA data_version").fetchone()[0]

            results = store.replace_many(requests, timeout_s=SOON_S)

            assert watcher.execute("PRAGMA data_version").fetchone()[0] == before + 1
        assert results[0] == Reply(applied=True, record=requests[0].record)
        assert results[1] == Reply(applied=False, record=records[1])
        assert isinstance(results[2], RecordError)
        assert results[3] == Reply(applied=False, record=None)
        assert [read(store, f"k{number}") for number in (4, 5)] == [requests[4].record, requests[5].record]

    def test_a_batch_of_the_largest_size_goes_through(self, store: SqliteStore) -> None:
        """As many as are promised are renewed at once."""
        claims = [take(store, f"k{number}") for number in range(20)]
        others = [Replace(held(f"x{number}"), Version("r", 1)) for number in range(store.batch_limit - 20)]
        requests = [Replace(held(record.key), record.version) for record in claims] + others

        results = store.replace_many(requests, timeout_s=SOON_S)

        assert [result.applied for result in results if isinstance(result, Reply)] == [True] * 20 + [False] * 480

    def test_an_unencodable_text_is_refused(self, store: SqliteStore) -> None:
        """A lone surrogate is an error of ours, and nothing is written."""
        with pytest.raises(RecordError, match="no UTF-8 form"):
            store.claim(Claim(LockRecord("k", State.HELD, "r", 1, "\ud800", None), Expect.ANY), timeout_s=SOON_S)

        assert read(store) is None


def _request(rng: random.Random, versions: list[Version]) -> Claim | Replace | Release:
    payload: dict[str, Any] = {
        "data": rng.choice([None, b"", b"x"]),
        "attributes": rng.choice([(), (("a", rng.choice([1, True, b"y"])),)]),
    }
    key, keep = rng.choice(["k1", "k2"]), rng.random() < 0.5
    version = rng.choice(versions)
    match rng.randrange(4):
        case 0 | 1:
            expects: list[Expect | Version] = [Expect.ANY, Expect.ANY, Expect.ABSENT, version]
            return Claim(
                held(key, token=rng.choice([1, 1, 7]), **payload), rng.choice(expects), rng.random() < 0.2, keep
            )
        case 2:
            state = rng.choice([State.HELD] * 4 + [State.FREE])
            return Replace(
                LockRecord(key, state, fresh_rvn(), version.fencing_token + rng.randrange(2), "o", 5, **payload),
                version,
                keep,
            )
        case _:
            state = rng.choice([State.FREE, State.GONE])
            return Release(
                LockRecord(key, state, fresh_rvn(), version.fencing_token, "", None, **payload), version, keep
            )


DAMAGES = [
    "state = 'odd'",
    "state = x'68656c64'",
    "format = 0",
    "format = 'one'",
    "rvn = ''",
    "rvn = x'00'",
    "fencing_token = 0",
    "fencing_token = -1",
    "fencing_token = 1.5",
    f"fencing_token = {2**53}",
    "fencing_token = 'ten'",
    "owner = x'00'",
    "owner = CAST(x'ff' AS TEXT)",
    "lease_ms = 0",
    "lease_ms = 86400001",
    "lease_ms = 'long'",
    "payload = 'text'",
    "payload = x'7b'",
    "payload = x'5b5d0a'",
    "payload = x'5b5d0a2d00'",
    "payload = CAST('[[\"a\", 1.5]]\n-' AS BLOB)",
    "payload = CAST('[[\"a\", null]]\n-' AS BLOB)",
    'payload = CAST(\'[["b", 1], ["a", 1]]\n-\' AS BLOB)',
    'payload = CAST(\'[["a", {"hex": "?"}]]\n-\' AS BLOB)',
    'payload = CAST(\'[["a", {"base64": "00"}]]\n-\' AS BLOB)',
    "payload = CAST('[[\"a\", {}]]\n-' AS BLOB)",
    "payload = CAST('{\"ab\": 1}\n-' AS BLOB)",
    "context = '{'",
    "context = '[1]'",
    "context = 'null'",
    """context = '{"stamp": {}}'""",
    """context = '{"stamp": ["1", "r"]}'""",
    """context = '{"process": ["b"]}'""",
    """context = '{"broken": [1, 1]}'""",
    """context = '{"session": ["", 20000]}'""",
    """context = '{"unknown": 1}'""",
]


class TestUnreadable:
    """Rows that this version did not write."""

    @pytest.mark.parametrize("damage", DAMAGES)
    @pytest.mark.parametrize("state", [State.HELD, State.FREE])
    def test_a_damaged_row_is_an_error_of_every_verb(
        self, path: Path, store: SqliteStore, damage: str, state: State
    ) -> None:
        """What cannot be read is never free and never overwritten, and the key is named."""
        record = take(store)
        if state is State.FREE:
            record = free(store, record)
        take(store, "other")
        sql(path, f"UPDATE lock SET {damage} WHERE key = 'k'")  # noqa: S608
        before = path.with_name("locks.db-wal").read_bytes()
        tombstone = LockRecord("k", State.FREE, fresh_rvn(), record.fencing_token, "", None)
        verbs: list[Callable[[], object]] = [
            lambda: store.claim(Claim(held(), Expect.ANY), timeout_s=SOON_S),
            lambda: store.claim(Claim(held(), record.version), timeout_s=SOON_S),
            lambda: store.replace(Replace(held(), record.version), timeout_s=SOON_S),
            lambda: store.release(Release(tombstone, record.version), timeout_s=SOON_S),
            lambda: read(store),
            lambda: list(store.scan("", timeout_s=SOON_S)),
            lambda: store.wait(record, ticket="t", timeout_s=SOON_S),
        ]

        for verb in verbs:
            with pytest.raises(RecordError, match="'k'" if "AS TEXT" not in damage else "UTF-8"):
                verb()

        assert path.with_name("locks.db-wal").read_bytes() == before
        assert read(store, "other") is not None
        assert pipes(path) == []

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_row_is_an_error_of_its_own_in_a_batch(self, path: Path, store: SqliteStore, damage: str) -> None:
        """The renewals of all other locks of a client go on."""
        records = [take(store, key) for key in ("a", "k", "z")]
        sql(path, f"UPDATE lock SET {damage} WHERE key = 'k'")  # noqa: S608

        results = store.replace_many([Replace(held(each.key), each.version) for each in records], timeout_s=SOON_S)

        assert [isinstance(result, Reply) and result.applied for result in results] == [True, False, True]
        assert isinstance(results[1], RecordError)

    def test_a_newer_row_is_held_and_never_overwritten(self, path: Path, store: SqliteStore) -> None:
        """A record of a format to come is shown with its version, waited for, and left alone by every verb."""
        record = free(store, take(store))
        sql(path, "UPDATE lock SET format = 2, state = 'shared', payload = '['")
        before = sql(path, "SELECT * FROM lock")

        claimed = store.claim(Claim(held(), Expect.ANY), timeout_s=SOON_S)
        replaced = store.replace(Replace(held(), record.version), timeout_s=SOON_S)
        [batched] = store.replace_many([Replace(held(), record.version)], timeout_s=SOON_S)

        shown = read(store)
        assert shown is not None
        assert (shown.state, shown.version, shown.lease_ms) == (State.HELD, record.version, None)
        assert claimed == replaced == batched == Reply(applied=False, record=shown)
        assert sql(path, "SELECT * FROM lock") == before


class TestTrouble:
    """A file that is locked, and a store that is closed."""

    def test_a_locked_file_is_waited_for_as_long_as_asked(self, path: Path, store: SqliteStore) -> None:
        """When the time is over nothing was written, and the error says who to look for; reads go on meanwhile."""
        record = take(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begin = time.monotonic()

            with pytest.raises(StoreUnavailableError, match=r"locked for 0.3 s") as caught:
                store.claim(Claim(held("other"), Expect.ANY), timeout_s=0.3)

            assert 0.2 < time.monotonic() - begin < 2
            assert read(store) == record
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert (caught.value.key, str(path) in str(caught.value)) == ("other", True)
        assert read(store, "other") is None

    def test_a_lock_that_ends_in_time_is_no_trouble(self, path: Path, store: SqliteStore) -> None:
        """The step is done as soon as the file is free."""
        store.provision()
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            # Time is the subject here: the other process ends while ours waits.
            timer = threading.Timer(0.2, other.execute, ["ROLLBACK"])
            timer.start()

            record = take(store)
            timer.join()

        assert read(store) == record

    def test_a_file_locked_altogether_ends_every_verb_in_time(self, path: Path, store: SqliteStore) -> None:
        """Not even opening takes longer than the time given."""
        store.provision()
        store.close()
        with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(SqliteStore(path)) as again:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
            other.execute("PRAGMA user_version = 1")
            begin = time.monotonic()

            with pytest.raises(StoreUnavailableError):
                again.read("k", timeout_s=0.2)
            with pytest.raises(StoreUnavailableError):
                again.replace_many([], timeout_s=0.2)

            assert time.monotonic() - begin < 2

    def test_a_thread_that_stays_in_a_statement_is_waited_for_as_long_as_asked(self, store: SqliteStore) -> None:
        """The mutex of the process has the same bound as the lock of the file."""
        store.provision()
        with occupied(store), pytest.raises(StoreUnavailableError, match=r"locked for 0.1 s"):
            store.read("k", timeout_s=0.1)

    def test_a_closed_store_says_so(self, path: Path, store: SqliteStore) -> None:
        """Closing twice is closing once, and each verb is then certainly not applied."""
        record = take(store)
        store.close()
        store.close()
        verbs: list[Callable[[], object]] = [
            lambda: store.claim(Claim(held(), Expect.ANY), timeout_s=SOON_S),
            lambda: store.replace(Replace(held(), record.version), timeout_s=SOON_S),
            lambda: store.release(Release(record, record.version), timeout_s=SOON_S),
            lambda: store.replace_many([Replace(held(), record.version)], timeout_s=SOON_S),
            lambda: read(store),
            lambda: list(store.scan("", timeout_s=SOON_S)),
            lambda: store.wait(record, ticket="t", timeout_s=SOON_S),
            store.provision,
            store.guarantees,
        ]

        for verb in verbs:
            with pytest.raises(StoreUnavailableError, match="closed"):
                verb()
        assert list(path.parent.iterdir()) == [path]

    def test_a_store_closed_under_a_call_closes_after_it(self, store: SqliteStore) -> None:
        """The call that runs ends well, and takes the connection with it."""
        ended = store._file.run(lambda connection: _close_under(store, connection), None, SOON_S)

        assert ended == (1,)
        assert store._file._connection is None

    def test_an_interrupt_inside_a_step_leaves_nothing(self, store: SqliteStore) -> None:
        """What a call leaves open is rolled back."""

        def interrupted(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(wire.WRITE, wire.encode(held()))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store._file.run(interrupted, None, SOON_S)

        assert read(store) is None
        assert take(store).fencing_token == 1

    def test_a_connection_that_cannot_roll_back_is_given_up(self, store: SqliteStore) -> None:
        """The next call has a new one."""

        def stuck(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(wire.WRITE, wire.encode(held()))
            connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)

        store._file.run(stuck, None, SOON_S)

        assert store._file._connection is None
        assert read(store) is None

    def test_close_does_not_wait_for_ever(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call that goes on for too long closes the connection at its own end."""
        monkeypatch.setattr("dlock_sqlite._file._PATIENCE_S", 0.05)
        take(store)

        def closed(connection: sqlite3.Connection) -> None:
            store.close()
            assert connection.execute("SELECT 1").fetchone() == (1,)

        store._file.run(closed, None, SOON_S)

        assert store._file._connection is None

    def test_errors_at_the_commit_are_unknown_and_before_it_certain(self) -> None:
        """One code of the driver is two outcomes, by when it came; the driver's words are kept."""
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"

        before, at = (wire.trouble(error, "/x.db", "k", at_commit=there) for there in (False, True))

        assert (type(before), type(at)) == (StoreUnavailableError, OutcomeUnknownError)
        assert all(
            "/x.db" in str(found) and "SQLITE_IOERR_FSYNC" in str(found) and found.key == "k" for found in (before, at)
        )

    def test_every_unforeseen_error_is_a_store_error(self) -> None:
        """Nothing of the driver leaks, whatever it is."""
        for error in (sqlite3.ProgrammingError("x"), sqlite3.DatabaseError("y"), sqlite3.InterfaceError("z")):
            assert type(wire.trouble(error, "/x.db", None, at_commit=False)) is StoreUnavailableError


@contextmanager
def occupied(store: SqliteStore) -> Iterator[None]:
    """Let another thread use the connection of *store* meanwhile."""
    inside, done = threading.Event(), threading.Event()

    def stay(_: sqlite3.Connection) -> None:
        inside.set()
        done.wait(SOON_S)

    thread = threading.Thread(target=store._file.run, args=(stay, None, SOON_S))
    thread.start()
    inside.wait(SOON_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def _close_under(store: SqliteStore, connection: sqlite3.Connection) -> object:
    store._file._closed = True
    return connection.execute("SELECT 1").fetchone()


class TestRaces:
    """Many threads and processes at one file."""

    def test_threads_have_one_winner_a_round(self, store: SqliteStore) -> None:
        """Of eight threads that expect the same version one is applied, each time."""
        barrier = threading.Barrier(8)
        wins: list[list[LockRecord]] = [[] for _ in range(50)]

        def race() -> None:
            for number, won in enumerate(wins):
                barrier.wait(SOON_S)
                reply = store.claim(Claim(held(f"k{number}"), Expect.ANY), timeout_s=SOON_S)
                if reply.applied and reply.record:
                    won.append(reply.record)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [len(won) for won in wins] == [1] * 50

    def test_processes_have_one_winner_a_round(self, path: Path) -> None:
        """Eight processes race for 300 rounds of one key, from making the file on: one winner each, tokens without a gap."""
        program = """
say("ready"); sys.stdin.readline()
token = 0
while token < 300:
    reply = take(store)
    if reply.applied:
        token = reply.record.fencing_token
        say("won", token)
        free(store, reply.record)
    else:
        token = reply.record.fencing_token
store.close()
"""
        processes = [start(program, path) for _ in range(8)]
        assert [line(process) for process in processes] == ["ready"] * 8
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

        won = [int(word) for process in processes for word in output(process).split() if word != "won"]

        assert sorted(won)[:300] == list(range(1, 301))
        assert len(set(won)) == len(won)

    @pytest.mark.slow
    def test_a_killed_process_leaves_a_usable_file(self, path: Path, rng: random.Random) -> None:
        """SIGKILL at any point loses no grant that was answered, damages nothing and locks nothing."""
        program = """
while True:
    reply = take(store)
    record = reply.record
    say(record.fencing_token)
    free(store, record)
"""
        with closing(SqliteStore(path)) as store:
            for _ in range(15):
                process = start(program, path)
                line(process)
                # The point of the kill is what varies here.
                time.sleep(rng.uniform(0, 0.03))
                process.kill()
                out, _ = process.communicate(timeout=30)

                record = read(store)

                assert record is not None
                # A line may be cut where the process was killed.
                assert record.fencing_token >= max([int(word) for word in out.split("\n")[:-1]], default=0)
                if record.held:
                    free(store, record)
                assert take(store, "after").fencing_token > 0
                free(store, read(store, "after") or record)
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]

    def test_a_process_killed_while_it_makes_the_file_leaves_nothing_half_made(self, path: Path) -> None:
        """What was begun and not committed is begun again by the next."""
        program = """
from dlock_sqlite._file import SqliteFile
from dlock_sqlite import _file as _file
from dlock_sqlite import _wake as _wake
from dlock_sqlite import _wire as wire
class Killed(str):
    pass
store._file._restrict = lambda key: os.kill(os.getpid(), signal.SIGKILL)
take(store)
"""
        process = start(program, path)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL

        with closing(SqliteStore(path)) as store:
            assert take(store).fencing_token == 1


RAW_FORK = """
store.close()
def opened():
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection
parent = opened()
parent.execute("CREATE TABLE t (x)")
here, there = os.pipe()
go, gone = os.pipe()
if os.fork() == 0:
    child = opened()
    child.execute("INSERT INTO t VALUES (1)")
    os.write(there, b"x")
    os.read(go, 1)
    say("child", child.execute("SELECT x FROM t ORDER BY x").fetchall())
    os._exit(0)
os.read(here, 1)
parent.close()
import subprocess
third = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('INSERT INTO t VALUES (2)'); c.close()"
subprocess.run([sys.executable, "-c", third, path], check=True)
os.write(gone, b"x")
os.wait()
"""
OUR_FORK = '''
take(store, "parent")
here, there = os.pipe()
go, gone = os.pipe()
if os.fork() == 0:
    take(store, "child")
    again = SqliteStore(path)
    take(again, "child's own")
    os.write(there, b"x")
    os.read(go, 1)
    say("child", [record.key for record in store.scan("", timeout_s=5)])
    say("own", [record.key for record in again.scan("", timeout_s=5)])
    again.close()
    store.close()
    os._exit(0)
os.read(here, 1)
say("parent", [record.key for record in store.scan("", timeout_s=5)])
store.close()
import subprocess
third = """
import sys
from dlock_core.record import LockRecord, State
from dlock_sqlite.store import SqliteStore
from dlock_core.store import Claim, Expect
store = SqliteStore(sys.argv[1])
store.claim(Claim(LockRecord("third", State.HELD, "r", 1, "o", None), Expect.ANY), timeout_s=5)
store.close()
"""
subprocess.run([sys.executable, "-c", third, path], check=True)
os.write(gone, b"x")
os.wait()
'''


class TestForks:
    """What a fork does to SQLite's locks, and to ours."""

    def test_the_bare_driver_splits_after_a_fork(self, path: Path) -> None:
        """The control: a child that opens the file anew works on a log that its parent removed, and misses another's commit."""
        assert "child [(1,)]" in output(start(RAW_FORK, path))

    def test_a_fork_leaves_one_truth(self, path: Path) -> None:
        """Parent, child and a third process see each other's records, whoever closes first; the child's store goes on."""
        keys = "['child', \"child's own\", 'parent']"
        all_keys = "['child', \"child's own\", 'parent', 'third']"

        assert output(start(OUR_FORK, path)) == f"parent {keys}\nchild {all_keys}\nown {all_keys}\n"

    def test_forks_amid_the_traffic_of_threads_are_safe(self, path: Path) -> None:
        """A fork waits for the statement that runs: in 40 forks under load no child meets a mutex or a lock that is stuck."""
        program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads; that is the subject
stop = threading.Event()
def work(key):
    while not stop.is_set():
        free(store, take(store, key).record)
threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(3)]
for thread in threads: thread.start()
for number in range(40):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            free(store, take(store, f"child {number}").record)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, number
stop.set()
for thread in threads: thread.join()
say(len(list(store.scan("child", timeout_s=5))))
store.close()
"""
        assert output(start(program, path)) == "40\n"

    def test_hazard_23_an_inherited_connection_is_never_used(self, path: Path, store: SqliteStore) -> None:
        """Where a fork could not close it, neither this store nor a new one touches the file, and closing leaves it alone."""
        take(store)
        inherited = store._file._connection
        store._file._pid = -1

        with closing(SqliteStore(path)) as other:
            for refused in (store, other):
                with pytest.raises(StoreUnavailableError, match="forked while it was in use"):
                    read(refused)
        store.close()

        assert inherited is not None
        assert inherited.execute("SELECT count(*) FROM lock").fetchone() == (1,)
        inherited.close()

    def test_a_fork_does_not_wait_for_ever(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A statement that outlasts the patience of a fork keeps its connection, which is then marked as inherited."""
        monkeypatch.setattr("dlock_sqlite._file._PATIENCE_S", 0.05)
        take(store)

        with occupied(store):
            store._file.before_fork()
            assert store._file._connection is not None
            store._file.after_fork_in_parent()

        store._file.before_fork()
        assert store._file._connection is None
        store._file.after_fork_in_parent()
        assert read(store) is not None

    def test_a_child_begins_with_nothing_of_its_parent(self, path: Path, store: SqliteStore) -> None:
        """No mutex that a thread of the parent holds, and no pipe that a thread of the parent reads."""
        take(store)
        _, pipe = store._file.wake_ups._enter("k", "t")
        with occupied(store):
            store._file.after_fork_in_child()

            assert read(store) is not None
        assert store._file.wake_ups._pipes == set()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pipe)


class TestWakeUps:
    """Waiting for a release."""

    def test_a_release_in_another_process_wakes(self, path: Path, store: SqliteStore) -> None:
        """The waiter returns long before its time is over, in fifty of fifty."""
        program = """
for number in range(50):
    key = f"k{number}"
    record = store.read(key, timeout_s=5)
    begin = time.monotonic()
    store.wait(record, ticket="t", timeout_s=20)
    say(time.monotonic() - begin < 5 and not store.read(key, timeout_s=5).held)
store.close()
"""
        records = [take(store, f"k{number}") for number in range(50)]
        process = start(program, path)
        for record in records:
            eventually(lambda: pipes(path))

            free(store, record)

            assert line(process) == "True"
        output(process)

    def test_a_release_in_this_process_wakes(self, path: Path, store: SqliteStore) -> None:
        """Threads of one store wake each other as processes do, and leave nothing behind."""
        record = take(store)
        waiting = _Waiter(store, record)
        eventually(lambda: pipes(path))

        free(store, record)

        assert waiting.ended_after_s() < SOON_S
        assert not Path(f"{path}-wake").exists()

    def test_a_lock_that_an_operator_frees_wakes(self, path: Path, store: SqliteStore) -> None:
        """A replace that frees the key is a release to those who wait."""
        record = take(store)
        waiting = _Waiter(store, record)
        eventually(lambda: pipes(path))
        freed = LockRecord("k", State.FREE, fresh_rvn(), record.fencing_token + 1, "", None)

        store.replace(Replace(freed, record.version), timeout_s=SOON_S)

        assert waiting.ended_after_s() < SOON_S

    @pytest.mark.parametrize("granted_again", [True, False])
    def test_a_release_before_the_call_is_seen(self, store: SqliteStore, granted_again: bool) -> None:
        """Who comes after the release does not wait for the next one."""
        record = take(store)
        free(store, record)
        if granted_again:
            take(store)
        begin = time.monotonic()

        store.wait(record, ticket="t", timeout_s=60)

        assert time.monotonic() - begin < SOON_S

    def test_an_absent_key_is_not_waited_for(self, store: SqliteStore) -> None:
        """There is nobody whose release could wake."""
        begin = time.monotonic()

        store.wait(held("absent"), ticket="t", timeout_s=60)

        assert time.monotonic() - begin < SOON_S

    @pytest.mark.parametrize("batch", [False, True], ids=["alone", "in_a_batch"])
    def test_a_renewal_wakes_the_longest_waiting_alone(self, path: Path, store: SqliteStore, *, batch: bool) -> None:
        """It looks at the record anew, and keeps its place for the release."""
        record = take(store)
        first = _Waiter(store, record, ticket="t0")
        eventually(lambda: len(pipes(path)) == 1)
        second = _Waiter(store, record, ticket="t1")
        eventually(lambda: len(pipes(path)) == 2)

        renewal = Replace(held(), record.version)
        reply = (
            store.replace_many([renewal], timeout_s=SOON_S)[0] if batch else store.replace(renewal, timeout_s=SOON_S)
        )
        assert isinstance(reply, Reply)
        assert reply.applied
        assert first.ended_after_s() < SOON_S
        assert len(pipes(path)) == 1

        renewed = reply.record
        assert renewed is not None
        again = _Waiter(store, renewed, ticket="t0")
        eventually(lambda: len(pipes(path)) == 2)
        free(store, renewed)
        assert again.ended_after_s() < SOON_S
        assert len(pipes(path)) == 1
        free(store, take(store))
        assert second.ended_after_s() < SOON_S

    def test_a_renewal_before_the_wait_is_seen(self, store: SqliteStore) -> None:
        """Whoever was shown an older version is not kept waiting."""
        record = take(store)
        assert store.replace(Replace(held(), record.version), timeout_s=SOON_S).applied

        store.wait(record, ticket="t", timeout_s=60)

    def test_the_longest_waiting_is_woken_alone(self, path: Path, store: SqliteStore) -> None:
        """One release wakes one waiter, first come first."""
        record = take(store)
        waiters = []
        for number in range(3):
            waiters.append(_Waiter(store, record, ticket=f"t{number}"))
            eventually(lambda: len(pipes(path)) == len(waiters))

        for number in range(3):
            free(store, record)

            waiters[number].ended_after_s()
            assert len(pipes(path)) == 2 - number
            if number < 2:
                record = take(store)

    def test_a_ticket_keeps_its_place(self, path: Path, store: SqliteStore) -> None:
        """Who waited before stands before those who came meanwhile, until its attempt is granted."""
        record = take(store)
        store.wait(record, ticket="old", timeout_s=0)
        later = _Waiter(store, record, ticket="new")
        eventually(lambda: len(pipes(path)) == 1)
        again = _Waiter(store, record, ticket="old")
        eventually(lambda: len(pipes(path)) == 2)

        free(store, record)
        again.ended_after_s()
        record = take(store, ticket="old")

        assert store._file.wake_ups._places.keys() == {"new"}
        free(store, record)
        later.ended_after_s()

    def test_places_are_bounded(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Attempts that end without a grant are forgotten one day."""
        monkeypatch.setattr("dlock_sqlite._wake._PLACES_MAX", 3)
        record = take(store)

        for number in range(5):
            store.wait(record, ticket=f"t{number}", timeout_s=0)

        assert list(store._file.wake_ups._places) == ["t2", "t3", "t4"]

    def test_a_waiter_that_leaves_passes_its_wake_up_on(self, path: Path, store: SqliteStore) -> None:
        """The chosen one that ends before it saw the choice wakes the next."""
        record = take(store)
        leaver = store._file.wake_ups
        name, pipe = leaver._enter("k", "first")
        staying = _Waiter(store, record, ticket="second")
        eventually(lambda: len(pipes(path)) == 2)

        free(store, record)
        assert len(pipes(path)) == 1
        leaver._leave("k", name, pipe, woken=False)

        assert staying.ended_after_s() < SOON_S

    def test_a_waiter_that_leaves_unchosen_wakes_nobody(self, path: Path, store: SqliteStore) -> None:
        """A time that is over is no release."""
        record = take(store)
        staying = _Waiter(store, record)
        eventually(lambda: len(pipes(path)) == 1)

        store.wait(record, ticket="other", timeout_s=0)

        assert len(pipes(path)) == 1
        free(store, record)
        staying.ended_after_s()

    def test_an_exception_in_a_waiter_leaves_no_pipe(self, path: Path, store: SqliteStore) -> None:
        """A waiter that is interrupted is no longer listed."""
        take(store)

        def interrupted() -> bool:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store._file.wake_ups.wait("k", "t", 5, interrupted)

        assert not Path(f"{path}-wake").exists()
        assert store._file.wake_ups._pipes == set()

    def test_a_killed_waiter_is_passed_over(self, path: Path, store: SqliteStore) -> None:
        """The pipe of a dead process takes no wake-up."""
        record = take(store)
        dead = start("store.wait(store.read('k', timeout_s=5), ticket='t', timeout_s=60)", path)
        eventually(lambda: len(pipes(path)) == 1)
        living = _Waiter(store, record)
        eventually(lambda: len(pipes(path)) == 2)
        dead.kill()
        dead.communicate(timeout=30)

        free(store, record)

        assert living.ended_after_s() < SOON_S
        assert not Path(f"{path}-wake").exists()

    def test_a_forked_child_keeps_no_dead_waiter_alive(self, path: Path, store: SqliteStore) -> None:
        """A child has no copy of its parent's pipes."""
        program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads
record = store.read("k", timeout_s=5)
threading.Thread(target=store.wait, args=(record,), kwargs={"ticket": "t", "timeout_s": 60}, daemon=True).start()
while not store._file.wake_ups._pipes: time.sleep(0.001)
while not os.path.isdir(path + "-wake") or store._file._user: time.sleep(0.001)
child = os.fork()
if child == 0:
    time.sleep(60)
say(child)
time.sleep(60)
"""
        record = take(store)
        parent = start(program, path)
        child = int(line(parent))
        try:
            parent.kill()
            parent.wait(30)
            living = _Waiter(store, record)
            eventually(lambda: len(pipes(path)) == 2)

            free(store, record)

            assert living.ended_after_s() < SOON_S
        finally:
            os.kill(child, signal.SIGKILL)
            parent.communicate(timeout=30)

    @pytest.mark.parametrize("released", [True, False])
    def test_without_pipes_the_row_is_looked_at(self, path: Path, store: SqliteStore, released: bool) -> None:
        """Where no pipe can be made a release is seen within a moment all the same, and the time is kept."""
        Path(f"{path}-wake").touch()
        record = take(store)
        waiting = _Waiter(store, record, timeout_s=60 if released else 0.3)

        if released:
            free(store, record)

        assert waiting.ended_after_s() < SOON_S

    def test_without_free_descriptors_the_row_is_looked_at(self, path: Path) -> None:
        """A process at its limit of open files still waits, and leaves no pipe behind."""
        program = """
import resource
record = take(store).record
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(int(name) for name in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
store.wait(record, ticket="t", timeout_s=0.1)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
say([name for _, _, names in os.walk(path + "-wake") for name in names])
store.close()
"""
        assert output(start(program, path)) == "[]\n"

    def test_a_place_that_is_taken_leaves_nothing_open(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pipe that cannot get its name is removed, and the row is looked at instead."""
        monkeypatch.setattr("dlock_sqlite._wake.secrets.token_hex", lambda size: "same")
        monkeypatch.setattr("dlock_sqlite._wake.now_ns", lambda: 1)
        record = take(store)
        directory = Path(store._file.wake_ups._of("k"))
        (directory / f"{1:020d}-same").mkdir(parents=True)

        assert not store._file.wake_ups.wait("k", "t", 0, lambda: False)

        assert [entry.name for entry in directory.iterdir()] == [f"{1:020d}-same"]
        # What is no pipe is passed over, too.
        free(store, record)

    def test_a_pipe_whose_name_another_removed_is_not_counted(self, store: SqliteStore) -> None:
        """Only who removes the name has woken the waiter; one that was gone before is no waiter at all."""
        take(store)
        name, pipe = store._file.wake_ups._enter("k", "t")

        # Through this name the pipe can be opened, and the name cannot be removed.
        assert not _wake._hang_up(f"/proc/self/fd/{pipe}")
        assert not _wake._hang_up(f"{name}-gone")

        assert _wake._hang_up(name)
        store._file.wake_ups._leave("k", name, pipe, woken=True)

    def test_a_release_without_waiters_makes_nothing(self, path: Path, store: SqliteStore) -> None:
        """The directory of the wake-ups exists only once somebody waits, and goes with the store."""
        record = take(store)
        free(store, record)
        assert not Path(f"{path}-wake").exists()

        again = take(store)
        waiting = _Waiter(store, again)
        eventually(lambda: pipes(path))
        modes = [mode_of(entry) for entry in (pipes(path)[0], pipes(path)[0].parent, Path(f"{path}-wake"))]
        free(store, again)
        waiting.ended_after_s()

        assert modes == [0o600, 0o700, 0o700]
        assert not Path(f"{path}-wake").exists()

    def test_waiters_that_come_and_go_meet_no_missing_directory(self, path: Path, store: SqliteStore) -> None:
        """The last to leave removes the key's directory under the feet of the next, who makes it again."""
        record = take(store)
        failures: list[bool] = []

        def come_and_go(number: int) -> None:
            for _ in range(100):
                subscribed = store._file.wake_ups.wait("k", f"t{number}", 0, lambda: False)
                failures.extend([True] * (not subscribed))

        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert pipes(path) == []
        free(store, record)


class _Waiter:
    """A thread that waits; an error in it is an error of the test."""

    def __init__(self, store: SqliteStore, record: LockRecord, *, ticket: str = "t", timeout_s: float = 60) -> None:
        self._store, self._record, self._ticket, self._timeout_s = store, record, ticket, timeout_s
        self._error: StoreError | None = None
        self._took_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._store.wait(self._record, ticket=self._ticket, timeout_s=self._timeout_s)
        except StoreError as error:
            self._error = error
        self._took_s = time.monotonic() - begin

    def ended_after_s(self) -> float:
        """Return how long the wait took."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._error is None
        return self._took_s


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:30 / /home rw shared:1 master:2 - nfs4 server:/home rw
31 30 0:31 / /home/local rw - ext4 /dev/vdb rw
32 27 0:32 / /mnt/with\\040space rw - cifs //server/share rw
33 27 0:33 / /over rw - ext4 /dev/vdc rw
34 33 0:34 / /over rw - fuse.sshfs host: rw
35 27 0:35 / /ram rw - tmpfs tmpfs rw
36 27 0:36 / /layers rw - overlay overlay rw
a line that is cut
"""


class TestGuarantees:
    """What the store says of itself."""

    def test_a_local_disk_is_grade_a(self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """One host, durable, no clock; the file is there afterwards."""
        self._mounted(path, monkeypatch, "ext4")

        said = store.guarantees()

        assert (said.store, said.version, said.grade, said.durable) == ("sqlite", sqlite3.sqlite_version, Grade.A, True)
        assert (said.token, said.deletes, said.refusal_linearizable) == ("ordered", False, True)
        assert said.clock.startswith("none; with server_clock, that of this host")
        assert said.unsafe == ()
        assert "one host only" in said.notes[0]
        assert path.exists()

    def test_a_network_file_system_is_unsafe_and_not_written(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The core refuses it by the name that a user may allow; before that nothing is made there."""
        self._mounted(path, monkeypatch, "nfs4")

        said = store.guarantees()

        [(name, reason)] = said.unsafe
        assert name == "sqlite-network-filesystem"
        assert "nfs4" in reason
        assert str(path) in reason
        assert said.grade is Grade.C
        assert not path.exists()

    def test_a_file_in_memory_is_not_durable(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a restart of the host removes is said to be so."""
        self._mounted(path, monkeypatch, "tmpfs")

        said = store.guarantees()

        assert (said.grade, said.durable, said.unsafe) == (Grade.B, False, ())
        assert any("tmpfs" in note for note in said.notes)

    def test_an_unknown_file_system_is_noted(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the system does not say what it is, the user is asked to look."""
        monkeypatch.setattr(provision, "_MOUNT_INFO", "/does/not/exist")

        said = store.guarantees()

        assert any("not known here" in note for note in said.notes)
        assert said.unsafe == ()

    def test_normal_is_not_durable(
        self, path: Path, open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who asked for fewer syncs is told what they cost; asking for them was the consent."""
        self._mounted(path, monkeypatch, "ext4")

        said = open_store(path, synchronous="normal").guarantees()

        assert (said.grade, said.durable, said.unsafe) == (Grade.B, False, ())
        assert any("power cut" in note for note in said.notes)

    def test_guarantees_tell_what_is_wrong_with_the_file(self, path: Path, store: SqliteStore) -> None:
        """Whoever connects learns of a bad file at once."""
        path.write_text("not a database, but long enough to be looked at as one")

        with pytest.raises(StoreSetupError):
            store.guarantees()

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/var/locks.db", "ext4"),
            ("/home/me/locks.db", "nfs4"),
            ("/homely/locks.db", "ext4"),
            ("/home/local/locks.db", "ext4"),
            ("/mnt/with space/locks.db", "cifs"),
            ("/over/locks.db", "fuse.sshfs"),
            ("/ram/locks.db", "tmpfs"),
            ("/layers/locks.db", "overlay"),
        ],
    )
    def test_the_file_system_is_that_of_the_nearest_mount(self, path: str, kind: str) -> None:
        """The longest mount point above the path counts, and of two on one point the later."""
        assert provision.file_system(path, MOUNTS) == kind

    def test_no_mounts_no_answer(self) -> None:
        """An empty table says nothing."""
        assert provision.file_system("/x", "") is None

    @pytest.mark.parametrize(
        "kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "afs", "fuse.sshfs", "fuse.new"]
    )
    def test_network_file_systems_are_known(self, kind: str) -> None:
        """Another host's kernel may have the file open there; an unknown FUSE program is not trusted."""
        assert provision.is_shared_with_hosts(kind)

    @pytest.mark.parametrize(
        "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"]
    )
    def test_local_file_systems_are_fine(self, kind: str) -> None:
        """One kernel has all locks."""
        assert not provision.is_shared_with_hosts(kind)

    @pytest.mark.parametrize(
        ("version", "fixed"),
        [
            ((3, 40, 1), False),
            ((3, 44, 6), True),
            ((3, 45, 0), False),
            ((3, 50, 7), True),
            ((3, 51, 2), False),
            ((3, 51, 3), True),
            ((3, 53, 0), True),
        ],
    )
    def test_the_race_of_older_versions_is_noted(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], fixed: bool
    ) -> None:
        """Versions with the repair are told from those without it."""
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

        assert any("rare race" in note for note in store.guarantees().notes) != fixed

    def _mounted(self, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        table = path.with_name("mountinfo")
        table.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:1 / {path.parent} rw - {kind} source rw\n")
        monkeypatch.setattr(provision, "_MOUNT_INFO", str(table))
