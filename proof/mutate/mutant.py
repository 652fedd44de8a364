"""A mutant: one line of the protocol changed, the rule that it breaks, and what must notice.

*within* names the function in whose text *old* is looked for; an empty one is the whole file. *by* is a world of ``WORLDS``, explored until
an invariant is violated, or a test of ``tests/core``.
"""

from __future__ import annotations

from typing import NamedTuple

from proof.explore.world import Rules

__all__ = ["DELETING", "HOLDING", "RELEASE", "SEEKING", "TIMINGS", "TOKENLESS", "WORLDS", "Mutant"]


class Mutant(NamedTuple):
    """One line changed."""

    name: str
    rule: str
    within: str
    old: str
    new: str
    by: str
    file: str = "lease"


WORLDS: dict[str, Rules] = {
    "plain": Rules(ticks=3, faults=0),
    "slow": Rules(ticks=5, faults=0),
    "slower": Rules(leases=(3, 3), ticks=5, faults=0),
    "faults": Rules(ticks=3, faults=1),
    "long": Rules(ticks=5, faults=1, copies=False),
    "shorter": Rules(leases=(3, 3), relet=1, copies=False),
    "longer": Rules(relet=3, copies=False, faults=1),
    "abandon": Rules(ticks=1, attempts=2, abandons=1, copies=False, faults=0),
    "abandon-fault": Rules(ticks=2, abandons=1, copies=False, faults=1),
    "break": Rules(breaks=1, faults=0, ticks=3),
    "closed": Rules(leases=(None, None), ticks=0, faults=1, abandons=1, heartbeat=False),
    "closed-twice": Rules(leases=(None,), ticks=1, faults=2, attempts=2, abandons=2, heartbeat=False),
    "closed-wait": Rules(leases=(None, 2), ticks=4, faults=0),
    "stale": Rules(ticks=3, stale=True, copies=False),
    "probed": Rules(ticks=2, faults=0, deaths=1, probes=True, solo=True),
    "aged": Rules(ticks=3, faults=0, aged=True),
    "prune": Rules(breaks=1, late=1, ticks=1, faults=2, heartbeat=False, copies=False),
    "prune-twice": Rules(leases=(2,), breaks=1, late=1, ticks=4, faults=0, heartbeat=False, attempts=2),
    "mixed": Rules(leases=(None, 2), abandons=1, copies=False, ticks=3),
    "waits": Rules(ticks=3, faults=0, notify=True, in_server=True, copies=False),
}

HOLDING, SEEKING, RELEASE = (
    "test_lease_holding.py::test_",
    "test_lease_seeking.py::test_",
    "test_lease_release.py::test_",
)
DELETING = "test_lease_deleting.py::test_"
TOKENLESS = "test_lease_tokenless.py::test_"
TIMINGS = "test_timings.py::test_"
