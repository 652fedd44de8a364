"""Each line of the protocol is there for a reason: without it an invariant or a test fails."""

from __future__ import annotations

import pytest

from proof.mutate import product
from proof.mutate.mutant import MUTANTS, ROOT, SLIPS, WORLDS
from proof.mutate.runner import run_mutants


def test_mutants_follow_the_code() -> None:
    """Each changes one place that is there exactly once, gives a program, and names tests that are there."""
    for mutant in (*MUTANTS, *SLIPS):
        compile(mutant.text_in(), mutant.name, "exec")
        for test in mutant.by:
            if test in WORLDS:
                continue
            file, *names = test.partition("[")[0].split("::")
            # Those of the conformance suite are inherited; a run finds out.
            inherited = file.startswith("conformance_tests")
            assert (ROOT / file).exists(), mutant.name
            assert inherited or not names or names[-1] in (ROOT / file).read_text(), mutant.name

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    assert len({(slip.file, slip.name) for slip in SLIPS}) == len(SLIPS) >= 200


@pytest.mark.timeout(300)
def test_mutant_on_disk_is_noticed_by_its_tests_and_undone() -> None:
    """One that changes nothing survives beside it."""
    slip = next(slip for slip in SLIPS if slip.file == "dlock_core/kit/outcome.py")
    harmless = slip._replace(name="harmless", new=slip.old)

    verdicts = {verdict.name: verdict.by for verdict in product.judge([slip, harmless, slip], 1)}

    assert verdicts[slip.name] is not None
    assert verdicts["harmless"] is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_killed_by_exploration() -> None:
    """A survivor would be a rule that nothing checks."""
    explored = [mutant for mutant in MUTANTS if mutant.by[0] in WORLDS]

    survivors = [verdict.name for verdict in run_mutants(explored) if verdict.by is None]

    assert survivors == []
    assert len(explored) >= 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mutants_are_killed_by_the_tests_named() -> None:
    """Where an exploration cannot see it, a test does."""
    tested = [mutant for mutant in MUTANTS if mutant.by[0] not in WORLDS]

    assert [verdict.name for verdict in run_mutants(tested) if verdict.by is None] == []
