"""Holding the key: renewal, the deadline, risk and loss."""

from __future__ import annotations

import pytest

from dlock_core.errors import LeaseStateError
from dlock_core.record import LockRecord, LossReason, State, Version
from dlock_core.states import Answer, Ended, Held, Outcome, Payload, Read
from dlock_core.store import Replace, Reply
from dlock_core.timings import NEVER
from tests.core.attempts import SECOND, broken, free, held, holding, timings


def mine(rvn: str, token: int = 1) -> LockRecord:
    """Return the record as this attempt writes it."""
    return LockRecord("k", State.HELD, rvn, token, "me", 10_000)


def test_renewal_is_due_after_the_period_and_keeps_the_token() -> None:
    """A renewal has a new RVN, the old one as its condition, and touches nothing else."""
    attempt = holding(timings(data=b"x"), token=4).at(2.5).due()

    assert attempt.request == Replace(
        LockRecord("k", State.HELD, "f3", 4, "me", 10_000, b"x"), Version("f1", 4), keep_payload=True
    )


def test_renewal_extends_the_use_from_its_own_send() -> None:
    """The next one is due a period after the send."""
    attempt = holding().at(2.5).due().at(3).grant()

    assert attempt.version == Version("f3", 1)
    assert attempt.holder.deadline == 2_500_000_000 + 9_800_000_000
    assert attempt.due_at == 5.0


def test_early_due_changes_nothing() -> None:
    """A timer that fires early is no renewal."""
    attempt = holding().at(1)
    before = attempt.state

    assert attempt.due().state == before
    assert attempt.effects == ()


def test_manual_lease_renews_only_when_asked() -> None:
    """Without automatic renewal the only instant is the end."""
    attempt = holding(timings(auto_renew=False))
    assert attempt.due_at == pytest.approx(9.8)

    attempt.at(5).renew().grant()

    assert attempt.due_at == pytest.approx(14.8)


def test_change_of_data_is_written_and_kept() -> None:
    """The payload stands after the answer, and later renewals keep it."""
    attempt = holding().at(1).renew(payload=Payload(b"new", (("a", 1),)))
    assert attempt.request.record.data == b"new"
    assert not attempt.request.keep_payload

    attempt.grant()

    assert attempt.holder.payload == Payload(b"new", (("a", 1),))
    assert attempt.at(3.5).due().request.keep_payload


def test_lease_is_valid_until_its_end_without_any_event() -> None:
    """No thread needs to run for a lease to end."""
    attempt = holding()

    assert attempt.at(9.7999).valid
    assert not attempt.at(9.8).valid


def test_longest_hold_ends_the_lease_though_it_is_renewed() -> None:
    """max_hold counts from the hand-out."""
    attempt = holding(timings(max_hold=4)).at(2.5).due().grant()
    assert attempt.due_at == 4.0
    assert not attempt.at(4).valid

    attempt.due()

    assert attempt.lost.loss.reason is LossReason.OVERRUN


def test_late_due_tells_the_loss() -> None:
    """Nobody ran until the lease had ended."""
    assert holding().at(9.8).due().lost.loss.reason is LossReason.EXPIRED


def test_risk_is_told_once_and_healed_once() -> None:
    """A failed renewal puts the lease at risk, a later one takes it off; unknown or not, it is tried again after a back-off."""
    attempt = holding().at(2.5).due().at(3).unknown()
    assert attempt.risks == [True]
    assert attempt.due_at == pytest.approx(3 + 10 / 24)

    attempt.at(4).due().not_applied()
    assert attempt.risks == []

    attempt.at(5).due().grant()
    assert attempt.risks == [False]


def test_lease_at_risk_until_its_end_was_lost_to_an_unreachable_store() -> None:
    """The reason says that the store did not answer."""
    attempt = holding().at(2.5).due().unknown().at(9.8).due()

    assert attempt.lost.loss.reason is LossReason.UNREACHABLE


def test_loss_needs_the_record_of_another() -> None:
    """A higher token from an answer that is linearizable."""
    attempt = holding().at(2.5).due().answer(held("b", 2))

    assert attempt.lost.loss.reason is LossReason.STOLEN
    assert attempt.lost.loss.record == held("b", 2)
    assert not attempt.valid


def test_break_is_told_as_such() -> None:
    """The quarantine of an operator."""
    assert holding().at(2.5).due().answer(broken("x", 2)).lost.loss.reason is LossReason.BROKEN


def test_vanished_record_is_a_loss_and_not_made_again() -> None:
    """Somebody deleted it; a new one would restart the tokens."""
    attempt = holding().at(2.5).due().answer(None)

    assert attempt.lost.loss.record is None
    assert attempt.effects == ()


# ---- findings ---------------------------------------------------------------------------------------------------------------------------


