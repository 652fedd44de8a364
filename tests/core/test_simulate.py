"""Seeded schedules of the shipped machine: no violation within the drift bound, one beyond it, and the same seed is the same schedule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proof.knobs import Knobs
from proof.simulate import Sim, run_seed, run_seeds

ROOT = Path(__file__).parents[2]


def extreme(drift: float) -> Knobs:
    """Return a schedule of three clients that pause often, the clock of one as slow and of the others as fast as may be."""
    rates = (1 - drift, 1 + drift, 1 + drift)
    return Knobs(3, delay=0.01, loss=0.0, doubled=0.0, pause=0.05, crash=0.0, stale=False, rates=rates)


@pytest.mark.slow
def test_simulate_within_the_drift_bound_violates_nothing() -> None:
    """Delays, losses, doubled requests, pauses, crashes and stale refusals, mixed anew for each seed."""
    outcomes = list(run_seeds(range(10_000)))

    assert [outcome for outcome in outcomes if outcome.violation is not None] == []
    assert sum(outcome.grants for outcome in outcomes) > 10_000
    assert sum(outcome.unfenced for outcome in outcomes) > 0


def test_hazard_14_simulate_at_the_drift_bound_violates_nothing() -> None:
    """The slowest holder and the fastest waiter."""
    assert [outcome for seed in range(200) if (outcome := Sim(seed, extreme(0.01)).run(seed, 1_500)).violation] == []


def test_hazard_14_simulate_three_times_beyond_the_drift_bound_finds_two_valid_leases() -> None:
    """A simulator that can not see it would prove nothing."""
    violations = {Sim(seed, extreme(0.03)).run(seed, 1_500).violation for seed in range(200)}

    assert {"I1: two leases are valid", "I1: a grant while another lease is valid"} & violations


def test_simulate_same_seed_is_the_same_schedule() -> None:
    """Also in another process, where strings hash differently."""
    code = "from proof.simulate import run_seed\nprint(*(run_seed(seed).digest for seed in range(5)))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}

    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert other.stdout.split() == [run_seed(seed).digest for seed in range(5)]
