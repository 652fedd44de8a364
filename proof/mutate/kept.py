"""Mutants of locks that a session keeps, one for each trap of the protocol page. :mod:`proof.mutate.mutant` says how to read them."""

from __future__ import annotations

from proof.mutate.mutant import Mutant

__all__ = ["KEPT"]

_WORLD = "test_session_worlds.py::test_no_world_breaks_a_rule"
_BREAKS = "test_session_breaks.py::test_"
_ENDS = "test_session_ends.py::test_"
_HOLDS = "test_sessions.py::test_"
KEPT = (
    Mutant(
        "an unresolved move does not bound the lock",
        "Q2",
        "is_kept",
        "_session_of(state.timings, _unresolved(state))",
        "_session_of(state.timings, ())",
        f"{_WORLD}[a move under a shorter session]",
    ),
    Mutant(
        "a lock that is lost with a move unresolved is not followed",
        "Q3",
        "_lose",
        "_session_of(state.timings, pending)",
        "state.timings.session",
        f"{_WORLD}[a move, and the lock is given up]",
    ),
    Mutant(
        "a lock that is lost stays under its session",
        "Q3",
        "_lose",
        "NEVER if session is None else now + session.lease_ms * 1_000_000",
        "NEVER",
        f"{_WORLD}[dropped]",
    ),
    Mutant(
        "a lock that is lost is given back at once",
        "Q3",
        "_lose",
        "now + session.lease_ms * 1_000_000",
        "now",
        f"{_ENDS}overrun_of_a_kept_lock_gives_it_back_a_lease_later",
    ),
    Mutant(
        "a broken lock stays under its session",
        "Q6",
        "_lost_free",
        "and state.timings.session is None",
        "",
        f"{_BREAKS}note_whose_writer_died_frees_the_lock_all_the_same",
    ),
    Mutant(
        "an absent session is over at once",
        "Q4",
        "is_session_over",
        "absent_since is not None and began - absent_since >= ref.lease_ms * 1_000_000",
        "absent_since is not None",
        f"{_WORLD}[the session's row is removed]",
    ),
    Mutant(
        "a session is known by its key alone",
        "Q5",
        "is_session_over",
        "record.fencing_token != ref.fencing_token and",
        "False and",
        f"{_BREAKS}lock_of_an_earlier_session_of_the_same_key_is_free",
    ),
    Mutant(
        "a session that was broken is over at once",
        "Q5",
        "is_session_over",
        "and record.broken is None and",
        "and",
        f"{_BREAKS}broken_session_loses_all_its_locks_and_is_closed_for_a_lease",
    ),
    Mutant(
        "a note is a theft",
        "Q7",
        "_shown",
        "return _Shown.NOTED",
        "return _Shown.ENDED",
        f"{_WORLD}[broken, another lock]",
    ),
    Mutant(
        "a note is a beat",
        "Q7",
        "_renew_noted",
        "deadline=_deadline(noted)",
        "deadline=now + noted.timings.usable_ns",
        f"{_WORLD}[broken, another lock]",
    ),
    Mutant(
        "a note is a sign of life",
        "Q7",
        "observed_version",
        "return record.version if record.beat is None else Version(record.beat.own, record.fencing_token)",
        "return record.version",
        f"{_BREAKS}lease_counts_from_the_own_write_below_a_note",
    ),
    Mutant(
        "a note names the note before it",
        "Q7",
        "note_request",
        "Beat(beat.own, (*beat.notes, note))",
        "Beat(session.rvn, (*beat.notes, note))",
        f"{_BREAKS}note_leaves_the_owners_lease_token_and_write_as_they_are",
    ),
    Mutant(
        "a note is left with a session that is over",
        "Q6",
        "note_request",
        "or session.fencing_token != ref_token",
        "",
        f"{_BREAKS}no_note_is_left_where_the_session_is_over",
    ),
    Mutant(
        "the notes are not told",
        "Q6",
        "_renew_noted",
        "(Noted(record.beat.notes), *effects)",
        "effects",
        f"{_WORLD}[broken]",
    ),
    Mutant(
        "a release gives up at a note",
        "Q7",
        "_release_answer",
        "record.beat is not None and record.beat.own in _own_rvns(state, in_flight)",
        "False",
        f"{_BREAKS}note_is_followed_by_the_end_of_the_session",
    ),
    Mutant(
        "data of a kept lock that is in doubt stays so",
        "F6",
        "_not_renewed",
        "timings.auto_renew or timings.session is not None",
        "timings.auto_renew",
        f"{_HOLDS}data_whose_write_got_no_answer_is_resolved",
    ),
    Mutant(
        "nobody asks for the session",
        "Q4",
        "_pursue",
        "keeping_sessions(record) or ",
        "",
        f"{_ENDS}dead_holders_session_is_taken_over_once_and_given_back",
    ),
)