def test_f8a_deadline_shrinks_before_a_shorter_lease_is_sent() -> None:
    """Whoever waits may count the shorter one from the moment it is applied, whether or not the reply comes."""
    attempt = holding().at(1).renew(timings(lease_duration=3))
    assert attempt.holder.deadline == 1 * SECOND + 2_940_000_000

    attempt.at(2).unknown()

    assert attempt.holder.deadline == 1 * SECOND + 2_940_000_000


def test_f8a_longer_lease_counts_only_when_seen_applied() -> None:
    """Until then the old one ends."""
    attempt = holding().at(1).renew(timings(lease_duration=60)).unknown()
    assert attempt.holder.deadline == 9_800_000_000

    attempt.at(2).due().answer(LockRecord("k", State.HELD, "f3", 1, "me", 60_000))

    assert attempt.holder.deadline == 1 * SECOND + 58_800_000_000


def test_f8a_certain_failure_gives_the_deadline_back() -> None:
    """What was certainly not applied, now or later, shortens nothing."""
    attempt = holding().at(1).renew(timings(lease_duration=3)).not_applied()

    assert attempt.holder.deadline == 9_800_000_000


def test_f8a_resolved_renewal_makes_all_other_pending_ones_dead() -> None:
    """They expected a version that is gone, so their leases count no more."""
    attempt = holding().at(1).renew(timings(lease_duration=3)).unknown().at(2).renew().unknown().at(2.2).renew().grant()

    assert attempt.holder.pending == ()
    assert attempt.holder.deadline == 2_200_000_000 + 9_800_000_000


def test_f8b_renewal_is_conditional_on_version_and_held() -> None:
    """A freed lock is not brought back: the renewal is a replace, which only a held record of that version admits."""
    request = holding(token=3).at(2.5).due().request

    assert type(request) is Replace
    assert request.expected == Version("f1", 3)


def test_f8e_renewal_never_writes_data() -> None:
    """It would put back what another change has just replaced."""
    assert holding(timings(data=b"old")).at(2.5).due().request.keep_payload


def test_f8e_one_write_is_under_way_at_a_time() -> None:
    """A second one is refused until the first has its answer."""
    attempt = holding().at(2.5).due()

    with pytest.raises(LeaseStateError, match="while a request is under way"):
        attempt.renew()

    assert attempt.due().effects == ()


def test_f8f_renewal_expects_the_version_and_not_the_owner() -> None:
    """The late duplicate of an older renewal is refused by it."""
    attempt = holding().at(2.5).due().grant().at(5).due()

    assert attempt.request.expected == Version("f3", 1)
    assert attempt.request.record.rvn == "f5"


def test_f8g_no_renewal_is_sent_after_the_deadline() -> None:
    """A renewal that is still possible would bring a lost lease back."""
    attempt = holding().at(9.8).due()

    assert attempt.effects == ()
    assert holding().at(9.8).renew().lost.loss.reason is LossReason.EXPIRED


def test_f8g_answer_after_the_deadline_is_a_loss_though_it_was_granted() -> None:
    """The lease was not valid in between."""
    attempt = holding().at(2.5).due().at(9.8).grant()

    assert attempt.lost.loss.reason is LossReason.EXPIRED


def test_f8g_lost_is_absorbing() -> None:
    """Nothing makes it valid again: not even the answer that its last renewal was applied."""
    attempt = holding().at(2.5).due().at(9.8).due()
    before = attempt.lost

    attempt.send(Answer("f3", Reply(applied=True, record=mine("f3")), "new"))

    assert attempt.state == before
    assert not attempt.valid


def test_f12_stale_refusal_is_no_loss() -> None:
    """An older record than the own proves nothing."""
    attempt = holding(token=5).at(2.5).due().answer(held("old", 4))

    assert isinstance(attempt.state, Held)
    assert attempt.valid
    assert [sent.rvn for sent in attempt.holder.pending] == ["f3"]


def test_f12_refusal_of_a_store_whose_refusals_may_be_old_is_confirmed_by_a_read() -> None:
    """Only the read tells the loss."""
    attempt = holding(timings(refusals_linearizable=False)).at(2.5).due().answer(held("b", 2))
    assert attempt.asks is Read
    assert attempt.valid

    assert attempt.answer(held("b", 2)).lost.loss.reason is LossReason.STOLEN


def test_f12_read_after_a_stale_refusal_heals() -> None:
    """The record was the own one all the time."""
    attempt = holding(timings(refusals_linearizable=False)).at(2.5).due().answer(held("b", 2)).answer(mine("f3"))

    assert attempt.version == Version("f3", 1)


def test_f12_own_earlier_version_in_a_refusal_that_may_be_old_is_confirmed() -> None:
    """An RVN that was replaced since."""
    attempt = holding(timings(refusals_linearizable=False)).at(2.5).due().grant().at(5).due().answer(mine("f1"))

    assert attempt.asks is Read


