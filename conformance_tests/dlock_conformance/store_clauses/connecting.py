"""S13 to S22, where a connection is shared: callers at once, calls that were given up, and what is left when all are over."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dlock_conformance.faults import SLOW_S, Fault
from dlock_conformance.needs import needs, verbs_of
from dlock_conformance.records import fresh, held, tombstone
from dlock_conformance.subject import Subject
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import DLockError, StoreError
from dlock_core.record import LockRecord, Version
from dlock_core.store import Claim, Expect, Release, Replace

__all__ = ["ConnectionClauses", "use_and_close"]

SHORT_S, BRIEF_S, LONG_S = 0.25, 2.0, 5.0
CALLERS, CALLS = 8, 25
# A request gives up before a connection that is slow is made, and some come until one must have been: after steps of a login, or of a pool.
GIVES_UP_S, MADE_S, PACE_S = 0.4, 8.0, 0.05


class ConnectionClauses:
    """Clauses that a store can break though each condition is right."""

    @needs("hang")
    def test_s15_a_late_answer_is_taken_by_no_other_call(self, trial: Trial) -> None:
        """The answer to a call whose time-out was over comes when another call waits for its own."""
        after_giving_up(trial, lambda store, key: trial.tried(lambda: store.read(key, timeout_s=SHORT_S)))

    @needs("hang", "async")
    def test_s15_the_answer_to_a_cancelled_call_is_taken_by_no_other(self, trial: Trial) -> None:
        """As where its time-out was over."""
        after_giving_up(trial, lambda store, key: cancelled(store, "read", key))

    def test_s15_callers_at_once_get_their_own_answers(self, trial: Trial) -> None:
        """Each reads a key of its own, on one store."""
        store = trial.store
        records = [trial.hold(trial.key()) for _ in range(CALLERS)]
        wrong: list[tuple[LockRecord, object]] = []

        def read_often(record: LockRecord) -> None:
            ask = store.calling_read(record.key)
            for _ in range(CALLS):
                came = trial.tried(ask)
                if not isinstance(came, StoreError) and (came is None or came.key != record.key):
                    wrong.append((record, came))

        callers = [threading.Thread(target=read_often, args=(record,), daemon=True) for record in records]
        for each in callers:
            each.start()
        for each in callers:
            each.join()

        if wrong:
            trial.fail(
                "of callers at once one got the answer to the read of another", expected=wrong[0][0], came=wrong[0][1]
            )

    @needs("hang")
    def test_s13_a_call_that_hangs_holds_up_no_other(self, trial: Trial) -> None:
        """Many calls have no answer; the one with the shortest time-out ends first, though it came last."""
        store = trial.disturbed(Fault.HANG)
        patient = [
            threading.Thread(target=trial.tried, args=(lambda: store.read(trial.key(), timeout_s=LONG_S),), daemon=True)
            for _ in range(2 * CALLERS)
        ]

        with trial.fault(Fault.HANG):
            for each in patient:
                each.start()
            time.sleep(SHORT_S)  # it is under way; if not, the clause is tried less hard
            began = time.monotonic()
            trial.ended(lambda: store.read(trial.key(), timeout_s=SHORT_S), LONG_S + SLACK_S)
            took = time.monotonic() - began
        for each in patient:
            each.join()

        trial.require(
            took <= SHORT_S + SLACK_S,
            f"a read with timeout_s={SHORT_S} took {took:.2f} s, while others with {LONG_S:g} s had no answer",
        )

    @needs("slow_connect")
    def test_s13_a_connection_that_takes_longer_than_a_request_is_had_in_the_end(self, trial: Trial) -> None:
        """A store that begins anew with each request never has one: no lock of a short lease is granted there."""
        store = trial.disturbed(Fault.SLOW_CONNECT)
        record = trial.hold(trial.key())
        with trial.fault(Fault.SLOW_CONNECT):
            until = time.monotonic() + MADE_S
            came = trial.tried(lambda: store.read(record.key, timeout_s=GIVES_UP_S))
            while isinstance(came, StoreError) and time.monotonic() < until:
                time.sleep(PACE_S)  # where it fails at once, until there is a connection
                came = trial.tried(lambda: store.read(record.key, timeout_s=GIVES_UP_S))
        wrong = f"a connection is made in {SLOW_S:g} s, and reads with timeout_s={GIVES_UP_S} found none within {MADE_S:g} s"
        trial.require(came == record, f"{wrong}: keep the one that is being made for the next request", came=came)

    @needs("notify")
    @pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE])
    def test_s17_a_wait_without_a_server_ends_in_time_and_lets_nothing_out(self, trial: Trial, fault: Fault) -> None:
        """It returns, or raises a StoreError; the waiter asks again in both cases."""
        store = trial.disturbed(fault)
        record = trial.hold(trial.key())

        def took() -> float:
            with trial.fault(fault):
                began = time.monotonic()
                came = trial.ended(lambda: store.wait(record, ticket=fresh(), timeout_s=SHORT_S), SHORT_S + 4 * SLACK_S)
                ended = time.monotonic()
            if came is not None:
                caused_by_the_driver(trial, "a wait without a server", came)
            return ended - began

        # The first that is refused may lose a connection, the next one finds none.
        for _ in range(2 if fault is Fault.REFUSE else 1):
            trial.in_time(f"a wait with timeout_s={SHORT_S} without a server", SHORT_S, took)

    @needs("hang")
    @pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE])
    def test_s17_a_scan_that_is_cut_off_ends_in_time_and_lets_nothing_out(self, trial: Trial, fault: Fault) -> None:
        """Its first page was read, and then there is no server: the pages after it are requests as any other."""
        prefix, store = many(trial), trial.disturbed(fault)
        scan = store.scanning(prefix, timeout_s=BRIEF_S)
        next(scan)

        with trial.fault(fault):
            began = time.monotonic()
            [came] = trial.ended(lambda: [caught(lambda: list(scan))], 4 * BRIEF_S)
            took = time.monotonic() - began

        trial.require(took <= BRIEF_S + SLACK_S, f"a page with timeout_s={BRIEF_S} took {took:.2f} s without a server")
        if isinstance(came, list):
            whole, given = trial.harness.page + 20, 1 + len(came)
            wrong = f"a scan that was cut off ended with {given} of {whole} records, as if there were no more"
            trial.require(given == whole, wrong)
        else:
            caused_by_the_driver(trial, "a scan that is cut off between two pages", came)

    @needs("hang", "async")
    def test_s17_a_cancelled_call_ends_as_a_cancelled_task(self, trial: Trial) -> None:
        """CancelledError is the caller's, and becomes no other error, nor an answer, whatever was asked for."""
        store, version = trial.disturbed(Fault.HANG), Version(fresh(), 1)
        claims = [Claim(held(trial.key()), Expect.ANY, ticket=fresh()) for _ in range(3)]
        record = held(trial.key())
        asked: dict[str, Any] = {
            "claim": claims[0],
            "claim_when_free": claims[1],
            "claim_many": claims[2:],
            "replace": Replace(record, version),
            "release": Release(tombstone(record), version),
            "replace_many": [Replace(record, version)],
            "prune": [record],
            **dict.fromkeys(("read", "read_age", "scan"), record.key),
        }

        with trial.fault(Fault.HANG):
            ended = all_cancelled(store, {verb: asked[verb] for verb in verbs_of(trial.harness, asked)})

        for verb, came in ended.items():
            wrong = f"a {verb} that is cancelled while it has no answer must raise CancelledError"
            trial.require(came is None, wrong, came=came)


