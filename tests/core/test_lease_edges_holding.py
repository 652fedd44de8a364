"""Holding, giving back and cleaning up, at the edges: for each comparison and connective that no other test asks about, a case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlock_core.record import Beat, Loss, LossReason, SessionRef, Times, Version
from dlock_core.states import (
    Answer,
    Cease,
    Cleaning,
    Confirming,
    Ended,
    Failure,
    Lost,
    Outcome,
    Read,
    Releasing,
    Sent,
    Verb,
)
from dlock_core.store import Release, Reply
from dlock_core.timings import NEVER, Early, Timings
from tests.core.attempts import SECOND, Attempt, broken, free, held, holding, timings

BACK_OFF = 10 / 24
STALE = timings(refusals_linearizable=False)
ENDLESS = timings(fail_closed=True, auto_renew=False)
ENDLESS_STALE = timings(fail_closed=True, auto_renew=False, refusals_linearizable=False)


def rvns(pending: tuple[Sent, ...]) -> list[str]:
    """Return the RVNs of what was sent and never answered."""
    return [sent.rvn for sent in pending]


def confirming() -> Attempt:
    """Return a holder whose renewal f3 was refused by another's record, and that reads whether that is true."""
    attempt = holding(STALE).at(2.5).due().answer(held("b", 2))
    assert attempt.asks is Read
    return attempt


def late(give_up: float = 60) -> Attempt:
    """Return an attempt whose grant, sent at 0 s, was seen at 6 s, and that renews it before it hands it out."""
    return Attempt().begin(give_up=give_up).at(6).grant()


def cleaning(terms: Timings = ENDLESS) -> Attempt:
    """Return an attempt that was given up, found what it had written, and frees it."""
    attempt = Attempt(terms).begin().give_up().due().answer(held("f1"))
    assert attempt.asks is Release
    return attempt


# ---- holding


def test_id_of_a_read_is_no_renewal_of_the_own() -> None:
    """A record with that RVN is a stranger's."""
    attempt = confirming()

    assert isinstance(attempt.answer(held(attempt.in_flight)).state, Lost)


def test_f12_renewal_refused_by_an_older_record_may_still_come() -> None:
    """A stale answer proves nothing, neither by its token nor by the own version; a read that got one has no write to follow."""
    for record in (held("old", 1), held("old", 4), held("f1", 5)):
        renewal = holding(token=5).at(2.5).due().answer(record)
        read = holding(STALE, token=5).at(2.5).due().answer(held("b", 6)).answer(record)

        assert rvns(renewal.holder.pending) == ["f3"]
        assert rvns(read.holder.pending) == ["f3"]
        assert renewal.holder.at_risk
        assert read.holder.at_risk


def test_read_of_a_holder_that_fails_leaves_no_write_behind() -> None:
    """Only the renewal before it may still come."""
    assert rvns(confirming().unknown().holder.pending) == ["f3"]


def test_renewed_grant_with_half_of_its_use_left_is_handed_out() -> None:
    """The renewal was sent at 6 s and its answer comes at 10.9 s."""
    assert late().at(10.9).grant().valid
    assert not late().at(10.91).grant().valid


def test_f5_late_renewal_at_the_very_timeout_is_given_back() -> None:
    """Nobody waits for it any more."""
    assert isinstance(late(give_up=14).at(14).grant().state, Releasing)


def test_f5_late_grant_that_cannot_be_renewed_is_given_back_when_patience_ends() -> None:
    """Ten seconds after the first failure."""
    attempt = late().unknown()
    assert isinstance(attempt.at(15.9).due().unknown().state, Confirming)

    assert isinstance(attempt.at(16).due().unknown().state, Releasing)


def test_f5_late_grant_whose_use_has_ended_is_still_no_loss() -> None:
    """It was not handed out: a failure after the deadline is followed by another try."""
    attempt = late().at(16).unknown()

    assert isinstance(attempt.state, Confirming)
    assert attempt.wait_s == pytest.approx(16 + BACK_OFF)


def test_f8g_failure_of_a_renewal_after_the_deadline_is_a_loss() -> None:
    """Whatever became of it: the use has ended."""
    attempt = holding().at(2.5).due().at(9.8).not_applied()

    assert attempt.lost.loss.reason is LossReason.EXPIRED


def test_loss_keeps_the_renewal_under_way_and_no_read() -> None:
    """What may still be applied is what a late release must follow."""
    for attempt in (holding().at(2.5).due(), confirming()):
        assert rvns(attempt.at(9.8).due().lost.pending) == ["f3"]


def test_q3_record_of_a_lost_lock_goes_one_lease_of_its_session_later() -> None:
    """It would stand as long as the session goes on. A whole session that is lost leaves nothing to free."""
    kept = timings().under(SessionRef("s", 5000, 3))

    for kept_by, alone, leaves_at in ((kept, True, 7 * SECOND), (kept, False, NEVER), (timings(), True, NEVER)):
        attempt = holding(kept_by).at(2).send(Cease(LossReason.STOLEN, alone=alone))
        assert attempt.lost.leaves_at == leaves_at


