"""S7, S8, S11 and C1: a record is written whole and shown whole, whoever shows it, and keeps nothing of the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.store_clauses.claiming import OLD
from dlock_conformance.store_clauses.forms import FIELDS, changes, claims_of_held, releases, replaces_by
from dlock_conformance.store_clauses.reading import ENDS, EXACT, alike, everywhere
from dlock_conformance.store_clauses.sessions import SESSIONS
from dlock_conformance.trial import Trial
from dlock_core.record import MEMBERS_MAX, NOTES_MAX, Beat, BeatNote, LockRecord, Member, Members, State, Times, Version
from dlock_core.store import Release, Replace, Reply

__all__ = ["RecordClauses"]

MEMBERS = Members(
    "rw",
    SESSIONS["shared by sessions of readers"]["members"].sessions,
    # In the order of their coming, which no field shows.
    tuple(Member(f"{place * 7 % MEMBERS_MAX:016x}", "read", None, None, 1, place % 2) for place in range(MEMBERS_MAX)),
)
NOTES = tuple(BeatNote(f"k{place}", place + 1, "break", "by") for place in range(NOTES_MAX))
MANY: dict[str, dict[str, Any]] = {
    "members": {"lease_ms": None, "members": MEMBERS},
    "notes": {"beat": Beat("0", NOTES)},
}
TOMBSTONES: dict[str, dict[str, Any]] = {
    case: {name: value for name, value in fields.items() if name not in ("lease_ms", "rvn", "fencing_token")}
    for case, fields in {**EXACT, "times": {"owner": "before", "times": Times(1_795_000_000, 1_795_000_007)}}.items()
}


class RecordClauses:
    """Clauses of whole records, in each form of a request."""

    @pytest.mark.parametrize("case", FIELDS)
    def test_s11_what_keeps_the_payload_keeps_nothing_else(self, trial: Trial, case: str) -> None:
        """A renewal out of a session, a release: all but the payload is what the request says."""

        def begun() -> tuple[LockRecord, LockRecord]:
            record = trial.hold(trial.key(), data=b"stays", **FIELDS[case])
            return record, held(record.key, token=record.fencing_token)

        for way, ask in replaces_by(trial).items():
            record, bare = begun()
            came = trial.granted(ask(Replace(bare, record.version, keep_payload=True)), f"a renewal{way}")
            # In a batch the answer need not show the payload that was kept (B1).
            shown = replace(came, data=b"stays") if way else came
            what = f"a renewal{way} that keeps the payload of a record {case}"
            self._is(trial, replace(bare, data=b"stays"), Reply(True, shown), what)
        for state in (State.FREE, State.GONE):
            record, bare = begun()
            left = tombstone(bare, state)
            reply = trial.store.release(Release(left, record.version, keep_payload=True))
            self._is(trial, replace(left, data=b"stays"), reply, f"a release that keeps the payload of a record {case}")

    @pytest.mark.parametrize("case", [*FIELDS, "with a payload"])
    def test_s8_a_refusal_shows_the_whole_record(self, trial: Trial, case: str) -> None:
        """The next write may be made from it: what it hides would be lost."""
        record = trial.hold(trial.key(), **FIELDS.get(case, OLD))
        stale = Version(fresh(), record.fencing_token)
        asked: dict[str, Callable[[], Any]] = {
            form: lambda request=request: trial.store.send(request)  # type: ignore[misc]  # a default binds the request
            for form, request in changes(record, stale).items()
        }
        asked |= claims_of_held(trial, record.key)
        for way, ask in replaces_by(trial).items():
            asked[f"a renewal{way}"] = lambda ask=ask: ask(Replace(next_version(record), stale))  # type: ignore[misc]

        for form, answer in asked.items():
            reply: Reply = answer()
            trial.refused(reply, form, record)
            trial.exactly(record, reply.record, f"the refusal of {form} hides a part of a record {case}")
        if trial.harness.gives("server_clock"):
            came = trial.store.read_age(record.key)
            trial.exactly(record, came and came[0], f"read_age hides a part of a record {case}")

    @pytest.mark.parametrize("what", MANY)
    def test_s11_as_many_as_a_record_may_have(self, trial: Trial, what: str) -> None:
        """All of them, in their order."""
        claimed = trial.hold(trial.key(), **MANY[what])
        everywhere(trial, held(claimed.key, token=claimed.fencing_token, rvn=claimed.rvn, **MANY[what]), claimed)

        renewed = next_version(trial.hold(trial.key()), **MANY[what])
        standing = trial.store.read(renewed.key)
        assert standing is not None
        everywhere(trial, renewed, trial.granted(trial.store.replace(Replace(renewed, standing.version)), "a replace"))

    @pytest.mark.parametrize("case", TOMBSTONES)
    def test_s11_a_release_writes_its_tombstone_exactly(self, trial: Trial, case: str) -> None:
        """Owner, times and marks, whatever the payload: people read them, and a job's result is in one."""
        record = trial.hold(trial.key())
        left = tombstone(record, **TOMBSTONES[case])

        everywhere(trial, left, trial.granted(trial.store.release(Release(left, record.version)), "a release"))

    def test_s7_each_release_answers_with_what_stands(self, trial: Trial) -> None:
        """With the payload that was kept, or the one that was written."""
        for form in releases(held("k"), Version(fresh(), 1)):
            record = trial.hold(trial.key(), **OLD)
            came = trial.granted(trial.store.release(releases(record, record.version)[form]), form)
            trial.exactly(came, trial.store.read(record.key), f"{form} was answered with another record than stands")

    @needs("server_clock")
    def test_c1_keys_that_are_alike_have_ages_of_their_own(self, trial: Trial) -> None:
        """Each is shown with its own record."""
        prefix = alike(trial)
        written = [trial.hold(f"{prefix}{end}", owner=f"owner {place}") for place, end in enumerate(ENDS)]

        for record in written:
            came = trial.store.read_age(record.key)
            trial.exactly(record, came and came[0], "read_age shows the record of another key")

    def _is(self, trial: Trial, right: LockRecord, reply: Any, what: str) -> None:
        trial.exactly(right, trial.granted(reply, what), f"{what} was answered with another record")
        trial.exactly(right, trial.store.read(right.key), f"{what} left another record")
