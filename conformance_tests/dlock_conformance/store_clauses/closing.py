"""S22: what a close meets, which comes when it comes, and what is left when all is over."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import describe, fresh, held
from dlock_conformance.store_clauses.calling import CLOSE_S, switching_often
from dlock_conformance.store_clauses.connecting import CALLERS, CALLS, LONG_S, SHORT_S, caught, many
from dlock_conformance.subject import Subject
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect

__all__ = ["ClosingClauses"]

BRIEF_S = 0.1
# So many stores are closed, each a step later than the one before.
CLOSES, STEP_S = 10, 2e-4
READERS = 3
# What a child says goes into a pipe at once.
PIPE_BYTES = 512
# Threads and connections that a store has left to end by themselves are gone after so many seconds.
ENDED_S, STILL_S = 6.0, 0.2
# Threads of dlock's own that have nothing to do any more end after a second.
IDLE_S = 1.3
_DESCRIPTORS = Path("/proc/self/fd")


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

    def test_s22_a_store_that_is_closed_leaves_no_thread_and_no_descriptor(self, trial: Trial) -> None:
        """Whoever opens and closes stores for years has no more of them at the end than at the beginning.

        Whatever else this process has may connect anew meanwhile, but not in each round.
        """
        many(trial)
        nothing_is_left(trial, Use.in_each_way, 3)

    @needs("sync")
    def test_s22_a_thread_that_has_ended_leaves_nothing_in_the_store(self, trial: Trial) -> None:
        """A program whose threads come and go has as many connections as there are calls at once, however long it runs."""
        store, key = trial.open(), trial.key()

        def call_once() -> None:
            caller = threading.Thread(target=trial.tried, args=(lambda: store.read(key),), daemon=True)
            caller.start()
            caller.join()

        for _ in range(CALLERS):
            call_once()
        settle()
        before = len(threading.enumerate()) + len(open_descriptors())
        for _ in range(2 * CALLERS):
            call_once()
        gc.collect()
        settle()
        more = len(threading.enumerate()) + len(open_descriptors()) - before
        store.close()

        trial.require(
            more < 2 * CALLERS,
            f"{2 * CALLERS} threads called one after the other, and have ended; the store keeps {more} descriptors and threads more",
        )

    @needs("hang", "refuse")
    def test_s22_a_store_that_had_no_answer_leaves_nothing_either(self, trial: Trial) -> None:
        """What a call had that was given up is closed with it, or with the store; what one has at a close, when it ends.

        No other store is open: it would connect anew.
        """
        nothing_is_left(trial, Use.in_trouble, 1)

    @needs("sync")
    def test_s22_a_forked_child_has_no_part_in_the_store_of_its_parent(self, trial: Trial) -> None:
        """It begins anew, or each of its calls raises a StoreError; what it does, its close included, its parent does not feel."""
        if not hasattr(os, "fork"):
            trial.skip("this system has no forks")
        store, mine, other = trial.open(), trial.hold(trial.key()), trial.hold(trial.key())
        read = store.calling_read(mine.key)
        read()
        with forked(lambda: read_and_closed(store, other)) as told:
            came = [caught(read) for _ in range(CALLS)]
            said = told()
        came.append(caught(read))

        trial.require(not said, f"a forked child used the store of its parent, and {said}")
        for each in came:
            trial.require(each == mine, "a child was forked, and its parent got another answer than its own", came=each)

    @needs("sync", "hang")
    def test_s22_a_child_is_forked_while_calls_have_no_answer(self, trial: Trial) -> None:
        """Nobody in the child gives back what they hold, be it a mutex or a turn: its own calls end in time all the same."""
        if not hasattr(os, "fork"):
            trial.skip("this system has no forks")
        store, mine = trial.disturbed(Fault.HANG), trial.hold(trial.key())

        with trial.fault(Fault.HANG):
            callers = begun([lambda: caught(lambda: store.read(mine.key, timeout_s=LONG_S))] * CALLERS)
            time.sleep(BRIEF_S)  # they are under way; if not, the clause is tried less hard
            with forked(lambda: ended_in_time(store, mine)) as told:
                said = told()
        for each in callers:
            each.join()

        trial.require(not said, f"a child was forked while calls of its parent had no answer, and its own {said}")


class Use:
    """Opens stores, uses them in each way that may leave something, and closes them; leaving the block ends what the caller began.

    The thread that called lives on, and a scan was not read to its end.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._scans: list[Generator[LockRecord, None, None]] = []
        self._caller = ThreadPoolExecutor(1, "caller")
        self._caller.submit(int).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for each in self._scans:
            each.close()
        self._caller.shutdown()

    def in_each_way(self) -> None:
        """Use and close a store."""
        trial, store = self._trial, self._trial.open()
        record = trial.hold(trial.key(), store=store)
        self._caller.submit(store.read, record.key).result()
        if trial.harness.gives("notify"):
            trial.tried(lambda: store.wait(record, ticket=fresh(), timeout_s=SHORT_S / 5))
        if trial.harness.gives("claim_wait"):
            asked = Claim(held(record.key), Expect.ANY, ticket=fresh())
            trial.tried(lambda: store.claim_when_free(asked, wait_s=SHORT_S / 5))
        self._scans.append(store.scanning(many(trial)))
        next(self._scans[-1])
        store.read(record.key)  # a wait that timed out may have cost a connection
        store.close()

    def in_trouble(self) -> None:
        """Use a store that has no answer for a moment, and close it while calls have none."""
        trial = self._trial
        store = trial.open(trial.harness.through_faults)
        record = trial.hold(trial.key(), store=store)
        for fault in (Fault.HANG, Fault.REFUSE, Fault.REFUSE):
            with trial.fault(fault):
                trial.tried(lambda: store.read(record.key, timeout_s=SHORT_S / 5))
        with trial.fault(Fault.HANG):
            callers = begun([lambda: trial.tried(lambda: store.read(record.key, timeout_s=LONG_S))] * CALLERS)
            time.sleep(BRIEF_S)  # they are under way; if not, the clause is tried less hard
            # Their answers come afterwards, and nobody else will use their connections.
            trial.ended(store.close, CLOSE_S + SLACK_S)
        for each in callers:
            each.join()


