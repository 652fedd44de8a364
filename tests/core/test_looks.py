"""What the waiters of one client share: which look serves whom."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.looks import Look
from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Reply

HELD = LockRecord("k", State.HELD, "r", 1, "o", 1000)
FREE = LockRecord("k", State.FREE, "r", 1, "", None)
SHOWN = Reply(applied=False, record=HELD)


class Looks:
    """Looks at one key at the instants that the test says; each takes a tick, and finds the next of *found*."""

    def __init__(self, *found: Reply | StoreError) -> None:
        self.look, self.now, self.found = Look(), 10, list(found)

    def read(self, since: int) -> Any:
        """Read for a waiter that began to pause at *since*."""
        return run_blocking(self.look.read(since, lambda: self.now, self._send))

    async def _send(self) -> Reply | StoreError:
        self.now += 1
        return self.found.pop(0)


def test_a_look_serves_whom_it_began_after() -> None:
    """It may show what stood when it began, so that instant counts and not its end."""
    looks = Looks(SHOWN, SHOWN)
    looks.read(0)

    assert looks.read(9) == SHOWN
    assert len(looks.found) == 1
    assert looks.read(10) == SHOWN
    assert looks.found == []


@pytest.mark.parametrize("found", [Reply(applied=False, record=FREE), Reply(applied=False, record=None)])
def test_a_free_key_is_looked_at_by_each_waiter(found: Reply) -> None:
    """All of them would claim what the first has just got."""
    looks = Looks(found, SHOWN)

    assert looks.read(0) == found
    assert looks.read(0) == SHOWN


def test_a_look_that_failed_serves_nobody_and_ends_what_served_before() -> None:
    """The next waiter looks again."""
    trouble = StoreUnavailableError("-")
    looks = Looks(SHOWN, trouble, SHOWN)
    looks.read(0)

    assert looks.read(10) is trouble
    looks.read(0)

    assert looks.found == []
