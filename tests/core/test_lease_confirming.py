"""A grant that was seen late is renewed before anybody acts on it: how that renewal is taken, and where the attempt goes on without it."""

from __future__ import annotations

import pytest

from dlock_core.states import Confirming, Read, Releasing, Seeking, Sent
from dlock_core.store import Replace
from dlock_core.timings import NEVER, Timings
from tests.core.attempts import SECOND, Attempt, free, held, timings

BACK_OFF = 10 / 24
STALE = timings(refusals_linearizable=False)


def late(terms: Timings | None = None) -> Attempt:
    """Return an attempt whose grant f1 of token 1, sent at 0 s, was seen at 6 s; f2 renews it."""
    attempt = Attempt(terms).begin().at(6).grant(1)
    assert attempt.asks is Replace
    return attempt


def confirming(attempt: Attempt) -> Confirming:
    """Return the state as what it has to be."""
    assert isinstance(attempt.state, Confirming)
    return attempt.state


def rvns(pending: tuple[Sent, ...]) -> list[str]:
    """Return the RVNs of what was sent and never answered."""
    return [sent.rvn for sent in pending]


def test_late_grant_is_renewed_now_and_not_at_the_time_of_a_renewal() -> None:
    """Nothing is due beside the answer."""
    grant = confirming(late()).grant

    assert grant.renew_at == NEVER
    assert grant.in_flight is not None
    assert grant.in_flight.sent_at == 6 * SECOND


def test_old_answer_to_the_renewal_leaves_it_open() -> None:
    """The version that stood before proves nothing: the renewal may still come, and is followed by another one after a pause."""
    attempt = late().answer(held("f1"))

    assert rvns(confirming(attempt).grant.pending) == ["f2"]
    assert attempt.wait_s == pytest.approx(6 + BACK_OFF)
    assert attempt.at(6 + BACK_OFF).due().asks is Replace


def test_refusal_that_may_be_stale_is_read_before_it_is_believed() -> None:
    """The renewal stays open until then; a read that shows the version of before leaves nothing of its own."""
    attempt = late(STALE).answer(held("b", 2))

    assert attempt.asks is Read
    assert rvns(confirming(attempt).grant.pending) == ["f2"]
    assert confirming(attempt).seeking == confirming(late(STALE)).seeking

    attempt.answer(held("f1"))
    assert rvns(confirming(attempt).grant.pending) == ["f2"]
    assert attempt.wait_s == pytest.approx(6 + BACK_OFF)


def test_read_that_shows_the_renewal_hands_the_grant_out() -> None:
    """Its answer was old, and it was applied."""
    attempt = late(STALE).answer(held("b", 2)).answer(held("f2"))

    assert attempt.valid
    assert attempt.version.rvn == "f2"


@pytest.mark.parametrize("terms", [timings(), STALE])
def test_attempt_goes_on_where_the_grant_is_gone(terms: Timings) -> None:
    """Nobody was told of it, so its end is no loss: who has the key now is observed, and shown to who gives up."""
    attempt = late(terms).answer(held("b", 2))
    if terms is STALE:
        attempt.answer(held("b", 2))

    assert attempt.seeking.shown == held("b", 2)
    assert attempt.seeking.seen is not None
    assert attempt.seeking.seen.seen_at == 6 * SECOND


@pytest.mark.parametrize(("fails", "left"), [("unknown", ["f2"]), ("not_applied", [])])
def test_renewal_of_a_late_grant_that_failed_may_still_come_or_not(fails: str, left: list[str]) -> None:
    """What is certainly not applied does not come."""
    attempt = getattr(late(), fails)()

    assert rvns(confirming(attempt).grant.pending) == left
    assert attempt.wait_s == pytest.approx(6 + BACK_OFF)


@pytest.mark.parametrize("fails", ["unknown", "not_applied"])
def test_read_of_a_late_grant_that_failed_leaves_no_write(fails: str) -> None:
    """Only the renewal before it may still come."""
    attempt = getattr(late(STALE).answer(held("b", 2)), fails)()

    assert rvns(confirming(attempt).grant.pending) == ["f2"]


def test_way_back_of_a_late_takeover_has_seen_nobody() -> None:
    """The holder whose lease it had counted is gone, as are the writes that never had an answer."""
    attempt = Attempt().begin().unknown().answer(held("b")).at(10).due()
    assert attempt.asks is Replace
    assert rvns(attempt.seeking.pending) == ["f1"]

    way_back = confirming(attempt.at(17).grant()).seeking

    assert way_back == Seeking(attempt.state.terms, 30 * SECOND, shown=held("b"))


def test_patience_of_the_way_back_begins_anew() -> None:
    """A failure before the grant counts no more: the store has answered since."""
    attempt = Attempt().begin().not_applied().at(BACK_OFF).due().at(7).grant(1)
    assert confirming(attempt).seeking.failing_since is None

    attempt.unknown()
    assert confirming(attempt).seeking.failing_since == 7 * SECOND
    assert isinstance(attempt.at(16.9).due().unknown().state, Confirming)
    assert isinstance(attempt.at(17).due().unknown().state, Releasing)


def test_key_that_was_freed_is_claimed_on_the_way_back() -> None:
    """An operator broke the grant and freed the key."""
    attempt = late().answer(free("x", 2))

    assert attempt.request.record.rvn == "f3"
