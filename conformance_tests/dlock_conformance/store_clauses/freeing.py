"""N1, N3, N4, W1 and W2: each way to free a key serves who waits for it, the first first, and nobody who waits for another."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version
from dlock_conformance.store_clauses.claim_waiting import BRIEF_S, Waiter, asked
from dlock_conformance.store_clauses.claim_waiting import waiting as waiting_claim
from dlock_conformance.store_clauses.claiming import NEW, OLD
from dlock_conformance.store_clauses.forms import changes, looks, making_room, replaces_by
from dlock_conformance.store_clauses.pruning import OLD_MS, grow_old
from dlock_conformance.store_clauses.reading import PAIRS, alike
from dlock_conformance.store_clauses.sessions import KEPT_BY, SESSIONS
from dlock_conformance.store_clauses.waking import waiting
from dlock_conformance.store_clauses.whole import WHOLE
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord, Version
from dlock_core.store import Claim, Expect, Replace, Reply

__all__ = ["FreeingClauses"]

FREES = [form for form, request in changes(held("k"), Version(fresh(), 1)).items() if not request.record.held]
# A count of waiters that goes down with each of them would be at its end.
RENEWALS = 3
SHARED = SESSIONS["shared by sessions of readers"]
# The forms of a replace that wakes.
ROOM: dict[str, dict[str, Any]] = {
    "a replace that wakes": {},
    "a replace that wakes, and keeps the payload,": {"keep": True},
    "a replace that wakes, and raises the token,": {"raised": 1},
}
ALIKE = {
    "in case": PAIRS["upper and lower case"],
    "in a space at the end": ("spaced", "spaced "),
    "in the last of 1024 bytes": PAIRS["the last byte of 1024"],
    "after 63 characters": ("k" * 60 + "1", "k" * 60 + "2"),
}


def free(trial: Trial, record: LockRecord, form: str) -> LockRecord:
    """Free the key of *record*, which stands, by a change in this *form*."""
    return trial.granted(trial.store.send(changes(record, record.version)[form]), form)


def left(trial: Trial, replaces: Callable[[Replace], Reply | StoreError], record: LockRecord, **form: Any) -> None:
    """Have a member leave *record*, which stands."""
    trial.granted(replaces(making_room(record, **form)), "a replace that wakes")


def leaving_it_held(trial: Trial) -> dict[str, Callable[[LockRecord], LockRecord]]:
    """Return calls after which the key is held as before, by what they are; each returns the record that stands."""

    def looking(look: Callable[[LockRecord], object], record: LockRecord) -> LockRecord:
        look(record)
        return record

    def renewing(
        ask: Callable[[Replace], Reply | StoreError], fields: dict[str, Any], raised: int, record: LockRecord
    ) -> LockRecord:
        for _ in range(RENEWALS):
            new = next_version(record, fencing_token=record.fencing_token + raised, **fields)
            record = trial.granted(ask(Replace(new, record.version)), "a renewal")
        return record

    calls: dict[str, Callable[[LockRecord], LockRecord]] = {
        what: partial(looking, look) for what, look in looks(trial).items()
    }
    for (how, ask), (what, fields) in itertools.product(replaces_by(trial).items(), KEPT_BY.items()):
        calls[f"renewals{how}{what}"] = partial(renewing, ask, fields, 0)
        calls[f"a takeover{how}{what}"] = partial(renewing, ask, fields, 1)
    return calls


def pruned(trial: Trial, record: LockRecord) -> None:
    """Release *record*, and remove it."""
    left = trial.free(record)
    grow_old()
    trial.store.prune([left], older_than_ms=OLD_MS)


def all_settled(waiters: list[waiting]) -> None:
    """Let all of *waiters* come as far as to wait."""
    for each in waiters:
        each.began.wait()
    waiters[-1].settle()


class FreeingClauses:
    """Clauses of those who wait, for each way to free a key."""

    @needs("notify")
    def test_n1_each_way_to_free_a_key_wakes(self, trial: Trial) -> None:
        """It was waiting by then, and was told of another connection's write."""
        with ExitStack() as stack:
            waiters = []
            for form, (what, fields) in itertools.product(FREES, KEPT_BY.items()):
                record = trial.hold(trial.key(), **fields)
                waiters.append((form, what, record, stack.enter_context(waiting(trial, record))))
            all_settled([waiter for *_, waiter in waiters])
            for form, _, record, _ in waiters:
                free(trial, record, form)
            for form, what, _, waiter in waiters:
                trial.require(waiter.ended(), f"a wait had not returned {trial.harness.soon_s:g} s after {form}{what}")

    @needs("notify")
    def test_n1_nothing_but_a_release_takes_a_waiter_from_its_place(self, trial: Trial) -> None:
        """Looks, refusals and renewals: the release after each of them wakes who had begun to wait before it."""
        with ExitStack() as stack:
            waiters = []
            for what, call in leaving_it_held(trial).items():
                record = trial.hold(trial.key())
                waiters.append((what, call, record, stack.enter_context(waiting(trial, record))))
            all_settled([waiter for *_, waiter in waiters])
            for _, call, record, _ in waiters:
                trial.free(call(record))
            for what, *_, waiter in waiters:
                wrong = f"a wait had not returned {trial.harness.soon_s:g} s after a release that followed {what}"
                trial.require(waiter.ended(), wrong)

    @needs("claim_wait")
    @pytest.mark.parametrize("keep", [False, True])
    def test_w1_what_was_waited_for_is_granted_as_any_claim(self, trial: Trial, keep: bool) -> None:  # a parameter
        """Its least token, its payload and all that it brings: what it asked for when it came is not forgotten while it waits."""
        waits = []
        for (what, fields), least in itertools.product(WHOLE.items(), (1, 500)):
            record = trial.hold(trial.key(), **OLD)
            request = Claim(
                held(record.key, token=least, **NEW, **fields), Expect.ANY, keep_payload=keep, ticket=fresh()
            )
            waits.append((what, record, Waiter(trial, request)))
        waits[-1][2].settle()  # the others have begun before it
        for what, record, waiter in waits:
            left, asked = trial.free(record, keep=True), waiter.request.record
            came = waiter.result()
            if not isinstance(came, Reply):
                trial.fail(f"a claim with {what} waited, and a release did not serve it soon", came=came)
            granted = trial.granted(came, f"a claim with {what} that waited")
            least = max(left.fencing_token + 1, asked.fencing_token)
            good = granted.fencing_token == least or (trial.harness.token_floor and granted.fencing_token > least)
            trial.require(good, f"a claim that waited must be given token {least}, as any claim", came=granted)
            right = replace(asked, fencing_token=granted.fencing_token, **(OLD if keep else {}))
            trial.exactly(right, granted, f"a claim with {what} that waited was granted with another record")
            trial.exactly(right, trial.store.read(right.key), f"a claim with {what} that waited wrote another record")

    @needs("claim_wait")
    def test_w1_nothing_but_a_release_takes_a_waiter_from_its_place(self, trial: Trial) -> None:
        """As for who waits by ``wait``."""
        waits = []
        for what, call in leaving_it_held(trial).items():
            record = trial.hold(trial.key())
            waits.append((what, call, record, Waiter(trial, waiting_claim(record.key))))
        waits[-1][3].settle()  # the others have begun before it
        for _, call, record, _ in waits:
            trial.free(call(record))
        for what, *_, waiter in waits:
            came = waiter.result()
            wrong = f"a claim waited, and a release that followed {what} did not serve it soon"
            trial.require(isinstance(came, Reply) and came.applied, wrong, came=came)

    @needs("notify")
    @pytest.mark.parametrize("form", FREES)
    def test_n1_what_has_freed_the_key_before_the_wait_is_seen(self, trial: Trial, form: str) -> None:
        """A key may be freed between the refusal of a claim and the wait."""
        self._returns_at_once(trial, lambda record: free(trial, record, form), form)

    @needs("notify")
    def test_n1_a_member_that_leaves_wakes(self, trial: Trial) -> None:
        """There is room in the shared lock; it is held still. A replace may ask for that whatever it writes, or keeps."""
        with ExitStack() as stack:
            waiters = []
            for (how, replaces), (what, form) in itertools.product(replaces_by(trial).items(), ROOM.items()):
                record = trial.hold(trial.key(), **({} if "keep" in form else SHARED))
                waiters.append((f"{what}{how}", replaces, form, record, stack.enter_context(waiting(trial, record))))
            all_settled([waiter for *_, waiter in waiters])
            for what, replaces, form, record, waiter in waiters:
                left(trial, replaces, record, **form)
                wrong = f"a wait had not returned {trial.harness.soon_s:g} s after {what}"
                trial.require(waiter.ended(), wrong)

    @needs("notify")
    def test_n1_a_member_that_left_before_the_wait_is_seen(self, trial: Trial) -> None:
        """Between the look at the record and the wait there may be room."""
        for how, replaces in replaces_by(trial).items():
            self._returns_at_once(trial, partial(left, trial, replaces), f"a member had left{how}", **SHARED)

    @needs("notify", "prune")
    def test_n1_a_wait_for_what_was_pruned_returns_at_once(self, trial: Trial) -> None:
        """Nobody will release it."""
        self._returns_at_once(trial, lambda record: pruned(trial, record), "it was pruned")

    @needs("notify")
    def test_n3_who_waits_for_a_key_that_is_alike_takes_no_wake_up(self, trial: Trial) -> None:
        """A release wakes who waits for its own key, though somebody has waited longer for another."""
        prefix = alike(trial)
        with ExitStack() as stack:
            pairs = {how: [trial.hold(f"{prefix}{end}") for end in ends] for how, ends in ALIKE.items()}
            timeout_s = 3 * trial.harness.soon_s
            others = [
                stack.enter_context(waiting(trial, first, store=trial.store, timeout_s=timeout_s))
                for first, _ in pairs.values()
            ]
            all_settled(others)
            waiters = {how: stack.enter_context(waiting(trial, second)) for how, (_, second) in pairs.items()}
            all_settled(list(waiters.values()))
            for how, (first, second) in pairs.items():
                trial.free(second)
                wrong = f"a release woke nobody; who waits for a key that differs {how} was asked"
                trial.require(waiters[how].ended(), wrong)
                trial.free(first)

    @needs("notify", "batch_renew")
    def test_n4_wanted_is_said_of_its_own_key_alone(self, trial: Trial) -> None:
        """In a batch, too."""
        wanted, other = trial.hold(trial.key()), trial.hold(trial.key())
        with waiting(trial, wanted, timeout_s=0.25) as waiter:
            waiter.settle()
            [came, _] = trial.store.replace_many(
                [Replace(next_version(each), each.version) for each in (other, wanted)]
            )
        trial.granted(came, "a renewal in a batch")
        trial.require(
            isinstance(came, Reply) and not came.wanted, "somebody waits for another key of the batch", came=came
        )

    @needs("claim_wait")
    def test_w1_each_way_to_free_a_key_serves(self, trial: Trial) -> None:
        """A break, and a release that hides, as much as a release."""
        waits = []
        for form, (what, fields) in itertools.product(FREES, KEPT_BY.items()):
            record = trial.hold(trial.key(), **fields)
            waits.append((form, what, record, Waiter(trial, waiting_claim(record.key))))
        waits[-1][3].settle()  # the others have begun before it

        for form, what, record, waiter in waits:
            left = free(trial, record, form)

            came = waiter.result()
            if not isinstance(came, Reply):
                trial.fail(f"a claim waited, and {form}{what} did not serve it soon", came=came)
            granted = trial.granted(came, "a claim that waited")
            trial.require(
                granted.fencing_token > left.fencing_token, "a claim that waited got an old token", came=granted
            )

    @needs("claim_wait")
    def test_w1_what_was_refused_is_not_applied_later(self, trial: Trial) -> None:
        """Its wait is over, and its caller gone: the release leaves the key free for who comes next."""
        record = trial.hold(trial.key())
        trial.refused(asked(trial.store, waiting_claim(record.key), BRIEF_S), "a claim whose wait is over", record)

        left = trial.free(record)
        time.sleep(BRIEF_S)  # what is applied late has no sign of it

        trial.exactly(left, trial.store.read(record.key), "a claim that had been refused was applied later")

    @needs("claim_wait", "notify")
    def test_w2_a_claim_whose_wait_is_over_keeps_no_place(self, trial: Trial) -> None:
        """The release serves who waits still."""
        record = trial.hold(trial.key())
        trial.refused(asked(trial.store, waiting_claim(record.key), BRIEF_S), "a claim whose wait is over", record)
        with waiting(trial, record) as waiter:
            waiter.settle()
            trial.free(record)
            trial.require(waiter.ended(), "a claim whose wait was over kept its place: the release served nobody else")

    @needs("claim_wait", "notify")
    def test_w2_waits_and_claims_that_wait_stand_in_one_line(self, trial: Trial) -> None:
        """Who came first is served first, whichever of the two it does."""
        record = trial.hold(trial.key())
        with waiting(trial, record) as first:
            first.settle()
            second = Waiter(trial, waiting_claim(record.key))
            second.settle()

            trial.free(record)

            woken = first.ended()
            reply = trial.store.claim(Claim(held(record.key), Expect.ANY))
            if reply.applied and reply.record is not None:
                trial.free(reply.record)  # so that the second has its turn, too
            second.result()
            trial.require(woken, "a claim that waited was served before somebody who had waited longer")

    def _returns_at_once(self, trial: Trial, frees: Callable[[LockRecord], object], how: str, **fields: Any) -> None:
        record = trial.hold(trial.key(), **fields)
        frees(record)
        with waiting(trial, record) as waiter:
            trial.require(
                waiter.ended(), f"a wait that began after {how} had not returned {trial.harness.soon_s:g} s later"
            )
