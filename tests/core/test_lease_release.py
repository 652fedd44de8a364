"""Giving the key back, cleaning up after an attempt that was given up, and breaking another's lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlock_core import lease
from dlock_core.errors import OutcomeUnknownError
from dlock_core.record import Broken, LockRecord, LossReason, Members, SessionRef, State, Version, newer_format
from dlock_core.states import Abandon, Answer, Break, Cleaning, Ended, Failure, Outcome, Payload, Read, Releasing, Retry
from dlock_core.store import Release, Replace, Reply
from tests.core.attempts import SECOND, Attempt, broken, free, held, holding, timings

BY = Broken("operator", 0)


def mine(rvn: str, token: int = 1) -> LockRecord:
    """Return the record as this attempt writes it."""
    return LockRecord("k", State.HELD, rvn, token, "me", 10_000)


def outcome(attempt: Attempt) -> Outcome:
    """Return how *attempt* ended."""
    assert isinstance(attempt.state, Ended), attempt.state
    return attempt.state.outcome


def test_release_leaves_a_tombstone_with_the_token() -> None:
    """A fresh RVN, the same token, the last owner, no lease, the payload kept."""
    attempt = holding(token=6).at(1).free()

    assert attempt.request == Release(
        LockRecord("k", State.FREE, "f3", 6, "me", None), Version("f1", 6), keep_payload=True
    )
    assert outcome(attempt.grant()) is Outcome.RELEASED


def test_release_ends_the_use_at_once() -> None:
    """Before the store knows."""
    assert not holding().at(1).free().valid


def test_release_with_a_payload_puts_it() -> None:
    """The next holder finds it."""
    attempt = holding().at(1).free(Payload(b"bye", ()))

    assert attempt.request.record.data == b"bye"
    assert not attempt.request.keep_payload


def test_f9_release_that_hides_keeps_the_token_and_nothing_else() -> None:
    """Logically deleted."""
    request = holding(timings(delete_on_release=True, data=b"x"), token=3).at(1).free().request

    assert (request.record.state, request.record.fencing_token, request.record.data) == (State.GONE, 3, None)
    assert not request.keep_payload


def test_release_without_an_answer_is_repeated_at_once_and_then_after_back_offs() -> None:
    """0, 1, 2, 4 back-offs, and the last one when the lease has run out."""
    attempt = holding().at(1).free()
    delays = []
    while isinstance(attempt.state, Releasing):
        attempt.unknown()
        delays.append(attempt.due_at - attempt.now / SECOND)
        attempt.at(attempt.due_at).due()

    assert delays[:4] == pytest.approx([0, 10 / 24, 20 / 24, 40 / 24])
    assert attempt.now == 10 * SECOND
    assert outcome(attempt) is Outcome.UNRESOLVED


def test_late_release_frees_what_is_still_the_own_and_tells_the_loss() -> None:
    """After the end nobody else may have come yet."""
    attempt = holding().at(12).free()
    assert attempt.asks is Release

    assert outcome(attempt.grant()) is Outcome.LOST


def test_late_release_leaves_the_payload_as_it_is() -> None:
    """Its caller is told of a loss, so what it hands over must not stand as done."""
    request = holding().at(12).free(Payload(b"late", ())).request

    assert request.keep_payload
    assert request.record.data is None


def test_release_after_the_loss_to_another_sends_nothing() -> None:
    """The record is the next holder's."""
    attempt = holding().at(2.5).due().answer(held("b", 2)).free()

    assert attempt.effects == ()
    assert outcome(attempt) is Outcome.LOST


def test_give_up_of_a_grant_releases_it() -> None:
    """Cancelled between the grant and its hand-out."""
    attempt = holding().at(1).give_up()

    assert attempt.asks is Release


# ---- findings ---------------------------------------------------------------------------------------------------------------------------


def test_f8b_release_has_a_fresh_rvn() -> None:
    """With the old one a renewal on its way would bring the freed lock back."""
    request = holding().at(1).free().request

    assert request.record.rvn != request.expected.rvn


def test_f8c_release_follows_a_renewal_that_was_applied_after_all() -> None:
    """Refused by the own renewal: released under that version, without waiting for anything."""
    attempt = holding().at(2.5).due().unknown().at(3).free()
    assert attempt.request.expected == Version("f1", 1)

    attempt.answer(mine("f3"))

    assert attempt.request.expected == Version("f3", 1)
    assert outcome(attempt.grant()) is Outcome.RELEASED


def test_f8c_release_overtakes_a_renewal_under_way() -> None:
    """It is sent at once, and the answer of the renewal changes nothing."""
    attempt = holding().at(2.5).due().free()
    before = attempt.state

    attempt.send(Answer("f3", Reply(applied=True, record=mine("f3")), "new"))
    assert attempt.state == before

    assert attempt.answer(mine("f3")).request.expected == Version("f3", 1)


