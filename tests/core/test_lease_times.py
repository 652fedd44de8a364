"""The times in a record, which are for people: each write has its own, and that of the grant."""

from __future__ import annotations

from dataclasses import replace

from dlock_core import lease
from dlock_core.record import Broken, Times
from dlock_core.states import Break, New, Terms
from tests.core.attempts import SECOND, Attempt, held, timings


def test_times_are_those_of_the_grant_and_of_each_write() -> None:
    """By the wall clock, which was 1000 s ahead when the attempt began: the renewals and the tombstone keep the first."""
    attempt = Attempt()
    attempt.state = New(Terms("k", "ticket", timings(), wall_ns=1000 * SECOND))
    renewal = attempt.begin().grant().at(9).due().request

    assert renewal.record.times == Times(1000, 1009)
    assert attempt.grant().at(12).free().request.record.times == Times(1000, 1012)


def test_break_keeps_when_the_lock_was_granted() -> None:
    """And its time of writing is that of the break; a record without times stays so."""
    for times, then in ((Times(7, 8), Times(7, 12)), (None, None)):
        record = replace(held("b", 4), times=times)
        request = lease.break_request(Break("k", 4, Broken("operator", 12_000)), record, "x")
        assert request is not None
        assert request.record.times == then
