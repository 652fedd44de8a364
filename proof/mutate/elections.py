"""Mutants of elections, by the holes that the page of the protocol lists under *elections*."""

from __future__ import annotations

from proof.mutate.mutant import Mutant

__all__ = ["ELECTIONS"]

_CANDIDATES, _OBSERVERS = "engine.elections", "election"
_WORLD = "test_job_worlds.py::test_elections_have_no_two_bodies_and_no_falling_terms"
_ELECTION, _WATCHING = "test_election.py::test_", "test_election_watching.py::test_"
_OBSERVING = "test_election_observing.py::test_"

ELECTIONS = (
    Mutant(
        "body is told to stop at the deadline",
        "D1",
        "_stop_at",
        "end - grace_ns",
        "end",
        f"{_ELECTION}stopping_is_set_the_grace_before_the_deadline",
    ),
    Mutant(
        "a body begins under a term that is over",
        "D1",
        "",
        "            self._engine.check(self._handle)",
        "            pass",
        f"{_ELECTION}no_body_begins_under_a_term_that_is_over",
        "engine.lease_view",
    ),
    Mutant("body has just less than it needs to stop", "D1", "", "_GRACE = 4", "_GRACE = 40", _WORLD, _CANDIDATES),
    Mutant(
        "election has no stop grace",
        "D1",
        "",
        'return self._context.resolve({**given, "stop_grace": hold_ns / _GRACE / NANOS})',
        "return call",
        f"{_ELECTION}the_stop_grace_is_a_quarter_of_the_lease",
        _CANDIDATES,
    ),
    Mutant(
        "the lock is released before the body ends",
        "D2",
        "",
        "                async with term:\n                    await body(term)",
        "                await term.resign()\n                await body(term)",
        _WORLD,
        "aio_election",
    ),
    Mutant(
        "the lock is released before the thread's body ends",
        "D2",
        "",
        "            with term:\n                body(term)",
        "            term.resign()\n            body(term)",
        f"{_ELECTION}run_campaigns_again_after_each_term",
        "client_election",
    ),
    Mutant(
        "closing gives a term back while its body runs",
        "D2",
        "",
        "handle.body_of in (None, caller)",
        "True",
        "test_election_closing.py::test_term_whose_body_does_not_stop_is_not_given_back_but_lapses",
        "engine.closing",
    ),
    Mutant(
        "campaign before the body ends",
        "D3",
        "",
        "(term is not None and not term._closed)",
        "(term is not None and term.is_valid)",
        f"{_ELECTION}run_never_has_two_bodies_and_gives_back_after_the_body",
        _CANDIDATES,
    ),
    Mutant(
        "old answers are told",
        "D4, I12",
        "observe",
        "if record.fencing_token < seen.term:",
        "if False:",
        _WORLD,
        _OBSERVERS,
    ),
    Mutant(
        "a lower term is told without a vacancy",
        "D4",
        "observe",
        "if seen.told is not None and seen.told.state is not LeaderState.VACANT:",
        "if False:",
        f"{_OBSERVING}where_terms_may_fall_the_report_is_vacant_first",
        _OBSERVERS,
    ),
    Mutant(
        "an absent record forgets the term",
        "D4",
        "observe",
        "    if record is None:\n        return Observed(seen.key, told=_vacant(seen.key, seen.term))",
        "    if record is None:\n        return Observed(seen.key, told=_vacant(seen.key, 0))",
        f"{_OBSERVING}an_absent_record_keeps_the_term",
        _OBSERVERS,
    ),
    Mutant(
        "an observer claims",
        "D5",
        "",
        "record = await self._engine.store.read(self._full_key, timeout_s=self._context.store_timeout_s())",
        "await self._engine.acquire(self._full_key, self._options, self._timings, view=self)",
        f"{_WATCHING}an_observer_hears_of_each_change_and_ends_with_the_client",
        _CANDIDATES,
    ),
    Mutant(
        "an observer waits in the queue",
        "D5",
        "",
        "await self._engine.runtime.sleep(self._pause_s())",
        "await self._engine.store.wait(None, ticket='', timeout_s=self._pause_s())",
        f"{_WATCHING}an_observer_hears_of_each_change_and_ends_with_the_client",
        _CANDIDATES,
    ),
    Mutant(
        "a dead leader leads for ever",
        "D6",
        "look",
        "now - seen.since < seen.lease_ns",
        "True",
        f"{_WATCHING}an_observer_finds_a_dead_leader_silent",
        _OBSERVERS,
    ),
    Mutant(
        "a version is new at each answer",
        "D6",
        "observe",
        "if record.version != seen.version:",
        "if True:",
        f"{_OBSERVING}a_version_that_stood_for_a_lease_is_silent",
        _OBSERVERS,
    ),
)
