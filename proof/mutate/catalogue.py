"""All mutants; here those of renewals, releases and timings. :mod:`proof.mutate.mutant` says how to read them."""

from __future__ import annotations

from proof.mutate.claims import CLAIMS, TIME
from proof.mutate.early import EARLY
from proof.mutate.elections import ELECTIONS
from proof.mutate.ends import ENDS
from proof.mutate.kept import KEPT
from proof.mutate.mutant import HOLDING, RELEASE, SEEKING, TIMINGS, WORLDS, Mutant
from proof.mutate.pruning import PRUNING
from proof.mutate.shell import SHELL
from proof.mutate.waits import WAITS

__all__ = ["MUTANTS", "WORLDS", "Mutant"]

_RENEWALS = (
    Mutant(
        "renewal keeps the RVN",
        "rule 3, hazard 7",
        "_send_renewal",
        "_record(terms, timings, new_rvn, token,",
        "_record(terms, timings, state.version.rvn, token,",
        "plain",
    ),
    Mutant(
        "renewal raises the token",
        "I2",
        "_send_renewal",
        "token = state.version.fencing_token",
        "token = state.version.fencing_token + 1",
        "plain",
    ),
    Mutant(
        "lost renewal is a loss", "rule 4, hazard 2", "_shown", "in (in_flight, *state.pending):", "in ():", "faults"
    ),
    Mutant(
        "only the last renewal is known",
        "rule 4, F8e, hazard 2",
        "_shown",
        "in (in_flight, *state.pending):",
        "in (in_flight,):",
        "faults",
    ),
    Mutant(
        "unknown renewal is forgotten",
        "rule 4, hazard 2",
        "_not_renewed",
        "(*state.pending, in_flight) if unknown else state.pending",
        "state.pending",
        "faults",
    ),
    Mutant(
        "RVN under another token is the own",
        "F1",
        "_shown",
        "record.fencing_token == token and record.state",
        "record.state",
        f"{SEEKING}f1_rvn_of_the_own_grant_under_another_token_is_a_loss",
    ),
    Mutant(
        "older token is a loss",
        "F12",
        "_shown",
        "if record is not None and 0 < record.fencing_token < token:",
        "if False:",
        f"{HOLDING}f12_stale_refusal_is_no_loss",
    ),
    Mutant(
        "loss without a linearizable answer",
        "F12, hazard 19",
        "_shown",
        "if in_flight.verb is not Verb.READ and not state.timings.refusals_linearizable:",
        "if False:",
        "stale",
    ),
    Mutant(
        "late grant lost is a loss told",
        "F5",
        "_confirm_answer",
        "return _pursue(state.seeking._replace(shown=record), record, event, now)",
        "return _lose(grant, LossReason.STOLEN, record), ()",
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
        "_send_renewal",
        "payload is None)",
        "False)",
        f"{HOLDING}f8e_renewal_never_writes_data",
    ),
    Mutant(
        "late grant is renewed past the timeout",
        "I8",
        "_confirmed",
        "if now >= state.seeking.give_up_at:",
        "if False:",
        f"{SEEKING}f5_late_grant_is_not_renewed_past_the_timeout",
    ),
)

