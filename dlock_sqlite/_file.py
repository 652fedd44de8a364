"""The one connection of a store to its SQLite file: opening it, checking it, using it in turn, and coming through a fork.

One connection under one mutex serves all threads: SQLite has one writer at a time anyway, and waiting for a mutex is prompt where waiting
for the file is a series of naps. A call waits for other processes without the mutex, up to its deadline.

**Signals.** A signal handler may raise inside any call, so a ``finally`` releases the mutex, and makes no Python call before. A handler may
also call the store itself: it then takes the connection away from the call that it interrupted, which begins again.

**Forks.** SQLite keeps one list of locks per process and file, and a forked child inherits the list without the locks. A child that
opens the file anew is then told by that list that it has them: its commits can go to a log that another process has removed, and two
processes hold one lock (seen, see the tests). So a fork waits for the statement that runs, and closes the connection first; both sides
open it again when they need it.

**Descriptors.** Closing any descriptor of a file drops all POSIX locks of the process on it: nothing here opens the file but SQLite.
"""

# A path is text here, and bytes to SQLite; one stat is what each call pays.
# ruff: noqa: PTH101, PTH110, PTH112, PTH116, PTH120

from __future__ import annotations

import errno
import itertools
import os
import random
import sqlite3
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from dlock_core.clock import NANOS, now_ns
from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import watch_forks, watched
from dlock_sqlite import _wire as wire
from dlock_sqlite._clock import HostClock
from dlock_sqlite._rights import missing_right
from dlock_sqlite._wake import WakeUps

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# How often a file that looks damaged, or another's, is looked at again: while it is being written, and while it is not.
_LOOKS_MAX, _LOOKS_MIN, _LOOK_EVERY_S = 50, 3, 0.01
_NAP_S, _NAP_MAX_S = 0.000_2, 0.005
_PATIENCE_S = 10.0
# Looking whether the file is still there costs as much as a statement; who calls more often than this looks now and then.
_CHECK_EVERY_NS = NANOS // 10
_GONE = "the file, or its directory, was removed or replaced while it was open; put it back, or stop all its users and start anew"
_BUSY = "another process or thread kept it locked for {:g} s; find out which with fuser, or allow more time"


class _OvertakenError(Exception):
    """A signal handler, or a fork, took the connection away in the middle of a call; nothing was written."""


