"""The client's scenarios fail over stores that break what they show, and pass over the one that is not broken."""

from __future__ import annotations

import pytest
from dlock_conformance import LockClientConformance
from dlock_conformance.broken import BROKEN
from dlock_conformance.harness import Colour
from dlock_conformance.parties import Parties
from dlock_conformance.wire.wired import Wire, wired_harness

SCENARIOS = [
    ("a claim takes a held record", "test_contenders_never_hold_at_once"),
    ("a claim takes a held record", "test_a_lock_is_renewed_as_long_as_it_is_held"),
    ("a release deletes the record", "test_a_lock_is_held_by_one_and_then_by_the_next"),
    ("a takeover keeps the token", "test_an_abandoned_lock_is_taken_over_after_its_lease"),
    ("a release has no condition", "test_late_duplicates_change_nothing"),
    ("a claim always brings its own payload", "test_data_goes_from_holder_to_holder"),
    ("a tombstone counts as absence", "test_late_copies_never_hold_a_fail_closed_lock"),
    ("a refusal carries no record", "test_a_wait_ends_at_its_time_out"),
]
PATCHES = {broken.name: broken.patch for broken in BROKEN}


class Suite(LockClientConformance):
    """The suite, to be called test by test."""


def play(scenario: str, broken: str | None) -> None:
    """Run one scenario, over a broken store or over the right one."""
    wire = Wire()
    if broken is not None:
        PATCHES[broken](wire)
    with Parties(wired_harness(wire, lease_s=0.5, soon_s=1.0), Colour.SYNC) as parties:
        getattr(Suite(), scenario)(parties)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what a broken store leaves behind
@pytest.mark.parametrize(("broken", "scenario"), SCENARIOS)
def test_a_scenario_fails_over_a_store_that_breaks_it(broken: str, scenario: str) -> None:
    """Whatever it fails with: the users of such a store would see the same."""
    with pytest.raises(Exception):  # noqa: B017, PT011
        play(scenario, broken)


@pytest.mark.parametrize("scenario", sorted({scenario for _, scenario in SCENARIOS}))
def test_the_same_scenario_passes_over_the_right_store(scenario: str) -> None:
    """So it is the patch that it fails over."""
    play(scenario, None)
