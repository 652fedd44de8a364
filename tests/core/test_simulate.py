"""Seeded schedules of the shipped machine: no violation within the bounds, one beyond each, and the same seed is the same schedule."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import lease
from dlock_core.states import Woken
from proof.explore.canonical import TOKEN
from proof.simulate import runner as simulate
from proof.simulate import shrink
from proof.simulate.knobs import DRIFT, Mode, draw
from proof.simulate.runner import EVENTS, Task, Totals, finished, run_seed
from proof.simulate.schedule import Sim
from proof.simulate.store import SimStore

if TYPE_CHECKING:
    from dlock_core.record import LockRecord
    from dlock_core.states import Effect, Event, LeaseState, Observation

ROOT = Path(__file__).parents[2]


def without_seconds(totals: Totals) -> dict[str, object]:
    """Return *totals* but for how long they took, in numbers that can be compared."""
    return asdict(totals) | {"cpu_s": 0, "virtual_s": round(totals.virtual_s)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_simulate_within_the_bounds_violates_nothing() -> None:
    """Sixteen thousand schedules: delays, losses, copies, pauses, crashes, drift, and every mode of the store, mixed anew for each seed.

    ``make proof`` runs a million.
    """
    totals = simulate.simulate(range(16_000))

    assert totals.failures == []
    assert set(totals.modes) == set(Mode)
    assert totals.grants > 16_000
    assert totals.takeovers > 8_000
    assert totals.unfenced > 0
    assert totals.refused > 0
    assert totals.settled > 1_600


def test_hazard_14_simulate_at_the_drift_bound_violates_nothing() -> None:
    """The slowest holder and the fastest waiter."""
    assert simulate.simulate(range(200), Task(events=1_500, extreme=True)).failures == []


def test_hazard_14_simulate_three_times_beyond_the_drift_bound_finds_two_valid_leases() -> None:
    """A simulator that can not see it would prove nothing."""
    totals = simulate.simulate(range(200), Task(drift=3 * DRIFT, events=1_500, extreme=True))

    assert any(violation.startswith("I1:") for _, violation in totals.failures)


def test_simulate_clocks_that_stand_still_in_a_suspended_process_find_two_valid_leases() -> None:
    """Why the clock is the one that counts suspended time."""
    totals = simulate.simulate(range(200), Task(stops=True))

    assert any(violation.startswith("I1:") for _, violation in totals.failures)


def test_simulate_failovers_that_lose_writes_break_exclusion_and_repeat_tokens() -> None:
    """Ordered grants need a store that keeps what it has acknowledged; without it a fence holds only while no token is granted twice."""
    totals = simulate.simulate(range(1_000), Task(mode=Mode.FAILOVER))

    assert totals.failures == []
    assert any(name.startswith("I1:") for name in totals.shown)
    assert totals.shown["I2: a token was granted twice"] > 0
    assert totals.unfenceable > 0


def removals(seeds: range) -> tuple[int, set[str]]:
    """Return how many records an operator has removed in the schedules of *seeds*, and what was violated."""
    ended = [finished(Sim(seed, draw(seed)._replace(prunes=True)), EVENTS) for seed in seeds]
    return sum(sim.store.removed for sim in ended), {sim.violation for sim in ended if sim.violation is not None}


def test_simulate_removals_of_free_records_violate_nothing() -> None:
    """They race with claims, renewals and releases, late copies among them, and the tokens go on from where they were."""
    removed, violated = removals(range(1_000))

    assert violated == set()
    assert removed > 300


def test_simulate_removals_without_a_floor_repeat_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that can't see it would prove nothing."""
    monkeypatch.setattr(SimStore, "floor_above", staticmethod(lambda _: TOKEN))

    _, violated = removals(range(200))

    assert "I2: a token was granted twice" in violated


def test_simulate_stale_reads_never_break_exclusion() -> None:
    """They may make a holder believe that it has lost, and nobody that it holds."""
    assert simulate.simulate(range(1_000), Task(mode=Mode.STALE_READ)).failures == []


def test_simulate_same_seed_is_the_same_schedule() -> None:
    """Also in another process, where strings hash differently."""
    code = "from proof.simulate.runner import run_seed\nprint(*(run_seed(seed).digest for seed in range(200)))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}

    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert other.stdout.split() == [run_seed(seed).digest for seed in range(200)]


def test_simulate_with_a_tape_is_the_same_schedule() -> None:
    """What is made smaller is what was found."""
    for seed in range(50):
        knobs = Task().knobs(seed)
        taped = simulate.finished(shrink.Taped(seed, knobs, shrink.Tape()), simulate.EVENTS)

        assert simulate.outcome_of(seed, taped) == run_seed(seed)


