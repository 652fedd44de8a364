"""S5, S6, S11 and S12 on the connections that follow lost ones: what a client sets up with its first must be set up with each."""

from __future__ import annotations

from dataclasses import replace

from dlock_conformance.faults import Fault
from dlock_conformance.needs import needs
from dlock_conformance.records import held, next_version, numeric, tombstone
from dlock_conformance.store_clauses.changing import WRONG_VERSIONS
from dlock_conformance.store_clauses.claiming import GREAT_TOKEN
from dlock_conformance.store_clauses.forms import changes
from dlock_conformance.store_clauses.reading import ENDS, EXACT, alike
from dlock_conformance.store_clauses.whole import WHOLE
from dlock_conformance.subject import Subject
from dlock_conformance.trial import Trial
from dlock_core.store import Claim, Expect, Release, Replace

__all__ = ["ReconnectingClauses"]

BRIEF_S = 2.0
# Calls of each verb that may meet what is left of the connections that were lost.
LAST = 2


@needs("lose_reply")
class ReconnectingClauses:
    """Clauses that a store keeps as before once connections were lost: character sets, databases, scripts and settings belong to them."""

    def test_s5_a_new_connection_compares_as_the_first(self, trial: Trial) -> None:
        """RVN and token, each of them exactly."""
        refused_on_new_connections(trial, Replace)

    def test_s6_a_new_connection_compares_as_the_first(self, trial: Trial) -> None:
        """A release, too."""
        refused_on_new_connections(trial, Release)

    def test_s11_a_new_connection_writes_and_reads_as_the_first(self, trial: Trial) -> None:
        """Text of each kind, bytes and numbers: written by it, and read by another, and the other way round."""
        store = reconnected(trial)
        for case, fields in {**EXACT, **WHOLE}.items():
            asked = held(trial.key(), **{"token": fields.get("fencing_token", 1), **_but_the_token(fields)})
            if trial.carries(asked):
                record = trial.granted(store.claim(Claim(asked, Expect.ANY)), "a claim by a new connection")
                right = replace(asked, fencing_token=record.fencing_token)
                trial.exactly(right, trial.store.read(record.key), f"a new connection wrote another record: {case}")
                trial.exactly(right, store.read(record.key), f"a new connection reads another record: {case}")

    def test_s12_a_new_connection_has_the_keys_of_the_first(self, trial: Trial) -> None:
        """The same key is the same record for both, and two keys are two."""
        store, prefix = reconnected(trial), alike(trial)
        for place, end in enumerate(ENDS):
            record = trial.hold(f"{prefix}{end}", store=store if place % 2 else None, owner=f"owner {place}")
            for reader in (store, trial.store):
                trial.exactly(record, reader.read(record.key), f"the key that ends with {end[-20:]!r} is another's")


def reconnected(trial: Trial) -> Subject:
    """Return a store whose connections were lost, for each verb that has its own, and made again."""
    store = trial.disturbed(Fault.LOSE_REPLY)

    def used() -> None:
        record = held(trial.key())
        trial.tried(lambda: store.claim(Claim(record, Expect.ANY), timeout_s=BRIEF_S))
        trial.tried(lambda: store.replace(Replace(next_version(record), record.version), timeout_s=BRIEF_S))
        trial.tried(lambda: store.release(Release(tombstone(record), record.version), timeout_s=BRIEF_S))
        trial.tried(lambda: store.read(record.key, timeout_s=BRIEF_S))

    with trial.fault(Fault.LOSE_REPLY):
        used()
    for _ in range(LAST):
        used()
    return store


def refused_on_new_connections(trial: Trial, kind: type[Replace | Release]) -> None:
    """Fail unless new connections refuse a change of this *kind* that expects a version which is wrong in one way."""
    store = reconnected(trial)
    record = trial.hold(trial.key(), rvn=numeric(), token=GREAT_TOKEN)
    for wrong, version in WRONG_VERSIONS.items():
        for form, request in changes(record, version(record.version)).items():
            if isinstance(request, kind):
                what = f"{form}, by a new connection, that expects {wrong.replace('_', ' ')}"
                trial.refused(store.send(request), what, record)


def _but_the_token(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in ("rvn", "fencing_token")}
