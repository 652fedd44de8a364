"""The worlds that are explored: how large, what may happen, and what must have been reached for the run to count."""

from __future__ import annotations

from typing import NamedTuple

from dlock_core.record import OwnerState
from proof.explore.world import Rules

__all__ = ["NIGHTLY", "QUICK", "SCENARIOS", "Scenario"]

_GRANTS = ("takeover", "late grant", "late grant renewed before hand-out", "lost: expired", "release chasing a renewal")
_FAULTS = (
    *_GRANTS,
    "late request applied: claim",
    "late request applied: renewal",
    "late request applied: release",
    "lost claim adopted",
    "lost renewal adopted",
    "lost release adopted",
    "risk healed",
    "lost: unreachable",
    "own orphan taken over",
)


class Scenario(NamedTuple):
    """A world and the notes that its exploration must have made."""

    rules: Rules
    reaches: tuple[str, ...]


_ABANDON = (
    "attempt abandoned",
    "abandoned acquire cleaned up",
    "own orphan taken over",
    "clean-up met another version",
)
_DEATHS = (
    "owner died",
    "died without the lock",
    *(f"owner probed {owner.value}" for owner in OwnerState),
    "taken over from a dead owner",
    "takeover",
)

SCENARIOS: dict[str, Scenario] = {
    "2x8x1": Scenario(Rules(ticks=8), (*_FAULTS, "copy applied: claim", "late request applied: takeover")),
    "3x4x0": Scenario(Rules(leases=(2, 2, 2), faults=0), _GRANTS),
    "abandon": Scenario(Rules(ticks=1, attempts=2, abandons=1, copies=False, faults=0, solo=True), _ABANDON),
    "abandon-copy": Scenario(
        Rules(leases=(2,), ticks=0, attempts=2, abandons=1),
        ("attempt abandoned", "abandoned acquire cleaned up", "copy applied: claim"),
    ),
    "shorter": Scenario(
        Rules(leases=(3, 3), relet=1, copies=False, ticks=3, solo=True),
        ("lost renewal adopted", "late grant", "risk healed"),
    ),
    "longer": Scenario(
        Rules(relet=3, copies=False, ticks=2, solo=True), ("lost renewal adopted", "takeover", "risk healed")
    ),
    "break": Scenario(
        Rules(breaks=1, faults=0), ("takeover after a break", "lost: broken", "late request applied: break")
    ),
    "fail-closed": Scenario(
        Rules(leases=(None, None), ticks=2, faults=2, heartbeat=False),
        ("lost claim adopted", "lost release adopted", "late request applied: claim"),
    ),
    "fail-closed-abandon": Scenario(
        Rules(leases=(None, None), ticks=0, attempts=2, abandons=1, heartbeat=False, copies=False, solo=True),
        ("attempt abandoned", "abandoned acquire cleaned up", "own orphan taken over"),
    ),
    "fail-closed-now": Scenario(
        Rules(leases=(None, None), ticks=2, heartbeat=False, breaks=1, frees_now=True), ("late request applied: break",)
    ),
    "mixed": Scenario(
        Rules(leases=(None, 2), abandons=1, copies=False, ticks=2, faults=1, solo=True),
        ("attempt abandoned", "abandoned acquire cleaned up", "takeover"),
    ),
    "stale": Scenario(Rules(ticks=3, stale=True, copies=False), ("stale refusal", "lost claim adopted", "takeover")),
    "stale-closed": Scenario(
        Rules(leases=(None, None), ticks=0, faults=1, abandons=1, stale=True, heartbeat=False, copies=False),
        ("stale refusal", "abandoned acquire cleaned up"),
    ),
    "notify": Scenario(
        Rules(ticks=2, notify=True), ("takeover", "lost claim adopted", "late grant renewed before hand-out")
    ),
    "server-wait": Scenario(
        Rules(ticks=2, notify=True, in_server=True, copies=False, abandons=1, solo=True),
        ("takeover", "lost claim adopted", "late grant renewed before hand-out", "abandoned acquire cleaned up"),
    ),
    "owner-probe": Scenario(
        Rules(faults=0, deaths=1, probes=True, solo=True), (*_DEATHS, "lost: expired", "late request applied: claim")
    ),
    "server-clock": Scenario(Rules(faults=0, aged=True), (*_GRANTS, "taken over by the store's clock")),
    "prune": Scenario(
        Rules(breaks=1, late=1, ticks=3, heartbeat=False),
        ("record removed", "takeover", "late grant", "lost claim adopted", "copy applied: claim"),
    ),
    "abandon-both": Scenario(Rules(ticks=2, attempts=2, abandons=1, copies=False, faults=0), _ABANDON),
    "break-fault": Scenario(
        Rules(breaks=1, ticks=3), ("takeover after a break", "lost: broken", "lost renewal adopted")
    ),
    "owner-probe-fault": Scenario(
        Rules(ticks=2, deaths=1, probes=True),
        (
            *_DEATHS,
            "lost claim adopted",
            "lost renewal adopted",
            "copy applied: claim",
            "late request applied: renewal",
        ),
    ),
    "server-clock-fault": Scenario(
        Rules(aged=True), (*_FAULTS, "copy applied: claim", "taken over by the store's clock")
    ),
    "2x6x2": Scenario(Rules(ticks=6, faults=2), (*_FAULTS, "copy applied: claim")),
    "3x4x1": Scenario(Rules(leases=(2, 2, 2)), (*_FAULTS, "copy applied: claim")),
    "prune-fault": Scenario(
        Rules(breaks=1, late=1, ticks=3, faults=2, heartbeat=False, copies=False),
        ("record removed", "takeover", "late request applied: claim", "own orphan taken over"),
    ),
    "twice": Scenario(Rules(ticks=3, attempts=2, faults=0), _GRANTS),
}

NIGHTLY = (
    "abandon-both",
    "break-fault",
    "server-clock-fault",
    "2x6x2",
    "3x4x1",
    "prune-fault",
    "twice",
)
QUICK = tuple(name for name in SCENARIOS if name not in NIGHTLY)
