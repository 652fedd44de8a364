"""S5, S6 and S11 for all that a record may have at once: it is written, compared and dropped by each form of a request.

Most stores have a statement for each form, and what sessions need is what a statement leaves out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.records import fresh, held, tombstone
from dlock_conformance.store_clauses.claiming import GREAT_TOKEN, OLD
from dlock_conformance.store_clauses.forms import granted_in_each_form, releases, replaces, replaces_by
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError
from dlock_core.record import (
    LEASE_MAX_MS,
    Beat,
    BeatNote,
    Broken,
    LockRecord,
    Member,
    Members,
    ProcessIdentity,
    SessionRef,
    Stamp,
    State,
    Times,
    Version,
)
from dlock_core.store import Claim, ClaimExpect, Expect, Release, Replace, Reply

__all__ = ["LEFT", "WHOLE", "WholeClauses"]

# Numbers that 32 bits and a double do not hold, a time after 2038, and text that somebody may normalise, trim or cut.
_TEXT = " Aa \u00e9e\u0301 "
_SESSION = SessionRef(f"~dlock/session/{_TEXT}{'k' * 900}", LEASE_MAX_MS - 1, GREAT_TOKEN)
_MARKS: dict[str, Any] = {
    "stamp": Stamp(0, _TEXT),
    "process": ProcessIdentity(_TEXT, 4_026_531_836, 4_194_303, 2**53 + 1, 0),
    "broken": Broken(_TEXT, 1_795_000_000_123),
    "beat": Beat(
        _TEXT,
        # Two notes about one key are two notes.
        (BeatNote(_TEXT, GREAT_TOKEN, "yield", _TEXT), BeatNote(_TEXT, GREAT_TOKEN + 1, "yield", "b" * 300)),
    ),
    "times": Times(2**31 + 5, 2**32 + 7),
}
_LOCK: dict[str, Any] = {
    "session": _SESSION,
    # The second session has no member any more.
    "members": Members("permits", (_SESSION, _SESSION), (Member("0" * 16, _TEXT, 0, GREAT_TOKEN, 2**53 + 1, 0),)),
}
WHOLE: dict[str, dict[str, Any]] = {
    "all that a lock may have": {"owner": "007", "lease_ms": None, **_MARKS, **_LOCK},
    "all that a session may have": {"owner": "", "lease_ms": LEASE_MAX_MS - 1, "delay_ms": LEASE_MAX_MS - 3, **_MARKS},
    "members that have all left": {"lease_ms": None, "members": Members("permits", (), ())},
    "nothing": {"lease_ms": None},
}
# A tombstone may have the same, but for what only a lease has.
LEFT = {**_MARKS, **_LOCK, "owner": _TEXT}


class WholeClauses:
    """Clauses of whole records in each form of a write; each is of what sessions need."""

    @pytest.mark.parametrize("state", [None, State.FREE], ids=["absent", "free"])
    def test_s11_each_form_of_a_claim_writes_what_a_session_needs(self, trial: Trial, state: State | None) -> None:
        """All of it, and nothing of the tombstone that stood there."""
        for fields in WHOLE.values():
            for form, old, request, came in granted_in_each_form(trial, state, LEFT, **fields):
                keeps = request.keep_payload and old is not None
                kept: dict[str, Any] = OLD if keeps else {}
                right = replace(request.record, fencing_token=came.fencing_token, **kept)
                stands(trial, right, came, form)

    def test_s11_each_form_of_a_replace_writes_what_a_session_needs(self, trial: Trial) -> None:
        """From everything to nothing and back, held or freed."""
        for before, written, form, way, ask in each_replace(trial):
            record = trial.hold(trial.key(), token=GREAT_TOKEN, **before)
            request = replaces(record, record.version)[form]
            token, left = request.record.fencing_token, request.record.state
            new = held(record.key, token=token, **written)
            if not request.record.held:
                new = tombstone(new, left, **(LEFT if "beat" in written else {}))
            reply = ask(request._replace(record=new))
            came = trial.granted(reply, f"{form}{way}")
            stands(trial, new, came, f"{form}{way}")

    def test_s11_each_form_of_a_release_writes_what_a_session_needs(self, trial: Trial) -> None:
        """All of it, or nothing."""
        for form in releases(held("k"), Version(fresh(), 1)):
            for before in WHOLE.values():
                record = trial.hold(trial.key(), **before)
                request = releases(record, record.version)[form]
                for written in (LEFT, {}):
                    new = tombstone(record, request.record.state, **written)
                    came = trial.granted(trial.store.release(Release(new, record.version, request.keep_payload)), form)
                    stands(trial, new, came, form)
                    record = trial.hold(trial.key(), **before)

    def test_s2_what_a_session_needs_changes_no_condition(self, trial: Trial) -> None:
        """A claim that brings members, a session or a beat is granted what it has seen, and nothing else, as the first of a shared lock."""
        ways: dict[str, Callable[[Claim], Reply]] = {"a claim": trial.store.claim}
        if trial.harness.gives("claim_wait"):
            ways["a claim that waits"] = lambda request: trial.store.claim_when_free(request, wait_s=0.001)
        for (way, ask), (what, fields) in itertools.product(ways.items(), WHOLE.items()):
            free = trial.free(trial.hold(trial.key(), token=GREAT_TOKEN), **LEFT)
            absent = trial.key()
            asked = Claim(held(free.key, **fields), Expect.ABSENT, ticket=fresh())
            wrong: list[ClaimExpect] = [Expect.ABSENT, *other_versions(free)]
            for expect in wrong:
                trial.refused(
                    ask(asked._replace(expect=expect)), f"{way} with {what} that expects another version", free
                )
            unseen = asked._replace(record=held(absent, **fields), expect=free.version)
            trial.refused(ask(unseen), f"{way} with {what} that expects a version, of a key that is absent,", None)
            must = unseen._replace(expect=Expect.ANY, must_exist=True)
            trial.refused(ask(must), f"{way} with {what} of what must exist, and does not,", None)
            trial.require(trial.store.read(absent) is None, f"{way} with {what} was refused, and yet made a record")
            stands = trial.granted(ask(asked._replace(expect=free.version)), f"{way} with {what} of what it has seen")
            again = asked._replace(record=held(free.key, **fields), expect=Expect.ANY)
            trial.refused(ask(again), f"{way} with {what} of a key that is held", stands)

    def test_s5_what_a_session_needs_changes_no_condition(self, trial: Trial) -> None:
        """A renewal, a takeover and a break of such a record compare its version as of any other, alone and in a batch."""
        for record, wrong in with_another_version(trial):
            for way, ask in replaces_by(trial).items():
                for form, request in replaces(record, wrong).items():
                    refuses(trial, record, ask(request), f"{form}{way}")

    def test_s6_what_a_session_needs_changes_no_condition(self, trial: Trial) -> None:
        """Nor of a release."""
        for record, wrong in with_another_version(trial):
            for form, request in releases(record, wrong).items():
                refuses(trial, record, trial.store.release(request), form)


def each_replace(
    trial: Trial,
) -> Iterator[tuple[dict[str, Any], dict[str, Any], str, str, Callable[[Replace], Reply | StoreError]]]:
    """Yield what stands, what is written, and by which form of a replace, sent in which way."""
    for way, ask in replaces_by(trial).items():
        for form in replaces(held("k"), Version(fresh(), 1)):
            for before, written in zip(WHOLE.values(), reversed(WHOLE.values()), strict=True):
                yield before, written, form, way, ask


def other_versions(record: LockRecord) -> Iterator[Version]:
    """Yield versions that are wrong in one part; one has the RVN that the beat names, below which a note may stand."""
    rvn, token = record.version
    for other in (fresh(), *([record.beat.own] if record.beat else [])):
        yield Version(other, token)
    for by in (-1, 1, 2**32):
        yield Version(rvn, token + by)


def with_another_version(trial: Trial) -> Iterator[tuple[LockRecord, Version]]:
    """Yield what stands with all that it may have, and a version that is wrong in one part."""
    for fields in list(WHOLE.values())[:2]:
        record = trial.hold(trial.key(), token=GREAT_TOKEN, **fields)
        for wrong in other_versions(record):
            yield record, wrong


def stands(trial: Trial, right: LockRecord, came: LockRecord, what: str) -> None:
    """Fail unless *right* was granted, and is read."""
    trial.exactly(right, came, f"{what} was granted with another record")
    trial.exactly(right, trial.store.read(right.key), f"{what} wrote another record")


def refuses(trial: Trial, record: LockRecord, reply: Reply | StoreError, what: str) -> None:
    """Fail unless *reply* is the refusal by *record*, which stands still."""
    trial.refused(reply, f"{what} that expects another version", record)
    assert isinstance(reply, Reply)
    trial.exactly(record, reply.record, f"the refusal of {what} shows another record than stands")
