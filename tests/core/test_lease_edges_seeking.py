"""Trying to obtain the key, at the edges: for each comparison and connective of the machine that no other test asks about, a case."""

from __future__ import annotations

import pytest

from dlock_core.record import LockRecord, State, Version
from dlock_core.states import Abandon, Answer, Confirming, Ended, Failure, Observation, Outcome, Read, Seeking, Wait
from dlock_core.store import Claim, Expect, Replace, Reply
from tests.core.attempts import SECOND, Attempt, free, held, timings

BACK_OFF = 10 / 24


def fail_closed(**options: bool) -> Attempt:
    """Return an attempt whose claims expect a version, or that there is none."""
    return Attempt(timings(fail_closed=True, auto_renew=False, **options))


def gone(rvn: str, token: int = 1) -> LockRecord:
    """Return a tombstone that is hidden from reads."""
    return LockRecord("k", State.GONE, rvn, token, "", None)


def pending(attempt: Attempt) -> list[str]:
    """Return the RVNs of what was sent and never answered."""
    return [sent.rvn for sent in attempt.seeking.pending]


def test_id_of_a_read_is_no_write_of_the_own() -> None:
    """A record with that RVN is a stranger's, whatever the chance."""
    attempt = Attempt().begin().unknown()
    assert attempt.asks is Read

    assert isinstance(attempt.answer(held(attempt.in_flight)).state, Seeking)


def test_f3_linearizable_refusal_kills_what_expected_another_version() -> None:
    """The refusal of a claim shows what stands there as well as a read does."""
    attempt = fail_closed().begin().unknown().answer(None)
    assert attempt.asks is Claim

    assert pending(attempt.answer(held("b"))) == []


def test_f3_read_kills_what_expected_another_version_where_refusals_may_be_old() -> None:
    """A read is linearizable on every store."""
    attempt = fail_closed(refusals_linearizable=False).begin().unknown().answer(held("b"))

    assert pending(attempt) == []


def test_f3_takeover_of_the_version_that_still_stands_may_yet_come() -> None:
    """It stays pending while its version is there, and is dead with it."""
    attempt = Attempt().begin().answer(held("b", 4)).at(10).due().unknown()
    assert attempt.asks is Read
    attempt.answer(held("b", 4))

    assert attempt.asks is Replace
    assert pending(attempt) == ["f3"]
    assert pending(attempt.answer(held("c", 4))) == []


def test_free_record_is_claimed_where_it_must_exist() -> None:
    """It exists."""
    assert Attempt(timings(only_if_exists=True)).begin().answer(free("b")).asks is Claim


def test_hidden_record_does_not_exist() -> None:
    """What was deleted on release is waited for as what never was."""
    attempt = Attempt(timings(only_if_exists=True)).begin().answer(gone("b"))

    assert attempt.wait_s == 0.01


def test_poll_of_what_is_not_held_is_a_claim() -> None:
    """A read would cost a second request."""
    for record in (None, gone("b")):
        attempt = Attempt(timings(only_if_exists=True)).begin().answer(record).at(0.01).due()

        assert attempt.asks is Claim


def test_only_a_held_record_is_waited_for() -> None:
    """Nobody would release what is not held, and a store that cannot notify is not asked to."""
    for terms, record in ((timings(only_if_exists=True, notify=True), gone("b")), (timings(), held("b"))):
        (wait,) = Attempt(terms).begin().answer(record).effects

        assert isinstance(wait, Wait)
        assert wait.record is None


def test_lost_races_are_counted_anew_after_a_pause() -> None:
    """Sixteen conditional claims, a poll, and sixteen more."""
    attempt = fail_closed().begin()
    for start in (0, 100):
        for turn in range(start, start + 16):
            attempt.answer(free(f"b{turn}", turn + 1))
            assert attempt.asks is Claim
        attempt.answer(free(f"b{start + 50}", start + 50))
        assert attempt.wait_s is not None
        attempt.due()
        assert attempt.asks is Read


