"""All mutants; here those of renewals, releases and plans. :mod:`proof.mutant` says how to read them."""

from __future__ import annotations

from proof.mutant import HOLDING, PLAN, RELEASE, SEEKING, WORLDS, Mutant
from proof.mutants_of_claims import CLAIMS, TIME
from proof.mutants_of_early import EARLY

__all__ = ["MUTANTS", "WORLDS", "Mutant"]

_RENEWALS = (
    Mutant(
        "renewal keeps the RVN",
        "5.3 H7",
        "_renew",
        "_record(terms.key, plan, fresh, token,",
        "_record(terms.key, plan, state.version.rvn, token,",
        "plain",
    ),
    Mutant(
        "renewal raises the token",
        "I2",
        "_renew",
        "token = state.version.fencing_token",
        "token = state.version.fencing_token + 1",
        "plain",
    ),
    Mutant("lost renewal is a loss", "5.4 H2", "_held_answer", "in (asked, *state.pending):", "in ():", "faults"),
    Mutant(
        "only the last renewal is known",
        "5.4 F8e H2",
        "_held_answer",
        "in (asked, *state.pending):",
        "in (asked,):",
        "faults",
    ),
    Mutant(
        "unknown renewal is forgotten",
        "5.4 H2",
        "_not_renewed",
        "(*state.pending, asked) if unknown else state.pending",
        "state.pending",
        "faults",
    ),
    Mutant(
        "RVN under another token is the own",
        "F1",
        "_held_answer",
        "record.fencing_token == token and record.state",
        "record.state",
        f"{SEEKING}f1_rvn_of_the_own_grant_under_another_token_is_a_loss",
    ),
    Mutant(
        "older token is a loss",
        "F12",
        "_held_answer",
        "if record is not None and record.fencing_token < token:",
        "if False:",
        f"{HOLDING}f12_stale_refusal_is_no_loss",
    ),
    Mutant(
        "loss without a linearizable answer",
        "F12 H19",
        "_held_answer",
        "if asked.verb is not Verb.READ and not state.plan.refusals_linearizable:",
        "if False:",
        "stale",
    ),
    Mutant(
        "late grant lost is a loss told",
        "F5",
        "_taken",
        "if state.way_back is not None:",
        "if False:",
        f"{SEEKING}f5_late_grant_that_was_lost_goes_on_waiting",
    ),
    Mutant(
        "eight lost replies stop the renewal",
        "I6",
        "",
        "PENDING_MAX = 32",
        "PENDING_MAX = 8",
        f"{HOLDING}hazard_04_automatic_renewal_goes_on_as_long_as_the_lease",
    ),
    Mutant(
        "second write beside one under way",
        "F8e",
        "_held_renew",
        "_idle(state, event)",
        "pass",
        f"{HOLDING}f8e_one_write_is_under_way_at_a_time",
    ),
    Mutant(
        "renewal writes the payload",
        "F8e",
        "_renew",
        "payload is None)",
        "False)",
        f"{HOLDING}f8e_renewal_never_writes_data",
    ),
    Mutant(
        "late grant is renewed past the timeout",
        "L4",
        "_renewed",
        "if now >= back.give_up_at:",
        "if False:",
        f"{SEEKING}f5_late_grant_is_not_renewed_past_the_timeout",
    ),
)

_RELEASES = (
    Mutant("release keeps the RVN", "F8b 5.3", "_release", "        fresh,\n", "        version.rvn,\n", "plain"),
    Mutant(
        "release does not follow a renewal",
        "F8c",
        "_release_answer",
        "for sent in state.pending:",
        "for sent in ():",
        "plain",
    ),
    Mutant(
        "release forgets the renewal under way", "F8c", "_free", "(*state.pending, asked)", "state.pending", "plain"
    ),
    Mutant(
        "stale refusal of a release is believed",
        "F12 F8d",
        "_release_answer",
        "if asked.verb is not Verb.READ and not state.terms.plan.refusals_linearizable:",
        "if False:",
        "stale",
    ),
    Mutant(
        "lost reply of a release is a loss",
        "F8d H3",
        "_end_release",
        "not state.in_time",
        "True",
        f"{RELEASE}f8d_refusal_by_another_is_a_release_where_it_was_sent_in_time",
    ),
    Mutant(
        "release is given up at the first failure",
        "H3",
        "_release_due",
        "now >= state.until and state.tries > 1",
        "True",
        f"{RELEASE}release_without_an_answer_is_repeated_at_once_and_then_after_back_offs",
    ),
    Mutant(
        "release of another's record",
        "5.5 S4",
        "_lost_free",
        "if loss.reason in (LossReason.STOLEN, LossReason.BROKEN):",
        "if False:",
        f"{RELEASE}release_after_the_loss_to_another_sends_nothing",
    ),
    Mutant("break frees at once", "5 X763", "break_request", "free_now or record.lease_ms is None", "True", "break"),
    Mutant("break keeps the token", "7 I2", "break_request", "fencing_token + 1", "fencing_token", "break"),
    Mutant(
        "break of another grant",
        "7",
        "break_request",
        " or record.fencing_token != fencing_token",
        "",
        f"{RELEASE}break_of_what_is_not_that_grant_is_refused",
    ),
)

_PLANS = (
    Mutant(
        "one drift bound",
        "5.1 H14",
        "_durations",
        "_PPM - 2 * math.ceil",
        "_PPM - math.ceil",
        f"{PLAN}use_of_a_lease_ends_two_drift_bounds_early",
        "plan",
    ),
    Mutant(
        "drift is rounded down",
        "5.1 H14",
        "_durations",
        "math.ceil(",
        "int(",
        f"{PLAN}use_of_a_lease_ends_two_drift_bounds_early",
        "plan",
    ),
    Mutant(
        "rule 13 counts one request",
        "13 H33",
        "",
        "_ATTEMPTS = 2",
        "_ATTEMPTS = 1",
        f"{PLAN}rule_13_counts_two_requests_one_back_off_lateness_and_margin",
        "plan",
    ),
    Mutant(
        "rule 13 is not checked",
        "13 H33",
        "make_plan",
        "if plan.auto_renew:",
        "if False:",
        f"{PLAN}rule_13_refuses_a_heartbeat_that_leaves_no_time_for_two_requests",
        "plan",
    ),
    Mutant(
        "fresh enough by the lease",
        "F5",
        "_durations",
        "usable_ns // 2",
        "lease_ns // 2",
        f"{PLAN}grant_at_once_is_fresh_enough_under_any_drift_bound",
        "plan",
    ),
    Mutant(
        "lease is cut, not rounded",
        "5.1",
        "_lease_ms",
        "round(lease_duration * 1000)",
        "int(lease_duration * 1000)",
        f"{PLAN}lease_is_rounded_to_whole_milliseconds_once",
        "plan",
    ),
    Mutant(
        "fail-closed lock is renewed",
        "6",
        "make_plan",
        "auto_renew and not fail_closed",
        "auto_renew",
        f"{PLAN}fail_closed_lock_has_no_lease_and_is_not_renewed",
        "plan",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*TIME, *CLAIMS, *_RENEWALS, *_RELEASES, *_PLANS, *EARLY)
