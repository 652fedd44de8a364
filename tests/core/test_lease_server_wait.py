"""Trying to obtain the key where the store lets a claim wait for it: what is sent, and how its refusal and its grant are taken."""

from __future__ import annotations

import pytest

from dlock_core.states import Abandon, Cleaning, Ended, Held, Outcome, Read, Wait
from dlock_core.store import Claim, Expect, Replace
from dlock_core.timings import Timings
from tests.core.attempts import SECOND, Attempt, free, held, timings


def in_server(**options: object) -> Timings:
    """Return timings of a lease of 10 s on a store that notifies, and in which claims may wait."""
    return timings(notify=True, server_wait=True, **options)


def refused(terms: Timings | None = None, give_up: float = 30.0) -> Attempt:
    """Return an attempt whose first claim has just met another holder, and whose turn it is."""
    return meet(Attempt(terms or in_server()).begin(give_up), "b")


def meet(attempt: Attempt, rvn: str, token: int = 1) -> Attempt:
    """Have *attempt* be refused, and go on at once if nothing keeps it from that."""
    attempt.answer(held(rvn, token))
    return attempt.due() if attempt.wait_s == attempt.now / SECOND else attempt


def test_refusal_is_followed_by_a_claim_that_waits() -> None:
    """It expects nothing and has an RVN of its own, as any first claim; nothing else is waited for."""
    attempt = refused()

    (claim,) = attempt.effects
    assert isinstance(claim, Claim)
    assert (claim.expect, claim.record.rvn, claim.ticket) == (Expect.ANY, "f3", "ticket")
    assert claim.wait_ns == 2 * SECOND


def test_claim_that_waits_is_made_when_its_turn_has_come() -> None:
    """The engine lets few of many waiters ask: the lease of the others counts from when they are let in, and not from the refusal (K3)."""
    attempt = Attempt(in_server()).begin().answer(held("b"))

    assert attempt.effects == (Wait(0, held("b")),)
    assert attempt.at(7).due().request.wait_ns == 2 * SECOND
    assert attempt.at(8).grant(token=7).holder.deadline == 7 * SECOND + 9_800_000_000


def test_turn_that_comes_late_is_no_other_than_any_wait_that_ends() -> None:
    """Its patience is over, or the lease of the holder that it has seen: nothing waits in the server."""
    impatient = Attempt(in_server()).begin(5).answer(held("b")).at(5).due()
    observing = Attempt(in_server()).begin().answer(held("b")).at(12).due()

    assert isinstance(impatient.state, Ended)
    assert observing.asks is Replace


@pytest.mark.parametrize(("lease", "wait_s"), [(4.0, 1.0), (10.0, 2.0), (60.0, 2.0)])
def test_wait_is_a_quarter_of_the_lease_and_two_seconds_at_most(lease: float, wait_s: float) -> None:
    """So what is granted at its end has more than half of its use left, and is handed out without a renewal (K3)."""
    attempt = refused(in_server(lease_duration=lease))

    assert attempt.request.wait_ns == wait_s * SECOND
    attempt.at(wait_s).grant(token=2)
    assert isinstance(attempt.state, Held)


def test_poll_period_makes_no_wait_longer() -> None:
    """Who wants to poll each 20 s still has a lease that counts from before the wait."""
    attempt = refused(timings(notify=True, server_wait=True, poll_period=20.0))

    assert attempt.request.wait_ns == 2 * SECOND


def test_wait_ends_with_the_patience_and_with_the_lease_that_is_observed() -> None:
    """As any wait."""
    impatient = refused(give_up=0.5)
    observing = meet(refused().at(9.5), "b")

    assert impatient.request.wait_ns == SECOND // 2
    assert observing.request.wait_ns == SECOND // 2


def test_lease_counts_from_before_the_wait() -> None:
    """The grant came 2 s after the claim was sent: 2 s of the lease are gone (K3)."""
    attempt = refused().at(2).grant(token=7)

    assert attempt.holder.deadline == 9_800_000_000
    assert attempt.version.fencing_token == 7


def test_refusal_at_the_end_of_the_wait_is_the_poll() -> None:
    """The next claim waits at once, the observation goes on, and a lease later the key is taken over."""
    attempt = refused()
    for second in (2, 4, 6, 8):
        assert meet(attempt.at(second), "b").asks is Claim

    assert attempt.at(10).answer(held("b")).asks is Replace


def test_end_of_the_patience_denies() -> None:
    """No request is sent after it, and nothing is left to clean up."""
    attempt = refused(give_up=1.0).at(1).answer(held("b"))

    assert isinstance(attempt.state, Ended)
    assert attempt.state.outcome is Outcome.DENIED


def test_claim_that_waited_without_an_answer_may_be_applied() -> None:
    """One read tells; while it is unresolved, nothing waits in the server (K7)."""
    attempt = refused().at(3).unknown()

    assert attempt.asks is Read
    attempt.answer(held("c", 2))
    assert attempt.wait_s is not None
    assert attempt.wait_s > attempt.now / SECOND


def test_own_claim_that_is_shown_is_adopted() -> None:
    """The reply was lost, and the refusal of nothing shows the claim's own RVN."""
    attempt = refused().at(2).unknown().answer(held("f3", 2, owner="me"))

    assert isinstance(attempt.state, Held)


def test_giving_up_while_a_claim_waits_is_followed_up() -> None:
    """It may be applied still: its RVN is disowned, and looked for (K2)."""
    attempt = refused().give_up()

    assert isinstance(attempt.state, Cleaning)
    assert attempt.effects == (Abandon(("f3",)),)


def test_refusals_that_come_at_once_end_in_a_wait() -> None:
    """A store that lets nothing wait is not asked in a loop."""
    attempt = refused()
    asked = []
    for _ in range(20):
        asked.append(type(attempt.effects[0]))
        if asked[-1] is Wait:
            break
        meet(attempt, "b")

    assert asked == [*[Claim] * 16, Wait]


@pytest.mark.parametrize(("answered_s", "at_once"), [(0.99, 2), (1.0, 1)])
def test_refusal_comes_at_once_within_half_of_the_wait(answered_s: float, at_once: int) -> None:
    """From then on it counts as having waited; each is a poll all the same."""
    attempt = meet(refused().at(answered_s), "b")

    assert (attempt.seeking.immediate_retries, attempt.seeking.polls) == (at_once, 2)
    assert meet(attempt.at(answered_s + 0.5), "b").seeking.immediate_retries == at_once + 1


def test_slow_refusals_never_end_in_a_wait() -> None:
    """A waiter that is refused for long keeps its place in the server."""
    attempt = refused(give_up=1000)

    asked = [meet(attempt.at(2 * number), f"b{number}").asks for number in range(1, 60)]

    assert set(asked) == {Claim}


def test_free_key_is_claimed_without_a_wait() -> None:
    """The key was freed and kept for another: what is free now is claimed at once."""
    attempt = refused().at(2).answer(free("x", 4))

    assert attempt.request.wait_ns == 0


def test_number_of_tries_counts_requests() -> None:
    """Where the options give a number of polls, each is a request of its own."""
    attempt = refused(in_server(retries=2))

    assert isinstance(attempt.effects[0], Wait)
    assert refused(timings(notify=True, fail_closed=True, server_wait=True)).wait_s is not None