_RELEASES = (
    Mutant("release keeps the RVN", "F8b, rule 3", "_release", "        new_rvn,\n", "        version.rvn,\n", "plain"),
    Mutant(
        "release does not follow a renewal",
        "F8c",
        "_release_answer",
        "for sent in state.pending:",
        "for sent in ():",
        "plain",
    ),
    Mutant(
        "release forgets the renewal under way",
        "F8c",
        "_free",
        "pending = _unresolved(state)",
        "pending = state.pending",
        "plain",
    ),
    Mutant(
        "stale refusal of a release is believed",
        "F12, F8d",
        "_release_answer",
        "if in_flight.verb is not Verb.READ and not state.terms.timings.refusals_linearizable:",
        "if False:",
        "stale",
    ),
    Mutant(
        "lost reply of a release is a loss",
        "F8d, hazard 3",
        "_end_release",
        " and record.broken is not None",
        "",
        f"{RELEASE}f8d_refusal_by_another_is_a_release_where_it_was_sent_in_time",
    ),
    Mutant(
        "release is given up at the first failure",
        "hazard 3",
        "_release_due",
        "now >= state.until and state.tries > 1",
        "True",
        f"{RELEASE}release_without_an_answer_is_repeated_at_once_and_then_after_back_offs",
    ),
    Mutant(
        "release of another's record",
        "rule 5",
        "_lost_free",
        "if loss.reason in (LossReason.STOLEN, LossReason.BROKEN) and state.timings.session is None:",
        "if False:",
        f"{RELEASE}release_after_the_loss_to_another_sends_nothing",
    ),
    Mutant(
        "break frees at once",
        "break",
        "break_request",
        "free_now or (lease_ms is None and record.members is None)",
        "True",
        "break",
    ),
    Mutant(
        "break frees what a session keeps",
        "break, session",
        "quarantine_ms",
        "default=record.lease_ms)",
        "default=0) and record.lease_ms",
        f"{RELEASE}break_of_a_lock_under_a_session_waits_for_the_lease_of_the_session",
    ),
    Mutant("break keeps the token", "break, I2", "break_request", "fencing_token + 1", "fencing_token", "break"),
    Mutant(
        "break of another grant",
        "break",
        "break_request",
        " or record.fencing_token != fencing_token",
        "",
        f"{RELEASE}break_of_what_is_not_that_grant_is_refused",
    ),
)

_PLANS = (
    Mutant(
        "one drift bound",
        "rule 1, hazard 14",
        "_durations",
        "_PPM - 2 * math.ceil",
        "_PPM - math.ceil",
        f"{TIMINGS}use_of_a_lease_ends_two_drift_bounds_early",
        "timings",
    ),
    Mutant(
        "drift is rounded down",
        "rule 1, hazard 14",
        "_durations",
        "math.ceil(",
        "int(",
        f"{TIMINGS}use_of_a_lease_ends_two_drift_bounds_early",
        "timings",
    ),
    Mutant(
        "rule 13 counts one request",
        "rule 13, hazard 33",
        "",
        "_ATTEMPTS = 2",
        "_ATTEMPTS = 1",
        f"{TIMINGS}rule_13_counts_two_requests_one_back_off_lateness_and_margin",
        "timings",
    ),
    Mutant(
        "rule 13 is not checked",
        "rule 13, hazard 33",
        "derive_timings",
        "if timings.auto_renew:",
        "if False:",
        f"{TIMINGS}rule_13_refuses_a_heartbeat_that_leaves_no_time_for_two_requests",
        "timings",
    ),
    Mutant(
        "fresh enough by the lease",
        "F5",
        "_durations",
        "(usable_ns + stop_grace_ns) // 2",
        "lease_ns // 2",
        f"{TIMINGS}grant_at_once_is_fresh_enough_under_any_drift_bound",
        "timings",
    ),
    Mutant(
        "lease is cut, not rounded",
        "rule 1",
        "_milliseconds",
        "round(float(seconds) * 1000)",
        "int(float(seconds) * 1000)",
        f"{TIMINGS}lease_is_rounded_to_whole_milliseconds_once",
        "timings",
    ),
    Mutant(
        "fail-closed lock is renewed",
        "fail-closed",
        "derive_timings",
        "options.auto_renew and not options.fail_closed",
        "options.auto_renew",
        f"{TIMINGS}fail_closed_lock_has_no_lease_and_is_not_renewed",
        "timings",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *TIME,
    *KEPT,
    *WAITS,
    *CLAIMS,
    *_RENEWALS,
    *_RELEASES,
    *_PLANS,
    *EARLY,
    *ENDS,
    *ELECTIONS,
    *PRUNING,
    *SHELL,
)
