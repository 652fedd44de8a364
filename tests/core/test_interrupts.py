"""A slice of ``python -m proof.interrupts``: signals, finalizers, other threads and tasks inside of operations, in virtual time."""

from __future__ import annotations

import dis
from types import CodeType

import pytest

from dlock_core import aio
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from proof.interrupts.__main__ import blocking_cells, in_tasks, on_threads, sweep, task_cells
from proof.interrupts.points import points_of
from proof.interrupts.tasks import OpenStore

CLOSE, APART = 9, 71


@pytest.mark.parametrize(("operation", "act"), blocking_cells())
def test_nothing_that_runs_inside_of_an_operation_breaks_it(operation: str, act: str) -> None:
    """At most one lease is valid, nothing is renewed that nobody has, nothing hangs, and the client can be used afterwards."""
    dense = operation in ("acquire", "renew", "release") and act in ("raise", "handler closes")

    swept = sweep(on_threads(MemoryStore()), operation, act, CLOSE if dense else APART)

    assert swept.points > CLOSE
    assert not swept.wrong


@pytest.mark.parametrize(("operation", "act"), task_cells())
def test_nothing_that_runs_inside_of_a_task_breaks_it(operation: str, act: str) -> None:
    """As with threads; an exception may leave the event loop, which then goes on."""
    dense = 1 if operation == "renewals" else 2 * CLOSE  # each entry of a callback of the loop is a single point

    swept = sweep(in_tasks(one_space), operation, act, dense if act == "raise" else APART)

    assert swept.points > CLOSE
    assert not swept.wrong


def one_space() -> OpenStore:
    """Return what opens stores that meet the same records."""
    space = MemorySpace()

    async def open_store() -> AsyncMemoryStore:
        return AsyncMemoryStore(space)

    return open_store


def test_no_point_is_where_python_looks_at_no_signal() -> None:
    """An act there would leave a mutex held that no program can leave held."""
    jumps = [
        (code, each.argval)
        for code in codes_of(aio.AsyncLockClient)
        for each in dis.Bytecode(code)
        if "NO_INTERRUPT" in each.opname
    ]

    assert jumps
    assert [f"{code.co_name}: {target}" for code, target in jumps if target in points_of(code)] == []


def codes_of(kind: type) -> list[CodeType]:
    """Return those of its methods."""
    return [method.__code__ for method in vars(kind).values() if hasattr(method, "__code__")]
