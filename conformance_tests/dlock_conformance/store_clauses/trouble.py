"""S13 to S17: what a store says when it gets no answer, or one that it cannot read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs, verbs_of
from dlock_conformance.records import describe, fresh, held, next_version, tombstone
from dlock_conformance.subject import Subject
from dlock_conformance.trial import LATE_S, SLACK_S, Trial
from dlock_core.errors import DLockError, OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.record import LockRecord, Version, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = ["TroubleClauses"]

# The renewal of one lock in a batch has every duty of the renewal alone, and so has the claim.
STEPS = ["claim", "replace", "release", "replace_many", "claim_many", "claim_when_free"]
READS = ["read", "read_age", "scan"]
VERBS = [*STEPS, *READS, "prune"]
UNANSWERED = [fault for fault in Fault if fault not in (Fault.TRICKLE, Fault.SLOW_CONNECT)]
SHORT_S, TRICKLE_S, WAIT_S = 0.25, 0.3, 0.05
# A time-out of which twice as much, or whole seconds, are later by more than LATE_S.
TWICE_S = 0.55
# Who asks a server that does not hear is heard after a second, when the system asks again.
REACHED_S, UNHEARD_S = 1.4, 0.3
OLD_MS = 60_000
FORMAT = 2
_LOST = {Fault.LOSE_REPLY: "lost", Fault.CUT: "cut off in its middle"}
# More than a pool has.
MET = 12
# What a batch holds beside the one that is looked at.
OTHERS = 9


def prepared(trial: Trial, verb: str) -> tuple[LockRecord | None, LockRecord]:
    """Return what stands under a new key, and what *verb* will write there."""
    if verb.startswith("claim"):
        return None, held(trial.key())
    record = trial.hold(trial.key())
    return record, tombstone(record) if verb == "release" else next_version(record)


def asking(
    store: Subject, verb: str, standing: LockRecord | None, written: LockRecord, timeout_s: float, *, others: int = 0
) -> Callable[[], Any]:
    """Return the call of *verb* on *store* that writes *written*, or reads its key; a batch has so many *others*, if it may."""
    key = written.key
    beside = [held(f"{key}/{number}") for number in range(1, getattr(store.raw, "batch_limit", 1))[:others]]
    if verb == "claim":
        return lambda: store.claim(Claim(written, Expect.ANY), timeout_s=timeout_s)
    if verb == "claim_many":
        claims = [Claim(record, Expect.ANY) for record in (written, *beside)]
        return lambda: store.claim_many(claims, timeout_s=timeout_s)[0]
    if verb == "claim_when_free":
        waits = Claim(written, Expect.ANY, ticket=fresh())
        return lambda: store.claim_when_free(waits, wait_s=WAIT_S, timeout_s=timeout_s)
    if verb == "prune":
        return lambda: store.prune([written, *beside], older_than_ms=OLD_MS, timeout_s=timeout_s)
    if verb == "read":
        return lambda: store.read(key, timeout_s=timeout_s)
    if verb == "read_age":
        return lambda: store.read_age(key, timeout_s=timeout_s)
    if verb == "scan":
        return lambda: store.scan(key, timeout_s=timeout_s)
    version = standing.version if standing is not None else Version(fresh(), 1)
    if verb == "replace":
        return lambda: store.replace(Replace(written, version), timeout_s=timeout_s)
    if verb == "replace_many":
        replaces = [Replace(record, version) for record in (written, *beside)]
        return lambda: store.replace_many(replaces, timeout_s=timeout_s)[0]
    return lambda: store.release(Release(written, version), timeout_s=timeout_s)


class Ended(NamedTuple):
    """How a call of *verb* has ended that was to write *written*, and got no answer."""

    verb: str
    written: LockRecord
    error: StoreError
    took_s: float


def disturbed(trial: Trial, fault: Fault, verbs: Sequence[str], timeout_s: float = SHORT_S) -> Iterator[Ended]:
    """Ask each of *verbs* that the store has, while *fault* lets no answer come in time; fail unless each raises an error of the store.

    They are asked at once, each for a key of its own; but a fault that meets one answer begins anew for each.
    """
    store = trial.disturbed(fault)
    verbs = verbs_of(trial.harness, verbs)
    for together in [[verb] for verb in verbs] if fault in _LOST else [verbs]:
        asked = {verb: prepared(trial, verb) for verb in together}
        # A batch has its time-out once, however many it holds.
        calls = {verb: asking(store, verb, *asked[verb], timeout_s, others=OTHERS) for verb in together}
        with trial.fault(fault):
            if fault is Fault.DROP:
                first_unheard(trial, store, timeout_s)
            came = trial.all_ended(calls, timeout_s + 4 * SLACK_S)
        for verb, (error, took_s) in came.items():
            wrong = f"a {verb} without an answer must raise one of the two errors that say what may have become of it"
            trial.require(isinstance(error, (StoreUnavailableError, OutcomeUnknownError)), wrong, came=error)
            yield Ended(verb, asked[verb][1], error, took_s)


def first_unheard(trial: Trial, store: Subject, timeout_s: float) -> None:
    """Meet the end of the connection that *store* had: the calls after this one need new ones."""
    trial.ended(lambda: store.read(trial.key(), timeout_s=timeout_s), timeout_s + 4 * SLACK_S)


def end_in_time(trial: Trial, fault: Fault, verbs: Sequence[str], timeout_s: float = SHORT_S) -> None:
    """Fail unless each of *verbs*, which are asked at once and get no answer by *fault*, or none in time, raises within its time-out."""
    all_in_time(
        trial,
        lambda: {each.verb: each.took_s for each in disturbed(trial, fault, verbs, timeout_s)},
        timeout_s,
        "that had no answer",
    )


def all_in_time(trial: Trial, ask: Callable[[], dict[str, float]], timeout_s: float, which: str) -> None:
    """Fail unless each call that *ask* makes with *timeout_s* ends in time; it returns how long each took. *which* says what they met."""

    def took(verb: str) -> float:
        """Ask them all again: who is late beside others only, as in a queue of theirs, is late."""
        return ask()[verb]

    for verb, took_s in ask().items():
        limit_s = timeout_s + (WAIT_S if verb == "claim_when_free" else 0)
        if took_s > limit_s + LATE_S:
            trial.in_time(f"a {verb} with timeout_s={timeout_s:g} {which}", limit_s, partial(took, verb))


def late_connections(trial: Trial, verbs: Sequence[str]) -> dict[str, float]:
    """Ask each of *verbs*, which wait for a connection first and then for an answer in vain; return how long each took."""
    store, faults = trial.disturbed(Fault.DROP), trial.harness.faults
    assert faults is not None
    calls = {verb: asking(store, verb, *prepared(trial, verb), REACHED_S) for verb in verbs}

    def reach() -> None:
        faults.heal()
        faults.begin(Fault.HANG)

    with trial.fault(Fault.DROP):
        first_unheard(trial, store, SHORT_S)
        soon = threading.Timer(UNHEARD_S, reach)
        soon.start()
        came = trial.all_ended(calls, REACHED_S + 4 * SLACK_S)
        soon.join()
    return {verb: took_s for verb, (_, took_s) in came.items()}


def seen_at_last(trial: Trial, key: str) -> LockRecord | None:
    """Return what stands under *key* when the fault is over: it may have cut this connection, too, and then one read fails."""
    for _ in range(2):
        came = trial.tried(lambda: trial.store.read(key))
        if not isinstance(came, StoreError):
            break
    else:
        came = trial.store.read(key)
    return cast("LockRecord | None", came)


def never_written(trial: Trial, verb: str, written: LockRecord) -> None:
    """Fail if *written* stands, of which *verb* said that it does not and never will."""
    seen = seen_at_last(trial, written.key)
    wrong = f"a {verb} raised StoreUnavailableError, which says: not applied, now or later; and it was applied"
    trial.require(seen is None or seen.rvn != written.rvn, wrong, came=seen)


class TroubleClauses:
    """Clauses of time-outs and errors."""

    @pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE, Fault.DROP, Fault.LOSE_REPLY])
    def test_s13_a_call_ends_in_time_when_nothing_answers(self, trial: Trial, fault: Fault) -> None:
        """A server that hangs, or is away, holds no caller beyond its time-out: who tries again, or pauses, has no more time for that."""
        # A driver may look for its server each half second only, and ends a shorter call then.
        end_in_time(trial, fault, VERBS, TWICE_S if fault is Fault.HANG else SHORT_S)

    @needs("trickle")
    def test_s13_a_call_ends_in_time_when_its_answer_trickles_in(self, trial: Trial) -> None:
        """The time-out is that of the call, not of each piece of its answer."""
        end_in_time(trial, Fault.TRICKLE, VERBS, TRICKLE_S)

    @needs("drop", "hang")
    def test_s13_a_call_has_its_time_out_once_for_the_connection_and_the_answer(self, trial: Trial) -> None:
        """Nobody hears who connects; the server is back soon after, takes connections that are asked for again, and answers nobody."""
        verbs = verbs_of(trial.harness, VERBS)
        which = "whose connection was made late, and that had no answer,"
        all_in_time(trial, lambda: late_connections(trial, verbs), REACHED_S, which)

    @needs("busy")
    def test_s13_a_write_ends_in_time_when_another_goes_on(self, trial: Trial) -> None:
        """Somebody else's write that does not end holds no caller beyond its time-out."""
        end_in_time(trial, Fault.BUSY, STEPS, TWICE_S)

    @needs("hang")
    def test_s13_the_time_out_is_of_each_call(self, trial: Trial) -> None:
        """After a short one comes a long one, and then a short one, on the same store."""
        store = trial.disturbed(Fault.HANG)
        store.read(trial.key(), timeout_s=30)

        with trial.fault(Fault.HANG):
            began = time.monotonic()
            trial.ended(asking(store, "read", None, held(trial.key()), SHORT_S), SHORT_S + 4 * SLACK_S)
            took = time.monotonic() - began

        trial.require(
            took <= SHORT_S + SLACK_S, f"a read with timeout_s={SHORT_S} took {took:.2f} s; an earlier one had 30 s"
        )

    @pytest.mark.parametrize("timeout_s", [0.001, 0.05, 3600.0])
    def test_s13_a_call_takes_any_time_out_above_zero(self, trial: Trial, timeout_s: float) -> None:
        """It ends with an answer or a StoreError, never with a complaint about the number."""
        for verb in verbs_of(trial.harness, VERBS):
            standing, written = prepared(trial, verb)

            came = trial.ended(asking(trial.store, verb, standing, written, timeout_s), 4 * SLACK_S)

            if isinstance(came, StoreError):
                kinds = (StoreUnavailableError, OutcomeUnknownError)
                trial.require(
                    isinstance(came, kinds),
                    f"a {verb} with timeout_s={timeout_s} may end in no other error than these",
                    came=came,
                )

    @pytest.mark.parametrize("fault", UNANSWERED)
    def test_s14_what_was_certainly_not_applied_never_is(self, trial: Trial, fault: Fault) -> None:
        """StoreUnavailableError lets the caller forget the write, so it must not arrive later."""
        for each in disturbed(trial, fault, STEPS):
            if isinstance(each.error, StoreUnavailableError):
                never_written(trial, each.verb, each.written)

    @needs("refuse")
    def test_s14_a_server_that_cannot_be_reached_is_an_error_of_the_store(self, trial: Trial) -> None:
        """Also when it comes back: the store goes on without being opened again, whether it had a connection or that was its first call."""
        for store in (trial.disturbed(Fault.REFUSE), trial.open(trial.harness.through_faults)):

            def claim(timeout_s: float, store: Subject = store) -> Reply:
                return store.claim(Claim(held(trial.key()), Expect.ANY), timeout_s=timeout_s)

            with trial.fault(Fault.REFUSE):
                came = trial.ended(partial(claim, SHORT_S), SHORT_S + 4 * SLACK_S)

            kinds = (StoreUnavailableError, OutcomeUnknownError)
            told = "a claim while the server cannot be reached must raise one of the two errors"
            trial.require(isinstance(came, kinds), told, came=came)
            again = [trial.tried(partial(claim, 5.0)) for _ in range(3)]
            told = "the server is back, and the third claim after that still fails"
            trial.require(isinstance(again[-1], Reply), told, came=again[-1])

    @pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.CUT])
    @pytest.mark.parametrize("verb", STEPS)
    def test_s15_a_lost_reply_is_an_unknown_outcome(self, trial: Trial, verb: str, fault: Fault) -> None:
        """The write was applied and its reply lost, or a part of it: nothing may be made up, and it is not sent again."""
        store = trial.disturbed(fault)
        standing, written = prepared(trial, verb)

        with trial.fault(fault):
            came = trial.ended(asking(store, verb, standing, written, 2.0), 2.0 + 4 * SLACK_S)

        seen = seen_at_last(trial, written.key)
        if isinstance(came, StoreError) and (seen is None or seen.rvn != written.rvn):
            trial.fail(
                f"the first reply to a {verb} was {_LOST[fault]}, and yet the server did not apply it once; "
                "a step is one request (S23): where it reads before it writes, that was the reply to the read; "
                "is_request=… of the proxy has it lose those of writes",
                expected=written,
                came=seen,
            )
        told = f"a {verb} was applied and its reply {_LOST[fault]}: the store must raise OutcomeUnknownError"
        trial.require(isinstance(came, OutcomeUnknownError), told, came=came)

    @needs("plant_foreign")
    @pytest.mark.parametrize("verb", [*STEPS, *READS])
    def test_s16_what_is_not_ours_raises_from_every_verb(self, trial: Trial, verb: str) -> None:
        """A foreign record is neither free nor absent, and it is left as it is."""
        key = trial.plant()
        written = held(key) if verb != "release" else tombstone(held(key))

        for ask in (verb, "read"):
            came = trial.tried(asking(trial.store, ask, None, written, 5.0))
            if ask == "scan" and came == []:
                continue  # a scan may pass over what is not ours: the table may have other users
            wrong = (
                f"a {ask} met a record that is not dlock's: it must raise RecordError, and leave the record as it is"
            )
            trial.require(isinstance(came, RecordError), wrong, came=came)
        for _ in range(MET):
            trial.tried(asking(trial.store, verb, None, written, 5.0))
        # The other one first: what the store has left open may end with its next call.
        for store in (trial.other, trial.store):
            came = trial.tried(lambda store=store: store.claim(Claim(held(trial.key()), Expect.ANY)))  # type: ignore[misc]
            trial.granted(came, f"a claim, after a {verb} met a record that is not dlock's {MET} times,")

    @needs("plant_newer")
    @pytest.mark.parametrize("verb", STEPS)
    def test_s16_a_newer_format_is_held_and_left_alone(self, trial: Trial, verb: str) -> None:
        """An older program waits for its end: it can't know what else the record says."""
        version = Version(fresh(), 7)
        key = trial.plant(version)
        right = newer_format(key, FORMAT, *version)

        trial.exactly(right, trial.store.read(key), "a record of format 2 must be read as newer_format() shows it")
        written = held(key, token=8)
        request = asking(trial.store, verb, right, tombstone(right) if verb == "release" else written, 5.0)
        came = trial.tried(request)
        wrong = f"a {verb} met a record of format 2: it must be refused with that record, whatever it expects"
        trial.require(isinstance(came, Reply) and not came.applied and came.record == right, wrong, came=came)

    @pytest.mark.parametrize("fault", UNANSWERED)
    def test_s17_an_error_of_the_driver_is_the_cause_of_ours(self, trial: Trial, fault: Fault) -> None:
        """Who catches dlock's errors catches all, and who looks for the reason finds the driver's."""
        # A read needs no turn among writes.
        for each in disturbed(trial, fault, STEPS if fault is Fault.BUSY else VERBS):
            error = each.error
            if error.__cause__ is None:
                # Beside others it may have had no connection, and then the driver raised nothing.
                [alone] = disturbed(trial, fault, [each.verb])
                error = alone.error
            cause = error.__cause__
            told = f"{describe(error)}, of a {each.verb}"
            wrong = f"the cause of {told}, must be what the driver raised; raise … from error"
            trial.require(cause is not None and not isinstance(cause, DLockError), wrong, came=cause)
