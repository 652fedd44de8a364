"""The mutants of time and of claims; :mod:`proof.mutant` says how to read them."""

from __future__ import annotations

from proof.mutant import HOLDING, RELEASE, SEEKING, Mutant

__all__ = ["CLAIMS", "TIME"]

TIME = (
    Mutant(
        "grant counts from the reply", "5.1 F5 H5", "_granted", "deadline = sent.sent_at +", "deadline = now +", "plain"
    ),
    Mutant(
        "renewal counts from the reply", "5.1 H5", "_renewed", "deadline = sent.sent_at +", "deadline = now +", "slow"
    ),
    Mutant(
        "late grant is handed out", "F5", "_granted", "if deadline - now < plan.fresh_enough_ns:", "if False:", "plain"
    ),
    Mutant(
        "late renewal of a late grant is handed out",
        "F5",
        "_renewed",
        " and deadline - now >= plan.fresh_enough_ns",
        "",
        "long",
    ),
    Mutant("takeover at first sight", "5.1 H6", "_pursue", "if now >= _over_at(state, seen):", "if True:", "plain"),
    Mutant(
        "takeover whenever due",
        "5.1",
        "_seek_due",
        "now >= _over_at(state, seen)",
        "now >= seen.seen_at",
        "plain",
    ),
    Mutant(
        "observation survives a renewal",
        "F15 H6",
        "_pursue",
        "seen is None or seen.version != version",
        "seen is None",
        "plain",
    ),
    Mutant(
        "observation looks at the token alone",
        "F15 H6",
        "_pursue",
        "seen.version != version",
        "seen.version.fencing_token != version.fencing_token",
        "plain",
    ),
    Mutant("observed lease is cut short", "F14 H12", "observe", "record.lease_ms * 1_000_000", "1_000_000", "plain"),
    Mutant(
        "fail-closed lock lapses",
        "F14 6",
        "observe",
        "NEVER if record.lease_ms is None",
        "2_000_000 if record.lease_ms is None",
        "closed-wait",
    ),
    Mutant(
        "deadline does not shrink before the send",
        "F8a H11",
        "_renew",
        "deadline=min(state.deadline, now + plan.usable_ns)",
        "deadline=state.deadline",
        "shorter",
    ),
    Mutant(
        "longer lease counts before it is seen",
        "F8a H11",
        "_renew",
        "deadline=min(state.deadline, now + plan.usable_ns)",
        "deadline=now + plan.usable_ns",
        "longer",
    ),
    Mutant("pending leases do not count", "F8a H11", "_deadline", "*ends])", "])", "shorter"),
    Mutant("validity forgets the deadline", "5.7", "is_valid", "now < state.deadline and ", "", "plain"),
    Mutant(
        "validity forgets the late grant",
        "F5",
        "is_valid",
        " and state.way_back is None",
        "",
        f"{SEEKING}f5_late_grant_is_renewed_before_it_is_handed_out",
    ),
    Mutant("renewal after the deadline", "F8g H18", "_over", "now >= state.deadline or ", "", "plain"),
    Mutant(
        "answer after the deadline revives",
        "F8g 5.7",
        "_held_answer",
        "state.way_back is None and _over(state, now)",
        "False",
        "plain",
    ),
    Mutant(
        "failure after the deadline is no loss",
        "F8g",
        "_held_failure",
        "state.way_back is None and _over(state, now)",
        "False",
        "faults",
    ),
    Mutant(
        "release after the deadline is in time",
        "F8d",
        "_held_free",
        "if _over(state, now):",
        "if False:",
        f"{RELEASE}f8d_refusal_by_another_is_a_loss_where_it_was_sent_late",
    ),
    Mutant(
        "longest hold is forgotten",
        "5.7",
        "is_valid",
        "now < state.hold_until and ",
        "",
        f"{HOLDING}longest_hold_ends_the_lease_though_it_is_renewed",
    ),
)

