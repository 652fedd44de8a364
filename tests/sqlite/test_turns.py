"""The one connection of a SQLite store is used in turn: who waits for it disturbs nobody, and neither does who gives up."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.store import Claim, Expect
from dlock_sqlite import _file
from dlock_sqlite import _wire as wire
from tests.sqlite.support import SOON_S, held, read, take

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from dlock_sqlite import SqliteStore


class InterruptError(Exception):
    """What a signal handler raises."""


def timed_out(store: SqliteStore) -> None:
    """Wait for the connection in vain."""
    with pytest.raises(StoreUnavailableError, match="locked for"):
        store.read("k", timeout_s=0.05)


def interrupted(store: SqliteStore) -> None:
    """Wait for it until a signal handler raises."""

    def handler(_: int, __: FrameType | None) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptError):
            read(store)
    finally:
        signal.signal(signal.SIGALRM, before)


def closed(store: SqliteStore) -> None:
    """Close the store, without the patience to wait."""
    store.close()


@pytest.mark.parametrize(
    ("meanwhile", "nests"),
    [(timed_out, False), (timed_out, True), (interrupted, False), (interrupted, True), (closed, False)],
)
def test_a_step_of_another_thread_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[SqliteStore], None], nests: bool
) -> None:
    """Its transaction is not rolled back, and not entered by a signal handler that *nests*: the call that this interrupts begins anew."""
    monkeypatch.setattr(_file, "_PATIENCE_S", 0.05)
    store.provision()
    inside, done = threading.Event(), threading.Event()
    tries: list[bool] = []

    def step(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(wire.WRITE, wire.encode(held()))
        tries.append(nests)
        if len(tries) == 1:
            inside.set()
            done.wait(SOON_S)
            if nests:
                take(store, "nested")
        connection.execute("COMMIT")

    thread = threading.Thread(target=store._file.run, args=(step, None, SOON_S))
    thread.start()
    inside.wait(SOON_S)
    meanwhile(store)
    done.set()
    thread.join()

    assert len(tries) == 1 + nests
    assert (store._file._connection is None) == (meanwhile is closed)
    with closing(type(store)(store.path)) as again:
        assert [record.key for record in again.scan("", timeout_s=SOON_S)] == ["k", "nested"][: 1 + nests]


def test_two_handlers_in_one_call_are_each_applied_at_once(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes before the call has its connection, the second in its transaction."""
    store.provision()
    ready, tries = store._file._ready, []

    def late(now: int) -> sqlite3.Connection:
        monkeypatch.undo()
        take(store, "first")
        return ready(now)

    def step(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        tries.append(connection)
        if len(tries) == 1:
            take(store, "second")
        connection.execute("COMMIT")

    monkeypatch.setattr(store._file, "_ready", late)
    store._file.run(step, None, SOON_S)

    assert len(tries) == 2
    assert [each.key for each in store.scan("", timeout_s=SOON_S)] == ["first", "second"]


def test_an_unknown_outcome_is_told_whatever_a_handler_does_after_it(store: SqliteStore) -> None:
    """Begun anew, a step that was applied would be refused."""
    tries: list[sqlite3.Connection] = []

    def step(connection: sqlite3.Connection) -> None:
        tries.append(connection)
        take(store, f"k{len(tries)}")
        raise OutcomeUnknownError("the commit failed")

    with pytest.raises(OutcomeUnknownError):
        store._file.run(step, "k", SOON_S)

    assert len(tries) == 1


def test_a_file_that_is_busy_is_asked_for_without_haste(path: Path, store: SqliteStore) -> None:
    """On the same connection: between two looks comes a nap, of a few milliseconds at most."""
    store.provision()
    statements: list[str] = []
    store._file.run(lambda connection: connection.set_trace_callback(statements.append), None, SOON_S)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            store.claim(Claim(held(), Expect.ANY), timeout_s=0.4)

    assert 10 < statements.count("BEGIN IMMEDIATE") < 250