def test_unresolved_writes_are_bounded() -> None:
    """With thirty-two of them nothing more is written before a read shows what became of them."""
    attempt, claims = fail_closed().begin(give_up=1e6), 1
    for _ in range(200):
        if attempt.wait_s is not None:
            attempt.due()
        elif attempt.asks is Read:
            attempt.answer(None)
            claims += attempt.wait_s is None
        else:
            attempt.unknown()

    assert len(attempt.seeking.pending) == claims == 32


def test_polls_come_at_twice_the_distance_each_time() -> None:
    """10, 20, 40 ms."""
    attempt = Attempt().begin().answer(held("b"))
    waits = [attempt.wait_s]
    for _ in range(2):
        attempt.due().answer(held("b"))
        waits.append(attempt.wait_s)

    assert waits == [0.01, 0.02, 0.04]


def test_retries_end_the_attempt_when_they_are_used_up() -> None:
    """Two polls after the first refusal, and not one."""
    attempt = Attempt(timings(retries=2)).begin().answer(held("b")).due().answer(held("b"))
    assert attempt.wait_s is not None

    assert isinstance(attempt.due().answer(held("b")).state, Ended)


def test_read_without_an_answer_is_no_write() -> None:
    """Nothing of it can be applied; it is asked again after a back-off."""
    attempt = Attempt().begin().answer(held("b")).at(1).due().unknown()

    assert pending(attempt) == []
    assert attempt.wait_s == pytest.approx(1 + BACK_OFF)


def test_claim_that_was_certainly_not_applied_waits_beside_a_pending_one() -> None:
    """Only a lost reply is followed by a read at once."""
    attempt = Attempt().begin().unknown().answer(None).not_applied()

    assert pending(attempt) == ["f1"]
    assert attempt.wait_s == pytest.approx(BACK_OFF)


def test_failure_when_the_time_is_up_ends_the_attempt() -> None:
    """At the very instant, without a last wait of nothing."""
    attempt = Attempt().begin(give_up=1).at(1).not_applied()

    assert attempt.state == Ended(attempt.state.terms, Outcome.UNREACHABLE)


def test_back_off_is_spread_upwards() -> None:
    """One back-off and the jittered part of another."""
    attempt = Attempt().begin()
    attempt.send(Failure("f1", unknown=False, new_rvn="f", jitter=0.5))

    assert attempt.wait_s == pytest.approx(1.5 * BACK_OFF)


def test_attempt_that_waits_is_given_up_without_a_clean_up() -> None:
    """Nothing of it is under way."""
    attempt = Attempt().begin().answer(held("b")).give_up()

    assert attempt.state == Ended(attempt.state.terms, Outcome.ABANDONED, held("b"))


def test_read_under_way_needs_no_clean_up() -> None:
    """Nor does a request that writes nothing."""
    attempt = Attempt().begin().answer(held("b")).due().give_up()

    assert isinstance(attempt.state, Ended)


