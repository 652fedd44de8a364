"""S19 to S22: what a store declares and promises, provisioning, and closing."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_conformance.harness import Colour
from dlock_conformance.needs import needs, verbs_of
from dlock_conformance.records import held, next_version, tombstone
from dlock_conformance.store_clauses.lasting import left_alone
from dlock_conformance.store_clauses.trouble import VERBS, asking
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import NO_TOKEN
from dlock_core.store import (
    AsyncAtomicMulti,
    AsyncBatchRenew,
    AsyncClaimWait,
    AsyncNotify,
    AsyncPrune,
    AsyncServerClock,
    AtomicMulti,
    BatchRenew,
    Capability,
    Claim,
    ClaimWait,
    Expect,
    Grade,
    Notify,
    Prune,
    ServerClock,
    TokenOrder,
)

__all__ = ["LivingClauses"]

PROTOCOLS: dict[Capability, tuple[Any, Any]] = {
    Capability.BATCH_RENEW: (BatchRenew, AsyncBatchRenew),
    Capability.NOTIFY: (Notify, AsyncNotify),
    Capability.SERVER_CLOCK: (ServerClock, AsyncServerClock),
    Capability.PRUNE: (Prune, AsyncPrune),
    Capability.ATOMIC_MULTI: (AtomicMulti, AsyncAtomicMulti),
    Capability.CLAIM_WAIT: (ClaimWait, AsyncClaimWait),
}


class LivingClauses:
    """Clauses of the life of a key and of a store."""

    def test_s19_the_declared_capabilities_are_those_of_the_harness(self, trial: Trial) -> None:
        """A capability that gets lost would only make its tests be skipped."""
        declared = trial.store.raw.capabilities
        trial.require(
            isinstance(declared, frozenset), f"capabilities must be a frozenset of Capability; it is {declared!r}"
        )
        trial.require(
            all(isinstance(each, Capability) for each in declared),
            f"capabilities holds more than Capability: {declared!r}",
        )

        right, found = sorted(trial.harness.capabilities), sorted(map(str, declared))

        trial.require(found == right, f"the store declares {found}, and the harness {right}")

    @pytest.mark.parametrize("capability", list(Capability))
    def test_s19_what_is_declared_is_there_and_what_is_there_is_declared(
        self, trial: Trial, capability: Capability
    ) -> None:
        """The core looks at ``capabilities`` only."""
        protocol = PROTOCOLS[capability][trial.colour is Colour.ASYNC]

        declared, there = capability in trial.store.raw.capabilities, isinstance(trial.store.raw, protocol)

        names = sorted(name for name in dir(protocol) if not name.startswith("_"))
        wrong = f"{capability} is {'' if declared else 'not '}declared, and {', '.join(names)} {'is' if there else 'is not'} there"
        trial.require(declared == there, wrong)

    def test_s20_the_guarantees_are_complete_and_stable(self, trial: Trial) -> None:
        """Programs read them, so they have their types; two connections to one server say the same, be they for threads or for tasks."""
        told = trial.store.guarantees()

        for name, kind in (
            ("store", str),
            ("version", str),
            ("failover", str),
            ("clock", str),
            ("grade", Grade),
            ("token", TokenOrder),
        ):
            value = getattr(told, name)
            trial.require(
                isinstance(value, kind) and value,
                f"guarantees().{name} must be a {kind.__name__} that says something, not {value!r}",
            )
        for name in ("deletes", "refusal_linearizable", "durable"):
            trial.require(
                isinstance(getattr(told, name), bool),
                f"guarantees().{name} must be a bool, not {getattr(told, name)!r}",
            )
        notes: Any = told.notes
        right = isinstance(notes, tuple) and all(isinstance(note, str) for note in notes)
        trial.require(right, f"guarantees().notes must be a tuple of texts: {notes!r}")
        for name in ("unsafe", "refuses"):
            pairs = getattr(told, name)
            trial.require(pairs_of_text(pairs), f"guarantees().{name} must hold pairs (name, reason): {pairs!r}")
        others = [trial.other]
        if trial.colour is Colour.SYNC and trial.harness.has_async_face:
            others.append(trial.open(colour=Colour.ASYNC))
        for each in others:
            said = each.guarantees()
            trial.require(told == said, f"an {each.colour} object of the store gives different guarantees", came=said)

    def test_s20_what_is_promised_fits_together(self, trial: Trial) -> None:
        """And it is so: no store promises grade A and forgets its records over a restart, or says that it has no tokens and has some."""
        told = trial.store.guarantees()
        record = trial.hold(trial.key())
        free = trial.free(record)

        has_token = record.fencing_token is not NO_TOKEN
        wrong = f"guarantees() says token = {told.token}, and the token of a grant is {record.fencing_token!r}"
        trial.require(has_token == (told.token is not TokenOrder.NONE), wrong)
        wrong = "guarantees() says that the store deletes nothing, and after a release there is no record"
        trial.require(told.deletes or trial.store.read(free.key) is not None, wrong)
        wrong = (
            "grade C says that a failover can grant twice: guarantees().unsafe must have a name for it, to be accepted"
        )
        trial.require(told.grade is not Grade.C or told.unsafe, wrong)
        if told.grade is Grade.A and told.token is TokenOrder.NONE:
            trial.fail("grade A says that the promises hold, and token = none that there is no order of grants")
        if trial.harness.restart is not None and told.grade is Grade.A:
            trial.require(
                told.durable,
                "grade A for a server that can be restarted, and durable is False: a restart forgets who holds what",
            )

    @needs("unprovisioned")
    @pytest.mark.parametrize("verb", [*VERBS, "guarantees"])
    def test_s21_a_verb_makes_nothing_that_is_missing(self, trial: Trial, verb: str) -> None:
        """A lock call that creates tables hides a wrong name for ever. A client asks for guarantees first of all, and so tells at once."""
        opening = trial.hook("unprovisioned")
        came: object = None
        for _ in range(2):
            came = trial.tried(lambda: asked_of_new(trial, opening, verb))

            wrong = f"a {verb} where the table is missing must raise StoreSetupError each time, and create nothing"
            trial.require(isinstance(came, StoreSetupError), wrong, came=came)
        words = ("dlock init", "provision")
        trial.require(
            any(word in str(came) for word in words),
            f"the error must name the command that mends it ({' or '.join(words)})",
            came=came,
        )

    def test_s21_provisioning_may_be_repeated(self, trial: Trial) -> None:
        """The second time it changes nothing, least of all records."""
        record, others = trial.hold(trial.key()), left_alone(trial)

        for _ in range(2):
            trial.other.provision()

        for each in (record, *others):
            trial.exactly(each, trial.store.read(each.key), f"provision() changed a record that is {each.state}")
        trial.renew(record)

    def test_s22_close_may_be_repeated(self, trial: Trial) -> None:
        """The second does nothing."""
        store = trial.open()
        store.read(trial.key())
        store.close()

        came = trial.tried(store.close)

        trial.require(came is None, "a second close() must do nothing", came=came)

    def test_s22_after_close_every_verb_says_so(self, trial: Trial) -> None:
        """And nothing is written any more."""
        record = trial.hold(trial.key())
        store = trial.open()
        store.close()

        calls = {
            verb: asking(
                store,
                verb,
                record if verb in ("replace", "release", "replace_many") else None,
                written(trial, verb, record),
                5.0,
            )
            for verb in verbs_of(trial.harness, VERBS)
        }
        if "notify" in trial.harness.capabilities:
            calls["wait"] = lambda: store.wait(record, ticket="closed", timeout_s=1.0)
        for verb, call in calls.items():
            came = trial.tried(call)
            trial.require(
                isinstance(came, StoreUnavailableError),
                f"{verb} after close() must raise StoreUnavailableError",
                came=came,
            )
        trial.exactly(record, trial.store.read(record.key), "a verb after close() changed a record")

    def test_s22_close_leaves_the_other_stores_open(self, trial: Trial) -> None:
        """Each object of a store has a life of its own."""
        closed = trial.other
        records = [trial.hold(trial.key(), store=store) for store in (trial.store, closed)]

        closed.close()

        for record in records:
            trial.exactly(record, trial.store.read(record.key), "closing one object of the store broke another")

    @needs("own_client")
    def test_s22_close_leaves_a_given_client_open(self, trial: Trial) -> None:
        """Whoever made the client closes it; the store itself is closed."""
        opening = trial.hook("own_client")
        store, other = trial.open(opening), trial.open(opening)
        record = trial.hold(trial.key(), store=store)

        store.close()

        closed = trial.tried(lambda: store.claim(Claim(held(trial.key()), Expect.ANY)))
        told = "a claim after close() of a store on a given client must raise StoreUnavailableError"
        trial.require(isinstance(closed, StoreUnavailableError), told, came=closed)
        came = trial.tried(lambda: other.read(record.key))
        if isinstance(came, StoreError):
            trial.fail(
                "close() of a store closed the client that it was given: another store on that client fails", came=came
            )
        trial.exactly(record, came, "another store on the same client reads something else")


def pairs_of_text(pairs: Any) -> bool:
    """Whether *pairs* are what a program expects of them."""
    return all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, str) and each for each in pair)
        for pair in pairs
    )


def asked_of_new(trial: Trial, opening: Any, verb: str) -> object:
    """Open a store and ask it for *verb*: some find out while they are opened."""
    store = trial.open(opening)
    if verb == "guarantees":
        return store.guarantees()
    key = trial.key()
    record = held(key)
    return asking(store, verb, None, tombstone(record) if verb == "release" else record, 5.0)()


def written(trial: Trial, verb: str, record: Any) -> Any:
    """Return what *verb* would write."""
    if verb.startswith("claim"):
        return held(trial.key())
    return tombstone(record) if verb == "release" else next_version(record)
