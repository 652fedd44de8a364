"""S22: what a close meets, which comes when it comes: calls that begin, and calls that are under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dlock_conformance._calling import switching_often
from dlock_conformance._connecting import CALLERS, LONG_S, Use, caught, nothing_is_left
from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord

__all__ = ["ClosingClauses"]

BRIEF_S = 0.1
# So many stores are closed, each a step later than the one before.
CLOSES, STEP_S = 20, 1e-4
READERS = 3


class ClosingClauses:
    """Clauses of closing a store that is in use."""

    def test_s22_a_call_that_meets_a_close_ends_as_any(self, trial: Trial) -> None:
        """Wherever it is when the store is closed: it gets its answer, or a StoreError."""
        record = trial.hold(trial.key())
        with switching_often():
            came = [each for number in range(CLOSES) for each in met_by_a_close(trial, record, number)]

        for each in came:
            right = isinstance(each, StoreError) or each == record
            trial.require(right, "a read that met the close of its store ended in neither way", came=each)

    @needs("hang", "refuse")
    def test_s22_what_is_under_way_at_a_close_is_closed_at_its_end(self, trial: Trial) -> None:
        """Its answer comes when the store is closed, and nobody else will use its connection."""

        def use(_: Use) -> None:
            store = trial.open(trial.harness.through_faults)
            record = trial.hold(trial.key(), store=store)
            with trial.fault(Fault.HANG):
                callers = begun([lambda: trial.tried(lambda: store.read(record.key, timeout_s=LONG_S))] * CALLERS)
                time.sleep(BRIEF_S)  # they are under way; if not, the clause is tried less hard
                trial.ended(store.close, LONG_S + SLACK_S)
            for each in callers:
                each.join()

        nothing_is_left(trial, use, 1)


def begun(asks: list[Callable[[], object]]) -> list[threading.Thread]:
    """Call each in a thread of its own."""
    callers = [threading.Thread(target=ask, name="caller", daemon=True) for ask in asks]
    for each in callers:
        each.start()
    return callers


def met_by_a_close(trial: Trial, record: LockRecord, number: int) -> list[object]:
    """Close a store that threads read *record* from; return how their reads ended."""
    store, came = trial.open(), list[object]()
    ask = store.calling_read(record.key)
    ask()
    closed = threading.Event()

    def read_on() -> None:
        last = False
        while not last:
            last = closed.is_set()
            came.append(caught(ask))

    callers = begun([read_on] * READERS)
    time.sleep(number * STEP_S)
    store.close()
    closed.set()
    for each in callers:
        each.join()
    return came
