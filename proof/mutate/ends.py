"""Mutants of the ways in which a hold ends before its lease does, and of jobs that run once per slot."""

from __future__ import annotations

from proof.mutate.mutant import TIMINGS, Mutant

__all__ = ["ENDS"]

_STALLING = "test_lease_stalling.py::test_"
_RUNS = "test_jobs.py::test_"
_WORLD = "test_job_worlds.py::test_jobs_begin_no_slot_after_it_was_finished"
_FINISHES = "test_jobs_finishing.py::test_"
_STOPPING = "test_lease_stopping.py::test_"

_STOPS = (
    Mutant(
        "stop at the deadline",
        "D1",
        "_stop_at",
        "end - grace_ns",
        "end",
        f"{_STOPPING}stop_is_told_the_grace_before_the_deadline",
    ),
    Mutant(
        "stop is told again and again",
        "D1",
        "_held_due",
        "state._replace(stopping=reason), (Stop(reason),)",
        "state, (Stop(reason),)",
        f"{_STOPPING}stop_is_told_once_and_the_end_is_a_loss",
    ),
    Mutant(
        "holder that stops is not renewed",
        "D2",
        "_held_due",
        "if now < state.renew_at or state.in_flight is not None:",
        "if effects or now < state.renew_at or state.in_flight is not None:",
        f"{_STOPPING}renewals_go_on_while_the_holder_stops",
    ),
    Mutant(
        "stop forgets the longest hold",
        "D1",
        "_stop_at",
        "end = min(state.deadline, state.hold_until)",
        "end = state.deadline",
        f"{_STOPPING}stop_comes_the_grace_before_the_end_of_the_longest_hold",
    ),
    Mutant(
        "rule 13 forgets the stop grace",
        "rule 13, D1",
        "_check_renewal_fits",
        "        + timings.stop_grace_ns\n",
        "",
        f"{TIMINGS}rule_13_counts_the_stop_grace_and_names_the_most_that_fits",
        "timings",
    ),
    Mutant(
        "late grant is stopped at once",
        "F5, D1",
        "_durations",
        "(usable_ns + stop_grace_ns) // 2",
        "usable_ns // 2",
        f"{TIMINGS}grant_is_handed_out_with_half_of_the_time_before_the_stop",
        "timings",
    ),
)

_STALLS = (
    Mutant(
        "renewal counts as progress",
        "H",
        "_renewed",
        "hold_until=state.hold_until, overrun_at",
        "hold_until=_hold_until(state.timings, state.overrun_at, sent.sent_at), overrun_at",
        f"{_STALLING}renewal_is_no_progress",
    ),
    Mutant(
        "renewal forgets the stall",
        "H",
        "_renewed",
        "if state.hold_until == NEVER and state.stopping is None:",
        "if state.stopping is None:",
        f"{_STALLING}hold_without_progress_is_lost_though_it_is_renewed",
    ),
    Mutant(
        "progress moves the end of the longest hold",
        "H",
        "_hold_until",
        "min(overrun_at, progress_at + timings.stall_ns)",
        "progress_at + timings.stall_ns",
        f"{_STALLING}progress_never_moves_the_end_of_the_longest_hold",
    ),
    Mutant(
        "progress after the end revives the hold",
        "H, rule 7",
        "_held_progress",
        "if _over(state, now):",
        "if False:",
        f"{_STALLING}progress_after_the_end_is_the_loss",
    ),
)

_DELAYS = (
    Mutant(
        "drift is not counted for the delay",
        "F, L1",
        "_durations",
        "whole_ns * (_PPM - 2 * math.ceil(drift_bound * _PPM)) // _PPM - delay_ms * _MILLI",
        "lease_ns * (_PPM - 2 * math.ceil(drift_bound * _PPM)) // _PPM",
        f"{TIMINGS}lock_delay_lengthens_the_lease_in_the_record_and_not_its_use",
        "timings",
    ),
    Mutant(
        "delay is used by the holder",
        "F, L1",
        "_durations",
        " // _PPM - delay_ms * _MILLI",
        " // _PPM",
        f"{TIMINGS}lock_delay_lengthens_the_lease_in_the_record_and_not_its_use",
        "timings",
    ),
    Mutant(
        "probe takes over within the delay",
        "L1",
        "_seek_probed",
        "now + delay_ms * 1_000_000",
        "now",
        "test_lease_early.py::test_dead_owners_lock_with_a_delay_is_taken_over_the_delay_later",
    ),
)

_JOBS = (
    Mutant(
        "grant of a job is not looked at",
        "E1, I13",
        "",
        "            due = self._is_due(engine, handle.payload)",
        "            due = True",
        _WORLD,
        "engine.jobs",
    ),
    Mutant(
        "claims of a job replace the payload",
        "E2",
        "",
        '"replace_data": False',
        '"replace_data": True',
        _WORLD,
        "engine.jobs",
    ),
    Mutant(
        "giving a job back replaces the payload",
        "E2, I13",
        "",
        "await engine.release(lease._handle, None, lease)",
        "await engine.release(lease._handle, type(lease._handle.payload)(None, ()), lease)",
        _WORLD,
        "engine.jobs",
    ),
    Mutant(
        "finish is two writes",
        "E3",
        "",
        "        await engine.release(handle, payload, lease)",
        "        await engine.renew(handle, None, payload)\n        await engine.release(handle, None, lease)",
        f"{_RUNS}slot_is_run_once_and_its_result_is_kept",
        "engine.jobs",
    ),
    Mutant(
        "finish that came after a takeover is a success",
        "E3, I13",
        "",
        "record is None or (record.data, record.attributes) == written",
        "True",
        f"{_FINISHES}finish_that_arrives_after_a_takeover_is_no_success",
        "engine.jobs",
    ),
    Mutant(
        "busy without having seen a renewal",
        "E5",
        "",
        "elif state.seen.version != self._first:",
        "else:",
        f"{_RUNS}run_whose_process_died_is_found_and_redone",
        "engine.jobs",
    ),
    Mutant(
        "another's payload is wiped out",
        "E6",
        "finished_in",
        "if type(slot) not in (str, int) or type(not_before_ms) is not int:",
        "if False:",
        "test_once.py::test_what_no_job_has_written_is_refused_and_not_wiped_out",
        "once",
    ),
    Mutant(
        "slot that goes back is run",
        "I13",
        "judge",
        "if last >= slot:",
        "if last == slot:",
        "test_once.py::test_slot_is_due_if_it_lies_after_the_one_that_was_finished",
        "once",
    ),
    Mutant(
        "mark forgets until when others skip",
        "E4",
        "mark",
        "if not_before_ms > at_ms:",
        "if False:",
        f"{_RUNS}at_least_for_keeps_others_from_a_new_run_by_the_wall_clock",
        "once",
    ),
)

ENDS: tuple[Mutant, ...] = (*_STOPS, *_STALLS, *_DELAYS, *_JOBS)