class SqliteFile:
    """The file *name* (absolute), opened when it is first used. *clock* is there for what is run on the open file."""

    clock: HostClock

    def __init__(self, name: str, synchronous: str, *, creates: bool = True) -> None:
        self._name, self.path = name, os.path.realpath(name)
        self._creates = creates
        self._synchronous = synchronous
        self._mutex = threading.RLock()
        # The thread that uses the connection, and how often the connection was given to a call, or closed for a fork.
        self._user: int | None = None
        self._turn = 0
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._log: list[tuple[int, int] | None] = []
        self._check_at = 0
        self._pid = 0
        self._closed = False
        self.wake_ups = WakeUps(self.path)
        watch_forks(self)

    def run(self, work: Callable[[sqlite3.Connection], _T], key: str | None, timeout_s: float) -> _T:
        """Return *work(connection)*, done again from its start while another process holds the file.

        *work* must be in no doubt when SQLite says "busy": only its first statement can meet that, as a writer's is ``BEGIN IMMEDIATE``.
        What it leaves open is rolled back.
        """
        deadline = now_ns() + int(timeout_s * NANOS)
        nap_s = _NAP_S
        while True:
            try:
                return self._run_alone(work, deadline)
            except _OvertakenError as error:
                cause: Exception = error
            except TimeoutError as error:
                raise self._error(StoreUnavailableError, _BUSY.format(timeout_s), key) from error
            except sqlite3.Error as error:
                if not wire.is_busy(error):
                    raise wire.trouble(error, self.path, key, at_commit=False) from error
                cause = error
            except StoreError as error:
                error.key = error.key or key
                raise
            if now_ns() + nap_s * NANOS >= deadline:
                raise self._error(StoreUnavailableError, _BUSY.format(timeout_s), key) from cause
            # Naps of random length, so that processes that met once do not meet again.
            time.sleep(random.uniform(nap_s / 2, nap_s))  # noqa: S311  # no secret
            nap_s = min(nap_s * 2, _NAP_MAX_S)

    def _run_alone(self, work: Callable[[sqlite3.Connection], _T], deadline: int) -> _T:
        """Return *work(connection)*, while no other thread uses the connection.

        Raises: TimeoutError: other threads used it until *deadline*.
        """
        me, mutex, turn = threading.get_ident(), self._mutex, 0
        # A signal handler of this thread calls inside another call of it.
        nested = self._user == me
        now = now_ns()
        wait_s = min(max(0.0, (deadline - now) / NANOS), threading.TIMEOUT_MAX)
        held = False
        try:
            held = mutex.acquire(timeout=wait_s)
            if not held:
                raise TimeoutError
            self._user = me
            turn = self._turn = self._turn + 1
            if nested:
                self._drop()
            return wire.with_room(work, self._ready(now))
        except (OutcomeUnknownError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.ProgrammingError) and self._turn != turn:
                raise _OvertakenError from error
            if not wire.keeps_connection(error):
                self._drop()
            raise
        finally:
            try:
                if held:
                    self._settle()
            except BaseException:
                self._drop()
                raise
            finally:
                if held and not nested:
                    self._user = None
                try:  # noqa: SIM105  # a call of suppress() could be interrupted before the mutex is released
                    mutex.release()
                except RuntimeError:  # this thread did not get it
                    pass

    def is_unmade(self) -> bool:
        """Return whether nobody has made the file yet: it is not there, or is empty.

        Raises: StoreSetupError: it is not there, and cannot be made.
        """
        try:
            return not os.stat(self.path).st_size
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or not os.path.isdir(os.path.dirname(self.path)):
                raise self._system_error(error) from error
            if advice := missing_right(self.path):
                raise self._misfit(f"it cannot be made; {advice}") from error
            return True

    def close(self) -> None:
        """Close the connection, after the call that runs just now; one that goes on for too long does it at its own end."""
        self._closed = True
        if self._user != threading.get_ident():
            try:
                if self._mutex.acquire(timeout=_PATIENCE_S):
                    self._drop()
            finally:
                try:  # noqa: SIM105  # as above
                    self._mutex.release()
                except RuntimeError:
                    pass

    def before_fork(self) -> None:
        """Close the connection and keep the mutex, unless a statement goes on for too long."""
        if self._mutex.acquire(timeout=_PATIENCE_S):
            self._turn += 1
            self._drop()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with suppress(RuntimeError):  # this thread did not get it
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Begin with a mutex of its own: the child has no thread that could release the parent's."""
        self._mutex = threading.RLock()
        self._user = None
        self.wake_ups.forked()

    @property
    def is_inherited(self) -> bool:
        """Whether the connection is another process's: a statement outlasted the patience of a fork, or the fork passed Python by."""
        return self._connection is not None and self._pid != os.getpid()

    def _ready(self, now: int) -> sqlite3.Connection:
        if self._closed:
            raise self._error(StoreUnavailableError, "the store was closed; open a new one")
        connection = self._connection
        if connection is not None and self._pid == os.getpid():
            if now >= self._check_at:
                self._check_same()
                self._check_log(connection)
                self._check_at = now + _CHECK_EVERY_NS
            return connection
        if any(isinstance(file, SqliteFile) and file.path == self.path and file.is_inherited for file in watched()):
            # SQLite's list of locks in this process is not true: see the top of this file.
            message = "this process was forked while it was in use; open it only after the fork, or fork with os.fork"
            raise self._error(StoreUnavailableError, message)
        return self._opened()

    def _check_same(self) -> None:
        try:
            status = os.stat(self._name)  # who opens it from now on follows the links as they are then
        except OSError as error:
            raise self._system_error(error) from error
        if (status.st_dev, status.st_ino) != self._identity:
            # Programs that have the old file open would not see the locks in the new one, whose tokens begin again.
            raise self._misfit(_GONE)

    def _check_log(self, connection: sqlite3.Connection) -> None:
        # Who opens the file from now on makes others, without the old locks. A signal handler may, or a fork close *connection*, meanwhile.
        if self._logs() != self._log and self._connection is connection:
            raise self._misfit("its -wal or -shm was removed while it was open; stop all its users and start anew")

    def _logs(self) -> list[tuple[int, int] | None]:
        return [_identity_of(f"{self.path}-{kind}") for kind in ("wal", "shm")]

    def _settle(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._closed:
            self._drop()
        elif connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop()

    def _drop(self) -> None:
        ours, connection = self._pid == os.getpid(), self._connection
        try:
            if connection is not None and ours:
                try:
                    # A statement that is not at its end would keep a closed connection's transaction open.
                    connection.execute("ROLLBACK")
                finally:
                    connection.close()
        except sqlite3.Error:  # there was none, or it is gone in any case
            pass
        finally:
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        try:
            self._create()
            status = os.stat(self.path)
        except OSError as error:
            raise self._system_error(error) from error
        if self._identity is not None:
            self._check_same()
        if not stat.S_ISREG(status.st_mode):
            raise self._misfit("it is not a file; give the path of a new file")
        if status.st_size:
            self._check_ours()
        self._pid = os.getpid()
        connection = self._connection = self._connect("mode=rw")
        try:
            self._set_up(connection)
            self._identity, self._log = (status.st_dev, status.st_ino), self._logs()
            self.clock = HostClock()
        except BaseException:
            self._drop()
            raise
        return connection

    def _create(self) -> None:
        if self._identity is not None:
            return
        if not self._creates and self.is_unmade():
            raise self._error(
                StoreSetupError, "there is none; check the path, or make it with 'dlock init --url URL'", None
            )
        try:
            if sys.platform == "linux":
                os.mknod(self.path, stat.S_IFREG | 0o600)
            else:  # pragma: no cover
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return
        except PermissionError:
            # A directory that cannot be written is no matter for the main file if that exists; SQLite says what is missing.
            if not os.path.exists(self.path):
                raise

    def _connect(self, query: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.fsencode(self.path))}?{query}"
        return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)

    def _check_ours(self) -> None:
        # "immutable" reads the header and touches nothing: no lock, no -wal, no -shm, no recovery. So it may meet a write half done: a bad
        # answer is believed when it stays. Missing pages are no damage, with "writable_schema", where a log or journal may have them.
        for look in itertools.count(1):
            written = os.path.exists(f"{self.path}-journal") or os.path.exists(f"{self.path}-wal")
            connection = self._connect("mode=ro&immutable=1")
            try:
                connection.execute(f"PRAGMA writable_schema = {written:d}")
                self._check_marks(connection)
            except (sqlite3.DatabaseError, StoreSetupError):
                if look >= (_LOOKS_MAX if written else _LOOKS_MIN):
                    raise
            else:
                return
            finally:
                connection.close()
            time.sleep(_LOOK_EVERY_S)

    def _check_marks(self, connection: sqlite3.Connection) -> None:
        [application_id] = connection.execute("PRAGMA application_id").fetchone()
        if application_id != wire.APPLICATION_ID:
            raise self._misfit("it is another program's database; give the path of a new file")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version != wire.SCHEMA_VERSION:
            raise self._misfit(
                f"its format is {version}, this dlock knows {wire.SCHEMA_VERSION}; update dlock: pip install -U dlock-core"
            )

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        if _is_blank(connection):
            # All marks in one transaction of the old journal: whoever is killed here leaves an empty file, or a whole one.
            connection.execute("BEGIN EXCLUSIVE")
            if _is_blank(connection):
                self._restrict()
                connection.execute(f"PRAGMA application_id = {wire.APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {wire.SCHEMA_VERSION}")
                connection.execute(wire.SCHEMA)
            connection.execute("COMMIT")
        self._check_marks(connection)
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise self._misfit(
                f"its file system has no shared memory for a write-ahead log (journal mode {mode}); use a local disk"
            )
        connection.execute("PRAGMA user_version").fetchone()  # opens the log

    def _restrict(self) -> None:
        try:
            os.chmod(self.path, 0o600)
        except OSError as error:
            raise self._misfit(
                f"it is empty and cannot be closed to other users ({error.strerror}); remove it, or let its owner begin"
            ) from error

    def _system_error(self, error: OSError) -> StoreError:
        directory = os.path.dirname(self.path)
        what = error.strerror
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        if is_missing and self._identity is not None:
            return self._misfit(_GONE)
        if is_missing and not os.path.isdir(directory):
            return self._misfit(f"its directory is not there; make it: mkdir -p {directory!r}")
        if is_missing or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG):
            advice = missing_right(self.path) or f"give this user write permission on the directory {directory!r}"
            return self._misfit(f"it cannot be made or read ({what}); {advice}")
        return self._error(StoreUnavailableError, f"it cannot be made or read ({what}); check the disk")

    def _misfit(self, what: str) -> StoreError:
        return self._error(StoreSetupError, what)

    def _error(self, kind: type[StoreError], what: str, key: str | None = None) -> StoreError:
        return kind(f"SQLite file {self.path!r}: {what}", key=key)


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_blank(connection: sqlite3.Connection) -> bool:
    query = "SELECT (SELECT count(*) FROM sqlite_master) + (SELECT application_id FROM pragma_application_id)"
    return bool(connection.execute(query).fetchone() == (0,))