def settle() -> None:
    """Wait until no more threads and descriptors end that others have left, as those of a server of this process."""
    before, until = -1, time.monotonic() + ENDED_S
    while (now := len(threading.enumerate()) + len(open_descriptors())) != before and time.monotonic() < until:
        before = now
        may_end = any(each.name.startswith("dlock-") for each in threading.enumerate())
        time.sleep(IDLE_S if may_end else STILL_S)


def nothing_is_left(trial: Trial, use: Callable[[Use], None], stores: int) -> None:
    """Fail if so many *stores* leave something, and so many others do again."""
    with Use(trial) as first:
        use(first)
    settle()
    left = left_by(trial, use, stores)
    trial.require(
        not (left and left_by(trial, use, stores)),
        f"after {stores} stores had been opened, used and closed there were {left} more than before, and again after as many others",
    )


def left_by(trial: Trial, use: Callable[[Use], None], stores: int) -> str:
    """Open, use and close so many *stores*; return what they leave, or nothing."""
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    with Use(trial) as each_one:
        threads.update(each for each in threading.enumerate() if each.name.startswith("caller"))
        for _ in range(stores):
            use(each_one)
        gc.collect()
        until = time.monotonic() + ENDED_S
        while True:
            running, opened = threading.enumerate(), open_descriptors()
            if len(running) <= len(threads) and len(opened) <= len(descriptors):
                return ""
            if time.monotonic() > until:
                break
            time.sleep(0.05)
    names = ", ".join(each.name for each in running if each not in threads)
    news = ", ".join(sorted(opened - descriptors))
    return f"{len(running) - len(threads)} threads ({names}) and {len(opened) - len(descriptors)} descriptors ({news})"


def open_descriptors() -> set[str]:
    """Return the descriptors that this process has open, with what they are; none on a system that does not tell."""
    found = set()
    for each in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        with suppress(FileNotFoundError):  # the one by which the folder is read
            found.add(f"{each.name}: {each.readlink()}")
    return found


def read_and_closed(store: Subject, record: LockRecord) -> str:
    """Read *record* often, and close the store; return what went wrong, or nothing."""
    for _ in range(CALLS):
        came = caught(store.calling_read(record.key))
        if came != record and not isinstance(came, StoreError):
            return f"got {describe(came)} for {describe(record)}"
    came = caught(store.calling_close())
    return "" if came is None or isinstance(came, StoreError) else f"its close raised {came!r}"


def ended_in_time(store: Subject, record: LockRecord) -> str:
    """Read *record* from a server that does not answer; return what went wrong, or nothing."""
    for _ in range(2):
        began = time.monotonic()
        came = caught(lambda: store.read(record.key, timeout_s=SHORT_S))
        took = time.monotonic() - began
        if not isinstance(came, StoreError) or took > SHORT_S + SLACK_S:
            return f"read with timeout_s={SHORT_S} got {describe(came)} after {took:.1f} s"
    return ""


@contextmanager
def forked(work: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """Have a child do *work*; yield what waits for what it says."""
    hears, says = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads, which the child does not need
        child = os.fork()
    if not child:
        try:
            warnings.simplefilter("ignore")  # of drivers that were opened before
            said = caught(work)
            os.write(says, str(said).encode()[:PIPE_BYTES])
        finally:
            os._exit(0)
    os.close(says)

    def told() -> str:
        ready, _, _ = select.select([hears], [], [], LONG_S + CLOSE_S)
        return os.read(hears, PIPE_BYTES).decode(errors="replace") if ready else "had no end"

    try:
        yield told
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(hears)


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
        last, until = False, time.monotonic() + SLACK_S
        while not last:
            last = closed.is_set() or time.monotonic() > until
            came.append(caught(ask))
            if isinstance(came[-1], StoreError):
                time.sleep(STEP_S)  # a close may take a second yet

    callers = begun([read_on] * READERS)
    time.sleep(number * STEP_S)
    trial.ended(store.close, CLOSE_S + SLACK_S)
    closed.set()
    for each in callers:
        each.join()
    return came
