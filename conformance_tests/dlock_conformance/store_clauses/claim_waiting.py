"""W1 to W3: claims that wait in the server, for stores that declare them."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held
from dlock_conformance.store_clauses.claiming import EXPECTS, LARGE, claimed_by_its_condition, kept_whole
from dlock_conformance.store_clauses.reading import ENDS, alike
from dlock_conformance.store_clauses.waking import LEAST_S
from dlock_conformance.subject import Subject
from dlock_conformance.trial import SLACK_S, Trial
from dlock_core.errors import StoreError
from dlock_core.record import State
from dlock_core.store import Claim, ClaimExpect, Expect, Reply, is_withdrawn

__all__ = ["ClaimWaitClauses"]

WAITERS = 3
BRIEF_S = 0.1
LONGER_S = 0.4


@needs("claim_wait")
class ClaimWaitClauses:
    """Clauses of ``claim_when_free``."""

    def test_w1_a_free_key_is_claimed_at_once(self, trial: Trial) -> None:
        """Absent or released, there is nothing to wait for, and the record is the one of a claim."""
        key = trial.key()
        for _ in range(2):
            request = waiting(key, data=b"kept")
            began = time.monotonic()

            record = trial.granted(served(trial.store, request, trial.harness.soon_s), "a claim of a free key")

            took = time.monotonic() - began
            trial.require(took < trial.harness.soon_s, f"a claim of a free key took {took:.2f} s")
            trial.exactly(
                replace(request.record, fencing_token=record.fencing_token), record, "the claim wrote another"
            )
            trial.free(record)

    def test_w1_it_is_applied_when_the_key_becomes_free(self, trial: Trial) -> None:
        """It waited when another connection released the key; its token is greater, and its conditions are a claim's."""
        record = trial.hold(trial.key(), data=b"of the holder")
        request = waiting(record.key)._replace(keep_payload=True)
        waiter = Waiter(trial, request)
        waiter.settle()

        # What it saw when it came is not what it is granted by.
        taken = trial.renew(record, fencing_token=record.fencing_token + 3, data=b"of the next holder")
        free = trial.free(taken, keep=True)

        came = waiter.result()
        if not isinstance(came, Reply):
            trial.fail("a claim waited for a key that was released, and was not applied soon", came=came)
        granted = trial.granted(came, "a claim that waited for a key that was released")
        trial.require(granted.fencing_token > free.fencing_token, "a claim that waited was granted an old token")
        trial.require(granted.data == b"of the next holder", "a claim that keeps the payload lost it", came=granted)
        trial.exactly(granted, trial.store.read(record.key), "another record stands than was granted")

    def test_w1_a_held_key_refuses_it_at_the_end_of_the_wait(self, trial: Trial) -> None:
        """Nobody releases: it shows the record that stands, as any claim does, and has changed nothing."""
        record = trial.hold(trial.key())

        def took(wait_s: float = BRIEF_S) -> float:
            began = time.monotonic()
            reply = trial.ended(lambda: asked(trial.store, waiting(record.key), wait_s), BRIEF_S + 4 * SLACK_S)
            ended = time.monotonic()
            trial.refused(reply, "a claim that waited for a key that stayed held", record)
            trial.exactly(record, reply.record, "the refusal shows another record than stands")
            return ended - began

        trial.in_time(f"a claim with wait_s={BRIEF_S} of a key that stays held", BRIEF_S, took)
        took(LEAST_S)

    def test_w1_a_refusal_shows_what_stands_at_the_end_of_the_wait(self, trial: Trial) -> None:
        """Not what stood at its begin: the holder who has renewed meanwhile would look dead."""
        record, came = trial.hold(trial.key()), list[tuple[Reply, float]]()

        def wait() -> None:
            reply = asked(trial.other, waiting(record.key), LONGER_S)
            came.append((reply, time.monotonic()))

        began = time.monotonic()
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        waiter.join(LONGER_S / 4)  # it waits now; there is no sign of it
        newest = trial.renew(trial.renew(record), fencing_token=record.fencing_token + 1)
        renewed = time.monotonic()
        waiter.join()

        reply, ended = came[0]
        trial.refused(reply, "a claim that waited for a held key", newest)
        # It may be refused early, and then before the renewal.
        if renewed < began + LONGER_S / 2 and ended >= began + LONGER_S:
            trial.exactly(newest, reply.record, "a claim that waited was refused with a record that stands no more")

    def test_w1_it_keeps_the_conditions_of_a_claim(self, trial: Trial) -> None:
        """All of S2: what stands against what is expected, and a key that must exist is not made by waiting."""
        wait_s = BRIEF_S / 20
        for condition in itertools.product(("absent", "held", "free", "gone"), EXPECTS, (False, True)):
            claimed_by_its_condition(
                trial,
                lambda request: trial.store.claim_when_free(request._replace(ticket=fresh()), wait_s=wait_s),
                condition,
                "keep_payload" if condition[2] else "",
            )

    @pytest.mark.parametrize("what", ["that it exists", "that it is absent", "an older version"])
    def test_w1_what_a_claim_expects_must_be_so_when_the_wait_is_over(self, trial: Trial, what: str) -> None:
        """The key was held when the claim came; the release leaves another record than it expects, and hides it."""
        older, came = trial.free(trial.hold(trial.key())), list[object]()
        record = trial.hold(older.key)
        expects: dict[str, ClaimExpect] = {"that it is absent": Expect.ABSENT, "an older version": older.version}
        expect = expects.get(what, Expect.ANY)
        request = waiting(record.key)._replace(expect=expect, must_exist=what == "that it exists")
        store = trial.other
        thread = threading.Thread(
            target=lambda: came.append(trial.tried(lambda: asked(store, request, 5 * BRIEF_S))), daemon=True
        )
        thread.start()
        thread.join(trial.settles_s)  # it waits now; there is no sign of it

        gone = trial.free(record, State.GONE)
        thread.join()

        if not isinstance(came[0], Reply):
            trial.fail(f"a claim that expects of its key {what}, and waited in vain, must be refused", came=came[0])
        trial.refused(came[0], f"a claim that waited, expects of its key {what}, and finds another record,", gone)

    def test_w1_a_ticket_that_was_seen_before_is_no_answer(self, trial: Trial) -> None:
        """It names who waits: each claim is granted under its own RVN, with a token of its own."""
        key, ticket = trial.key(), fresh()
        for _ in range(2):
            request = waiting(key)._replace(ticket=ticket)
            record = trial.granted(served(trial.store, request, trial.harness.soon_s), "a claim of a free key")
            trial.require(
                record.rvn == request.record.rvn, "a ticket that was seen before got an old grant", came=record
            )
            trial.free(record)

    def test_w1_a_payload_is_kept_whole(self, trial: Trial) -> None:
        """S4 holds: as for any claim."""
        free = trial.free(trial.hold(trial.key(), **LARGE), keep=True)

        reply = served(trial.store, waiting(free.key)._replace(keep_payload=True), trial.harness.soon_s)

        kept_whole(trial, trial.granted(reply, "a claim of a free key"))

    def test_w1_keys_that_are_alike_are_told_apart(self, trial: Trial) -> None:
        """S12 holds: as for any claim."""
        prefix = alike(trial)
        granted = []
        for end in ENDS:
            reply = served(trial.store, waiting(f"{prefix}{end}"), trial.harness.soon_s)
            granted.append(trial.granted(reply, "a claim of a free key, though one that is alike is held,"))

        for record in granted:
            trial.exactly(record, trial.store.read(record.key), "a claim that waits wrote under another's key")

    @needs("count_requests")
    def test_w1_it_is_one_request(self, trial: Trial) -> None:
        """Of a key that is free, and of one that stays held."""
        record, count = trial.hold(trial.key()), trial.hook("count_requests")
        asked(trial.store, waiting(trial.key()), BRIEF_S)
        for what, key in (("free", trial.key()), ("held", record.key)):
            before = count()
            asked(trial.store, waiting(key), BRIEF_S)
            sent = count() - before
            trial.require(sent == 1, f"a claim that waited for a key that is {what} took {sent} requests")

    def test_w2_the_first_is_served_first_and_each_in_turn(self, trial: Trial) -> None:
        """Three came one after the other; each release serves one of them, in that order."""
        standing = trial.hold(trial.key())
        came: queue.Queue[object] = queue.Queue()
        waiters = []
        for _ in range(WAITERS):
            waiters.append(Waiter(trial, waiting(standing.key), came))
            waiters[-1].settle()
        for number, waiter in enumerate(waiters, 1):
            trial.free(standing)

            reply = waiters[0].result()

            wrong = f"{WAITERS} claims waited, and release {number} served none of them soon"
            standing = trial.granted(reply, wrong) if isinstance(reply, Reply) else trial.fail(wrong, came=reply)
            trial.require(
                standing.rvn == waiter.request.record.rvn,
                f"release {number} served another claim than the one that had waited longest",
                came=standing,
            )

    @needs("async")
    def test_w3_a_cancelled_claim_is_not_applied_later(self, trial: Trial) -> None:
        """Its caller is gone, and the store was told so: the release after that frees the key for who comes next."""
        record = trial.hold(trial.key())

        trial.store.loop.run(cancelled(trial, waiting(record.key)))
        trial.free(record)

        reply = served(trial.other, waiting(record.key), trial.harness.soon_s)
        trial.granted(reply, "the first of two claims that waited was cancelled; the claim after it")

    @needs("async")
    @pytest.mark.parametrize("released", ["before", "after"])
    def test_w3_a_claim_that_was_withdrawn_is_not_applied(self, trial: Trial, released: str) -> None:
        """A store may say of a claim that was cancelled that it withdrew it; then it holds nothing, then and later."""
        record = trial.hold(trial.key())
        request = waiting(record.key)
        task = trial.store.loop.run(begun(trial, request))
        if released == "before":
            trial.free(record)
        said = trial.store.loop.run(withdrawn(task, request))
        if released == "after":
            trial.free(record)

        stands = trial.store.read(record.key)
        holds = stands is not None and stands.held and stands.rvn == request.record.rvn
        wrong = "a claim was cancelled and said to be withdrawn, and it was applied"
        trial.require(not (said and holds), wrong, came=stands)

    @needs("async", "hang")
    @pytest.mark.parametrize("standing", ["absent", "held"])
    def test_w3_a_claim_that_may_be_on_its_way_was_not_withdrawn(self, trial: Trial, standing: str) -> None:
        """It was cancelled while the server did not answer, and arrives late: said to be withdrawn, it would hold the key for nobody."""
        store = trial.disturbed(Fault.HANG)
        request = waiting(trial.key())
        record = trial.hold(request.record.key) if standing == "held" else None

        with trial.fault(Fault.HANG):
            said = store.loop.run(withdrawn(store.loop.run(begun(trial, request, store)), request))
        if record is not None:
            trial.free(record)

        until = time.monotonic() + trial.harness.soon_s
        while said and time.monotonic() < until:  # whether it arrives shows in the record alone
            stands = trial.store.read(request.record.key)
            wrong = "a claim was cancelled on its way, said to be withdrawn, and applied when it arrived"
            trial.require(stands is None or stands.rvn != request.record.rvn, wrong, came=stands)

    @needs("async")
    def test_w3_a_cancelled_claim_takes_no_turn_with_it(self, trial: Trial) -> None:
        """Of two that wait the first is cancelled; the release after that serves the other."""
        record = trial.hold(trial.key())
        first = trial.store.loop.run(begun(trial, waiting(record.key)))
        waiter = Waiter(trial, waiting(record.key))
        waiter.settle()
        trial.store.loop.run(ended(trial, first))

        trial.free(record)

        came = waiter.result()
        wrong = "two claims waited, the first was cancelled, and the release served the other not soon"
        trial.granted(came, wrong) if isinstance(came, Reply) else trial.fail(wrong, came=came)


