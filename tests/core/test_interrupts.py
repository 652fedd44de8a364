"""A slice of ``python -m proof.interrupts``: signals, finalizers and other threads at points of the blocking client, in virtual time."""

from __future__ import annotations

import pytest

from dlock_core.memory import MemoryStore
from proof.interrupts.__main__ import sweep
from proof.interrupts.blocking import ACTS, OPERATIONS

CLOSE, APART = 9, 71


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each != "renewals"])
def test_nothing_that_runs_inside_of_an_operation_breaks_it(operation: str, act: str) -> None:
    """At most one lease is valid, nothing is renewed that nobody has, nothing hangs, and the client can be used afterwards."""
    dense = operation in ("acquire", "renew", "release") and act in ("raise", "handler closes")

    swept = sweep(MemoryStore(), operation, act, CLOSE if dense else APART)

    assert swept.points > CLOSE
    assert not swept.wrong
