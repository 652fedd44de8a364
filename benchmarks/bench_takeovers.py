"""How long after the end of a killed holder's lease a waiter has the lock, on each store. The tests of real faults do the same."""

from __future__ import annotations

import random
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._figures import Part, Section, Shown, percentile
from tests.backends import url_for
from tests.faults.test_processes import STORES, take_over

__all__ = ["takeovers"]

LEASE_S, AT_ONCE = 2.0, 3
TRIALS_A_ROUND, TRIALS_MAX = 7, 60


def takeovers(rounds: int) -> Part:
    """Kill holders at random points, and see when those who wait have the lock."""
    count = min(TRIALS_MAX, TRIALS_A_ROUND * rounds)
    lines, shown = [], []
    with tempfile.TemporaryDirectory() as folder:
        for store in STORES:
            late = delays(url_for(store, Path(folder)), count)
            figures = (statistics.median(late), percentile(late, 0.99), late[0], late[-1])
            lines.append((store, *(f"{each * 1e3:.0f}" for each in figures)))
            shown.append(Shown(f"takeover-{store}", (figures[1] * 1e3,)))
    how = (
        f"{count} holders with a lease of {LEASE_S:g} s each, {AT_ONCE} at once, killed with SIGKILL while another client waits "
        "in `acquire`. Counted from the end of the lease of the last renewal that was acknowledged; none may be negative."
    )
    head = ("", "p50, ms", "p99, ms", "least", "most")
    return Part((Section("Takeover after kill -9", how, head, tuple(lines)),), tuple(shown))


def delays(url: str, count: int) -> list[float]:
    """Return the seconds past the leases' ends, in order."""
    run, pauses = f"bench/{random.randrange(1 << 62)}", [random.uniform(0.1, LEASE_S / 2) for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        trials = pool.map(lambda number: take_over(url, f"{run}/{number}", LEASE_S, pauses[number]), range(count))
        return sorted(trial.after_renewal_s - LEASE_S for trial in trials)