def waiting(key: str, **fields: Any) -> Claim:
    """Return a claim that names a ticket, as those that wait do."""
    return Claim(held(key, **fields), Expect.ANY, ticket=fresh())


def asked(store: Subject, request: Claim, wait_s: float) -> Reply:
    """Ask once."""
    return store.claim_when_free(request, wait_s=wait_s)


def served(store: Subject, request: Claim, within_s: float) -> Reply:
    """Ask until it is applied, as it may be refused early, or until *within_s*."""
    until = time.monotonic() + within_s
    reply = asked(store, request, within_s)
    while not reply.applied and (left_s := until - time.monotonic()) > 0:
        reply = asked(store, request, left_s)
    return reply


async def begun(trial: Trial, request: Claim, store: Subject | None = None) -> asyncio.Task[Any]:
    """Begin to wait."""
    raw: Any = (store or trial.store).raw
    task = asyncio.create_task(raw.claim_when_free(request, wait_s=5.0, timeout_s=5.0))
    await asyncio.sleep(trial.settles_s)  # it waits now; there is no sign of it
    return task


async def ended(trial: Trial, task: asyncio.Task[Any]) -> None:
    """Cancel, and let the store learn of it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(trial.settles_s)  # it knows now; there is no sign of that


async def withdrawn(task: asyncio.Task[Any], request: Claim) -> bool:
    """Cancel; return whether the store said that it withdrew *request*."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError as interrupt:
        return is_withdrawn(interrupt, request.record.rvn)
    return False


async def cancelled(trial: Trial, request: Claim) -> None:
    """Begin to wait, and be cancelled."""
    await ended(trial, await begun(trial, request))


class Waiter:
    """Who waits for the key inside of the server, in a thread of its own."""

    def __init__(self, trial: Trial, request: Claim, came: queue.Queue[object] | None = None) -> None:
        self.request = request
        self._soon_s, self._settles_s = trial.harness.soon_s, trial.settles_s
        self._came: queue.Queue[object] = queue.Queue() if came is None else came
        self._began, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._run, args=(trial.other,), daemon=True).start()

    def settle(self) -> None:
        """Let it come as far as to wait."""
        self._began.wait()
        self._ended.wait(self._settles_s)

    def result(self) -> object:
        """Return what the next of those who share the queue was answered, or None if nobody was soon."""
        try:
            return self._came.get(timeout=self._soon_s)
        except queue.Empty:
            return None

    def _run(self, store: Subject) -> None:
        self._began.set()
        try:
            self._came.put(served(store, self.request, 4 * self._soon_s))
        except (StoreError, AssertionError) as error:
            self._came.put(error)
        self._ended.set()
