"""How many requests a job and an election cost, counted at the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks._figures import Part, Section
from dlock_core import LockClient
from dlock_core.memory import MemorySpace, MemoryStore
from dlock_core.testing import FaultyStore

if TYPE_CHECKING:
    from dlock_core.store import LockStore

__all__ = ["OPERATIONS", "counted", "requests"]


def requests(_: int) -> Part:
    """Count the requests of one of each; they are the same each time, and on each store."""
    lines = tuple(
        (what, ", ".join(f"{count} {verb}" for verb, count in verbs.items())) for what, verbs in counted().items()
    )
    how = "One of each, on a store in memory that counts. A run or a term that is longer than a quarter of its lease adds its renewals."
    return Part((Section("Requests of jobs and elections", how, ("", "requests"), lines),), ())


def _once(client: LockClient) -> None:
    with client.once("job", slot=1):
        pass


OPERATIONS: dict[str, Callable[[LockClient], object]] = {
    "once: a run": _once,
    "once: done already": _once,
    "election: a campaign and a resignation": lambda client: client.election("led").campaign().resign(),
    "election: leader()": lambda client: client.election("led").leader(),
    "election: an observer's look": lambda client: next(iter(client.election("led").observe())),
}
"""What is counted, in this order, on keys that nobody has used before."""


def counted(inner: LockStore | None = None) -> dict[str, dict[str, int]]:
    """Return the requests of each operation to a store, in memory by default, by their verbs."""
    store = FaultyStore(inner or MemoryStore(MemorySpace()))
    found: dict[str, dict[str, int]] = {}
    with LockClient(store, lease_duration=300) as client:
        for what, operation in OPERATIONS.items():
            store.requests.clear()
            operation(client)
            found[what] = dict(store.requests)
    return found
