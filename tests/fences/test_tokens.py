"""Where the middleware keeps its tokens: forks of the server, and connections that are lost."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dlock_core import LeaseStateError, StoreError
from dlock_core.fence import SQLTokens
from tests.fences.accounts import connected_postgres

TABLE = "fencing_tokens_of_forks"


def in_child(ask: Callable[[], object]) -> bool:
    """Return whether *ask* returned in a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ask()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def tokens() -> Any:
    """Open tokens on PostgreSQL by a function, as at the top of a module that a server loads before it forks."""
    opened: list[Any] = []

    def connect() -> Any:
        opened.append(connected_postgres())
        return opened[-1]

    made = SQLTokens(connect, table=TABLE, paramstyle=psycopg.paramstyle)
    made.create_table()
    yield made, opened
    with closing(connected_postgres()) as connection:
        connection.execute(f"DROP TABLE {TABLE}")
        connection.commit()
    for each in opened:
        each.close()


def test_each_forked_process_has_a_connection_of_its_own(tokens: Any) -> None:
    """All see one another's tokens, and the parent's connection works on after its children have ended."""
    made, opened = tokens
    made.admit("a", 5)

    def older() -> None:
        assert made.admit("a", 4) == 5
        assert made.admit("a", 6) == 6
        assert len(opened) == 2

    assert in_child(older)
    assert made.admit("a", 3) == 6
    assert len(opened) == 1


def test_the_connection_of_the_parent_is_refused_in_a_forked_child() -> None:
    """One would get the other's answers: a refused token could look admitted."""
    with closing(sqlite3.connect(":memory:")) as connection:
        made = SQLTokens(connection)
        made.create_table()

        def ask() -> None:
            with pytest.raises(LeaseStateError, match="give SQLTokens a function that opens one"):
                made.admit("a", 1)

        assert in_child(ask)
        assert made.admit("a", 1) == 1


def test_the_parents_connection_is_not_freed_in_a_child(tmp_path: Path) -> None:
    """A driver may say good-bye to the server then, which ends it for the parent."""
    freed: list[int] = []

    class Told(sqlite3.Connection):
        def __del__(self) -> None:
            freed.append(os.getpid())

    made = SQLTokens(lambda: sqlite3.connect(tmp_path / "tokens.db", factory=Told))
    made.create_table()

    def ask() -> None:
        assert made.admit("a", 1) == 1
        gc.collect()
        assert freed == []

    assert in_child(ask)


def test_a_child_waits_for_no_thread_of_its_parents(tmp_path: Path) -> None:
    """One that was in the middle of a statement at the fork is not there to let the others in."""
    asked, go_on = threading.Event(), threading.Event()

    class Slow(sqlite3.Connection):
        def commit(self) -> None:
            asked.set()
            go_on.wait()
            super().commit()

    made = SQLTokens(lambda: sqlite3.connect(tmp_path / "tokens.db", check_same_thread=False, factory=Slow))
    go_on.set()
    made.create_table()
    go_on.clear()
    asked.clear()
    thread = threading.Thread(target=made.admit, args=("a", 1), daemon=True)
    thread.start()
    asked.wait()

    def ask() -> None:
        signal.alarm(20)
        with pytest.raises(sqlite3.OperationalError, match="locked"):  # by the parent's transaction
            made.admit("a", 2)

    made._open = lambda: sqlite3.connect(tmp_path / "tokens.db", timeout=0)
    ended = in_child(ask)
    go_on.set()
    thread.join()
    assert ended


def test_a_lost_connection_is_opened_again(tokens: Any) -> None:
    """The request that finds it lost fails with the driver's error, and the next one is served."""
    made, opened = tokens
    made.admit("a", 5)
    with closing(connected_postgres()) as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", [opened[0].info.backend_pid])

    with pytest.raises(psycopg.OperationalError):
        made.admit("a", 6)
    assert [made.admit("a", 4), made.admit("a", 6)] == [5, 6]


def test_tokens_that_fall_are_told() -> None:
    """Somebody deletes or changes the rows: to let such a request through would let through an older one next."""
    with closing(sqlite3.connect(":memory:")) as connection:
        made = SQLTokens(connection)
        made.create_table()
        connection.execute(
            "CREATE TRIGGER falling AFTER INSERT ON fencing_tokens BEGIN SELECT RAISE(ABORT, 'there is one'); END"
        )

        with pytest.raises(StoreError, match="the tokens in the table 'fencing_tokens' fall"):
            made.admit("a", 5)
