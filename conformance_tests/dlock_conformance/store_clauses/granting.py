"""S2 to S4, S18 and P2 in each form of a claim: what it is granted, by its own version, above every floor, with the payload or without."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import LAPSED_MS, fresh, held, numeric
from dlock_conformance.store_clauses.changing import WRONG_VERSIONS
from dlock_conformance.store_clauses.claiming import GREAT_TOKEN, NEW, NONE, OLD, OTHER_FIELDS
from dlock_conformance.store_clauses.forms import changes, claims, claims_of_held, granted_in_each_form, replaces_by
from dlock_conformance.store_clauses.pruning import OLD_MS, grow_old
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreUnavailableError
from dlock_core.record import TOKEN_MAX, LockRecord, State, Times, Version
from dlock_core.store import Claim, Expect, Replace

__all__ = ["GrantingClauses"]

STATES = {"absent": None, "free": State.FREE, "gone": State.GONE}
PARTS: dict[str, dict[str, Any]] = {
    "without a payload": NONE,
    "without data": {**OLD, "data": None},
    "without attributes": {**OLD, "attributes": ()},
    "with empty data": {"data": b"", "attributes": ()},
}
HIGH = 900
GRACE_S, LAPSES_S = 0.5, 0.1


class GrantingClauses:
    """Clauses of the grant of a claim, whatever form it has."""

    @pytest.mark.parametrize("wrong", WRONG_VERSIONS)
    def test_s2_a_claim_compares_the_version_exactly(self, trial: Trial, wrong: str) -> None:
        """RVN and token of a tombstone, as a replace compares those of a held record; also a claim that waits."""
        ways: dict[str, Callable[[Claim], Any]] = {"a claim": trial.store.claim}
        if trial.harness.gives("claim_wait"):
            ways["a claim that waits"] = lambda request: trial.store.claim_when_free(request, wait_s=0.01)
        for way, ask in ways.items():
            free = trial.free(trial.hold(trial.key(), token=GREAT_TOKEN), rvn=numeric())
            expected = WRONG_VERSIONS[wrong](free.version)

            reply = ask(Claim(held(free.key), expected, ticket=fresh()))

            trial.refused(reply, f"{way} that expects {wrong.replace('_', ' ')}", free)

    def test_s2_who_holds_the_key_is_refused_as_anybody(self, trial: Trial) -> None:
        """No lock is re-entrant, not for the same owner in the same process either: two of its tasks exclude each other."""
        fields = {name: OTHER_FIELDS[name] for name in ("owner", "process", "stamp")}
        first = Claim(held(trial.key(), **fields), Expect.ANY, ticket=fresh())
        record = trial.granted(trial.store.claim(first), "a claim of an absent key")

        again = first._replace(record=replace(first.record, rvn=fresh()))
        for form, ask in claims_of_held(trial, record.key, again).items():
            trial.refused(ask(), f"{form} by the owner and the process that hold the key", record)

    def test_s2_a_lapsed_lease_is_still_held(self, trial: Trial) -> None:
        """The store reads no clock: whose lease has ended is decided by who waits, and told by a replace."""
        record = trial.hold(trial.key(), lease_ms=1)

        trial.renew(record, lease_ms=1)
        standing = trial.store.read(record.key)
        time.sleep(GRACE_S)  # a store that reads a clock may give a holder some more time

        for expect in (Expect.ANY, Expect.ABSENT):
            reply = trial.other.claim(Claim(held(record.key), expect))
            trial.refused(reply, "a claim of a record that is held, with a lease of 1 ms,", standing)
        for form, ask in claims_of_held(trial, record.key).items():
            trial.refused(ask(), f"{form} of a record that is held, with a lease of 1 ms,", standing)

    def test_s5_a_lapsed_lease_is_renewed_taken_over_and_released(self, trial: Trial) -> None:
        """By its version alone: a store that reads a clock would leave it to nobody."""
        ways: dict[str, Callable[[Any], Any]] = {"": trial.store.send}
        ways |= {way: ask for way, ask in replaces_by(trial).items() if way}
        forms = [
            (form, way)
            for way in ways
            for form, request in changes(held("k"), Version(fresh(), 1)).items()
            if not way or isinstance(request, Replace)
        ]
        records = [trial.hold(trial.key(), lease_ms=LAPSED_MS) for _ in forms]
        time.sleep(LAPSES_S)

        for (form, way), record in zip(forms, records, strict=True):
            came = ways[way](changes(record, record.version)[form])
            trial.granted(came, f"{form}{way}, of a record whose lease of {LAPSED_MS} ms was over,")

    @pytest.mark.parametrize("least", [1, 3, 500])
    @pytest.mark.parametrize("standing", STATES)
    def test_s3_each_form_of_a_claim_counts(self, trial: Trial, standing: str, least: int) -> None:
        """One more than the token that stood there, and never less than the claim asks for; also where its own last holder comes again."""
        left = {name: OTHER_FIELDS[name] for name in ("owner", "process", "stamp")}
        for form, old, _, came in granted_in_each_form(trial, STATES[standing], left, token=least, **left):
            right = max(least, 1 if old is None else old.fencing_token + 1)
            good = came.fencing_token == right or (trial.harness.token_floor and came.fencing_token > right)
            wrong = f"{form} of a key that is {standing} must be given token {right}, unless the harness declares token_floor"
            trial.require(good, wrong, came=came)

    @pytest.mark.parametrize("standing", ["free", "gone"])
    def test_s4_each_form_of_a_claim_keeps_the_payload_and_nothing_else(self, trial: Trial, standing: str) -> None:
        """What the tombstone told of its holder and its end is not of the next."""
        before = {"stamp": OTHER_FIELDS["stamp"], "broken": OTHER_FIELDS["broken"], "times": Times(1, 2), "owner": "x"}
        for form, old, request, came in granted_in_each_form(trial, STATES[standing], before):
            keeps = request.keep_payload and old is not None and old.state is State.FREE
            kept: dict[str, Any] = {"data": old.data, "attributes": old.attributes} if keeps and old else {}
            right = replace(request.record, fencing_token=came.fencing_token, **kept)
            trial.exactly(right, came, f"{form} of a key that is {standing} was granted with another record")
            trial.exactly(right, trial.store.read(came.key), f"{form} of a key that is {standing} wrote another record")

    @pytest.mark.parametrize("part", PARTS)
    def test_s4_what_is_kept_is_kept_though_a_part_of_it_is_nothing(self, trial: Trial, part: str) -> None:
        """That there are no data, or no attributes, stays as it is: what the request brings is not put in their place."""
        stood = PARTS[part]
        for form, old, request, came in granted_in_each_form(trial, State.FREE, {}, stood, **NEW):
            kept = stood if request.keep_payload and old else {}
            right = replace(request.record, fencing_token=came.fencing_token, **kept)
            trial.exactly(right, came, f"{form}, of a record {part}, was granted with another record")
            trial.exactly(right, trial.store.read(came.key), f"{form}, of a record {part}, wrote another record")
        ways: dict[str, Callable[[Any], Any]] = {**replaces_by(trial), "": trial.store.send}
        for form in changes(held("k"), Version(fresh(), 1)):
            for way, ask in ways.items():
                record = trial.hold(trial.key(), **stood)
                change = changes(record, record.version)[form]
                right = replace(change.record, **stood)
                if change.keep_payload and (not way or isinstance(change, Replace)) and trial.carries(right):
                    came = trial.granted(ask(change._replace(record=replace(change.record, **NEW))), form + way)
                    right = trial.as_given(change._replace(record=right), came)
                    trial.exactly(
                        right, trial.store.read(record.key), f"{form}{way}, of a record {part}, wrote another"
                    )

    def test_s18_no_form_of_a_claim_passes_the_last_token(self, trial: Trial) -> None:
        """It is certainly not applied, which the error says (S3), and changes nothing."""
        record = held("k")
        free = trial.free(trial.hold(trial.key(), token=TOKEN_MAX))
        for form in claims(trial, free, record):
            free = trial.free(trial.hold(trial.key(), token=TOKEN_MAX))
            request, ask = claims(trial, free, held(free.key))[form]

            came = trial.tried(partial(ask, request))

            wrong = f"{form} after the last token must raise StoreUnavailableError"
            trial.require(isinstance(came, StoreUnavailableError), wrong, came=came)
            trial.exactly(free, trial.store.read(free.key), f"{form} after the last token changed the record")

    @needs("atomic_multi")
    def test_s18_one_key_at_its_last_token_fails_all_of_several(self, trial: Trial) -> None:
        """Nothing is made under the others."""
        free, other = trial.free(trial.hold(trial.key(), token=TOKEN_MAX)), trial.key()

        came = trial.tried(lambda: trial.store.claim_many([Claim(held(key), Expect.ANY) for key in (other, free.key)]))

        wrong = "several claims, one of a key that has had its last token, must raise StoreUnavailableError"
        trial.require(isinstance(came, StoreUnavailableError), wrong, came=came)
        trial.require(trial.store.read(other) is None, "several claims that failed have made a record")

    @needs("prune")
    @pytest.mark.parametrize(("state", "least"), [(State.FREE, 1), (State.GONE, 3)])
    def test_p2_each_form_of_a_claim_is_above_the_floor(self, trial: Trial, state: State, least: int) -> None:
        """Whatever it asks for, of whichever key of the page, and wherever on the page the greatest token was."""
        forms = list(claims(trial, None, held("k")))
        for form in forms:  # what it knows of the floor from now on is old
            request, ask = claims(trial, None, held(trial.key()))[form]
            trial.granted(ask(request), form)
        for form, first in zip(forms, pruned(trial, len(forms), state), strict=True):
            request, ask = claims(trial, None, held(first.key, token=least))[form]
            came = trial.granted(ask(request), form)
            trial.require(
                came.fencing_token > HIGH, f"{form} of a key that was pruned was given an old token", came=came
            )

    @needs("prune", "restart")
    def test_p2_the_floor_survives_a_restart(self, trial: Trial) -> None:
        """As the records do that it stands for."""
        [first] = pruned(trial, 1)

        trial.hook("restart")()

        store = trial.open()
        trial.require(store.read(first.key) is None, "after a restart a record that was pruned is there again")
        came = trial.hold(first.key, store=store)
        trial.require(came.fencing_token > HIGH, "after a restart a key that was pruned got an old token", came=came)

    @needs("prune")
    def test_p2_the_floor_survives_provisioning(self, trial: Trial) -> None:
        """It may be repeated at any time (S21)."""
        [first] = pruned(trial, 1)

        trial.other.provision()

        came = trial.hold(first.key)
        trial.require(came.fencing_token > HIGH, "after provision() a key that was pruned got an old token", came=came)


def pruned(trial: Trial, count: int, state: State = State.FREE) -> list[LockRecord]:
    """Prune a page of which the last record has a smaller token than the *count* others, which are in *state*; return these."""
    page = [trial.free(trial.hold(trial.key(), token=HIGH), state) for _ in range(count)]
    page.append(trial.free(trial.hold(trial.key(), token=1)))
    grow_old()
    trial.require(trial.store.prune(page, older_than_ms=OLD_MS) == len(page), "prune must remove what is free and old")
    return page[:-1]
