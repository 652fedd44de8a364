"""Trying to obtain the key: claims, observation, takeover, and what was sent but never answered."""

from __future__ import annotations

import pytest

from dlock_core.record import LockRecord, State, Version, newer_format
from dlock_core.states import Abandon, Cleaning, Ended, Held, Observation, Outcome, Read, Releasing, Seeking, Wait
from dlock_core.store import Claim, Expect, Replace
from dlock_core.timings import NEVER
from tests.core.attempts import SECOND, Attempt, broken, free, held, holding, timings


def test_begin_sends_one_claim_with_the_plan_of_the_lock() -> None:
    """The first request already asks for the key; a free key costs one."""
    attempt = Attempt(timings(data=b"x", only_if_exists=True)).begin()

    assert attempt.request == Claim(
        LockRecord("k", State.HELD, "f1", 1, "me", 10_000, b"x"),
        Expect.ANY,
        must_exist=True,
        keep_payload=False,
        ticket="ticket",
    )


def test_grant_hands_out_the_token_of_the_store_until_the_usable_end() -> None:
    """The token is the store's, the end is 9.8 s after the send, the first renewal a quarter of the lease after it."""
    attempt = Attempt().at(1).begin().at(2).grant(token=7)

    assert attempt.version == Version("f1", 7)
    assert attempt.valid
    assert attempt.holder.deadline == 1 * SECOND + 9_800_000_000
    assert attempt.due_at == 3.5


def test_refusal_by_a_holder_waits_for_a_poll_but_not_past_the_observed_lease() -> None:
    """A store that cannot notify is polled with growing steps, and asked when the lease observed has passed."""
    attempt = Attempt().begin().answer(held("b", 3))

    assert attempt.seeking.seen == Observation(Version("b", 3), 10 * SECOND, 0)
    assert attempt.wait_s == 0.01
    attempt.at(9.99).due().answer(held("b", 3))
    assert attempt.wait_s == 10.0


def test_poll_of_a_held_key_is_a_read_and_a_wake_up_claims() -> None:
    """Who was told of a release claims at once; who only asks reads."""
    polling = Attempt().begin().answer(held("b")).at(1).due()
    woken = Attempt(timings(notify=True)).begin().answer(held("b")).at(1).woken()

    assert polling.asks is Read
    assert woken.asks is Claim


def test_store_that_notifies_is_given_the_record_to_wait_for() -> None:
    """The wait names the record, so that a release between the refusal and the wait is not missed."""
    attempt = Attempt(timings(notify=True)).begin().answer(held("b"))

    (wait,) = attempt.effects
    assert wait == Wait(2 * SECOND, held("b"))


def test_lapsed_record_is_taken_over_with_the_next_token() -> None:
    """One lease after the answer that first showed it, and not a nanosecond before."""
    early = Attempt().at(1).begin().at(2).answer(held("b", 4)).at(11.999).due()
    attempt = Attempt().at(1).begin().at(2).answer(held("b", 4)).at(12).due()

    assert early.asks is Read
    assert attempt.asks is Replace
    assert attempt.request.expected == Version("b", 4)
    assert attempt.request.record.fencing_token == 5
    assert attempt.grant().version == Version("f3", 5)


def test_timeout_ends_the_attempt_and_names_the_holder() -> None:
    """Denied: somebody else held the key all the time."""
    attempt = Attempt().begin(give_up=1).answer(held("b")).at(1).due()

    assert attempt.state == Ended(attempt.state.terms, Outcome.DENIED, held("b"))


def test_timeout_of_nothing_tries_once() -> None:
    """A wait of 0 s is one request."""
    attempt = Attempt().begin(give_up=0).answer(held("b"))

    assert isinstance(attempt.state, Ended)


def test_unreachable_store_is_asked_again_after_a_back_off_until_patience_ends() -> None:
    """A store that never answers ends the attempt after one lease, at most 10 s."""
    attempt = Attempt().begin(give_up=60).not_applied()
    assert attempt.wait_s == pytest.approx(10 / 24)

    attempt.at(1).due().not_applied()
    attempt.at(10).due().not_applied()

    assert attempt.state == Ended(attempt.state.terms, Outcome.UNREACHABLE)


def test_missing_record_is_waited_for_where_it_must_exist() -> None:
    """With only_if_exists an absent key is not claimed again at once."""
    attempt = Attempt(timings(only_if_exists=True)).begin().answer(None)

    assert attempt.wait_s == 0.01
    assert attempt.seeking.seen is None


