"""A slice of ``python -m proof.jobs``: the shipped elections and jobs keep their rules, and the negative controls break them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from proof.jobs import runner
from proof.jobs.chances import Outcome, Script, explored

if TYPE_CHECKING:
    from proof.jobs.chances import Chances

SEEDS = 12


def test_elections_have_no_two_bodies_and_no_falling_terms() -> None:
    """Candidates that are cut off and die, bodies that end within the grace, observers with old answers (I12)."""
    found = runner.simulate(runner.SIMULATED["elections"], range(SEEDS))

    assert found.broken == []
    assert found.counts["terms"] > SEEDS
    assert min(found.counts[name] for name in ("bodies told to stop", "deaths", "old answers", "reports")) > SEEDS // 2


def test_jobs_begin_no_slot_after_it_was_finished() -> None:
    """Replies and requests that are lost, late and doubled, processes that are cut off and die: each slot is finished in the end (I13)."""
    found = runner.simulate(runner.SIMULATED["jobs"], range(2 * SEEDS))

    assert found.broken == []
    happened = (
        "busy",
        "cuts",
        "deaths",
        "done",
        "failed",
        "late deliveries",
        "not sent",
        "reply lost",
        "stopped",
        "twice",
    )
    assert min(found.counts[name] for name in happened) > SEEDS // 4, found.counts


@pytest.mark.parametrize("world", runner.EXPLORED)
def test_every_schedule_with_one_deviation_keeps_the_rules(world: str) -> None:
    """One cut, death, lost reply, old answer or other turn, at each place where there can be one."""
    found = runner.explore(runner.EXPLORED[world], 1)

    assert found.broken == []
    assert found.schedules > 50


@pytest.mark.parametrize("control", runner.CONTROLS)
def test_world_shows_the_rule_that_a_control_breaks(control: str) -> None:
    """A world in which nothing could go wrong would prove nothing."""
    play, rule = runner.CONTROLS[control]

    broken = runner.simulate(play, range(SEEDS)).broken

    assert any(what.startswith(rule) for what, _ in broken)


def test_exploration_plays_each_schedule_once() -> None:
    """Three choices of two and three options, with at most two deviations from the usual ones."""

    def play(chances: Chances) -> Outcome:
        told = "".join(str(chances.pick([1] * count)) for count in (2, 3, 2))
        return Outcome(told, Counter())

    played = [each.outcome.violation for each in explored(play, 2)]

    everything = [f"{first}{second}{third}" for first in "01" for second in "012" for third in "01"]
    assert sorted(str(each) for each in played) == [each for each in everything if each.count("0") >= 1]


def test_script_notices_that_the_world_differs() -> None:
    """Another schedule would be played than the one that was planned."""
    with pytest.raises(RuntimeError, match="the world differs"):
        Script((2,)).pick((1, 1))
