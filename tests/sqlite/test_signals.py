"""Signal handlers inside the calls of the SQLite store: handlers that raise, and handlers that call the store."""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Self

import pytest

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_sqlite import _file
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

SOON_S = 10.0
# More places than any call of the store has.
PLACES_MAX = 2_000


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


class Places:
    """Calls *handler* at one of the places where Python runs signal handlers: the entries of functions and the ends of C calls."""

    def __init__(self, number: int, handler: Callable[[], None]) -> None:
        self._number = number
        self._handler = handler
        self.reached = False

    def __enter__(self) -> Self:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return") or "dlock_sqlite" not in frame.f_code.co_filename:
            return
        self._number -= 1
        if self._number < 0:
            sys.setprofile(None)
            self.reached = True
            self._handler()


def held(rvn: str, token: int = 1) -> LockRecord:
    """Return a record that holds the one key."""
    return LockRecord("k", State.HELD, rvn, token, "owner", 20_000)


def interrupt() -> None:
    """Raise, as a handler of Ctrl-C does."""
    raise Interrupt


VERBS: dict[str, Callable[[SqliteStore], object]] = {
    "read": lambda store: store.read("k", timeout_s=SOON_S),
    "claim": lambda store: store.claim(Claim(held("claimed"), Expect.ANY), timeout_s=SOON_S),
    "replace": lambda store: store.replace(Replace(held("new"), held("first").version), timeout_s=SOON_S),
    "replace_many": lambda store: store.replace_many([Replace(held("new"), held("first").version)], timeout_s=SOON_S),
    "claim_many": lambda store: store.claim_many([Claim(held("claimed"), Expect.ANY)], timeout_s=SOON_S),
    "release": lambda store: store.release(
        Release(LockRecord("k", State.FREE, "free", 1, "", None), held("first").version), timeout_s=SOON_S
    ),
    "scan": lambda store: list(store.scan("", timeout_s=SOON_S)),
}


# An interrupt between the opening of a connection and its first name leaves it to the garbage collector; Python 3.13 warns of that.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize(("verb", "is_open"), [*((verb, True) for verb in VERBS), ("read", False), ("claim", False)])
def test_handler_that_raises_leaves_the_store_usable(tmp_path: Path, verb: str, is_open: bool) -> None:
    """Wherever it comes: the mutex is free for other threads, and the file for other processes."""
    path = tmp_path / "locks.db"
    for number in count():
        assert number < PLACES_MAX
        path.unlink(missing_ok=True)
        with closing(SqliteStore(path)) as store, closing(SqliteStore(path)) as other:
            other.claim(Claim(held("first"), Expect.ANY), timeout_s=SOON_S)
            if is_open:
                store.provision()

            kept: list[BaseException] = []
            with Places(number, interrupt) as places:
                try:
                    VERBS[verb](store)
                except Interrupt as error:
                    kept.append(error)  # as a notebook does, and with it every frame

            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
                another.execute("BEGIN IMMEDIATE")
            came: list[object] = []
            thread = threading.Thread(target=lambda: came.append(store.read_age("k", timeout_s=1)))  # noqa: B023  # joined here
            thread.start()
            thread.join()
            assert came, f"the mutex is held after an interrupt at place {number}"
            if not places.reached:
                break
    gc.collect()


def test_handler_that_raises_inside_close_does_not_hold_the_next_close(tmp_path: Path) -> None:
    """What the first left is closed by the second, at once."""
    for number in count():
        assert number < PLACES_MAX
        store = SqliteStore(tmp_path / f"{number}.db")
        store.provision()
        with Places(number, interrupt) as places, suppress(Interrupt):
            store.close()

        thread = threading.Thread(target=store.close)
        thread.start()
        thread.join(5)

        assert not thread.is_alive()
        assert store._file._connection is None
        if not places.reached:
            return


@pytest.mark.parametrize("verb", ["claim", "replace", "replace_many", "release"])
def test_handler_that_calls_the_store_and_the_call_it_interrupted_are_one_after_the_other(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the handler's write comes, it is applied at once, and one of the two is decided after the other."""
    monkeypatch.setattr(_file, "_CHECK_EVERY_NS", 0)  # the look whether the file is still there is a place, too
    for number in count():
        assert number < PLACES_MAX
        with closing(SqliteStore(tmp_path / f"{number}.db")) as store:
            store.provision()
            if verb != "claim":
                store.claim(Claim(held("first"), Expect.ANY), timeout_s=SOON_S)
            inner: list[Reply] = []

            def handler(store: SqliteStore = store, inner: list[Reply] = inner) -> None:
                if verb == "claim":
                    inner.append(store.claim(Claim(held("inner"), Expect.ANY), timeout_s=1.0))
                else:
                    inner.append(store.replace(Replace(held("inner"), held("first").version), timeout_s=1.0))

            with Places(number, handler) as places:
                came = VERBS[verb](store)

            if not places.reached:
                return
            outer = came[0] if isinstance(came, list) else came
            assert isinstance(outer, Reply)
            assert inner[0].applied != outer.applied, f"at place {number}"
            standing = store.read("k", timeout_s=SOON_S)
            assert standing == (inner[0] if inner[0].applied else outer).record


def test_handler_that_forks_lets_the_call_begin_anew(tmp_path: Path) -> None:
    """The fork closes the connection in the middle of the call: wherever that comes, the claim is granted."""
    for number in count():
        assert number < PLACES_MAX
        with closing(SqliteStore(tmp_path / f"{number}.db")) as store:
            store.provision()

            def fork(store: SqliteStore = store) -> None:
                store._file.before_fork()
                store._file.after_fork_in_parent()

            with Places(number, fork) as places:
                assert store.claim(Claim(held("a"), Expect.ANY), timeout_s=SOON_S).applied, f"at place {number}"

            if not places.reached:
                return


def test_handler_that_closes_the_store_lets_the_call_end(tmp_path: Path) -> None:
    """The usual clean exit: the call that was interrupted ends well or says that the store is closed, and nothing waits."""
    for number in count():
        assert number < PLACES_MAX
        store = SqliteStore(tmp_path / f"{number}.db")
        store.provision()
        with Places(number, store.close) as places, suppress(StoreUnavailableError):
            store.claim(Claim(held("a"), Expect.ANY), timeout_s=1.0)

        if not places.reached:
            store.close()
            return
        assert store._file._connection is None
