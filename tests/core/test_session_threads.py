"""A session in the hands of several threads: one audits its locks, and others let go of them, or take in more."""

from __future__ import annotations

from collections import deque
from typing import Any

from dlock_core import LockClient
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.handle import Handle
from dlock_core.engine.keeper import Keeper
from dlock_core.memory import MemoryStore


def test_audit_looks_at_the_next_lock_while_others_are_taken_in_and_let_go() -> None:
    """No other thread comes in between its steps."""
    client = LockClient(MemoryStore(), renewal="session")
    first, second, beat = (client.acquire(key) for key in ("a", "b", "session"))
    runtime, keepers = client._engine.runtime, client._engine.keepers

    class Kept(dict[Handle, None]):
        def __iter__(self) -> Any:
            handles = super().__iter__()
            if not runtime.is_inside():
                self[second._handle] = None  # as another thread does that takes a lock in
            return handles

    class Parted(deque[Handle]):
        def __bool__(self) -> bool:
            any_left = bool(len(self))
            if not runtime.is_inside():
                self.clear()  # as the audit of the beat before does, which takes long
            return any_left

    session = Keeper(client._context.default.timings.of_session())
    session._handle = beat._handle
    session._handle.keeps = session
    session.kept = Kept({first._handle: None})
    session.parted = Parted([second._handle])

    run_blocking(keepers.look_after(session._handle, lambda: 1.0))

    assert list(dict.keys(session.kept)) == [first._handle]
    assert not len(session.parted)
    session._handle.keeps = None
    for lease in (first, second, beat):
        lease.release()
    client.close()


def test_end_of_a_session_loses_all_locks_also_the_one_that_an_audit_moves_to_the_end() -> None:
    """That is not among them for a moment, so they are listed where no audit comes in between."""
    client = LockClient(MemoryStore(), renewal="session")
    lease, beat = client.acquire("a"), client.acquire("session")
    runtime, keepers = client._engine.runtime, client._engine.keepers
    listed_inside: list[bool] = []

    class Kept(dict[Handle, None]):
        def __iter__(self) -> Any:
            listed_inside.append(runtime.is_inside())
            return super().__iter__()

    session = Keeper(client._context.default.timings.of_session())
    session._handle = beat._handle
    session.kept = Kept({lease._handle: None})
    lease._handle.keeper = session

    keepers.end_all(session)

    assert listed_inside == [True]
    assert lease.loss is not None
    beat.release()
    client.close()
