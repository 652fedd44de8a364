"""What a simulated schedule is like: drawn anew for each seed, because mild faults that are always the same find little."""

from __future__ import annotations

import random
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from dlock_core.options import ClientOptions
from dlock_core.timings import NANOS, Timings, Traits, derive_timings

__all__ = ["DRIFT", "LEASE_S", "RELET_S", "Knobs", "Mode", "draw", "extreme", "sim_timings"]

LEASE_S = 1.0
RELET_S = 0.5  # what a lease is changed to, and back
DRIFT = 0.01


class Mode(StrEnum):
    """How the store behaves; the last two break what a store promises."""

    LINEARIZABLE = "linearizable"
    STALE_REFUSAL = "stale-refusal"  # a refusal may show an older record; reads are linearizable
    THROTTLED = "throttled"  # in bursts most requests are certainly not applied
    PARTITIONED = "partitioned"  # now and then some of the clients cannot reach it
    STALE_READ = "stale-read"  # reads too may show an older record
    FAILOVER = "failover"  # now and then it forgets its last writes


_MODES = (
    *(Mode.LINEARIZABLE,) * 4,
    Mode.STALE_REFUSAL,
    Mode.STALE_REFUSAL,
    Mode.THROTTLED,
    Mode.PARTITIONED,
    Mode.STALE_READ,
    Mode.FAILOVER,
)


class Knobs(NamedTuple):
    """What one schedule is like. Times are parts of a second, which is the longest lease; the others chances."""

    clients: int = 2
    delay: float = 0.01
    loss: float = 0.0
    doubled: float = 0.0
    pause: float = 0.0
    crash: float = 0.0
    give_up: float = 0.0
    relet: float = 0.0
    breaks: float = 0.0
    poll: float = 0.1
    mode: Mode = Mode.LINEARIZABLE
    lost_writes: int = 2
    phase: float = 0.0
    cut: float = 0.5
    settles: bool = False
    notifies: bool = False  # the store wakes waiters at each write, as far as nothing is lost
    claims_wait: bool = False  # and claims wait in it
    prunes: bool = False  # an operator asks for the removal of each record that was free when it was listed
    stops: bool = False  # clocks that stand still while their process is suspended, as CLOCK_MONOTONIC does
    rates: tuple[float, ...] = (1.0, 1.0)
    leases: tuple[float, ...] = (LEASE_S, LEASE_S)

    @property
    def longest_s(self) -> float:
        """The longest lease that a record may have."""
        return max(*self.leases, RELET_S if self.relet else 0.0)

    @property
    def stale(self) -> bool:
        """Whether refusals may be stale, which a store declares."""
        return self.mode in (Mode.STALE_REFUSAL, Mode.STALE_READ)


def draw(seed: int, drift: float = DRIFT, mode: Mode | None = None) -> Knobs:
    """Draw the knobs of a schedule; the clocks are at most *drift* off, and often at the bound."""
    rng = random.Random(f"knobs:{seed}")
    clients = rng.choice((2, 3, 3, 5))
    mixed = rng.random() < 0.2
    drawn = Knobs(
        clients=clients,
        delay=rng.choice((0.01, 0.1, 0.5, 1.0, 1.5)),
        loss=rng.choice((0.0, 0.05, 0.3)),
        doubled=rng.choice((0.0, 0.1, 0.4)),
        pause=rng.choice((0.0, 0.02, 0.1)),
        crash=rng.choice((0.0, 0.0, 0.01)),
        give_up=rng.choice((0.0, 0.0, 0.02)),
        relet=rng.choice((0.0, 0.0, 0.2)),
        breaks=rng.choice((0.0, 0.0, 0.0, 0.1)),
        poll=rng.choice((0.02, 0.1, 0.3)),
        mode=rng.choice(_MODES),
        lost_writes=rng.choice((1, 2, 3)),
        phase=rng.random(),
        cut=rng.choice((0.3, 0.7, 1.5)),
        settles=rng.random() < 0.125,
        rates=tuple(1 + drift * rng.choice((-1, -1, rng.uniform(-1, 1), 1, 1)) for _ in range(clients)),
        leases=tuple(rng.choice((0.3, LEASE_S)) if mixed else LEASE_S for _ in range(clients)),
        notifies=rng.random() < 0.375,
        claims_wait=rng.random() < 0.5,
    )
    return drawn if mode is None else drawn._replace(mode=mode)


def extreme(drift: float) -> Knobs:
    """Return what finds clocks that are too far off: the slowest holder, the fastest waiters, pauses, and hardly a delay."""
    rates = (1 - drift, 1 + drift, 1 + drift)
    return Knobs(clients=3, pause=0.05, rates=rates, leases=(LEASE_S,) * 3)


def sim_timings(lease_s: float, knobs: Knobs) -> Timings:
    """Return the timings of a simulated client whose lease is so long."""
    return _plan(
        lease_s,
        int(knobs.poll * NANOS),
        stale=knobs.stale,
        notify=knobs.notifies,
        waits=knobs.notifies and knobs.claims_wait,
    )


@lru_cache(maxsize=256)
def _plan(lease_s: float, poll_ns: int, *, stale: bool, notify: bool, waits: bool) -> Timings:
    options = ClientOptions(lease_duration=lease_s, drift_bound=DRIFT)
    traits = Traits(notify=notify, refusals_linearizable=not stale, server_wait=waits)
    timings = derive_timings(options, "o", traits)
    return timings._replace(poll_max_ns=poll_ns, fallback_ns=poll_ns)