def test_simulate_resumed_counts_what_one_run_counts(tmp_path: Path) -> None:
    """A long run can be stopped and gone on with."""
    path, whole = tmp_path / "run.json", simulate.simulate(range(500))

    for count in ("250", "500"):
        assert simulate.main(["--count", count, "--resume", str(path)]) == 0

    saved = simulate.load(path)
    assert saved is not None
    assert without_seconds(saved.totals) == without_seconds(whole)


def test_simulate_refuses_to_go_on_with_another_version(tmp_path: Path) -> None:
    """A seed means another schedule there."""
    path = tmp_path / "run.json"
    simulate.save(path, simulate.Saved("0123", Task(), 0, 250, Totals(schedules=250)))

    with pytest.raises(SystemExit, match=r"of code version 0123.*remove the file"):
        simulate.main(["--count", "500", "--resume", str(path)])


def test_simulate_says_that_a_seed_is_of_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that replays a failure names the code that it was found with."""
    assert simulate.main(["--seed", "1", "--count", "1", "--of", "0123"]) == 0

    assert "found with code version 0123" in capsys.readouterr().err


def test_simulate_names_the_knobs_where_one_is_unknown() -> None:
    """Bad input says what to do."""
    with pytest.raises(SystemExit, match="knobs are clients, delay"):
        simulate.main(["--seed", "1", "--shrink", "--knobs", "weather=1"])


@pytest.mark.timeout(1800)
def test_shrink_finds_a_small_schedule_of_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A waiter that takes over after half a lease: at most twenty events, and one line that shows them again."""
    observe = lease.observe

    def hasty(record: LockRecord, now: int) -> Observation:
        seen = observe(record, now)
        return seen._replace(lease_ns=seen.lease_ns // 2)

    monkeypatch.setattr(lease, "observe", hasty)
    seed, violation = next((seed, told) for seed in range(1_000) if (told := run_seed(seed).violation) is not None)

    found = shrink.shrink(seed, Task())

    assert found is not None
    assert len(found.lines) <= 20
    assert found.violation.split(":")[0] == violation.split(":")[0]
    assert simulate.main(shlex.split(found.line(Task()))[3:]) == 1
    assert f"violated: {found.violation}" in capsys.readouterr().out


@pytest.mark.timeout(1800)
def test_shrink_finds_a_small_schedule_of_a_takeover_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """I7 is violated by what does not happen: the quiet after all faults is whole, and small enough to be read."""
    observe = lease.observe

    def patient(record: LockRecord, now: int) -> Observation:
        seen = observe(record, now)
        return seen._replace(lease_ns=seen.lease_ns * 4)

    monkeypatch.setattr(lease, "observe", patient)
    quiet = "I7: without faults nobody has held the key"
    failures = simulate.simulate(range(1_000)).failures
    assert any("I7: a held record stood longer than a takeover takes" in text for _, text in failures)

    found = shrink.shrink(next(seed for seed, text in failures if text.startswith(quiet)), Task())

    assert found is not None
    assert found.violation.startswith(quiet)
    assert len(found.lines) <= 20


def test_simulate_finds_a_machine_that_turns_on_the_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: what is due, changes nothing and is due again would go on for ever, at one instant."""
    monkeypatch.setattr(lease, "_over", lambda *_: False)

    failures = simulate.simulate(range(200)).failures

    assert any(text.startswith("I8: what is due changes nothing") for _, text in failures)


def test_simulate_wakes_the_waiters_of_a_store_that_notifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of no other."""
    step, woken = lease.step, []

    def watched(state: LeaseState, event: Event, now: int) -> tuple[LeaseState, tuple[Effect, ...]]:
        if isinstance(event, Woken):
            woken.append(event)
        return step(state, event, now)

    monkeypatch.setattr(lease, "step", watched)
    counts = {}
    for notifies in (False, True):
        for seed in range(100):
            run_seed(seed, knobs=Task().knobs(seed)._replace(notifies=notifies))
        counts[notifies] = len(woken)

    assert counts[False] == 0
    assert counts[True] > 50


def test_end_of_all_faults_waits_for_the_longest_lease_that_a_record_may_have() -> None:
    """A lease that was changed from 0.3 s to 0.5 s ends no sooner because all clients asked for 0.3 s first."""
    assert run_seed(798_227).violation is None


@pytest.mark.parametrize("seed", [112_609, 135_671])
def test_end_of_all_faults_ends_breaks_and_late_copies_too(seed: int) -> None:
    """A break, or a copy of a request, that was under way then came into what should have been without faults."""
    assert run_seed(seed).violation is None
