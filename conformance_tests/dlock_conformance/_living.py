"""S18 to S23: tokens for ever, what a store declares and promises, provisioning, closing, and what a verb costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlock_conformance._trouble import VERBS, asking
from dlock_conformance.harness import Colour
from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.subject import Subject
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, State, Version
from dlock_core.store import (
    AsyncAtomicMulti,
    AsyncBatchRenew,
    AsyncNotify,
    AsyncServerClock,
    AtomicMulti,
    BatchRenew,
    Capability,
    Claim,
    Expect,
    Grade,
    Guarantees,
    Notify,
    Release,
    Replace,
    ServerClock,
    TokenOrder,
)

__all__ = ["LivingClauses"]

PROTOCOLS: dict[Capability, tuple[Any, Any]] = {
    Capability.BATCH_RENEW: (BatchRenew, AsyncBatchRenew),
    Capability.NOTIFY: (Notify, AsyncNotify),
    Capability.SERVER_CLOCK: (ServerClock, AsyncServerClock),
    Capability.ATOMIC_MULTI: (AtomicMulti, AsyncAtomicMulti),
}
# Scans cost a request for each page, and are not counted.
COUNTED = [
    "claim",
    "claim_refused",
    "replace",
    "replace_refused",
    "release",
    "release_refused",
    "read",
    "replace_many",
    "replace_many_refused",
]


class LivingClauses:
    """Clauses of the life of a key and of a store."""

    def test_s18_the_token_never_goes_back(self, trial: Trial) -> None:
        """Through every way in which a key changes hands."""
        record = trial.hold(trial.key())
        tokens = [record.fencing_token]
        for way in ("free", "takeover", "gone", "break", "gone", "free", "takeover", "gone"):
            if way == "takeover":
                record = trial.renew(record, fencing_token=record.fencing_token + 1)
            else:
                if way == "break":
                    request = Replace(tombstone(record, fencing_token=record.fencing_token + 1), record.version)
                    trial.granted(trial.store.replace(request), "a replace")
                else:
                    trial.free(record, State(way))
                record = trial.hold(record.key)
            tokens.append(record.fencing_token)

            trial.require(
                tokens[-1] > tokens[-2],
                f"after a change of hands by {way} the token must be greater; the tokens were {tokens}",
            )

    def test_s18_a_deleted_key_keeps_its_token(self, trial: Trial) -> None:
        """``gone`` hides the record; the next holder must still get a greater token than any before."""
        record = trial.hold(trial.key(), token=41)

        trial.free(record, State.GONE)
        again = trial.hold(record.key, store=trial.other)

        trial.require(
            again.fencing_token > record.fencing_token,
            f"token {record.fencing_token} was granted before the deletion",
            came=again,
        )

    def test_s18_the_last_token_is_not_passed(self, trial: Trial) -> None:
        """Where the numbers end the key is never granted again: a token that wraps would let old holders win."""
        record = trial.hold(trial.key(), token=TOKEN_MAX - 1)
        for _ in range(3):
            free = trial.free(record)
            came = trial.tried(lambda key=free.key: trial.other.claim(Claim(held(key), Expect.ANY)))  # type: ignore[misc]  # bound on purpose
            if isinstance(came, StoreError):
                break
            record = trial.granted(came, "a claim of a tombstone")
            wrong = f"after token {free.fencing_token} a claim must get a greater one, up to {TOKEN_MAX}, or raise"
            trial.require(record.fencing_token > free.fencing_token, wrong, came=record)
        else:
            trial.fail(f"three grants after token {TOKEN_MAX - 1} were possible", came=record)

        trial.exactly(free, trial.store.read(free.key), "a claim that could not be given a token changed the record")

    @needs("restart")
    def test_s18_what_was_answered_survives_a_restart(self, trial: Trial) -> None:
        """Held, free and gone, with their tokens, and the next grant counts on."""
        restart: Callable[[], None] = trial.hook("restart")
        if not trial.store.guarantees().durable:
            trial.skip("guarantees() says that the store is not durable")
        written = [trial.hold(trial.key(), data=b"x"), trial.free(trial.hold(trial.key(), token=9))]
        gone = trial.free(trial.hold(trial.key(), token=90), State.GONE)
        trial.other.close()

        restart()

        store = trial.open()
        for record in (*written, gone):
            trial.exactly(
                record,
                store.read(record.key),
                "a write was answered, and is lost after a restart, though guarantees() says durable",
            )
        again = trial.hold(gone.key, store=store)
        trial.require(again.fencing_token > gone.fencing_token, "the token went back by a restart", came=again)

    @needs("restart")
    def test_s18_a_restart_repeats_no_token(self, trial: Trial) -> None:
        """Where tokens are said to be ordered they are, also over lost records."""
        restart: Callable[[], None] = trial.hook("restart")
        if trial.store.guarantees().token is TokenOrder.NONE:
            trial.skip("guarantees() says that tokens have no order")
        if not trial.store.guarantees().durable and not trial.harness.token_floor:
            trial.skip("guarantees() says that the store is not durable, and it has no floor for tokens")
        record = trial.hold(trial.key(), token=1)
        record = trial.hold(trial.free(record).key)
        trial.free(record)

        restart()

        again = trial.hold(record.key, store=trial.open())
        trial.require(
            again.fencing_token > record.fencing_token,
            f"token {record.fencing_token} was granted before the restart",
            came=again,
        )

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
        """Programs read them, so they have their types; two connections to one server say the same."""
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
        trial.require(
            all(isinstance(note, str) for note in told.notes), f"guarantees().notes must hold text: {told.notes!r}"
        )
        trial.require(pairs_of_text(told), f"guarantees().unsafe must hold pairs (name, reason): {told.unsafe!r}")
        trial.require(
            told == trial.other.guarantees(),
            "two objects of one store give different guarantees",
            came=trial.other.guarantees(),
        )

    def test_s20_what_is_promised_fits_together(self, trial: Trial) -> None:
        """No store promises grade A and forgets its records over a restart, or has no tokens."""
        told = trial.store.guarantees()

        if told.grade is Grade.A and told.token is TokenOrder.NONE:
            trial.fail("grade A says that the promises hold, and token = none that there is no order of grants")
        if trial.harness.restart is not None and told.grade is Grade.A:
            trial.require(
                told.durable,
                "grade A for a server that can be restarted, and durable is False: a restart forgets who holds what",
            )

    @needs("unprovisioned")
    @pytest.mark.parametrize("verb", VERBS)
    def test_s21_a_verb_makes_nothing_that_is_missing(self, trial: Trial, verb: str) -> None:
        """A lock call that creates tables hides a wrong name for ever."""
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
        record = trial.hold(trial.key(), data=b"x")

        for _ in range(2):
            trial.other.provision()

        trial.exactly(record, trial.store.read(record.key), "provision() changed a record")
        trial.renew(record)

    def test_s22_close_may_be_repeated(self, trial: Trial) -> None:
        """The second does nothing."""
        store = trial.open()
        store.read(trial.key())

        store.close()
        store.close()

    def test_s22_after_close_every_verb_says_so(self, trial: Trial) -> None:
        """And nothing is written any more."""
        record = trial.hold(trial.key())
        store = trial.open()
        store.close()

        calls = {
            verb: asking(
                store, verb, record if verb in ("replace", "release") else None, written(trial, verb, record), 5.0
            )
            for verb in VERBS
        }
        if "batch_renew" in trial.harness.capabilities:
            calls["replace_many"] = lambda: store.replace_many([Replace(next_version(record), record.version)])
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
        record = trial.hold(trial.key())

        trial.open().close()

        trial.exactly(record, trial.store.read(record.key), "closing one object of the store broke another")

    @needs("own_client")
    def test_s22_close_leaves_a_given_client_open(self, trial: Trial) -> None:
        """Whoever made the client closes it."""
        opening = trial.hook("own_client")
        store, other = trial.open(opening), trial.open(opening)
        record = trial.hold(trial.key(), store=store)

        store.close()

        came = trial.tried(lambda: other.read(record.key))
        if isinstance(came, StoreError):
            trial.fail(
                "close() of a store closed the client that it was given: another store on that client fails", came=came
            )
        trial.exactly(record, came, "another store on the same client reads something else")

    @needs("count_requests")
    @pytest.mark.parametrize("what", COUNTED)
    def test_s23_a_verb_costs_one_request(self, trial: Trial, what: str) -> None:
        """Granted or refused: the record comes with the reply, and nothing is asked first."""
        count = trial.hook("count_requests")
        warm_up(trial)
        ask = priced(trial, what)

        before = count()
        ask()
        cost = count() - before

        trial.facts["requests"] = {what: cost}
        # Some servers say which of a batch was refused, but not by what: one read tells it of all.
        most = 2 if what == "replace_many_refused" else 1
        trial.require(
            1 <= cost <= most, f"a {what.replace('_', ' ')} cost {cost} requests to the server; it may cost {most}"
        )


def pairs_of_text(told: Guarantees) -> bool:
    """Whether ``unsafe`` is what a program expects of it."""
    pairs: tuple[Any, ...] = told.unsafe
    return all(len(pair) == 2 and all(isinstance(each, str) and each for each in pair) for pair in pairs)


def asked_of_new(trial: Trial, opening: Any, verb: str) -> object:
    """Open a store and ask it for *verb*: some find out while they are opened."""
    store = trial.open(opening)
    key = trial.key()
    record = held(key)
    return asking(store, verb, None, tombstone(record) if verb == "release" else record, 5.0)()


def written(trial: Trial, verb: str, record: Any) -> Any:
    """Return what *verb* would write."""
    if verb == "claim":
        return held(trial.key())
    return tombstone(record) if verb == "release" else next_version(record)


def warm_up(trial: Trial) -> None:
    """Have connections made, scripts loaded and the topology found out before anything is counted."""
    record = trial.renew(trial.hold(trial.key()))
    trial.store.read(record.key)
    if "batch_renew" in trial.harness.capabilities:
        trial.store.replace_many([Replace(next_version(record), Version(fresh(), 1))])
    trial.free(record)


def priced(trial: Trial, what: str) -> Callable[[], object]:
    """Return the call whose price is asked for; what it needs is there."""
    store: Subject = trial.store
    verb, refused = what.removesuffix("_refused"), what.endswith("_refused")
    if what == "claim":
        key = trial.key()
        return lambda: store.claim(Claim(held(key), Expect.ANY))
    record = trial.hold(trial.key())
    version = Version(fresh(), 1) if refused else record.version
    if verb == "claim":
        return lambda: store.claim(Claim(held(record.key), Expect.ANY))
    if verb == "read":
        return lambda: store.read(record.key)
    if verb == "replace":
        return lambda: store.replace(Replace(next_version(record), version))
    if verb == "release":
        return lambda: store.release(Release(tombstone(record), version))
    more = [trial.hold(trial.key()) for _ in range(min(4, getattr(store.raw, "batch_limit", 1) - 1))]
    batch = [Replace(next_version(record), version), *(Replace(next_version(each), each.version) for each in more)]
    return lambda: store.replace_many(batch)