def test_f8c_failure_of_an_overtaken_renewal_changes_nothing() -> None:
    """The release goes its own way."""
    attempt = holding().at(2.5).due().free()
    before = attempt.state

    attempt.send(Failure("f3", unknown=True, new_rvn="x"))

    assert attempt.state == before


def test_f8d_refusal_by_the_own_tombstone_is_a_release() -> None:
    """The first one was applied and its reply lost."""
    attempt = holding().at(1).free().unknown().due().answer(free("f3"))

    assert outcome(attempt) is Outcome.RELEASED


def test_f8d_refusal_by_another_is_a_release_where_it_was_sent_in_time() -> None:
    """The first one was applied and its reply lost, and somebody else has come since."""
    attempt = holding().at(1).free().unknown().due().answer(held("b", 2))

    assert outcome(attempt) is Outcome.RELEASED


def test_f8d_refusal_by_another_is_a_loss_where_it_was_sent_late() -> None:
    """The lease had ended before the release was sent."""
    attempt = holding().at(12).free().answer(held("b", 2))

    assert outcome(attempt) is Outcome.LOST


def test_f8d_refusal_by_a_break_is_a_loss() -> None:
    """The operator came first."""
    attempt = holding().at(1).free().answer(broken("x", 2))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.loss is not None
    assert attempt.state.loss.reason is LossReason.BROKEN


def test_f12_stale_refusal_of_a_release_is_not_believed() -> None:
    """An older record than the own, or the own version itself: asked again."""
    older = holding(token=5).at(1).free().answer(held("old", 4))
    own = holding().at(1).free().answer(mine("f1"))

    assert isinstance(older.state, Releasing)
    assert isinstance(own.state, Releasing)


def test_f12_refusal_of_a_release_that_may_be_old_is_confirmed_by_a_read() -> None:
    """Another's record in it is no proof; the read shows the own, and the release is sent again."""
    attempt = holding(timings(refusals_linearizable=False)).at(1).free().answer(free("b", 1))
    assert attempt.asks is Read

    attempt.answer(mine("f1"))

    assert attempt.asks is Release


def test_f3_clean_up_does_not_stop_at_the_first_look() -> None:
    """Another record proves nothing about a claim that expects nothing: asked again after 1, 2, 4 time-outs, last after one lease."""
    attempt = Attempt().begin().give_up()
    instants = []
    while isinstance(attempt.state, Cleaning):
        attempt.at(attempt.due_at).due()
        instants.append(attempt.now / SECOND)
        attempt.answer(held("b", 1))

    assert instants == pytest.approx([0, 10 / 6, 30 / 6, 10])
    assert outcome(attempt) is Outcome.ABANDONED


def test_f3_clean_up_frees_the_claim_that_landed_late() -> None:
    """Found by its RVN, and freed under the version that it has there."""
    attempt = Attempt().begin().give_up().due().answer(None).at(2).due().answer(mine("f1", 7))

    assert attempt.asks is Release
    assert attempt.request.expected == Version("f1", 7)


def test_f3_clean_up_of_a_conditional_claim_ends_when_its_version_is_gone() -> None:
    """It can not be applied any more."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False)).begin().give_up().due().answer(held("b", 1))

    assert outcome(attempt) is Outcome.ABANDONED


def test_f3_clean_up_of_a_fail_closed_claim_has_no_end_but_the_proof() -> None:
    """It would hold the key for ever."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False)).begin().give_up()
    for _ in range(50):
        attempt.at(attempt.due_at).due().answer(None)

    assert isinstance(attempt.state, Cleaning)


def test_f3_clean_up_looks_again_when_its_release_was_refused() -> None:
    """The own claim moved on between the look and the release."""
    attempt = Attempt().begin().give_up().due().answer(mine("f1")).answer(held("b", 2))

    assert isinstance(attempt.state, Cleaning)
    assert attempt.cleaning.in_flight is None


def test_f3_clean_up_is_not_ended_by_a_refusal_that_may_be_old() -> None:
    """What expects the version after the one that it shows may still come."""
    terms = timings(fail_closed=True, auto_renew=False, refusals_linearizable=False)
    attempt = Attempt(terms).begin().answer(free("b", 1)).unknown().answer(free("b", 1)).give_up()
    pending = attempt.cleaning.pending

    attempt.due().answer(mine(pending[0].rvn, 2)).answer(free("a", 1))

    assert isinstance(attempt.state, Cleaning)


def test_f4_clean_up_that_comes_too_late_frees_nothing_of_the_next_attempt() -> None:
    """Its release names the version that the next attempt has replaced."""
    attempt = Attempt().begin().give_up().due().answer(mine("f1"))

    assert attempt.request.expected == Version("f1", 1)


def test_f7_claims_given_up_are_disowned() -> None:
    """Whoever of this client meets them later takes them over."""
    attempt = Attempt().begin().unknown().answer(None).give_up()

    assert attempt.effects == (Abandon(("f1", "f3")),)


