"""What the SQLite store does so that a full disk costs no lock that is held: where its writes go, and when it tries again."""

from __future__ import annotations

import os
import sqlite3
import types
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.store import Claim, Expect, Replace
from dlock_sqlite import _wire as wire
from tests.sqlite.support import SOON_S, held, take

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_sqlite import SqliteStore


@pytest.mark.parametrize(
    ("code", "at_commit", "tries"),
    [
        (sqlite3.SQLITE_FULL, False, 2),
        (sqlite3.SQLITE_IOERR_WRITE, True, 2),
        (sqlite3.SQLITE_IOERR_FSYNC, False, 1),
        (sqlite3.SQLITE_IOERR_FSYNC, True, 1),
    ],
)
def test_a_step_that_finds_no_room_is_done_again_with_an_empty_log(
    path: Path, store: SqliteStore, code: int, at_commit: bool, tries: int
) -> None:
    """Once, and from its start; any other error is told at once."""
    record, data = take(store), b"in the log alone"
    assert store.replace(Replace(held(data=data), record.version), timeout_s=SOON_S).applied
    found: list[tuple[bool, bool]] = []

    def work(connection: sqlite3.Connection) -> None:
        found.append((connection.in_transaction, data in path.read_bytes()))
        connection.execute("BEGIN IMMEDIATE")
        if code == sqlite3.SQLITE_FULL:
            connection.execute("ROLLBACK")  # as SQLite may do by itself
        error = sqlite3.OperationalError("no room")
        error.sqlite_errorcode = code
        if at_commit:
            raise wire.trouble(error, str(path), "k", at_commit=True) from error
        raise error

    with pytest.raises(OutcomeUnknownError if at_commit else StoreUnavailableError):
        store._file.run(work, "k", SOON_S)

    assert found == [(False, False), (False, True)][:tries]


def claim(store: SqliteStore, key: str, data: bytes, *, in_batch: bool) -> None:
    """Claim *key*, which must be free."""
    request = Claim(held(key, data=data), Expect.ANY)
    [reply] = store.claim_many([request], timeout_s=SOON_S) if in_batch else [store.claim(request, timeout_s=SOON_S)]
    assert reply.applied


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_key_for_which_the_file_grows_is_brought_into_it(path: Path, store: SqliteStore, in_batch: bool) -> None:
    """On a disk that is full later the log could not begin anew. What needs no growth stays in the log: each sync costs milliseconds."""
    store.provision()
    grown = []
    for number in range(30):
        data, before = f"<{number}>".encode() * 200, path.stat().st_size
        claim(store, str(number), data, in_batch=in_batch)

        grown.append(path.stat().st_size > before)
        assert (data in path.read_bytes()) == grown[-1]

    assert 2 < sum(grown) < 10


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize(("free_bytes", "fits"), [(0, False), (60_000, False), (80_000, True)])
def test_a_key_is_refused_where_the_disk_has_no_room_for_it_and_for_the_log(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, in_batch: bool, free_bytes: int, fits: bool
) -> None:
    """With the outcome known; what is held is renewed."""
    record = take(store)
    disk = types.SimpleNamespace(f_bavail=free_bytes // 10, f_frsize=10, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    refused = ""
    for number in range(20):
        try:
            claim(store, str(number), bytes(600), in_batch=in_batch)
        except StoreUnavailableError as error:
            refused = str(error)

    assert ("nothing was written, the disk is full" in refused) == (not fits)
    assert store.replace(Replace(held(), record.version), timeout_s=SOON_S).applied
