"""N1 to N4: notification, for stores that declare it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.subject import Subject
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect, Release, Replace, Reply

__all__ = ["LEAST_S", "NotifyClauses"]

HANDS = 25
SETTLES = (1, 10, 30)
WAITERS, IN_TURN, MANY = 6, 12, 24
BRIEF_S = 0.1
LEAST_S = 0.0004
"""Less than a millisecond: no whole one is left of it, and 0 waits for ever in some places."""


def freeing(record: LockRecord) -> Replace:
    """Return the break of *record*, which stands."""
    return Replace(tombstone(record, fencing_token=record.fencing_token + 1), record.version)


FREES: dict[str, Callable[[Trial, LockRecord], object]] = {
    "release": lambda trial, record: trial.free(record),
    "replace": lambda trial, record: trial.granted(trial.store.replace(freeing(record)), "a break"),
    "replace_many": lambda trial, record: trial.store.replace_many([freeing(record)]),
}


@needs("notify")
class NotifyClauses:
    """Clauses of ``wait``."""

    @pytest.mark.parametrize("verb", ["release", "replace_many"])
    def test_n1_a_wait_returns_soon_after_the_release(self, trial: Trial, verb: str) -> None:
        """It was waiting when the key was released, by another connection, or the lock was broken."""
        record = trial.hold(trial.key())
        with waiting(trial, record) as waiter:
            waiter.settle()
            FREES[verb](trial, record)

            trial.require(
                waiter.ended(), f"a wait had not returned {trial.harness.soon_s:g} s after the release of its key"
            )

    @pytest.mark.parametrize("renewed", [False, True], ids=["at_once", "after_a_renewal"])
    def test_n1_a_release_before_the_wait_is_not_missed(self, trial: Trial, *, renewed: bool) -> None:
        """Between the refusal of a claim and the wait the key may be released: the wait must see that."""
        record = trial.hold(trial.key())
        newest = trial.renew(record) if renewed else record

        trial.free(newest)

        with waiting(trial, record) as waiter:
            trial.require(
                waiter.ended(), f"a wait that began after the release had not returned after {trial.harness.soon_s:g} s"
            )

    def test_n1_a_renewal_does_not_hide_the_release(self, trial: Trial) -> None:
        """The waiter was given an older version; the release of a newer one follows it all the same, also that of the next holder."""
        record = trial.hold(trial.key())
        with waiting(trial, record) as waiter:
            waiter.settle()

            renewed = trial.renew(trial.renew(record))
            if trial.harness.gives("batch_renew"):
                renewed = trial.granted(renewed_by(trial, "replace_many", renewed), "a renewal in a batch")
            trial.free(trial.renew(renewed, fencing_token=renewed.fencing_token + 1))

            trial.require(
                waiter.ended(),
                f"a wait had not returned {trial.harness.soon_s:g} s after the release of a later version",
            )

    def test_n1_hands_change_without_a_lost_wake_up(self, trial: Trial) -> None:
        """Claim, and if refused wait and claim again: whenever the release comes, the next claim follows soon."""
        standing = trial.hold(trial.key())
        for _ in range(HANDS):
            next_one = Next(trial.other, standing.key, trial.harness.soon_s)
            next_one.refused.wait(trial.harness.soon_s)
            free = trial.free(standing)

            came = next_one.result()

            lost = "its wake-up was lost, or came before the release"
            wrong = f"the key was released, and the waiter did not get it within {trial.harness.soon_s:g} s: {lost}"
            if not isinstance(came, LockRecord):
                trial.fail(wrong, came=came)
            trial.require(came.fencing_token > free.fencing_token, "a waiter was granted an old token", came=came)
            standing = came

    def test_n1_many_wait_at_once_and_hold_up_nothing(self, trial: Trial) -> None:
        """More than a pool has, on one store: it goes on renewing, and whoever came last is heard as well."""
        mine, records = trial.hold(trial.key()), [trial.hold(trial.key()) for _ in range(MANY)]
        with ExitStack() as all_of_them:
            waiters = [all_of_them.enter_context(waiting(trial, each, store=trial.other)) for each in records]
            for waiter in waiters:
                waiter.began.wait()
            waiters[-1].settle()

            request = Replace(next_version(mine), mine.version)
            within_s = 2 * trial.harness.soon_s  # half as long as they wait
            came = trial.tried(lambda: trial.other.replace(request, timeout_s=within_s))
            trial.granted(came, f"a renewal beside {MANY} waits")
            for record, waiter in reversed(list(zip(records, waiters, strict=True))):
                trial.free(record)
                wrong = f"{MANY} waited at once, and one had not returned {trial.harness.soon_s:g} s after its release"
                trial.require(waiter.ended(), wrong)

    def test_n2_a_wait_ends_at_its_time_out(self, trial: Trial) -> None:
        """Nobody releases, and the wait returns all the same, without an error."""
        record = trial.hold(trial.key())

        def took(timeout_s: float) -> float:
            began = time.monotonic()
            with waiting(trial, record, timeout_s=timeout_s) as waiter:
                ended = waiter.ended(timeout_s + 2 * SLACK_S)
                ended_at = time.monotonic()
                if not ended:
                    trial.free(record)
            trial.require(ended, f"a wait with timeout_s={timeout_s} did not end")
            # In so short a time a busy server may not have answered once, and then the store may say so.
            brief = timeout_s < BRIEF_S and isinstance(waiter.error, StoreUnavailableError)
            trial.require(
                waiter.error is None or brief, "a wait that timed out must return, not raise", came=waiter.error
            )
            return ended_at - began

        for timeout_s in (LEAST_S, 0.001, 0.05, 0.2):
            trial.in_time(f"a wait with timeout_s={timeout_s}", timeout_s, partial(took, timeout_s))

    def test_n2_a_claim_needs_no_notification(self, trial: Trial) -> None:
        """Whoever just polls gets the key as well, also past somebody who waits, and where the lock was broken."""
        for verb in ("release", "replace"):
            record = trial.hold(trial.key())
            with waiting(trial, record) as waiter:
                waiter.began.wait()
                FREES[verb](trial, record)
                waiter.ended()

                claimed_soon(trial, record.key, f"a waiter was woken by a {verb}, and never claimed")

    def test_n3_a_release_wakes_one_of_many(self, trial: Trial) -> None:
        """A herd of claims would follow a release that wakes all; one that wakes none leaves the key unused."""
        for times in SETTLES:
            if woken_by_a_release(trial, times * trial.settles_s) < WAITERS:
                return
            # On a busy machine some may have begun to wait after the release, and all returned rightly.
        trial.fail(f"one release woke all {WAITERS} waiters; it must wake one")

    def test_n3_each_waiter_has_its_turn(self, trial: Trial) -> None:
        """Many wait at once, and each release is followed by the claim of another of them: nobody is forgotten for those behind."""
        standing = trial.hold(trial.key())
        came: queue.Queue[object] = queue.Queue()
        waiters = [Next(trial.other, standing.key, trial.harness.soon_s, came) for _ in range(IN_TURN)]
        for each in waiters:
            each.refused.wait(trial.harness.soon_s)
        threading.Event().wait(trial.settles_s)  # let them come as far as to wait: there is no sign of it
        for place in range(len(waiters)):
            trial.free(standing)

            got = waiters[0].result()

            wrong = f"{IN_TURN} waited for a key, and nobody of them got it within {trial.harness.soon_s:g} s after release {place + 1}"
            if not isinstance(got, LockRecord):
                trial.fail(wrong, came=got)
            standing = got

    def test_n3_a_waiter_that_has_left_takes_no_wake_up_with_it(self, trial: Trial) -> None:
        """The first in the queue gave up before the release; the wake-up belongs to the next."""
        record = trial.hold(trial.key())
        with waiting(trial, record, store=trial.store, timeout_s=0.2) as left:
            left.settle()
            with waiting(trial, record, store=trial.store) as waiter:
                waiter.began.wait()
                left.ended()

                trial.free(record)

                trial.require(
                    waiter.ended(), "a waiter had left before the release, and its wake-up reached nobody else"
                )
        claimed_soon(trial, record.key, "of two waiters one had left and the other was woken")

    @needs("async")
    def test_n3_a_cancelled_waiter_passes_its_wake_up_on(self, trial: Trial) -> None:
        """It was woken and cancelled in the same instant: the next one is woken instead."""
        for _ in range(5):
            record = trial.hold(trial.key())

            cancelled, passed = trial.store.loop.run(cancel_the_woken(trial.store.raw, record, trial.harness.soon_s))

            what = "the first of two waiters was cancelled as the release woke it"
            trial.require(
                cancelled,
                f"{what}: its wait must end with CancelledError; it returned as if nothing had been (asyncio.wait_for does so)",
            )
            trial.require(passed, f"{what}; the other was not woken within {trial.harness.soon_s:g} s")

    @pytest.mark.parametrize("verb", ["replace", "replace_many"])
    def test_n4_a_renewal_says_that_somebody_waits_and_only_then(self, trial: Trial, verb: str) -> None:
        """Not before anybody has waited, for this key and no other, and not once they have left."""
        other, record = trial.hold(trial.key()), trial.hold(trial.key())
        until = time.monotonic() + trial.harness.soon_s
        said, timeout_s = False, 0.15
        while not said:
            record = not_wanted(trial, verb, record, "nobody waits")
            # A renewal may wake who waits: each try has a waiter of its own.
            with waiting(trial, record, timeout_s=timeout_s) as waiter:
                waiter.settle()
                other = not_wanted(trial, verb, other, "somebody waits for another key")
                reply = renewed_by(trial, verb, record)
                record, said = trial.granted(reply, f"a {verb} while somebody waits"), reply.wanted
            trial.require(waiter.ended(), "a wait did not end at its time-out")
            if not trial.harness.tells_wanted or time.monotonic() > until:
                break
            timeout_s *= 2  # a slow server has not asked before the waiter leaves
        not_wanted(trial, verb, record, "the only waiter has left")

        trial.require(said or not trial.harness.tells_wanted, f"somebody waits, and no answer to a {verb} said so")


def renewed_by(trial: Trial, verb: str, record: LockRecord) -> Reply:
    """Return the answer to a renewal of *record* by *verb*."""
    request = Replace(next_version(record), record.version)
    if verb == "replace":
        return trial.store.replace(request)
    (result,) = trial.store.replace_many([request])
    if not isinstance(result, Reply):
        trial.fail("a renewal in a batch failed", came=result)
    return result


def not_wanted(trial: Trial, verb: str, record: LockRecord, story: str) -> LockRecord:
    """Renew *record*, and fail if the answer says that somebody waits for it."""
    reply = renewed_by(trial, verb, record)
    trial.require(not reply.wanted, f"{story}, and the answer to a {verb} says that the key is wanted", came=reply)
    return trial.granted(reply, f"a {verb} while {story}")


async def cancel_the_woken(store: Any, record: LockRecord, soon_s: float) -> tuple[bool, bool]:
    """Cancel the first of two waiters right after the release; say whether it ended cancelled, and the second was woken."""
    waiters = [
        asyncio.create_task(store.wait(record, ticket=f"ticket {place}", timeout_s=4 * soon_s)) for place in range(2)
    ]
    await asyncio.sleep(0.05)  # both are waiting now; there is no sign of it
    await store.release(Release(tombstone(record), record.version), timeout_s=5.0)
    had_returned = waiters[0].done()
    waiters[0].cancel()
    # One that had returned has used its wake-up.
    done, _ = await asyncio.wait(waiters, timeout=0 if had_returned else soon_s)
    waiters[1].cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    return waiters[0].cancelled() or had_returned, waiters[1] in done or had_returned


def claimed_soon(trial: Trial, key: str, story: str) -> None:
    """Fail unless a claim by somebody who never waited is applied soon: nobody else claims."""
    until = time.monotonic() + trial.harness.soon_s
    reply = trial.store.claim(Claim(held(key), Expect.ANY))
    while not reply.applied and time.monotonic() < until:
        reply = trial.store.claim(Claim(held(key), Expect.ANY))
    wrong = f"{story}; a claim that never waited was refused for {trial.harness.soon_s:g} s after the release"
    trial.require(reply.applied, wrong, came=reply)


def woken_by_a_release(trial: Trial, settle_s: float) -> int:
    """Return how many of many waiters return soon after a release; fail if none does, or one never ends."""
    record = trial.hold(trial.key())
    ends: queue.Queue[object] = queue.Queue()
    long_s = trial.harness.soon_s + 1.0
    waiters = [waiting(trial, record, store=trial.store, timeout_s=long_s, ends=ends) for _ in range(WAITERS)]
    for waiter in waiters:
        waiter.began.wait()
    waiters[-1].settle(settle_s)

    trial.free(record)
    woken = ended_of(ends, trial.harness.soon_s)
    for _ in waiters[woken:]:  # end the others sooner, unless the store keeps the key for the one that was woken
        if (reply := trial.store.claim(Claim(held(record.key), Expect.ANY))).applied and reply.record is not None:
            trial.free(reply.record)

    left = [waiter for waiter in waiters if not waiter.ended(2 * long_s)]
    trial.require(woken >= 1, f"none of {WAITERS} waiters had returned {trial.harness.soon_s:g} s after the release")
    trial.require(not left, f"{len(left)} waits did not end at all")
    return woken


class waiting:  # noqa: N801  # read as a verb: with waiting(…)
    """A ``wait`` in a thread of its own; leaving the block waits for its end."""

    def __init__(
        self,
        trial: Trial,
        record: LockRecord,
        *,
        store: Subject | None = None,
        timeout_s: float | None = None,
        ticket: str | None = None,
        ends: queue.Queue[object] | None = None,
    ) -> None:
        self.began = threading.Event()
        self.error: BaseException | None = None
        self._store = store or trial.other
        self._soon_s, self._settles_s = trial.harness.soon_s, trial.settles_s
        # One that was woken has returned long before.
        self._timeout_s = 4 * self._soon_s if timeout_s is None else timeout_s
        self._record, self._ends, self._ticket = record, ends, ticket or fresh()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def settle(self, seconds: float | None = None) -> None:
        """Let it, and those who began before it, come as far as to wait."""
        self.began.wait()
        self._ended.wait(self._settles_s if seconds is None else seconds)

    def ended(self, within_s: float | None = None) -> bool:
        """Whether it has returned, or does soon."""
        return self._ended.wait(self._soon_s if within_s is None else within_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(5 * self._soon_s)

    def _run(self) -> None:
        try:
            self.began.set()
            self._store.wait(self._record, ticket=self._ticket, timeout_s=self._timeout_s)
        except (StoreError, AssertionError) as error:
            self.error = error
        self._ended.set()
        if self._ends is not None:
            self._ends.put(self)


class Next:
    """Who wants the key next: claims, and while refused waits, in a thread of its own."""

    def __init__(self, store: Subject, key: str, soon_s: float, came: queue.Queue[object] | None = None) -> None:
        self.refused = threading.Event()
        self._store, self._key, self._soon_s, self._ticket = store, key, soon_s, fresh()
        self._came: queue.Queue[object] = queue.Queue() if came is None else came
        threading.Thread(target=self._run, daemon=True).start()

    def result(self) -> object:
        """Return the record that it was granted, the error that it met, or None if neither came soon."""
        try:
            return self._came.get(timeout=self._soon_s)
        except queue.Empty:
            return None

    def _run(self) -> None:
        until = time.monotonic() + 5 * self._soon_s
        try:
            while time.monotonic() < until:
                reply = self._store.claim(Claim(held(self._key), Expect.ANY, ticket=self._ticket))
                if reply.applied:
                    self._came.put(reply.record)
                    return
                self.refused.set()
                if reply.record is not None:
                    self._store.wait(reply.record, ticket=self._ticket, timeout_s=4 * self._soon_s)
        except (StoreError, AssertionError) as error:
            self._came.put(error)


def ended_of(ends: queue.Queue[object], within_s: float) -> int:
    """Return how many waiters end within *within_s*, or at once after the first."""
    count, until = 0, time.monotonic() + within_s
    try:
        while True:
            ends.get(timeout=max(0.0, until - time.monotonic()))
            count, until = count + 1, min(until, time.monotonic() + 0.3)
    except queue.Empty:
        return count
