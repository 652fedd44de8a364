"""Mutants of claims that wait in the server. :mod:`proof.mutate.mutant` says how to read them."""

from __future__ import annotations

from proof.mutate.mutant import Mutant

__all__ = ["WAITS"]

_WAITS = "test_lease_server_wait.py::test_"
WAITS = (
    Mutant(
        "claim waits beside a write that is unresolved",
        "K7, F3",
        "_waits_in_server",
        "and not state.pending",
        "",
        f"{_WAITS}claim_that_waited_without_an_answer_may_be_applied",
    ),
    Mutant(
        "claim waits for as long as a poll",
        "K3",
        "_claim_when_free",
        "min(_poll_at(state, event.jitter, now) - now, slow_poll_ns(state.terms.timings.own_lease_ns))",
        "_poll_at(state, event.jitter, now) - now",
        f"{_WAITS}poll_period_makes_no_wait_longer",
    ),
    Mutant(
        "claim waits past the patience",
        "I7",
        "_claim_when_free",
        "min(_poll_at(state, event.jitter, now) - now, slow_poll_ns(state.terms.timings.own_lease_ns))",
        "slow_poll_ns(state.terms.timings.own_lease_ns)",
        f"{_WAITS}wait_ends_with_the_patience_and_with_the_lease_that_is_observed",
    ),
    Mutant(
        "claim that waits is made before its turn",
        "K3",
        "_wait",
        "return state, (Wait(now, notice),)",
        "return _claim_when_free(state, Due(event.new_rvn), now)",
        f"{_WAITS}claim_that_waits_is_made_when_its_turn_has_come",
    ),
    Mutant(
        "lease of a claim that waited counts from its grant",
        "K3, rule 1",
        "_granted",
        "deadline = sent.sent_at + timings.usable_ns",
        "deadline = now + timings.usable_ns",
        "waits",
    ),
    Mutant(
        "claim that waits expects what stood",
        "K7",
        "_claim_when_free",
        "_claim(state.terms, Expect.ANY, event.new_rvn, now)",
        "_claim(state.terms, Expect.ABSENT, event.new_rvn, now)",
        f"{_WAITS}refusal_is_followed_by_a_claim_that_waits",
    ),
    Mutant(
        "refusals at once are asked again for ever",
        "I8",
        "_claim_when_free",
        "immediate_retries=state.immediate_retries + 1",
        "immediate_retries=0",
        f"{_WAITS}refusals_that_come_at_once_end_in_a_wait",
    ),
    Mutant(
        "who is refused slowly loses its place in the server",
        "W2",
        "_seek_answer",
        "retries = 0 if waited else state.immediate_retries",
        "retries = state.immediate_retries",
        f"{_WAITS}slow_refusals_never_end_in_a_wait",
    ),
)
