"""What an observer of an election is told, decided by pure functions of a record and an instant."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core import Broken, Leader, LeaderState, LockRecord, State
from dlock_core.election import Observed, leader_of, look, observe

LEASE_MS = 20_000
LEASE_NS = LEASE_MS * 1_000_000


def held(rvn: str, term: int = 1, **fields: Any) -> LockRecord:
    """Return the record of a leader."""
    return LockRecord("k", State.HELD, rvn, term, f"leader {term}", LEASE_MS, **fields)


def free(rvn: str, term: int = 1, state: State = State.FREE) -> LockRecord:
    """Return the record that a leader has left."""
    return LockRecord("k", state, rvn, term, "", None)


def leading(term: int, state: LeaderState = LeaderState.LEADING, value: bytes | None = None) -> Leader:
    """Return the report of a leader."""
    return Leader("k", term, f"leader {term}", value, state)


def vacant(term: int) -> Leader:
    """Return the report that nobody leads."""
    return Leader("k", term, "", None, LeaderState.VACANT)


def told(*answers: tuple[LockRecord | None, int], terms_may_fall: bool = False) -> list[Leader | None]:
    """Return the last report after each of *answers*: a record, and the instant of the answer."""
    seen, reports = Observed("k"), []
    for record, now in answers:
        seen = observe(seen, record, now, terms_may_fall=terms_may_fall)
        reports.append(seen.told)
    return reports


def test_a_held_record_is_a_leader_with_its_value() -> None:
    """Term, owner and value are those of the record."""
    assert told((held("a", 7, data=b"host:80"), 0)) == [leading(7, value=b"host:80")]


@pytest.mark.parametrize("record", [None, free("a"), free("a", state=State.GONE), held("a", broken=Broken("op", 1))])
def test_a_record_of_nobody_is_vacant(record: LockRecord | None) -> None:
    """Absent, free, hidden and broken: nobody leads, and the term is the record's."""
    assert told((record, 0)) == [vacant(0 if record is None else 1)]
    assert leader_of("k", record) is None


def test_a_version_that_stood_for_a_lease_is_silent() -> None:
    """Counted from the answer that first showed it, by the observer's own clock."""
    reports = told((held("a"), 5), (held("a"), 5 + LEASE_NS - 1), (held("a"), 5 + LEASE_NS))

    assert reports == [leading(1), leading(1), leading(1, LeaderState.SILENT)]


def test_a_renewal_ends_the_silence() -> None:
    """A new version of the same term is a leader that goes on."""
    reports = told((held("a"), 0), (held("a"), LEASE_NS), (held("b"), LEASE_NS + 1), (held("b"), 2 * LEASE_NS))

    assert reports == [leading(1), leading(1, LeaderState.SILENT), leading(1), leading(1)]


def test_a_leader_is_silent_too_where_no_answer_comes() -> None:
    """An observer that cannot read has seen no sign of life either."""
    seen = observe(Observed("k"), held("a"), 0)

    assert look(seen, LEASE_NS - 1).told == leading(1)
    assert look(seen, LEASE_NS).told == leading(1, LeaderState.SILENT)
    assert look(Observed("k"), LEASE_NS).told is None


def test_a_leader_without_a_lease_is_never_silent() -> None:
    """A fail-closed lock is not renewed, so silence says nothing."""
    record = LockRecord("k", State.HELD, "a", 1, "leader 1", None)

    assert told((record, 0), (record, 1000 * LEASE_NS)) == [leading(1), leading(1)]


def test_a_term_that_was_broken_is_never_silent() -> None:
    """Nobody leads, however long the broken record stands."""
    record = held("a", broken=Broken("op", 1))

    assert told((record, 0), (record, LEASE_NS)) == [vacant(1), vacant(1)]


def test_an_answer_with_a_lower_term_is_dropped() -> None:
    """An old answer, from wherever, does not bring an earlier leader back (I12)."""
    reports = told((held("b", 5), 0), (held("a", 4), 1), (free("a", 4), 2), (held("b", 5), 3))

    assert reports == [leading(5)] * 4


def test_a_dropped_answer_does_not_hide_the_silence() -> None:
    """The later leader is judged by its own version, whatever else was seen meanwhile."""
    reports = told((held("b", 5), 0), (held("a", 4), LEASE_NS))

    assert reports == [leading(5), leading(5, LeaderState.SILENT)]


def test_an_absent_record_keeps_the_term() -> None:
    """Somebody removed the record: nobody leads, and a later report has no lower term."""
    assert told((held("b", 5), 0), (None, 1), (held("c", 4), 2), (held("d", 6), 3)) == [
        leading(5),
        vacant(5),
        vacant(5),
        leading(6),
    ]


def test_where_terms_may_fall_the_report_is_vacant_first() -> None:
    """A failover has lost the later grant: the observer hears of a vacancy before it hears of the lower term."""
    reports = told((held("b", 5), 0), (held("a", 4), 1), (held("a", 4), 2), terms_may_fall=True)

    assert reports == [leading(5), vacant(5), leading(4)]


def test_where_terms_may_fall_one_old_answer_is_forgotten() -> None:
    """The later leader comes back behind a vacancy."""
    reports = told((held("b", 5), 0), (held("a", 4), 1), (held("b", 5), 2), terms_may_fall=True)

    assert reports == [leading(5), vacant(5), leading(5)]
