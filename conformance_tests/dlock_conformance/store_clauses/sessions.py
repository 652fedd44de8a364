"""S11 and B1 for what few records have: a lock delay, and what locks under sessions, sessions and shared locks need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.records import held, next_version, tombstone
from dlock_conformance.store_clauses.reading import everywhere
from dlock_conformance.trial import Trial, batch_size
from dlock_core.record import LEASE_MAX_MS, TOKEN_MAX, Beat, BeatNote, Member, Members, SessionRef, Times
from dlock_core.store import Claim, Expect, Replace

__all__ = ["KEPT_BY", "SESSIONS", "SessionClauses"]

# The tokens of stores that make them of their clock have 16 digits.
_ONE = SessionRef("~dlock/session/\u00e9", 20_000, 1_795_000_000_123_457)
_TWO = SessionRef("~dlock/session/'2'", LEASE_MAX_MS, TOKEN_MAX)
SESSIONS: dict[str, dict[str, Any]] = {
    "with a lock delay": {"delay_ms": 1},
    "with times": {"times": Times(1_795_000_000, 1_795_000_007)},
    "under a session": {"lease_ms": None, "session": _ONE},
    "of a session": {"beat": Beat("the rvn of its owner's last write")},
    "of a session with notes": {
        "beat": Beat(
            "0", (BeatNote("a \u00e9", 1, "break", 'an "operator"'), BeatNote("b", TOKEN_MAX - 1, "yield", ""))
        )
    },
    "shared by sessions of readers": {
        "lease_ms": None,
        "members": Members(
            "rw",
            (_ONE, _TWO),
            (
                Member("0123456789abcdef", "read", None, None, 1, 1),
                Member("fedcba9876543210", "want", None, 2**52 + 1, 1, 0),
            ),
        ),
    },
    "shared by a session with permits": {
        "lease_ms": None,
        "members": Members("permits", (_TWO,), (Member("0" * 16, "", 0, 7, 3, 0), Member("1" * 16, "", 9, 8, 1, 0))),
    },
}
_THREE = SessionRef("~dlock/session/\u00e9", 20_000, 1_795_000_000_123_458)

# What keeps a lock: its own lease, a session or members; or it is a session.
KEPT_BY: dict[str, dict[str, Any]] = {
    "": {},
    **{
        f" of a record {name}": SESSIONS[name]
        for name in ("under a session", "of a session with notes", "shared by a session with permits")
    },
}


def _alike(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return *fields*, and the same with another value of each kind: as many members, notes and sessions, in another form."""
    other = dict(fields)
    if "session" in fields:
        other["session"] = _THREE
    if "beat" in fields:
        own, notes = fields["beat"]
        other["beat"] = Beat(
            own, tuple(note._replace(by="another", fencing_token=note.fencing_token + 1) for note in notes)
        )
    if "members" in fields:
        kind, sessions, members = fields["members"]
        others = tuple(
            member._replace(member_id=member.member_id[::-1], weight=member.weight + 1) for member in members
        )
        other["members"] = Members(kind, (_THREE,) * len(sessions), others)
    return [fields, other]


ALIKE = [each for fields in SESSIONS.values() for each in _alike(fields)]


class SessionClauses:
    """Clauses of stored data and of batches, for the fields that only sessions need."""

    @pytest.mark.parametrize("case", SESSIONS)
    def test_s11_a_claim_writes_what_a_session_needs(self, trial: Trial, case: str) -> None:
        """By the grant, by a read, by a scan and by a refusal."""
        claimed = trial.hold(trial.key(), **SESSIONS[case])

        everywhere(trial, held(claimed.key, token=claimed.fencing_token, rvn=claimed.rvn, **SESSIONS[case]), claimed)

    @pytest.mark.parametrize("case", SESSIONS)
    def test_s11_a_replace_adds_and_drops_what_a_session_needs(self, trial: Trial, case: str) -> None:
        """A lock moves under a session and back, members join and leave: exactly what was written last stands."""
        record = trial.hold(trial.key(), data=b"stays")
        added = next_version(record, **SESSIONS[case])
        everywhere(trial, added, trial.granted(trial.store.replace(Replace(added, record.version)), "a replace"))

        dropped = held(record.key, token=record.fencing_token, data=b"stays")
        everywhere(trial, dropped, trial.granted(trial.store.replace(Replace(dropped, added.version)), "a replace"))

    @pytest.mark.parametrize("case", SESSIONS)
    def test_s11_a_tombstone_keeps_nothing_of_a_session(self, trial: Trial, case: str) -> None:
        """And a claim after it is a plain record again."""
        free = trial.free(trial.hold(trial.key(), **SESSIONS[case]))
        everywhere(trial, tombstone(free, rvn=free.rvn), free)

        again = trial.hold(free.key)
        everywhere(trial, held(free.key, token=again.fencing_token, rvn=again.rvn), again)

    @needs("batch_renew")
    def test_b1_a_batch_adds_and_drops_what_a_session_needs(self, trial: Trial) -> None:
        """S11 holds for each: locks move under a session in a batch, and leave it in one."""
        plain = [trial.hold(trial.key()) for _ in range(batch_size(trial, len(SESSIONS)))]
        added = [next_version(record, **fields) for record, fields in zip(plain, SESSIONS.values(), strict=False)]
        dropped = [held(record.key, token=record.fencing_token) for record in plain]

        for before, after in ((plain, added), (added, dropped)):
            trial.store.replace_many([Replace(new, old.version) for new, old in zip(after, before, strict=True)])
            for record in after:
                trial.exactly(record, trial.store.read(record.key), "a batch must leave exactly what was written")

    @needs("batch_renew")
    def test_b1_records_that_are_alike_keep_their_own_in_a_batch(self, trial: Trial) -> None:
        """Two locks of one owner, under two sessions, or two shared locks: what makes many requests one must look at all of it."""
        records = [trial.hold(trial.key()) for _ in ALIKE]
        for at in range(0, len(records), step := batch_size(trial, len(records))):
            pairs = zip(records[at : at + step], ALIKE[at : at + step], strict=True)
            asked = [Replace(next_version(old, **fields), old.version) for old, fields in pairs]
            for request, result in zip(asked, trial.store.replace_many(asked), strict=True):
                came = trial.granted(result, "a renewal in a batch that expects the version that stands")
                trial.exactly(request.record, came, "one of a batch of records that are alike shows another's fields")
                stands = trial.store.read(came.key)
                trial.exactly(request.record, stands, "one of a batch of records that are alike has another's fields")

    @needs("atomic_multi")
    def test_m1_records_that_are_alike_keep_their_own(self, trial: Trial) -> None:
        """As in a batch."""
        asked = [Claim(held(trial.key(), **fields), Expect.ANY) for fields in ALIKE]
        for request, reply in zip(asked, trial.store.claim_many(asked), strict=True):
            came = trial.granted(reply, "one of several claims")
            right = replace(request.record, fencing_token=came.fencing_token)
            trial.exactly(right, came, "one of several claims of records that are alike shows another's fields")
            stands = trial.store.read(came.key)
            trial.exactly(right, stands, "one of several claims of records that are alike has another's fields")
