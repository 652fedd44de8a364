"""Mutants of early takeover: with each, a client takes a lock from a holder that may be at work.

:mod:`proof.mutate.mutant` says how to read them.
"""

from __future__ import annotations

from proof.mutate.mutant import Mutant

__all__ = ["EARLY"]

_EARLY = "test_lease_early.py::test_"

EARLY: tuple[Mutant, ...] = (
    Mutant(
        "stamp of another write counts",
        "early b, F17",
        "_written_at",
        " or stamp.rvn != record.rvn",
        "",
        f"{_EARLY}f17_stamp_of_another_write_is_ignored",
        "early",
    ),
    Mutant(
        "stamp of the future counts",
        "early b",
        "_written_at",
        "if stamp.at_ms > wall_ms:",
        "if False:",
        f"{_EARLY}stamp_of_the_future_is_ignored",
        "early",
    ),
    Mutant(
        "wall clocks are never apart",
        "early b",
        "_written_at",
        "+ skew_ns + drift_ns",
        "+ drift_ns",
        f"{_EARLY}stamp_younger_than_that_is_waited_for_until_it_is_not",
        "early",
    ),
    Mutant(
        "wall clocks have one rate",
        "early b",
        "_written_at",
        "+ skew_ns + drift_ns",
        "+ skew_ns",
        f"{_EARLY}stamp_younger_than_that_is_waited_for_until_it_is_not",
        "early",
    ),
    Mutant(
        "the store's clock never steps",
        "early a",
        "ends_at",
        " + STEP_NS",
        "",
        "aged",
        "early",
    ),
    Mutant(
        "early end outlives its version",
        "early",
        "_observed",
        "state._replace(seen=seen, ends_at=NEVER)",
        "state._replace(seen=seen)",
        "aged",
    ),
    Mutant(
        "owner of whom nothing is known is dead",
        "early c",
        "_seek_probed",
        "event.owner is OwnerState.DEAD",
        "event.owner is not OwnerState.ALIVE",
        "probed",
    ),
    Mutant(
        "death ends a lock without a lease",
        "early c, fail-closed",
        "is_probed",
        " and record.lease_ms is not None",
        "",
        f"{_EARLY}owner_whose_death_ends_no_lease_is_not_asked_for",
        "early",
    ),
    Mutant(
        "death ends a quarantine",
        "early c, break",
        "is_probed",
        " and record.broken is None",
        "",
        f"{_EARLY}owner_whose_death_ends_no_lease_is_not_asked_for",
        "early",
    ),
    Mutant(
        "observation of another boot counts",
        "early d",
        "resumed",
        ' or found.get("boot") != boot',
        "",
        f"{_EARLY}observation_of_another_boot_is_dropped",
        "early",
    ),
    Mutant(
        "observation of the future counts",
        "early d",
        "_observation",
        " or seen_at > now",
        "",
        f"{_EARLY}observation_of_the_future_is_dropped",
        "early",
    ),
)