def test_conditional_claims_that_lose_are_bounded_by_a_pause() -> None:
    """After sixteen lost races in a row the attempt waits for a poll."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False)).begin()
    for turn in range(16):
        attempt.answer(free(f"b{turn}", turn + 1))
        assert attempt.asks is Claim

    attempt.answer(free("b99", 99))

    assert attempt.wait_s is not None


# ---- unknown outcomes (F1 to F7) --------------------------------------------------------------------------------------------------------


def test_f1_grant_of_an_own_claim_under_a_later_token_counts_with_that_token() -> None:
    """A claim applied twice stands under two tokens: what the record says is what is held."""
    attempt = Attempt().begin().unknown().answer(LockRecord("k", State.HELD, "f1", 3, "me", 10_000))

    assert attempt.version == Version("f1", 3)


def test_f1_rvn_of_the_own_grant_under_another_token_is_a_loss() -> None:
    """The RVN alone is not the version: under another token it is the late duplicate of the own claim."""
    attempt = holding(token=1).at(3).due().answer(LockRecord("k", State.HELD, "f1", 3, "me", 10_000))

    assert attempt.lost.loss.record is not None


def test_f2_claim_of_a_leased_lock_expects_nothing_while_nothing_is_unresolved() -> None:
    """The common case costs one request whatever stands there."""
    assert Attempt().begin().request.expect is Expect.ANY


def test_f2_claim_after_an_unknown_outcome_expects_what_was_shown() -> None:
    """Two claims that expect nothing could both be applied, one for nobody."""
    absent = Attempt().begin().unknown().answer(None)
    tombstone = Attempt().begin().unknown().answer(free("b", 2))

    assert absent.request.expect is Expect.ABSENT
    assert tombstone.request.expect == Version("b", 2)


def test_f2_fail_closed_claim_always_expects_a_version() -> None:
    """A late duplicate of a claim that expects nothing would hold the key for ever."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False)).begin()

    assert attempt.request.expect is Expect.ABSENT
    assert attempt.answer(free("b", 2)).request.expect == Version("b", 2)


def test_f2_fail_closed_wake_up_reads_before_it_claims() -> None:
    """There is no version to expect without an answer."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False, notify=True)).begin().answer(held("b")).at(1).woken()

    assert attempt.asks is Read


def test_f3_another_record_does_not_prove_that_a_claim_was_not_applied() -> None:
    """The claim without an answer may still come: it stays pending, and the next one is conditional."""
    attempt = Attempt().begin().unknown().answer(held("b", 1))

    assert [sent.rvn for sent in attempt.seeking.pending] == ["f1"]


def test_f3_conditional_claim_is_dead_when_its_version_is_gone() -> None:
    """A version never returns, so what expects it can not be applied any more."""
    attempt = Attempt(timings(fail_closed=True, auto_renew=False)).begin().unknown().answer(held("b", 1))

    assert attempt.seeking.pending == ()


def test_f3_stale_refusal_kills_no_pending_write() -> None:
    """Where refusals may be old, only a read shows what is gone."""
    stale = timings(fail_closed=True, auto_renew=False, refusals_linearizable=False)
    attempt = Attempt(stale).begin().unknown().answer(None).answer(free("old", 1))

    assert [sent.rvn for sent in attempt.seeking.pending] == ["f1"]


def test_f4_new_attempt_takes_over_what_an_abandoned_one_wrote() -> None:
    """Adoption would race with the clean-up of the abandoned attempt; a takeover has a new RVN and a new token."""
    attempt = Attempt().begin().answer(held("orphan", 1, owner="me"), abandoned=True)

    assert attempt.asks is Replace
    assert attempt.request.expected == Version("orphan", 1)
    assert attempt.request.record.fencing_token == 2


def test_f4_adoption_is_by_what_the_attempt_itself_has_sent() -> None:
    """A record of the same owner is a stranger's."""
    attempt = Attempt().begin().unknown().answer(held("mine?", 1, owner="me"))

    assert isinstance(attempt.state, Seeking)


def test_f5_late_grant_is_renewed_before_it_is_handed_out() -> None:
    """A grant with less than half of its use left is no use; after its end it would even be another's."""
    attempt = Attempt().begin().at(4.91).grant()

    assert not attempt.valid
    assert attempt.request.expected == Version("f1", 1)
    attempt.at(5).grant()
    assert attempt.valid
    assert attempt.holder.deadline == 4_910_000_000 + 9_800_000_000


def test_f5_grant_with_half_of_its_use_left_is_handed_out() -> None:
    """The other side of the border."""
    assert Attempt().begin().at(4.9).grant().valid


def test_f5_late_grant_that_was_lost_goes_on_waiting() -> None:
    """Nobody was told of it, so it is no loss."""
    attempt = Attempt().begin().at(9).grant().at(20).answer(held("b", 2))

    assert attempt.seeking.seen == Observation(Version("b", 2), 10 * SECOND, 20 * SECOND)


def test_f5_late_grant_is_not_renewed_past_the_timeout() -> None:
    """A store that is always late must not keep the caller for ever: what was won is given back."""
    attempt = Attempt().begin(give_up=6).at(5).grant().at(14).grant()

    assert isinstance(attempt.state, Releasing)


