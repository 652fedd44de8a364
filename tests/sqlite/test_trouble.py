"""The SQLite store where rows cannot be read, the file is busy or full, or calls are interrupted."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import (
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_sqlite import SqliteStore, _rights
from dlock_sqlite import _wire as wire
from tests.sqlite.support import SOON_S, free, fresh_rvn, held, occupied, pipes, read, sql, take

if TYPE_CHECKING:
    from collections.abc import Callable


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
            lambda: store.claim_many([Claim(held(key), Expect.ANY) for key in ("new", "k")], timeout_s=SOON_S),
            lambda: store.replace(Replace(held(), record.version), timeout_s=SOON_S),
            lambda: store.release(Release(tombstone, record.version), timeout_s=SOON_S),
            lambda: read(store),
            lambda: list(store.scan("", timeout_s=SOON_S)),
            lambda: store.wait(record, ticket="t", timeout_s=SOON_S),
        ]

        # A list does not learn of which row the driver cannot read a text.
        known = (
            "SQLite file '.*' has under key '[k?]'.*UTF-8"
            if "AS TEXT" in damage
            else "(the SQLite file has|^record) under key 'k'"
        )
        for verb in verbs:
            with pytest.raises(RecordError, match=known) as caught:
                verb()
            assert caught.value.key in ("k", "?")

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
        assert results[1].key == "k"

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
        assert claimed._replace(age_ms=None) == replaced == batched == Reply(applied=False, record=shown)
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

    def test_a_wait_looks_for_no_longer_than_it_may(self, store: SqliteStore) -> None:
        """Nor for less, which would make a busy file trouble."""
        record = take(store)
        with occupied(store), pytest.raises(StoreUnavailableError, match=r"locked for 0\.[2-4]\d* s"):
            store.wait(record, ticket="t", timeout_s=0.4)

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

    @pytest.mark.parametrize(
        ("statement", "kind", "words"),
        [
            ("BEGIN", StoreUnavailableError, "nothing was written"),
            ("COMMIT", OutcomeUnknownError, "the commit failed"),
        ],
    )
    def test_after_an_error_of_the_driver_the_store_is_usable(
        self, path: Path, store: SqliteStore, statement: str, kind: type[StoreError], words: str
    ) -> None:
        """On a new connection. At the commit the outcome is open; the driver is told to forbid it, as if the disk failed."""
        record = take(store)

        def forbidden(action: int, what: str | None, *_: object) -> int:
            return sqlite3.SQLITE_DENY if (action, what) == (sqlite3.SQLITE_TRANSACTION, statement) else 0

        store._file.run(lambda connection: connection.set_authorizer(forbidden), None, SOON_S)
        with pytest.raises(kind, match=f"'{path}': {words}") as caught:
            free(store, record)

        assert caught.value.key == "k"
        assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
        free(store, record)

    def test_a_statement_that_the_driver_cannot_run_is_told_at_once(self, store: SqliteStore) -> None:
        """It has the class of what is asked of a connection that a signal handler has closed, after which the call begins anew."""
        with pytest.raises(StoreUnavailableError, match="binding"):
            store._file.run(lambda connection: connection.execute("SELECT ?"), None, SOON_S)

    def test_errors_at_the_commit_are_unknown_and_before_it_certain(self) -> None:
        """One code of the driver is two outcomes, by when it came; the driver's words are kept."""
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"

        before, at = (wire.trouble(error, "/x.db", "k", at_commit=there) for there in (False, True))

        assert (type(before), type(at)) == (StoreUnavailableError, OutcomeUnknownError)
        assert all(
            "/x.db" in str(found) and "SQLITE_IOERR_FSYNC" in str(found) and found.key == "k" for found in (before, at)
        )

    def test_full_disk_is_told_where_the_shared_memory_does_not_fit(self) -> None:
        """SQLite calls that an I/O error, and the kernel's log, dmesg, says nothing of it."""
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = 4874, "SQLITE_IOERR_SHMSIZE"

        found = wire.trouble(error, "/x.db", "k", at_commit=False)

        assert "the disk is full, or has reported an error" in str(found)

    @pytest.mark.parametrize(
        ("words", "kind"),
        [
            ("no such table: dlock", StoreSetupError),
            ("cannot commit - no transaction is active", OutcomeUnknownError),
        ],
    )
    def test_tables_are_told_as_changed_only_where_one_is_missed(self, words: str, kind: type[StoreError]) -> None:
        """SQLite has one code for that and for whatever else it has no code for, and no backup mends that."""
        error = sqlite3.OperationalError(words)
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_ERROR, "SQLITE_ERROR"

        found = wire.trouble(error, "/x.db", "k", at_commit=kind is OutcomeUnknownError)

        assert type(found) is kind
        assert ("its tables were changed" in str(found)) is (kind is StoreSetupError)

    @pytest.mark.parametrize(
        ("code", "may", "advice"),
        [
            (sqlite3.SQLITE_READONLY, False, "give this user the right to enter"),
            (sqlite3.SQLITE_READONLY, True, "mount its file system for writing"),
            (sqlite3.SQLITE_NOTADB, False, "give the path of a new file"),
        ],
    )
    def test_a_missing_right_is_named_where_access_was_denied(
        self, monkeypatch: pytest.MonkeyPatch, code: int, may: bool, advice: str
    ) -> None:
        """Where none is missing, and of any other error, the advice is the usual one."""
        monkeypatch.setattr(_rights, "_may", lambda *_: may)
        error = sqlite3.OperationalError("x")
        error.sqlite_errorcode = code

        assert advice in str(wire.trouble(error, "/x.db", None, at_commit=False))

    def test_every_unforeseen_error_is_a_store_error(self) -> None:
        """Nothing of the driver leaks, whatever it is."""
        for error in (sqlite3.ProgrammingError("x"), sqlite3.DatabaseError("y"), sqlite3.InterfaceError("z")):
            assert type(wire.trouble(error, "/x.db", None, at_commit=False)) is StoreUnavailableError


def _close_under(store: SqliteStore, connection: sqlite3.Connection) -> object:
    store._file._closed = True
    return connection.execute("SELECT 1").fetchone()
