"""S13 and S15, for each verb: calls at once, and calls after others that were given up."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs, verbs_of
from dlock_conformance.records import fresh, held, next_version
from dlock_conformance.store_clauses.connecting import CALLERS, CALLS, LONG_S, SHORT_S, cancelled, caught, how_it_ended
from dlock_conformance.store_clauses.trouble import STEPS, asking, prepared, seen_at_last
from dlock_conformance.subject import Subject
from dlock_conformance.trial import SLACK_S, Trial, batch_size
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = ["CallingClauses"]

BRIEF_S = 0.1
# What the calls have at which a store is closed; what a close may take that says good-bye to a server, and a wait, which is longer.
CLOSED_S, CLOSE_S, WAIT_S = 0.5, 10.0, 20.0
# More than a pool has, here and there, and so many times.
CROWD, CROWDS = 20, 6
OF_EACH = 3
SWITCH_S = 1e-6
# Those beside ``read`` that only read.
READINGS = ("scan", "read_age")


class CallingClauses:
    """Clauses of several calls on one store."""

    def test_s15_writers_at_once_get_their_own_answers(self, trial: Trial) -> None:
        """Each renews a record of its own, on one store."""
        store, wrong = trial.store, list[tuple[LockRecord, object]]()

        def renew_often(standing: LockRecord) -> None:
            for _ in range(CALLS):
                new = next_version(standing)
                came = trial.tried(store.calling("replace", Replace(new, standing.version)))
                if isinstance(came, StoreError):
                    return
                if came != Reply(True, new, wanted=came.wanted):
                    wrong.append((new, came))
                standing = new

        records = [trial.hold(trial.key()) for _ in range(CALLERS)]
        with switching_often():
            all_at_once([lambda record=record: renew_often(record) for record in records])  # type: ignore[misc]

        if wrong:
            told = "of writers at once one got the answer to the replace of another"
            trial.fail(told, expected=wrong[0][0], came=wrong[0][1])

    @pytest.mark.parametrize("verb", ["replace_many", "claim_many"])
    def test_s15_batches_at_once_get_their_own_answers(self, trial: Trial, verb: str) -> None:
        """Each asks for records of its own, on one store: what is made ready for one request is of no other."""
        store, wrong = trial.store, list[object]()
        size = OF_EACH if verb == "claim_many" else batch_size(trial, OF_EACH)

        def ask_often(records: list[LockRecord]) -> None:
            for _ in range(CALLS):
                new = [next_version(record, key=record.key + "+"[: verb == "claim_many"]) for record in records]
                asked: list[Any] = [Claim(each, Expect.ANY) for each in new]
                if verb == "replace_many":
                    asked = [Replace(each, old.version) for each, old in zip(new, records, strict=True)]
                came = trial.tried(store.calling(verb, asked))
                if isinstance(came, StoreError):
                    return
                records = [reply.record for reply in came if isinstance(reply, Reply) and reply.record is not None]
                if [(each.key, each.rvn) for each in records] != [(each.key, each.rvn) for each in new]:
                    wrong.append(came)
                    return

        groups = [[trial.hold(trial.key()) for _ in range(size)] for _ in range(CALLERS)]
        with switching_often():
            all_at_once([lambda records=records: ask_often(records) for records in groups])  # type: ignore[misc]

        trial.require(not wrong, f"of several {verb} at once one got the answers to another", came=wrong[:1])

    @needs("hang")
    def test_s15_a_call_that_was_given_up_leaves_no_answer_behind(self, trial: Trial) -> None:
        """Whatever it asked for; many that were given up use nothing up either."""
        store, mine = trial.disturbed(Fault.HANG), trial.hold(trial.key())

        for _ in range(CROWDS // 2):
            with trial.fault(Fault.HANG):
                all_at_once([lambda: trial.tried(lambda: store.read(mine.key, timeout_s=BRIEF_S))] * CROWD)
        get_their_own(trial, store, mine, "many reads were given up")
        given_up = calls(trial, store, BRIEF_S) | readings(trial, store, BRIEF_S)
        if trial.harness.gives("notify"):
            given_up["wait"] = lambda: store.wait(mine, ticket=fresh(), timeout_s=BRIEF_S)
        for verb, ask in given_up.items():
            with trial.fault(Fault.HANG):
                trial.ended(ask, BRIEF_S + 4 * SLACK_S)
            get_their_own(trial, store, mine, f"a {verb} was given up")

    @needs("hang", "async")
    def test_s15_a_call_that_was_cancelled_leaves_no_answer_behind(self, trial: Trial) -> None:
        """As where its time-out was over."""
        store, mine = trial.disturbed(Fault.HANG), trial.hold(trial.key())

        for _ in range(CROWDS):
            with trial.fault(Fault.HANG):
                store.loop.run(many_cancelled(store.raw, mine.key))
        get_their_own(trial, store, mine, "many reads were cancelled")
        for verb in verbs_of(trial.harness, (*STEPS, *READINGS, "prune")):
            standing, written = prepared(trial, verb)
            with trial.fault(Fault.HANG):
                cancelled(store, verb, request_of(verb, standing, written), BRIEF_S)
            get_their_own(trial, store, mine, f"a {verb} was cancelled")

    @needs("hang", "async")
    def test_s17_a_first_call_that_is_cancelled_costs_no_other(self, trial: Trial) -> None:
        """Two are the first of their store, and both need the connection that one of them makes."""
        store, keys = trial.open(trial.harness.through_faults), [trial.key() for _ in range(2)]
        raw: Any = store.raw

        async def begun() -> asyncio.Future[Any]:
            reads: list[asyncio.Future[Any]] = [asyncio.ensure_future(raw.read(key, timeout_s=LONG_S)) for key in keys]
            one, two = reads
            await asyncio.sleep(SHORT_S)  # they are under way; if not, the clause is tried less hard
            one.cancel()
            await asyncio.wait([one], timeout=SLACK_S)
            return two

        async def ended(task: asyncio.Future[Any]) -> object:
            await asyncio.wait([task], timeout=LONG_S + SLACK_S)
            return how_it_ended(task)

        with trial.fault(Fault.HANG):
            other = store.loop.run(begun())
        came = store.loop.run(ended(other))

        wrong = "of two first calls at once one was cancelled: the other must end by an answer or by a StoreError"
        trial.require(came == "an answer" or isinstance(came, StoreError), wrong, came=came or "it was cancelled, too")

    @needs("hang")
    @pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE])
    def test_s22_a_store_is_closed_while_calls_have_no_answer(self, trial: Trial, fault: Fault) -> None:
        """Close ends before a long wait or a long call does, and nothing of the driver leaks from it or from them."""
        store, record = trial.disturbed(fault), trial.hold(trial.key())
        asked = calls(trial, store, CLOSED_S) | readings(trial, store, CLOSED_S)
        asked["a long read"] = lambda: store.read(record.key, timeout_s=WAIT_S)
        if trial.harness.gives("notify"):
            asked["wait"] = lambda: store.wait(record, ticket=fresh(), timeout_s=WAIT_S)
        came: dict[str, object] = {}
        callers = [
            threading.Thread(target=lambda verb=verb: came.update({verb: caught(asked[verb])}), daemon=True)
            for verb in asked
        ]

        with trial.fault(fault):
            for each in callers:
                each.start()
            time.sleep(SHORT_S)  # they are under way; if not, the clause is tried less hard
            trial.ended(store.close, CLOSE_S + SLACK_S)
        seen_at_last(trial, record.key)
        trial.tried(lambda: trial.free(record))
        for each in callers:
            each.join(CLOSED_S + SLACK_S)

        for answer in came.values():
            if isinstance(answer, AssertionError):
                raise answer

    @needs("hang")
    def test_s13_a_new_connection_has_no_time_out_of_its_own(self, trial: Trial) -> None:
        """Nothing answers, not even to a greeting; the connection that there was is given up with its call, or there was none yet."""
        used, unused = trial.disturbed(Fault.HANG), trial.open(trial.harness.through_faults)

        def took(store: Subject) -> float:
            began = time.monotonic()
            trial.ended(lambda: store.read(trial.key(), timeout_s=SHORT_S), SHORT_S + 4 * SLACK_S)
            return time.monotonic() - began

        with trial.fault(Fault.HANG):
            took(used)
            for store in (unused, used):
                what = f"a read with timeout_s={SHORT_S} that needs a new connection"
                trial.in_time(what, SHORT_S, partial(took, store))

    @needs("hang")
    def test_s13_a_step_that_hangs_holds_up_no_other(self, trial: Trial) -> None:
        """One of each has no answer, on one store; each that comes later ends by its own time-out."""
        store = trial.disturbed(Fault.HANG)
        patient = [
            threading.Thread(target=trial.tried, args=(ask,), daemon=True)
            for ask in (*calls(trial, store, LONG_S).values(), *readings(trial, store, LONG_S).values())
        ]
        took: dict[str, float] = {}
        later = calls(trial, store, BRIEF_S)

        with trial.fault(Fault.HANG):
            for each in patient:
                each.start()
            time.sleep(SHORT_S)  # they are under way; if not, the clause is tried less hard
            for verb, ask in later.items():
                began = time.monotonic()
                trial.ended(ask, BRIEF_S + 2 * SLACK_S)
                took[verb] = time.monotonic() - began
                if took[verb] > BRIEF_S + SLACK_S:
                    break
        for each in patient:
            each.join()

        slow, longest_s = max(took.items(), key=lambda each: each[1])
        wrong = f"a {slow} with timeout_s={BRIEF_S} took {longest_s:.2f} s, while steps with {LONG_S:g} s had no answer"
        trial.require(longest_s <= BRIEF_S + SLACK_S, wrong)


def steps(trial: Trial) -> list[str]:
    """Return the verbs of writes that the store has."""
    return verbs_of(trial.harness, STEPS)


def calls(trial: Trial, store: Subject, timeout_s: float) -> dict[str, Callable[[], Any]]:
    """Return a call of each step that the store has, and of ``prune``, each of a key of its own."""
    verbs = verbs_of(trial.harness, (*STEPS, "prune"))
    return {verb: asking(store, verb, *prepared(trial, verb), timeout_s) for verb in verbs}


def readings(trial: Trial, store: Subject, timeout_s: float) -> dict[str, Callable[[], Any]]:
    """Return a call of each verb that only reads, beside ``read``, each of a key of its own."""
    verbs = verbs_of(trial.harness, READINGS)
    return {verb: asking(store, verb, None, trial.hold(trial.key()), timeout_s) for verb in verbs}


def request_of(verb: str, standing: LockRecord | None, written: LockRecord) -> Any:
    """Return what *verb* is called with."""
    if verb in ("scan", "read_age"):
        return written.key
    if verb == "prune":
        return [written]
    version = standing.version if standing is not None else Version(fresh(), 1)
    request: Any = Claim(written, Expect.ANY, ticket=fresh() if verb == "claim_when_free" else None)
    if verb.startswith("re"):
        request = Release(written, version) if verb == "release" else Replace(written, version)
    return [request] if verb.endswith("_many") else request


def get_their_own(trial: Trial, store: Subject, mine: LockRecord, story: str) -> None:
    """Fail unless the next calls get their own answers: at first one may be an error, as where a connection has to be made anew."""
    for last in (False, False, True):
        seen = trial.tried(lambda: store.read(mine.key, timeout_s=LONG_S))
        if isinstance(seen, StoreError):
            trial.require(not last, f"{story}, and the third call after that still fails", came=seen)
            continue
        trial.exactly(mine, seen, f"{story}, and a later read got another answer than its own")
        written = held(trial.key())
        came = trial.tried(lambda written=written: store.claim(Claim(written, Expect.ANY)))  # type: ignore[misc]
        if isinstance(came, Reply):
            right = came.record is not None and came.record.rvn == written.rvn
            trial.require(right, f"{story}, and a later claim got another answer than its own", came=came)


async def many_cancelled(store: Any, key: str) -> None:
    """Cancel many reads that have no answer."""
    tasks = [asyncio.ensure_future(store.read(key, timeout_s=LONG_S)) for _ in range(CROWD)]
    await asyncio.sleep(BRIEF_S / 2)  # they are under way; if not, the clause is tried less hard
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=SLACK_S)


def all_at_once(asks: list[Callable[[], object]]) -> None:
    """Call each in a thread of its own, and wait for them."""
    callers = [threading.Thread(target=ask, daemon=True) for ask in asks]
    for each in callers:
        each.start()
    for each in callers:
        each.join()


@contextmanager
def switching_often() -> Iterator[None]:
    """Have threads come between each other's lines."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
