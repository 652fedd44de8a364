"""What a simulated schedule is like: drawn anew for each seed, because mild faults that are always the same find little."""

from __future__ import annotations

import random
from typing import NamedTuple

from dlock_core.plan import Plan, make_plan

__all__ = ["DRIFT", "LEASE_S", "Knobs", "draw", "sim_plan"]

LEASE_S = 1.0
DRIFT = 0.01


class Knobs(NamedTuple):
    """What one schedule is like. Times are parts of the lease, the others chances."""

    clients: int
    delay: float
    loss: float
    doubled: float
    pause: float
    crash: float
    stale: bool
    rates: tuple[float, ...]


def draw(seed: int, drift: float) -> Knobs:
    """Draw the knobs of a schedule; the clocks are at most *drift* off, and often at the bound."""
    rng = random.Random(f"knobs:{seed}")
    clients = rng.choice((2, 3, 3, 5))
    return Knobs(
        clients=clients,
        delay=rng.choice((0.01, 0.1, 0.5, 1.0, 1.5)),
        loss=rng.choice((0.0, 0.05, 0.3)),
        doubled=rng.choice((0.0, 0.1, 0.4)),
        pause=rng.choice((0.0, 0.02, 0.1)),
        crash=rng.choice((0.0, 0.0, 0.01)),
        stale=rng.random() < 0.2,
        rates=tuple(1 + drift * rng.choice((-1, -1, 0, 1, 1)) for _ in range(clients)),
    )


def sim_plan(*, stale: bool) -> Plan:
    """Return the plan of every simulated client."""
    return make_plan(
        owner="o",
        lease_duration=LEASE_S,
        heartbeat_period=None,
        timeout=None,
        request_timeout=None,
        drift_bound=DRIFT,
        max_lease_duration=3600,
        fail_closed=False,
        auto_renew=True,
        max_hold=None,
        data=None,
        attributes=(),
        replace_data=True,
        only_if_exists=False,
        delete_on_release=False,
        notify=False,
        refusals_linearizable=not stale,
    )