# ---- giving back


def test_release_is_known_by_what_it_expects_and_when_it_was_sent() -> None:
    """In this order, as of any other request."""
    attempt = holding().at(3).free()

    assert attempt.releasing.in_flight == Sent(Verb.RELEASE, "f3", Version("f1", 1), 3 * SECOND, timings())


def test_late_release_follows_the_renewal_that_came_after_all() -> None:
    """It was without an answer when the lease ended."""
    attempt = holding().at(2.5).due().unknown().at(9.9).due().at(10).free()
    assert isinstance(attempt.state, Releasing)

    attempt.answer(held("f3"))

    assert attempt.request.expected == Version("f3", 1)


def test_release_follows_the_renewal_under_way_and_no_read() -> None:
    """As above, of a release in time."""
    for attempt in (holding().at(2.5).due(), confirming()):
        assert rvns(attempt.at(3).free().releasing.pending) == ["f3"]


def test_release_is_tried_until_the_last_write_has_lapsed() -> None:
    """One lease after the last send that may count, and for one request at least."""
    in_time = holding().at(2.5).due().unknown().at(3).free()
    after_loss = holding().at(2.5).due().at(9.9).due().at(10).free()
    long_after = holding().at(12).free()

    assert in_time.releasing.until == 12.5 * SECOND
    assert after_loss.releasing.until == 12.5 * SECOND
    assert long_after.releasing.until == 12 * SECOND + 10 * SECOND // 6


def test_release_without_a_write_under_way_is_tried_until_the_lease_ends() -> None:
    """It was counted from the send of the claim."""
    assert holding().at(3).free().releasing.until == 10 * SECOND


def test_early_due_of_a_release_changes_nothing() -> None:
    """The back-off is kept."""
    attempt = holding().at(1).free().unknown().due().unknown()
    before = attempt.state

    assert attempt.at(1.1).due().state == before


def test_release_that_begins_late_is_tried_twice() -> None:
    """The first failure is most often a broken connection."""
    attempt = holding().at(12).free().at(14).unknown().due()
    assert attempt.asks is Release

    assert isinstance(attempt.unknown().due().state, Ended)


def test_answer_of_nothing_that_is_asked_changes_no_release() -> None:
    """Between two tries too, where no request is under way."""
    attempt = holding().at(1).free().unknown()
    before = attempt.state

    attempt.send(Answer("f3", Reply(applied=True, record=free("f3")), "x"))
    assert attempt.state == before
    assert attempt.send(Failure("f3", unknown=True, new_rvn="y")).state == before


def test_release_of_a_record_that_is_gone_is_done() -> None:
    """Somebody has deleted it by hand."""
    attempt = holding().at(1).free().answer(None)

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.RELEASED


def test_f12_release_is_confirmed_by_a_read_where_refusals_may_be_old() -> None:
    """A read that shows the own version sends the release again; one that shows another's ends it: a later grant is a loss."""
    attempt = holding(STALE).at(1).free().answer(held("b", 2))
    assert attempt.asks is Read
    again = attempt.answer(held("f1", 1))
    assert again.asks is Release

    other = again.answer(held("b", 2)).answer(held("b", 2))

    assert isinstance(other.state, Ended)
    assert other.state.outcome is Outcome.LOST


def test_f1_late_copy_of_the_own_claim_is_not_what_is_released() -> None:
    """It has another token: the release was applied, and the copy of the claim has come after it."""
    attempt = holding(STALE).at(1).free().unknown().due().answer(held("f1", 2)).answer(held("f1", 2))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.RELEASED


def test_f12_release_refused_by_an_older_record_is_repeated() -> None:
    """However much older."""
    for token in (1, 4):
        assert isinstance(holding(token=5).at(1).free().answer(held("old", token)).state, Releasing)


def test_release_of_what_was_freed_under_its_own_version_is_done() -> None:
    """Other clients mark a record as released and leave its RVN."""
    attempt = holding(STALE).at(1).free().answer(held("b", 2)).answer(free("f1", 1))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.RELEASED


def test_release_without_tokens_goes_by_the_rvn() -> None:
    """Where every record has the same token, another's RVN is another's record."""
    attempt = holding(STALE).at(1).free().answer(held("b", 1)).answer(held("b", 1))

    assert isinstance(attempt.state, Ended)


def test_release_refused_by_the_own_version_waits() -> None:
    """A refusal that shows what should have been released is old: repeating it at once would only ask the same replica."""
    attempt = holding().at(1).free().unknown().due().answer(held("f1", 1))

    assert attempt.effects == ()
    assert attempt.due_at == pytest.approx(1 + BACK_OFF)


def test_late_release_refused_by_a_break_keeps_its_own_loss() -> None:
    """The lease had run out before the operator came."""
    attempt = holding().at(12).free().answer(broken("x", 2))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.loss is not None
    assert attempt.state.loss.reason is LossReason.EXPIRED


# ---- cleaning up