def test_f5_late_grant_without_an_answer_is_asked_for_until_the_timeout_and_freed() -> None:
    """The key is won and nobody knows it: it is given back, not left to lapse."""
    attempt = Attempt().begin(give_up=7).at(6).grant().unknown()
    assert attempt.wait_s == pytest.approx(6 + 10 / 24)

    attempt.at(7).due().unknown()

    assert isinstance(attempt.state, Releasing)


def test_f5_late_grant_is_driven_by_one_request_at_a_time() -> None:
    """Whoever acquires waits for its answer; no scheduler may send beside it."""
    attempt = Attempt().begin().at(6).grant()

    assert attempt.due_at * SECOND == NEVER


def test_f6_adopted_grant_has_what_the_record_says() -> None:
    """Token, data and attributes may be those that stood there before."""
    record = LockRecord("k", State.HELD, "f1", 9, "me", 10_000, b"kept", (("a", 1),))
    attempt = Attempt(timings(data=b"asked", replace_data=False)).begin().unknown().answer(record)

    assert attempt.version == Version("f1", 9)
    assert attempt.holder.payload == (b"kept", (("a", 1),))


def test_f6_only_a_held_record_is_adopted() -> None:
    """An own RVN in a record that is not held is no grant."""
    attempt = Attempt().begin().unknown().answer(free("f1", 1))

    assert isinstance(attempt.state, Seeking)


def test_f7_attempt_given_up_with_a_claim_under_way_is_cleaned_up() -> None:
    """The claim may be applied after the caller has left; its RVN is abandoned at once."""
    attempt = Attempt().begin().give_up()

    assert attempt.effects == (Abandon(("f1",)),)
    assert isinstance(attempt.state, Cleaning)


def test_f7_attempt_that_times_out_with_a_pending_claim_is_cleaned_up() -> None:
    """Denied is the outcome, and the clean-up follows what may still come."""
    attempt = Attempt().begin(give_up=1).unknown().answer(held("b")).at(1).due()

    assert isinstance(attempt.state, Cleaning)
    assert attempt.cleaning.outcome is Outcome.DENIED


# ---- others' records (F13 to F16) -------------------------------------------------------------------------------------------------------


def test_f13_record_of_a_newer_format_is_never_taken_over() -> None:
    """What an older program cannot read it only waits for."""
    record = newer_format("k", 2, "b", 1)
    attempt = Attempt().begin(give_up=1e9).answer(record).at(1e8).due()

    assert attempt.asks is Read


def test_f14_lease_of_a_record_is_never_cut_short() -> None:
    """Whatever this client's own lease: the record's is what its holder counts on."""
    attempt = Attempt().begin(give_up=1e6).answer(held("b", lease=3600)).at(3599.9).due()

    assert attempt.asks is Read
    assert attempt.answer(held("b", lease=3600)).at(3600).due().asks is Replace


def test_f15_observation_starts_anew_with_each_change_of_rvn_or_token() -> None:
    """A renewal between two looks is a sign of life."""
    attempt = Attempt().begin().answer(held("b", 1)).at(6).due().answer(held("c", 1)).at(7).due().answer(held("c", 2))

    assert attempt.seeking.seen == Observation(Version("c", 2), 10 * SECOND, 7 * SECOND)


def test_f15_observation_of_an_earlier_attempt_counts() -> None:
    """What the client saw a lease ago is enough."""
    seen = Observation(Version("b", 1), 10 * SECOND, 0)
    attempt = Attempt().at(10).begin(seen=seen).answer(held("b", 1))

    assert attempt.asks is Replace


def test_f15_observation_of_another_version_does_not_count() -> None:
    """The record was renewed since."""
    seen = Observation(Version("b", 1), 10 * SECOND, 0)
    attempt = Attempt().at(10).begin(seen=seen).answer(held("c", 1))

    assert attempt.seeking.seen == Observation(Version("c", 1), 10 * SECOND, 10 * SECOND)
    assert attempt.wait_s is not None


def test_break_in_quarantine_is_observed_for_a_whole_lease() -> None:
    """The old holder's lease ends within it."""
    attempt = Attempt().begin().answer(held("b", 1)).at(9).due().answer(broken("x", 2)).at(18.9).due()
    assert attempt.asks is Read

    attempt.answer(broken("x", 2)).at(19).due()

    assert attempt.request.expected == Version("x", 2)


# ---- hazards of others ---------------------------------------------------------------------------------------------------------


def test_hazard_01_claim_applied_with_its_reply_lost_is_held_from_its_send() -> None:
    """The read that follows shows the own RVN: held, and the lease counts from the first send."""
    attempt = Attempt().at(1).begin().at(2).unknown()
    assert attempt.asks is Read

    attempt.at(3).answer(LockRecord("k", State.HELD, "f1", 1, "me", 10_000))

    assert attempt.valid
    assert attempt.holder.deadline == 1 * SECOND + 9_800_000_000


