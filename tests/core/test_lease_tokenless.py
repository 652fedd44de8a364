"""Rows that have no token yet, or never will: what a client of another language writes, and a grant of ours before its token is there."""

from __future__ import annotations

from dataclasses import replace

from dlock_core.record import NO_TOKEN, LockRecord, LossReason, State, Version
from dlock_core.states import Ended, Held, Outcome, Releasing, Seeking
from dlock_core.store import Replace
from tests.core.attempts import Attempt, held, holding, timings


def mine(rvn: str, token: int = NO_TOKEN) -> LockRecord:
    """Return a record of our own."""
    return held(rvn, token, owner="me")


def adopted() -> Attempt:
    """Return an attempt whose claim lost its reply, and is then seen to stand without a token."""
    return Attempt().begin().unknown().answer(mine("f1"))


def test_grant_without_a_token_is_renewed_before_it_is_handed_out() -> None:
    """Where grants have tokens, nobody acts without one; the renewal brings it."""
    attempt = adopted()

    assert not attempt.valid
    assert attempt.request == Replace(replace(attempt.request.record, fencing_token=NO_TOKEN), Version("f1", 0), True)
    attempt.grant(7)
    assert attempt.valid
    assert attempt.version.fencing_token == 7


def test_grant_without_a_token_is_handed_out_where_there_are_none() -> None:
    """A store whose rows have no tokens never brings one."""
    attempt = Attempt(timings(has_tokens=False)).begin().unknown().answer(mine("f1"))

    assert attempt.valid


def test_renewal_that_brought_no_token_is_repeated() -> None:
    """Its row was written, its token not: seen in a read, it is renewed once more and not handed out."""
    attempt = adopted()
    in_flight = attempt.in_flight
    attempt.unknown().at(0.5).due().answer(mine(in_flight))

    assert not attempt.valid
    assert attempt.request.expected == Version(in_flight, 0)
    assert attempt.grant(8).version.fencing_token == 8
    assert attempt.valid


def test_renewal_that_brought_the_token_is_adopted_with_it() -> None:
    """The reply was lost; the row shows the RVN that was sent, and the token."""
    attempt = adopted()
    in_flight = attempt.in_flight
    attempt.unknown().at(0.5).due().answer(mine(in_flight, 9))

    assert attempt.valid
    assert attempt.version == Version(in_flight, 9)


def test_grant_without_a_token_that_was_taken_goes_on_waiting() -> None:
    """Nobody was told of it: another's row is a holder to wait for."""
    attempt = adopted().answer(held("theirs", NO_TOKEN))

    assert isinstance(attempt.state, Seeking)
    assert attempt.seeking.seen is not None
    assert attempt.seeking.seen.version == Version("theirs", 0)


def test_row_of_another_client_is_a_loss() -> None:
    """It has no token, and so is no older than ours: a takeover by a client of another language is told at once."""
    attempt = holding(token=5).at(3).due().answer(held("theirs", NO_TOKEN))

    assert attempt.lost.loss.reason is LossReason.STOLEN


def test_release_refused_by_a_row_of_another_client_ends_at_once() -> None:
    """There is nothing to free any more, and nothing to ask for again."""
    attempt = holding(token=5).at(3).free().answer(held("theirs", NO_TOKEN))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.RELEASED


def test_release_of_a_grant_without_a_token_follows_its_renewal() -> None:
    """The renewal was applied after all, and brought a token: that row is released."""
    attempt = adopted()
    in_flight = attempt.in_flight
    attempt.give_up().answer(mine(in_flight, 6))

    assert isinstance(attempt.state, Releasing)
    assert attempt.request.expected == Version(in_flight, 6)


def test_takeover_from_a_row_without_a_token_asks_for_the_first() -> None:
    """What the store then gives may be greater."""
    attempt = Attempt().begin().answer(held("theirs", NO_TOKEN)).at(10).due()

    assert attempt.request.record.fencing_token == 1
    assert attempt.request.record.state is State.HELD
    attempt.grant(40)
    assert isinstance(attempt.state, Held)
    assert attempt.version.fencing_token == 40


def test_late_grant_without_a_token_is_handed_out_once_renewed_where_there_are_none() -> None:
    """It waits for nothing that will never come."""
    attempt = Attempt(timings(has_tokens=False)).begin().at(6).answer(mine("f1"), applied=True)
    assert not attempt.valid

    assert attempt.grant().valid


def test_renewal_takes_no_token_away() -> None:
    """Whatever a row says after it: the token is that of the grant."""
    attempt = holding(token=5).at(2.5).due()
    attempt.answer(mine(attempt.in_flight), applied=True)

    assert attempt.version.fencing_token == 5
