"""Each line of the protocol is there for a reason: without it an invariant or a test fails."""

from __future__ import annotations

import pytest

from proof.mutate.catalogue import MUTANTS, WORLDS
from proof.mutate.runner import mutated, run_mutants


def test_mutants_follow_the_code() -> None:
    """Each changes one place that is there exactly once, and gives a program."""
    for mutant in MUTANTS:
        compile(mutated(mutant), mutant.name, "exec")

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_killed_by_exploration() -> None:
    """A survivor would be a rule that nothing checks."""
    explored = [mutant for mutant in MUTANTS if mutant.by in WORLDS]

    survivors = [verdict.name for verdict in run_mutants(explored) if verdict.by is None]

    assert survivors == []
    assert len(explored) >= 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_killed_by_the_tests_named() -> None:
    """Where an exploration cannot see it, a test does."""
    tested = [mutant for mutant in MUTANTS if mutant.by not in WORLDS]

    assert [verdict.name for verdict in run_mutants(tested) if verdict.by is None] == []