def test_hazard_05_lease_counts_from_the_send() -> None:
    """Not from the reply, which may have been long on its way."""
    assert Attempt().at(1).begin().at(3).grant().holder.sent_at == 1 * SECOND


def test_hazard_06_waiting_counts_from_the_answer() -> None:
    """Not from the request: the holder may have renewed while it was on its way."""
    attempt = Attempt().at(1).begin().at(5).answer(held("b"))

    assert attempt.seeking.seen is not None
    assert attempt.seeking.seen.seen_at == 5 * SECOND


def test_hazard_12_waiter_counts_the_lease_of_the_record() -> None:
    """Clients may have leases of their own each."""
    attempt = Attempt().begin().answer(held("b", lease=3)).at(3).due()

    assert attempt.asks is Replace


def test_hazard_13_attempts_that_never_wait_take_over_in_the_end() -> None:
    """Each passes what it has seen on to the next."""
    first = Attempt().begin(give_up=0).answer(held("b"))
    assert isinstance(first.state, Ended)

    second = Attempt().at(10).begin(give_up=10, seen=Observation(Version("b", 1), 10 * SECOND, 0)).answer(held("b"))

    assert isinstance(second.grant().state, Held)


def test_hazard_20_same_owner_name_is_nobody_known() -> None:
    """The owner is a label for people; ownership is by RVN."""
    attempt = Attempt().begin().answer(held("b", owner="me"))

    assert isinstance(attempt.state, Seeking)


def test_pending_claims_of_a_long_attempt_are_bounded() -> None:
    """A store that answers reads and never a claim must not fill the memory of a patient client."""
    attempt = Attempt().begin(give_up=1e9).unknown()
    for turn in range(1000):
        attempt.at(turn)
        if attempt.wait_s is not None:
            attempt.due()
        elif attempt.asks is Read:
            attempt.answer(free("b", 1))
        else:
            attempt.unknown()

    assert len(attempt.seeking.pending) <= 33


def test_f11_claim_asks_for_a_token_of_at_least_the_floor() -> None:
    """A resource that has seen the tokens of another store refuses all that are lower."""
    attempt = Attempt(timings(token_floor=1_000)).begin()

    assert attempt.asks is Claim
    assert attempt.request.record.fencing_token == 1_000


@pytest.mark.parametrize(("seen", "taken"), [(7, 1_000), (999, 1_000), (1_000, 1_001), (5_000, 5_001)])
def test_f11_takeover_writes_a_token_of_at_least_the_floor(seen: int, taken: int) -> None:
    """Whoever held it may have been a client without the floor; above it, each takeover adds one as ever."""
    attempt = Attempt(timings(token_floor=1_000)).begin().answer(held("other", seen))

    attempt.at(10).due()

    assert attempt.asks is Replace
    assert attempt.request.record.fencing_token == taken


# ---- how long it is waited


def test_wait_counts_on_top_of_the_lease_first_seen_where_it_is_asked_for() -> None:
    """Once: a holder that renews, or another one, does not make it longer."""
    attempt = Attempt(timings(timeout=1.0, timeout_after_lease=True)).begin(give_up=1.0)

    attempt.answer(held("x", lease=5.0))
    attempt.at(2.0).due().answer(held("y", lease=100.0))

    assert attempt.seeking.give_up_at == 6 * SECOND
    attempt.at(6.0).due()
    assert isinstance(attempt.state, Ended)


def test_wait_without_a_lease_to_count_is_not_made_longer() -> None:
    """Nobody knows when a lock without a lease ends; and a single try stays one."""
    closed = Attempt(timings(timeout=1.0, timeout_after_lease=True)).begin(give_up=1.0).answer(held("x", lease=None))
    once = Attempt(timings(timeout=0.0, timeout_after_lease=True)).begin(give_up=0.0).answer(held("x", lease=5.0))

    assert closed.seeking.give_up_at == SECOND
    assert isinstance(once.state, Ended)


def test_retries_bound_how_often_it_is_asked() -> None:
    """After so many waits the next refusal is the last."""
    attempt = Attempt(timings(retries=1)).begin().answer(held("x"))
    assert attempt.wait_s is not None

    attempt.at(1.0).due().answer(held("y"))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.DENIED


def test_a_wake_up_uses_no_retry() -> None:
    """A store may wake at each renewal, and the options count waits to their end."""
    attempt = Attempt(timings(notify=True, retries=1)).begin().answer(held("x"))

    attempt.at(1.0).woken().answer(held("y"))

    assert attempt.wait_s is not None
    attempt.at(9.0).due().answer(held("z"))
    assert isinstance(attempt.state, Ended)