# ---- hazards ----------------------------------------------------------------------------------------------------------------------------


def test_hazard_02_renewal_applied_with_its_reply_lost_is_no_loss() -> None:
    """The next renewal is refused by the own RVN, which is adopted with the time of its own send."""
    attempt = holding().at(2.5).due().unknown().at(3).due().answer(mine("f3"))

    assert attempt.version == Version("f3", 1)
    assert attempt.holder.deadline == 2_500_000_000 + 9_800_000_000
    assert attempt.risks == [False]


def test_hazard_02_refusal_that_shows_the_renewal_itself_is_a_success() -> None:
    """The request was applied twice."""
    attempt = holding().at(2.5).due().answer(mine("f3"))

    assert attempt.version == Version("f3", 1)


def test_hazard_04_pending_renewals_are_bounded_and_resolved_by_one_read() -> None:
    """At the bound the next request is a read."""
    attempt = holding(timings(auto_renew=False))
    for turn in range(32):
        attempt.at(turn / 100).renew().unknown()

    attempt.at(1).renew()

    assert attempt.asks is Read
    assert attempt.answer(mine("f5")).holder.pending == ()


def test_hazard_04_renewals_go_on_once_a_read_was_answered() -> None:
    """The own version stands there, so nothing is resolved; but the store answers again."""
    attempt = holding()
    for turn in range(32):
        attempt.at(turn / 100).renew().unknown()

    assert attempt.at(5).due().asks is Read
    assert attempt.answer(mine("f1")).asks is Replace
    assert attempt.answer(mine("f1")).effects == ()  # a renewal that is not the current one is followed by a pause
    assert attempt.at(attempt.due_at).due().asks is Read
    attempt.answer(mine("f1")).grant()
    assert attempt.holder.pending == ()
    assert attempt.due_at == pytest.approx(7.5 + 10 / 24)


def test_hazard_04_pending_renewals_have_a_limit() -> None:
    """Of a caller who renews in a loop while each read is answered and no write is."""
    attempt = holding(timings(auto_renew=False))
    for turn in range(256):
        attempt.at(turn / 100).renew()
        if attempt.asks is Read:
            attempt.answer(mine("f1"))
        attempt.unknown()

    attempt.renew().answer(mine("f1"))

    assert attempt.effects == ()
    assert len(attempt.holder.pending) == 256


def test_hazard_04_automatic_renewal_goes_on_as_long_as_the_lease() -> None:
    """A server that resets each connection must not use up the pending writes before the lease has ended."""
    attempt = holding()
    while (instant := attempt.due_at) < 9.8:
        attempt.at(instant).due()
        assert attempt.asks is Replace
        attempt.unknown()


def test_hazard_07_each_write_has_an_rvn_of_its_own() -> None:
    """Also one that repeats a renewal whose outcome is unknown."""
    attempt = holding().at(2.5).due()
    first = attempt.request.record.rvn
    second = attempt.unknown().at(3).due().request.record.rvn

    assert len({"f1", first, second}) == 3


def test_hazard_18_unreachable_store_does_not_prolong_a_lease() -> None:
    """There is no holding on while the store is down."""
    attempt = holding()
    for seconds in (2.5, 4, 6, 8, 9.7):
        attempt.at(seconds).due().unknown()

    assert not attempt.at(9.8).valid
    assert attempt.due().lost.loss.reason is LossReason.UNREACHABLE


def test_fail_closed_lock_is_valid_until_told_otherwise() -> None:
    """It has no end; only another's record takes it away."""
    attempt = holding(timings(fail_closed=True, auto_renew=False)).at(1e6)
    assert attempt.valid
    assert attempt.due_at * SECOND >= NEVER

    assert attempt.renew().answer(free("b", 2)).lost.loss.reason is LossReason.STOLEN


def test_f8d_refusal_by_a_later_grant_is_a_loss_where_no_reply_was_lost_and_the_lease_goes_on() -> None:
    """The store has lost the record, as at a failover, and granted the key again: the holder did not keep the others out."""
    in_time, lapsed = holding().at(1).free().answer(held("b", 2)), holding().at(1).free().at(9.9).answer(held("b", 2))
    in_doubt = holding().at(2.5).due().unknown().at(3).free().answer(held("b", 2))

    assert isinstance(in_time.state, Ended)
    assert in_time.state.outcome is Outcome.LOST
    assert in_time.state.loss is not None
    assert (in_time.state.loss.reason, in_time.state.loss.record) == (LossReason.STOLEN, held("b", 2))
    for attempt in (lapsed, in_doubt):
        assert isinstance(attempt.state, Ended)
        assert attempt.state.outcome is Outcome.RELEASED