# Ends of the prefix of many: of how many more records than a page holds it is the prefix then.
ENDS_OF_PAGES = {"___": -1, "__": 0, "_": 1}
_many: list[tuple[object, str]] = []


def many(trial: Trial) -> str:
    """Return the prefix of more records than a page of a scan holds; they are made once for a harness that never empties its store.

    With an end of :data:`ENDS_OF_PAGES` it is the prefix of as many, or of one more or less.
    """
    if not _many or _many[0][0] is not trial.harness or trial.harness.reset is not None:
        prefix = trial.key()
        ends = {trial.harness.page + count: end for end, count in ENDS_OF_PAGES.items()}
        for number in range(trial.harness.page + 20):
            end = next((ends[least] for least in sorted(ends) if number < least), "")
            trial.hold(f"{prefix}/{end}{number:04}")
        _many[:] = [(trial.harness, prefix)]
    return f"{_many[0][1]}/"


def caused_by_the_driver(trial: Trial, what: str, came: object) -> None:
    """Fail unless *came* is an error of ours, and the driver's its cause."""
    right = isinstance(came, StoreError) and not isinstance(came.__cause__, DLockError | None)
    trial.require(right, f"{what} must raise a StoreError, with the driver's error as its cause", came=came)


def caught(call: Callable[[], Any]) -> Any:
    """Return what *call* returns, or the exception that it raises, whatever it is."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # judged by the caller
        return error


def after_giving_up(trial: Trial, give_up: Callable[[Subject, str], object]) -> None:
    """Fail if a read that follows one that was given up returns anything but the record of its own key.

    That a connection has to be made anew, and fails, is no fault here.
    """
    store = trial.disturbed(Fault.HANG)
    first, second = trial.hold(trial.key()), trial.hold(trial.key())
    for _ in range(3):
        with trial.fault(Fault.HANG):
            give_up(store, first.key)
        for _ in range(3):
            came = trial.tried(lambda: store.read(second.key))
            if not isinstance(came, StoreError):
                wrong = "a read returned the late answer to another one, which had been given up"
                trial.exactly(second, came, wrong)


# What verbs take beside a request and a time-out.
_MORE: dict[str, dict[str, Any]] = {
    "claim_when_free": {"wait_s": LONG_S},
    "prune": {"older_than_ms": 60_000, "dry_run": False},
}


def cancelled(store: Subject, verb: str, request: Any, after_s: float = SHORT_S) -> BaseException | str | None:
    """Cancel a call that has no answer *after_s*; return None if it ended as cancelled, otherwise how it ended."""
    return all_cancelled(store, {verb: request}, after_s)[verb]


def all_cancelled(
    store: Subject, asked: dict[str, Any], after_s: float = SHORT_S
) -> dict[str, BaseException | str | None]:
    """As :func:`cancelled`, for calls at once, of each verb one."""

    async def call(verb: str, request: Any) -> Any:
        made = getattr(store.raw, verb)(request, timeout_s=LONG_S, **_MORE.get(verb, {}))
        return [each async for each in made] if verb == "scan" else await made

    async def scene() -> dict[str, BaseException | str | None]:
        tasks = {verb: asyncio.ensure_future(call(verb, request)) for verb, request in asked.items()}
        await asyncio.sleep(after_s)
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values(), timeout=SLACK_S)
        return {verb: how_it_ended(task) for verb, task in tasks.items()}

    return store.loop.run(scene())


def how_it_ended(task: asyncio.Future[Any]) -> BaseException | str | None:
    """Return None for a task that ended as cancelled."""
    if task.cancelled():
        return None
    return task.exception() or "an answer" if task.done() else "it goes on"


def use_and_close(trial: Trial) -> None:
    """Open a store of its own, ask it for something, and close it."""
    store = trial.open()
    key = trial.key()
    record = trial.hold(key, store=store)
    if trial.harness.gives("notify"):
        trial.tried(lambda: store.wait(record, ticket=fresh(), timeout_s=SHORT_S / 5))
    store.read(key)  # a wait that timed out may have cost a connection
    store.close()
    gc.collect()