def test_clean_up_frees_and_keeps_the_payload() -> None:
    """What stood there before was not the abandoned attempt's to delete."""
    attempt = cleaning()

    assert attempt.request.expected == Version("f1", 1)
    assert attempt.request.keep_payload
    assert isinstance(attempt.grant().state, Ended)


def test_clean_up_refused_by_a_held_record_looks_again() -> None:
    """It is not the one that was read."""
    attempt = cleaning().answer(held("b", 2))

    assert isinstance(attempt.state, Cleaning)
    assert attempt.cleaning.in_flight is None


def test_clean_up_refused_by_what_is_free_is_over() -> None:
    """What expected that there is no record can not be applied any more."""
    assert isinstance(cleaning().answer(free("c", 2)).state, Ended)


def test_f12_clean_up_does_not_believe_an_old_refusal() -> None:
    """Where refusals may be old it reads; that its own release was applied it believes."""
    refused = cleaning(ENDLESS_STALE).answer(free("c", 2))

    assert rvns(refused.cleaning.pending) == ["f1"]
    assert isinstance(cleaning(ENDLESS_STALE).grant().state, Ended)


def test_clean_up_that_finds_nothing_held_frees_nothing() -> None:
    """A tombstone with the own RVN is none, and a held record of another is not touched."""
    for record in (free("f1"), held("b", 2)):
        attempt = Attempt().begin().give_up().due().answer(record)

        assert attempt.effects == ()
        assert rvns(attempt.cleaning.pending) == ["f1"]


def test_early_due_of_a_clean_up_changes_nothing() -> None:
    """It looks again after a request's time."""
    attempt = Attempt().begin().give_up().due().answer(None)
    before = attempt.state

    assert attempt.at(1).due().state == before


def test_answer_of_nothing_that_is_asked_changes_no_clean_up() -> None:
    """Neither while it asks something else, nor while it waits."""
    asking = Attempt().begin().give_up().due()
    waiting = Attempt().begin().give_up().due().answer(None)
    for attempt in (asking, waiting):
        before = attempt.state

        attempt.send(Answer("f1", Reply(applied=True, record=held("f1")), "x"))
        assert attempt.state == before
        assert attempt.send(Failure("f1", unknown=True, new_rvn="y")).state == before


def test_age_is_asked_for_by_who_seeks_under_that_option_alone() -> None:
    """A holder knows when it wrote, and nobody else trusts the store's clock."""
    trusting = Early(server_clock=True)

    assert Attempt(timings(trusting)).begin().unknown().request.aged
    assert not Attempt().begin().unknown().request.aged
    holder = holding(timings(trusting, refusals_linearizable=False)).at(2.5).due().answer(held("b", 2))
    assert not holder.request.aged


# ---- what is given back as it is found


def refused_release() -> Attempt:
    """Return a holder of f1 that frees it while its renewal f3 has no answer."""
    return holding().at(2.5).due().unknown().at(3).free()


def test_release_follows_its_own_writes_alone() -> None:
    """What follows expects that version, and nothing else is on its way any more. A record of the same token by another hand ends it."""
    followed, foreign = refused_release().answer(held("f3")), refused_release().answer(held("another's"))

    assert followed.request.expected == Version("f3", 1)
    assert followed.releasing.pending == ()
    assert isinstance(foreign.state, Ended)
    assert foreign.state.outcome is Outcome.RELEASED


@pytest.mark.parametrize("own", ["f1", "f3"])
def test_q7_release_follows_a_note_on_its_own_write(own: str) -> None:
    """It is the same grant; a note on a write of another is another's."""
    noted = replace(held("n1"), beat=Beat(own, ()))
    attempt = refused_release().answer(noted)

    assert attempt.request.expected == Version("n1", 1)
    assert attempt.releasing.pending == ()
    assert isinstance(refused_release().answer(replace(noted, beat=Beat("another's", ()))).state, Ended)


def test_loss_that_a_release_finds_or_ends_with_is_told() -> None:
    """The one that it found broken, and the one that it came after."""
    found = holding().at(3).free().answer(broken("x", 2))
    came_after = holding().at(10).free()
    while not isinstance(came_after.state, Ended):
        came_after.unknown()
        came_after.at(came_after.due_at).due()

    assert isinstance(found.state, Ended)
    assert (found.state.loss, found.state.holder) == (Loss("k", 1, LossReason.BROKEN, broken("x", 2)), broken("x", 2))
    assert (came_after.state.loss, came_after.state.holder) == (Loss("k", 1, LossReason.EXPIRED, None), None)


def test_clean_up_frees_what_it_found_as_it_stands() -> None:
    """The tombstone keeps the times of the grant; the release is known by the version that was read."""
    found = replace(held("f1"), times=Times(7, 8))
    attempt = Attempt().begin().give_up().at(1).due().answer(found)

    assert attempt.request.record.times == Times(7, 8)
    assert attempt.cleaning.in_flight == Sent(Verb.RELEASE, "f4", Version("f1", 1), SECOND, timings())
