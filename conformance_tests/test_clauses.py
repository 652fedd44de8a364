"""The suite and the port agree: every clause has a test, every test a clause, and no subclass drops one."""

from __future__ import annotations

import inspect

import pytest
from dlock_conformance import LockStoreConformance
from dlock_conformance.clauses import clause_of, clauses
from dlock_conformance.suite import overridden

CLAUSES_MIN = 29
TESTS = [name for name, _ in inspect.getmembers(LockStoreConformance, inspect.isfunction) if name.startswith("test_")]
WITHOUT_CLAUSE = {"test_no_overrides"}


def test_the_port_has_numbered_clauses() -> None:
    """Fewer than these, and the docstring was not read as it is written."""
    assert len(clauses()) >= CLAUSES_MIN
    assert {"S1", "S23", "B1", "B3", "N1", "N3"} <= set(clauses())
    assert all(text.endswith((".", ")")) for text in clauses().values())


@pytest.mark.parametrize("clause", clauses())
def test_every_clause_has_a_test(clause: str) -> None:
    """A promise that nothing checks is not kept for long."""
    assert [name for name in TESTS if clause_of(name) == clause]


@pytest.mark.parametrize("name", TESTS)
def test_every_test_has_a_clause(name: str) -> None:
    """A test that checks nothing the port says would reject stores that are right."""
    assert clause_of(name) in clauses() or name in WITHOUT_CLAUSE


def test_an_overridden_or_dropped_test_is_found() -> None:
    """But for a strict expected failure with its reason."""

    class Tampered(LockStoreConformance):
        test_s5_a_late_duplicate_of_an_older_renewal_is_refused = None  # type: ignore[assignment]

        def test_s6_a_release_of_an_absent_key_is_refused_and_creates_nothing(self) -> None:  # type: ignore[override]
            pass

        @pytest.mark.xfail(reason="not strict")
        def test_s9_a_read_of_an_absent_key_is_none(self) -> None:  # type: ignore[override]
            pass

        @pytest.mark.xfail(strict=True, reason="the server folds case, its issue 17")
        def test_s10_the_prefix_may_be_the_whole_key(self) -> None:  # type: ignore[override]
            pass

    assert overridden(Tampered, LockStoreConformance) == [
        "test_s5_a_late_duplicate_of_an_older_renewal_is_refused",
        "test_s6_a_release_of_an_absent_key_is_refused_and_creates_nothing",
        "test_s9_a_read_of_an_absent_key_is_none",
    ]
