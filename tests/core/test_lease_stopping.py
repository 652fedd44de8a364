"""The machine tells a holder to stop: ``stop_grace`` before the lock ends, once, and goes on renewing."""

from __future__ import annotations

import pytest

from dlock_core.record import LossReason
from dlock_core.states import Confirming, Held
from dlock_core.timings import NEVER
from tests.core.attempts import SECOND, Attempt, holding, timings

GRACE = timings(stop_grace=2.5)


def test_stop_is_told_the_grace_before_the_deadline() -> None:
    """Not at the deadline: what the body still has to do has the grace for it, under a valid lock."""
    attempt = holding(GRACE).at(2.5).due().at(7.29).not_applied()
    assert attempt.due_at == 7.3

    attempt.at(7.3).due()

    assert attempt.stops == [LossReason.UNREACHABLE]
    assert attempt.valid
    assert attempt.at(9.79).valid
    assert not attempt.at(9.8).valid


def test_stop_is_told_once_and_the_end_is_a_loss() -> None:
    """The loss comes at the deadline all the same."""
    attempt = holding(timings(stop_grace=2.5, auto_renew=False)).at(7.3).due()
    assert attempt.stops == [LossReason.EXPIRED]
    assert attempt.due_at == 9.8

    assert attempt.at(8).due().stops == []
    assert attempt.at(9.8).due().lost.loss.reason is LossReason.EXPIRED


def test_renewals_go_on_while_the_holder_stops() -> None:
    """The body needs the lock until it has ended; one step tells the stop and sends the renewal."""
    attempt = holding(GRACE).at(2.5).due().at(6).not_applied().at(7.3).due()
    assert attempt.stops == [LossReason.UNREACHABLE]
    assert attempt.request.record.rvn == attempt.in_flight

    attempt.at(7.4).grant()

    assert attempt.holder.deadline == 17_100_000_000
    assert attempt.holder.stopping is LossReason.UNREACHABLE


def test_holder_that_was_told_to_stop_is_not_told_again() -> None:
    """A renewal that came late keeps the lock; the body ends all the same, so nothing more is to be told."""
    attempt = holding(GRACE).at(2.5).due()
    renewal = attempt.request.record
    assert attempt.at(7.3).due().stops == [LossReason.EXPIRED]
    attempt.at(7.4).answer(renewal, applied=True)
    assert attempt.holder.stopping is LossReason.EXPIRED

    assert attempt.at(12).due().stops == []


def test_healthy_holder_is_never_told_to_stop() -> None:
    """A renewal in time moves the deadline, and the stop with it."""
    attempt = holding(GRACE)
    for second in (2.5, 5.0, 7.5, 10.0):
        attempt.at(second).due().grant()
        assert attempt.stops == []
        assert attempt.due_at == second + 2.5


def test_stop_comes_the_grace_before_the_end_of_the_longest_hold() -> None:
    """Renewals do not help there."""
    attempt = holding(timings(stop_grace=1, max_hold=4)).at(2.5).due().grant()
    assert attempt.due_at == 3.0

    assert attempt.at(3).due().stops == [LossReason.OVERRUN]


def test_stop_comes_earlier_when_a_shorter_lease_is_sent() -> None:
    """The deadline shrinks before the send, and the stop with it."""
    attempt = holding(timings(stop_grace=1)).at(1).renew(timings(lease_duration=6, stop_grace=1))

    assert attempt.due_at == pytest.approx(1 + 6 * 0.98 - 1)


def test_without_a_grace_only_the_end_is_told() -> None:
    """The default."""
    attempt = holding(timings(auto_renew=False))

    assert attempt.due_at == 9.8
    assert attempt.at(9.79).due().stops == []


def test_lock_without_an_end_is_never_told_to_stop() -> None:
    """A fail-closed lock is held until it is released; with a longest hold it has an end."""
    endless = holding(timings(fail_closed=True, stop_grace=2.5))
    assert endless.due_at == NEVER / SECOND

    assert holding(timings(fail_closed=True, stop_grace=1, max_hold=4)).due_at == 3.0


def test_grant_that_is_seen_late_is_renewed_rather_than_stopped_at_once() -> None:
    """With less than half of the time before the stop it is confirmed first."""
    assert isinstance(Attempt(GRACE).begin().at(3.64).grant(1).state, Held)
    assert isinstance(Attempt(GRACE).begin().at(3.66).grant(1).state, Confirming)
