"""What the tests of SQLite share: records, programs in other processes, looks at the file."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Reply
from dlock_sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]


SOON_S = 5.0


_numbers = count(1)


# What the processes of these tests begin with; argv[1] is the path of the file.
PRELUDE = """
import dataclasses, os, signal, sqlite3, sys, threading, time
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


def pipes(path: Path) -> list[Path]:
    """Return the named pipes of the waiters at *path*, the one that has waited longest first."""
    while True:
        with suppress(FileNotFoundError):  # the last waiter to leave has removed the directory meanwhile
            return sorted(Path(f"{path}-wake").glob("*/[0-9]*"), key=lambda pipe: pipe.name)


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
