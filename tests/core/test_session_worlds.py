"""Every world of a lock that a session keeps, as far as a test has time; ``make explore`` visits the larger ones."""

from __future__ import annotations

import functools

import pytest

from proof.explore.sessions import QUICK, SCENARIOS, Case, explore
from proof.explore.visiting import Explored

# How many worlds there are: a world model that forgets a part, or lets time stand still, reaches others than these, and need break no rule.
WORLDS = {
    "moved": 2769,
    "moved, and changed": 4294,
    "a move": 1762,
    "a move under a shorter session": 8924,
    "a move, and the lock is given up": 10249,
    "back to a longer lease": 5422,
    "dropped": 12172,
    "broken": 17543,
    "broken, another lock": 3876,
    "the session's row is removed": 5632,
    "rolled back, and audited": 18281,
}


@functools.cache
def explored(name: str) -> Explored:
    """Return what the exploration of a world has found; it is made once for all tests."""
    return explore(SCENARIOS[name])


@pytest.mark.parametrize("name", QUICK)
def test_no_world_breaks_a_rule(name: str) -> None:
    """At most one lease is valid, tokens rise, and no lock hangs on a live session that nobody will give back."""
    found = explored(name)

    assert (found.violation, found.way) == (None, ())
    assert found.worlds == WORLDS[name]


def test_worlds_show_what_they_are_about() -> None:
    """Each step of each party happens in some world; else the exploration would have looked at nothing."""
    happened = frozenset[str]().union(*(explored(name).seen for name in ("moved", "dropped", "broken")))

    assert {
        "a tick passes",
        "the session is renewed",
        "a late request arrives",
        "an answer to the keeper is lost",
        "the lock ends with its session",
        "the lease is dropped",
        "the lock is released",
        "the session is given back",
        "the holder does what is due",
        "the operator leaves a note",
        "the operator breaks the lock",
        "the waiter looks",
    } <= happened


def test_failover_that_loses_a_move_gives_two_holders_without_an_audit() -> None:
    """Why sessions are refused on stores that may lose a confirmed write (Q8)."""
    found = explore(Case(moved=False, rollback=True, ticks=3, faults=0))

    assert found.violation == "two leases are valid (I1)"
    assert "a failover loses the move" in found.way
