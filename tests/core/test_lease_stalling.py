"""The machine ends a hold that makes no progress: ``stall_timeout``, and the event that says that the body works."""

from __future__ import annotations

from dlock_core.record import LossReason
from dlock_core.timings import NEVER
from tests.core.attempts import SECOND, holding, timings


def test_hold_without_progress_is_lost_though_it_is_renewed() -> None:
    """The time counts from the hand-out; renewals go on until then, and none is sent after it."""
    attempt = holding(timings(stall_timeout=4)).at(2.5).due().grant()
    assert attempt.due_at == 4.0
    assert not attempt.at(4).valid

    attempt.due()

    assert attempt.lost.loss.reason is LossReason.STALLED
    assert attempt.effects == ()


def test_progress_moves_the_end() -> None:
    """Each counts from its own instant, and sends nothing."""
    attempt = holding(timings(stall_timeout=4)).at(3).progress()
    assert attempt.effects == ()
    assert attempt.at(6.999).valid
    assert not attempt.at(7).valid

    attempt.at(6.999).progress()
    assert attempt.holder.hold_until == 10_999_000_000


def test_renewal_is_no_progress() -> None:
    """A helper thread that renews proves nothing of the body."""
    attempt = holding(timings(stall_timeout=4)).at(3).progress().at(3.1).due().grant()

    assert attempt.holder.hold_until == 7 * SECOND


def test_progress_never_moves_the_end_of_the_longest_hold() -> None:
    """The earlier of the two ends counts, and is named."""
    attempt = holding(timings(stall_timeout=4, max_hold=5)).at(3).progress()
    assert attempt.holder.hold_until == 5 * SECOND

    assert attempt.at(5).due().lost.loss.reason is LossReason.OVERRUN


def test_progress_after_the_end_is_the_loss() -> None:
    """A body that wakes up learns of it, and the lock never becomes valid again."""
    assert holding(timings(stall_timeout=4)).at(4).progress().lost.loss.reason is LossReason.STALLED
    assert holding().at(9.8).progress().lost.loss.reason is LossReason.EXPIRED


def test_progress_without_a_timeout_changes_nothing() -> None:
    """A body may call it always."""
    attempt = holding()
    before = attempt.state

    assert attempt.at(3).progress().state == before
    assert attempt.holder.hold_until == NEVER


def test_stall_counts_from_the_hand_out_of_a_grant_that_was_confirmed() -> None:
    """Nobody could work before it."""
    attempt = holding(timings(stall_timeout=4))
    late = holding(timings(stall_timeout=4, max_hold=9)).at(1).due()
    assert (attempt.holder.hold_until, late.holder.overrun_at) == (4 * SECOND, 9 * SECOND)


def test_stop_is_told_the_grace_before_the_stall() -> None:
    """With the reason; progress after that keeps the lock, and the holder stays told."""
    attempt = holding(timings(stall_timeout=4, stop_grace=1)).at(3).due()
    assert attempt.stops == [LossReason.STALLED]

    attempt.at(3.5).progress()

    assert attempt.holder.hold_until == 7_500_000_000
    assert attempt.holder.stopping is LossReason.STALLED