CLAIMS = (
    Mutant("fail-closed claim expects nothing", "F2", "_begin", "Expect.ABSENT if", "Expect.ANY if", "closed"),
    Mutant(
        "fail-closed claim expects nothing after a refusal",
        "F2",
        "_expectation",
        "state.terms.plan.lease_ms is not None and ",
        "",
        "closed-twice",
    ),
    Mutant(
        "second claim expects nothing",
        "F2",
        "_expectation",
        " and not state.pending",
        "",
        f"{SEEKING}f2_claim_after_an_unknown_outcome_expects_what_was_shown",
    ),
    Mutant("lost claim is not adopted", "5.4 H1", "_seek_answer", "in (asked, *state.pending):", "in ():", "closed"),
    Mutant(
        "own refused claim is not adopted",
        "5.4 H1",
        "_seek_answer",
        "in (asked, *state.pending):",
        "in state.pending:",
        "closed",
    ),
    Mutant(
        "adoption from the set of the client",
        "F4",
        "_seek_answer",
        "if sent.rvn == record.rvn and",
        "if (event.disowned or sent.rvn == record.rvn) and",
        "abandon",
    ),
    Mutant(
        "adoption by the owner's name",
        "5.4 H20",
        "_seek_answer",
        "if sent.rvn == record.rvn and",
        "if sent.plan.owner == record.owner and",
        "plain",
    ),
    Mutant(
        "free record is adopted",
        "F6",
        "_seek_answer",
        "if record is not None and record.state is _HELD:",
        "if record is not None:",
        f"{SEEKING}f6_only_a_held_record_is_adopted",
    ),
    Mutant(
        "own orphan is waited for",
        "F4",
        "_pursue",
        "if event.disowned:",
        "if False:",
        f"{SEEKING}f4_new_attempt_takes_over_what_an_abandoned_one_wrote",
    ),
    Mutant(
        "another record proves not applied",
        "F3",
        "_living",
        "if sent.expected is Expect.ANY",
        "if False",
        "abandon-fault",
    ),
    Mutant(
        "stale refusal proves not applied",
        "F3 F12",
        "_seek_answer",
        "if pending and (asked.verb is Verb.READ or state.terms.plan.refusals_linearizable):",
        "if pending:",
        f"{SEEKING}f3_stale_refusal_kills_no_pending_write",
    ),
    Mutant("clean-up stops at the first look", "F3", "_clean_answer", "if not state.pending:", "if True:", "closed"),
    Mutant("clean-up is skipped", "F3 H4", "_leave", "if not state.pending:", "if True:", "closed"),
    Mutant(
        "claim under way is forgotten when given up",
        "F7 H4",
        "_seek_give_up",
        "_unresolved(state)",
        "state.pending",
        "closed",
    ),
    Mutant(
        "unknown claim is forgotten",
        "5.4 H4",
        "_seek_failure",
        "pending = (*pending, asked)",
        "pending = pending",
        "closed",
    ),
    Mutant(
        "clean-up is not disowned",
        "F3 F4",
        "_leave",
        "(Disown(tuple(sent.rvn for sent in state.pending)),)",
        "()",
        f"{SEEKING}f7_attempt_given_up_with_a_claim_under_way_is_cleaned_up",
    ),
    Mutant(
        "older claim is not disowned at the grant", "F3", "_granted", "(Disown(loose),) if loose else ()", "()", "mixed"
    ),
    Mutant(
        "clean-up frees whoever holds",
        "5.5 F4",
        "_clean_answer",
        "any(sent.rvn == record.rvn for sent in state.pending)",
        "True",
        "abandon",
    ),
    Mutant("clean-up of a fail-closed claim ends", "F3 6", "_leave", "+ state.terms.plan.lease_ns", "", "closed"),
    Mutant(
        "takeover keeps the token", "S3 I2", "_take_over", "version.fencing_token + 1", "version.fencing_token", "plain"
    ),
    Mutant(
        "takeover skips a token", "I2", "_take_over", "version.fencing_token + 1", "version.fencing_token + 2", "plain"
    ),
    Mutant(
        "claim ignores the floor of the tokens",
        "F11",
        "_claim",
        "plan.token_floor, ",
        "1, ",
        f"{SEEKING}f11_claim_asks_for_a_token_of_at_least_the_floor",
    ),
    Mutant(
        "takeover ignores the floor of the tokens",
        "F11",
        "_take_over",
        "max(version.fencing_token + 1, plan.token_floor)",
        "version.fencing_token + 1",
        f"{SEEKING}f11_takeover_writes_a_token_of_at_least_the_floor",
    ),
)