def test_clean_up_lasts_one_lease_from_the_last_send() -> None:
    """The first claim has no part in it."""
    attempt = Attempt().begin().unknown().at(3).answer(None).at(4).give_up()

    assert [sent.sent_at // SECOND for sent in attempt.cleaning.pending] == [0, 3]
    assert attempt.cleaning.until == 13 * SECOND


def test_f3_grant_disowns_the_claim_that_may_still_come() -> None:
    """It expects nothing, so it would be applied after the release."""
    attempt = Attempt().begin().unknown().answer(None)
    assert attempt.request.expect is Expect.ABSENT

    assert attempt.grant().effects == (Abandon(("f1",)),)


def test_f3_grant_by_the_lost_claim_disowns_nothing() -> None:
    """The one that was applied is the own, and the takeover beside it expects a version that is gone."""
    attempt = Attempt().begin().unknown().answer(held("b")).at(10).due().unknown().due()
    assert pending(attempt) == ["f1", "f4"]

    attempt.answer(LockRecord("k", State.HELD, "f1", 2, "me", 10_000))

    assert isinstance(attempt.state, Confirming)
    assert Abandon not in {type(effect) for effect in attempt.effects}


def test_f3_grant_of_a_claim_disowns_the_other_that_expects_nothing_alone() -> None:
    """A write that expects a version is dead with that version."""
    attempt = Attempt().begin().unknown().answer(held("b")).at(10).due().unknown().due()

    attempt.answer(LockRecord("k", State.HELD, "f4", 2, "me", 10_000))

    assert attempt.effects == (Abandon(("f1",)),)


def test_way_back_of_a_late_grant_begins_anew() -> None:
    """Polls, lost races and failures of before count no more."""
    attempt = Attempt().begin().answer(held("b")).at(1).due().answer(free("c")).at(6).grant()

    assert isinstance(attempt.state, Confirming)
    assert attempt.state.seeking == Seeking(attempt.state.terms, 30 * SECOND, shown=free("c"))


def test_wait_after_the_lease_is_extended_once() -> None:
    """By the lease of the first holder seen, and not by that of each."""
    attempt = Attempt(timings(timeout=5.0, timeout_after_lease=True)).begin(give_up=5).answer(held("b"))
    attempt.at(1).due().answer(held("c"))

    assert attempt.seeking.give_up_at == 15 * SECOND


def test_answer_to_another_request_is_refused() -> None:
    """A request that was not asked, or not any more, has no place in the attempt."""
    for attempt in (Attempt().begin(), Attempt().begin().answer(held("b"))):
        before = attempt.state
        with pytest.raises(Exception, match="was not asked"):
            attempt.send(Answer("another", Reply(applied=False, record=held("b")), "f"))

        assert attempt.state == before


def test_version_of_the_takeover_is_that_seen() -> None:
    """Not that of the record of an earlier answer."""
    attempt = Attempt().begin().answer(held("b", 1)).at(9).due().answer(held("c", 1)).at(19).due()

    assert attempt.request.expected == Version("c", 1)


def test_observation_goes_on_behind_an_answer_that_says_absent() -> None:
    """A version never returns, so what was seen of it before still counts."""
    seen = Observation(Version("b", 1), 10 * SECOND, 0)
    attempt = Attempt().begin().answer(held("b")).at(4).due().answer(None)
    assert attempt.asks is Claim

    attempt.send(Answer(attempt.in_flight, Reply(applied=False, record=held("b")), "x", seen=seen))

    assert attempt.at(9.9).due().asks is Read
    assert attempt.at(10).answer(held("b")).asks is Replace


def test_observation_of_another_version_counts_for_nothing() -> None:
    """What this client saw before is of a lease that was renewed since."""
    seen = Observation(Version("a", 1), 10 * SECOND, 0)

    attempt = Attempt().begin().at(9.9).send(Answer("f1", Reply(applied=False, record=held("b")), "x", seen=seen))

    assert attempt.seeking.seen == Observation(Version("b", 1), 10 * SECOND, round(9.9 * SECOND))


def test_slow_answer_is_no_wait_where_no_claim_waits() -> None:
    """What loses to others is still counted."""
    attempt = Attempt().begin().answer(free("b")).at(5).answer(free("c"))

    assert attempt.seeking.immediate_retries == 2


def test_key_that_was_seen_free_is_claimed_whatever_stands_there() -> None:
    """Nothing of this attempt is unresolved: a claim that expects nothing cannot lose to a record that nobody holds."""
    attempt = Attempt().begin().answer(held("b")).at(1).due().answer(free("x"))

    assert attempt.request.expect is Expect.ANY


def test_holder_that_has_gone_bounds_no_wait() -> None:
    """The key must exist, and does not: nothing happens when the lease of before has ended."""
    attempt = Attempt(timings(only_if_exists=True)).begin().answer(held("b")).at(9.99).due().answer(None)

    assert attempt.seeking.seen is None
    assert attempt.wait_s is not None
    assert attempt.wait_s > 10