def test_failed_clean_up_is_tried_again() -> None:
    """Of the look as of the release."""
    attempt = Attempt().begin().give_up().due().unknown()
    assert attempt.due_at == pytest.approx(10 / 6)

    attempt.at(2).due().answer(mine("f1")).unknown()

    assert isinstance(attempt.state, Cleaning)


def test_hazard_03_release_whose_reply_is_lost_is_asked_for_at_once() -> None:
    """The next one waits for a poll, not for a lease."""
    attempt = holding().at(1).free().at(1.5).unknown()

    assert attempt.due_at == 1.5


def test_hazard_11_release_is_followed_for_the_longest_lease_that_may_stand() -> None:
    """A renewal to a longer lease counts from its own send."""
    attempt = holding().at(1).renew(timings(lease_duration=60)).grant().at(2).free()

    assert attempt.releasing.until == 61 * SECOND


# ---- break ------------------------------------------------------------------------------------------------------------------------------


def test_break_keeps_the_key_held_for_one_more_lease_under_a_higher_token() -> None:
    """Within it the old holder's lease ends, and its next renewal is refused."""
    request = lease.break_request(Break("k", 4, BY), held("b", 4), "x")

    assert request == Replace(
        LockRecord("k", State.HELD, "x", 5, "operator", 10_000, broken=BY), Version("b", 4), keep_payload=True
    )


def test_break_now_frees_at_once() -> None:
    """The old holder may still believe in it."""
    request = lease.break_request(Break("k", 4, BY, free_now=True), held("b", 4), "x")

    assert request is not None
    assert (request.record.state, request.record.fencing_token, request.record.lease_ms) == (State.FREE, 5, None)
    assert request.record.owner == held("b").owner


def test_break_of_a_lock_without_a_lease_frees_at_once() -> None:
    """There is no lease to wait for."""
    request = lease.break_request(Break("k", 4, BY), held("b", 4, lease=None), "x")

    assert request is not None
    assert request.record.state is State.FREE


@pytest.mark.parametrize("record", [None, free("b", 4), held("b", 5)])
def test_break_of_what_is_not_that_grant_is_refused(record: LockRecord | None) -> None:
    """The operator saw another one."""
    assert lease.break_request(Break("k", 4, BY), record, "x") is None


def test_break_of_a_newer_format_is_possible() -> None:
    """It is shown as held without a lease."""
    assert lease.break_request(Break("k", 4, BY), newer_format("k", 2, "b", 4), "x") is not None


_SESSION = SessionRef("~dlock/session/1", 30_000, 1)


@pytest.mark.parametrize(
    ("kept_by", "lease_ms"),
    [
        ({"session": _SESSION}, 30_000),
        ({"members": Members("rw", (_SESSION, SessionRef("~dlock/session/2", 40_000, 1)), ())}, 40_000),
        ({"members": Members("permits", (), ())}, None),
    ],
)
def test_break_of_a_lock_under_a_session_waits_for_the_lease_of_the_session(
    kept_by: dict[str, Any], lease_ms: int | None
) -> None:
    """A record without a lease of its own is not always one that never ends."""
    record = replace(held("b", 4, lease=None), **kept_by)

    request = lease.break_request(Break("k", 4, BY), record, "x")

    assert request is not None
    assert request.record == LockRecord("k", State.HELD, "x", 5, "operator", lease_ms, broken=BY)


def test_break_is_done_where_its_own_write_stands() -> None:
    """Also where the answer to that write was lost."""
    attempt, request = first_write(Break("k", 4, BY))

    assert lease.break_step(attempt, request.record, "y") is True


def test_break_of_one_version_stops_where_another_stands() -> None:
    """The operator named the version that was seen."""
    assert lease.break_step(Break("k", 4, BY, rvn="a"), held("b", 4), "x") is False


def test_break_ends_after_ten_renewals_in_between() -> None:
    """A holder that renews between each read and write is told of."""
    attempt = Break("k", 4, BY)
    for turn in range(10):
        attempt, _ = first_write(attempt, f"x{turn}")

    with pytest.raises(OutcomeUnknownError, match="was renewed 10 times while it was being broken") as caught:
        lease.break_step(attempt, held("b", 4), "y")
    assert caught.value.key == "k"


def first_write(attempt: Break, rvn: str = "x") -> tuple[Break, Replace]:
    """Return the break after its write of a record that still is the grant's."""
    decision = lease.break_step(attempt, held("b", 4), rvn)
    assert not isinstance(decision, bool)
    return decision


@pytest.mark.parametrize(
    "begin", [lambda: holding().free().unknown().at(1).due().unknown(), lambda: Attempt().begin().give_up()]
)
def test_what_is_to_be_tried_later_is_tried_at_once_when_the_client_is_closed(begin: Callable[[], Attempt]) -> None:
    """A release and a clean-up; but no second request beside one under way."""
    attempt = begin()
    attempt.at(1.001).send(Retry("z"))

    assert attempt.in_flight == "z"
    assert attempt.send(Retry("zz")).effects == ()
