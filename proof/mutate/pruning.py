"""Mutants of the removal of records: with each, a record goes that somebody still needs.

:mod:`proof.mutate.mutant` says how to read them.
"""

from __future__ import annotations

from proof.mutate.mutant import Mutant

__all__ = ["PRUNING"]

_FILE, _WITHIN = "kit.removal", "may_be_removed"

PRUNING: tuple[Mutant, ...] = (
    Mutant(
        "prune does not ask how old the record is",
        "P1, F9",
        _WITHIN,
        "and age_ms >= older_than_ms",
        "",
        "prune",
        _FILE,
    ),
    Mutant(
        "prune removes what has changed since it was listed",
        "P1",
        _WITHIN,
        "and standing.version == listed.version",
        "",
        "prune-twice",
        _FILE,
    ),
    Mutant(
        "prune removes what is held",
        "P1",
        _WITHIN,
        "and standing.state is not State.HELD\n        and standing.version == listed.version",
        "",
        "prune-twice",
        _FILE,
    ),
)
