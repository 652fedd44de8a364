"""S9, S14, S15 and S17: what is sent, how often and when, and what is said of it."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import held
from dlock_conformance.store_clauses.calling import steps
from dlock_conformance.store_clauses.closing import begun
from dlock_conformance.store_clauses.connecting import BRIEF_S, CALLERS, LONG_S, caught, caused_by_the_driver
from dlock_conformance.store_clauses.pruning import OLD_MS, grow_old
from dlock_conformance.store_clauses.trouble import SHORT_S, STEPS, asking, never_written, prepared, seen_at_last
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError

__all__ = ["SendingClauses"]

UNANSWERED = [Fault.LOSE_REPLY, Fault.HANG, Fault.REFUSE, Fault.CUT]
# More calls than a pool has connections, or threads.
CROWD = 32
# Nothing comes, however long one waits.
AWHILE_S = 0.1


class SendingClauses:
    """Clauses of requests that are on their way, or never were."""

    @needs("count_requests")
    @pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.HANG])
    @pytest.mark.parametrize("verb", [*STEPS, "prune"])
    def test_s15_no_step_is_sent_twice(self, trial: Trial, verb: str, fault: Fault) -> None:
        """The first may have been applied: a second would be refused by it, or would take the key after a release for nobody."""
        store, count = trial.disturbed(fault), trial.hook("count_requests")
        standing, written = prepared(trial, verb)
        timeout_s = AWHILE_S if fault is Fault.HANG else BRIEF_S

        before = count()
        with trial.fault(fault):
            trial.ended(asking(store, verb, standing, written, timeout_s), timeout_s + 4 * SLACK_S)
        sent = count() - before

        wrong = f"a {verb} without an answer ({fault}) was sent {sent} times; the driver's own retries must be off"
        trial.require(sent == 1 or (fault is Fault.HANG and not sent), wrong)

    @needs("hang", "refuse")
    def test_s14_a_server_that_was_away_costs_a_call_and_not_each_connection(self, trial: Trial) -> None:
        """Many called at once, and all connections were cut: they are not tried one after the other, each for a call that fails."""
        store, record = trial.disturbed(Fault.HANG), trial.hold(trial.key())
        with trial.fault(Fault.HANG):
            callers = begun([lambda: trial.tried(lambda: store.read(record.key, timeout_s=LONG_S))] * CALLERS)
            time.sleep(AWHILE_S)  # they are under way; if not, the clause is tried less hard
        for each in callers:
            each.join()

        with trial.fault(Fault.REFUSE):
            pass  # all connections are cut
        *_, came = (trial.tried(lambda: store.read(record.key)) for _ in range(3))

        told = f"{CALLERS} had called at once when the server went away for a moment, and the third read after that still fails"
        trial.require(not isinstance(came, StoreError), told, came=came)

    @needs("refuse")
    @pytest.mark.parametrize("verb", STEPS)
    def test_s14_what_was_not_sent_is_not_sent_later(self, trial: Trial, verb: str) -> None:
        """The store that said so goes on when the server is back, and has nothing left to send."""
        store = trial.disturbed(Fault.REFUSE)
        standing, written = prepared(trial, verb)

        with trial.fault(Fault.REFUSE):
            ask = asking(store, verb, standing, written, SHORT_S)
            came = [trial.ended(ask, SHORT_S + 4 * SLACK_S) for _ in range(2)]
        for _ in range(3):
            trial.tried(lambda: store.read(trial.key()))

        if all(isinstance(each, StoreUnavailableError) for each in came):
            never_written(trial, verb, written)

    @needs("hang")
    def test_s14_what_was_not_sent_in_a_crowd_is_not_sent_later(self, trial: Trial) -> None:
        """Many calls have no answer, and a claim waits for a connection, or a thread, until its time-out: then it leaves that queue."""
        store, record = trial.disturbed(Fault.HANG), held(trial.key())
        patient = [
            threading.Thread(target=trial.tried, args=(lambda: store.read(trial.key(), timeout_s=LONG_S),), daemon=True)
            for _ in range(CROWD)
        ]

        with trial.fault(Fault.HANG):
            for each in patient:
                each.start()
            time.sleep(SHORT_S)  # they are under way; if not, the clause is tried less hard
            ask = asking(store, "claim", None, record, SHORT_S)
            came = trial.ended(ask, SHORT_S + 4 * SLACK_S)
        for each in patient:
            each.join()
        time.sleep(SHORT_S)  # what was queued comes now

        if isinstance(came, StoreUnavailableError):
            never_written(trial, "claim", record)

    @needs("prune")
    @pytest.mark.parametrize("fault", UNANSWERED)
    def test_s14_a_prune_that_was_certainly_not_applied_never_is(self, trial: Trial, fault: Fault) -> None:
        """As a step; otherwise its outcome is unknown."""
        store = trial.disturbed(fault)
        free = trial.free(trial.hold(trial.key()))
        grow_old()

        with trial.fault(fault):
            came = trial.ended(
                lambda: store.prune([free], older_than_ms=OLD_MS, timeout_s=AWHILE_S), AWHILE_S + 4 * SLACK_S
            )

        trial.require(isinstance(came, StoreError), "a prune without an answer must raise a StoreError", came=came)
        if isinstance(came, StoreUnavailableError):
            wrong = "a prune raised StoreUnavailableError, which says: not applied, now or later; and it was applied"
            trial.require(seen_at_last(trial, free.key) is not None, wrong)

    @pytest.mark.parametrize("verb", ["read", "read_age"])
    @pytest.mark.parametrize("fault", UNANSWERED)
    def test_s9_a_read_without_an_answer_shows_no_older_one(self, trial: Trial, fault: Fault, verb: str) -> None:
        """The store has read the key before, and the record has changed since."""
        store = trial.disturbed(fault)
        record = trial.hold(trial.key())
        asking(store, verb, record, record, LONG_S)()
        trial.renew(record)

        with trial.fault(fault):
            came = trial.ended(asking(store, verb, record, record, AWHILE_S), AWHILE_S + 4 * SLACK_S)

        trial.require(isinstance(came, StoreError), f"a {verb} without an answer must raise a StoreError", came=came)

    @needs("refuse")
    @pytest.mark.parametrize("asked", ["open", "provision", "guarantees"])
    def test_s17_without_a_server_nothing_of_the_driver_leaks(self, trial: Trial, asked: str) -> None:
        """As of the verbs; but they may have nothing to ask, or wait for the server, which comes back soon."""
        store, came = trial.disturbed(Fault.REFUSE), list[object]()
        opening = partial(trial.open, trial.harness.through_faults)
        ask = opening if asked == "open" else getattr(store, asked)
        thread = threading.Thread(target=lambda: came.append(caught(ask)), daemon=True)

        with trial.fault(Fault.REFUSE):
            thread.start()
            thread.join(SLACK_S)
        thread.join()

        if isinstance(came[0], AssertionError):
            raise came[0]
        if isinstance(came[0], Exception):
            caused_by_the_driver(trial, f"{asked}() without a server", came[0])

    @needs("lose_reply")
    def test_s14_a_step_whose_connection_was_reset_may_be_applied(self, trial: Trial) -> None:
        """A reset says of the request as little as an end, which comes where the harness has no reset: it was sent, and was applied."""
        store = trial.disturbed(Fault.LOSE_REPLY)
        reset = getattr(trial.harness.faults, "reset_at_the_end", lambda: None)
        for verb in steps(trial):
            standing, written = prepared(trial, verb)

            with trial.fault(Fault.LOSE_REPLY):
                reset()
                came = trial.ended(asking(store, verb, standing, written, BRIEF_S), BRIEF_S + 4 * SLACK_S)

            if isinstance(came, StoreUnavailableError):
                never_written(trial, verb, written)  # what was reset may have carried a read before the write
                continue
            told = f"a {verb} was sent and its connection reset: the store must raise OutcomeUnknownError"
            trial.require(isinstance(came, OutcomeUnknownError), told, came=came)
