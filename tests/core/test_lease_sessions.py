"""What the machine knows of sessions: that a note in the record of one is no sign of life of its owner (Q7), and when one is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlock_core import lease
from dlock_core.record import Beat, BeatNote, LockRecord, LossReason, SessionRef, Version, newer_format
from dlock_core.states import Noted
from dlock_core.store import Replace
from tests.core.attempts import SECOND, Attempt, broken, free, held, holding, timings

NOTE = BeatNote("k", 1, "break", "operator")


def noted(own: str, token: int = 1) -> LockRecord:
    """Return the record ``n1`` of a session whose owner wrote *own* last."""
    return replace(held("n1", token), beat=Beat(own, (NOTE,)))


def renewing() -> Attempt:
    """Return a holder since 0 s whose renewal f3, sent at 2.5 s, has no answer, and which sends f5 at 3 s."""
    attempt = holding().at(2.5).due().unknown().at(3).due()
    assert attempt.holder.in_flight is not None
    assert ([sent.rvn for sent in attempt.holder.pending], attempt.holder.in_flight.rvn) == (["f3"], "f5")
    return attempt


def test_version_below_a_note_is_that_of_the_owner() -> None:
    """It has the place of the RVN, and the token that of the token."""
    assert lease.observed_version(noted("f1", 7)) == Version("f1", 7)
    assert lease.observed_version(held("f1", 7)) == Version("f1", 7)


@pytest.mark.parametrize(("own", "sent_s"), [("f1", 0.0), ("f3", 2.5), ("f5", 3.0)])
def test_owner_that_hears_notes_counts_from_the_write_below_them(own: str, sent_s: float) -> None:
    """And renews at once: by the version of the note, without the notes. What else was on its way expected a version that is gone."""
    attempt = renewing().answer(noted(own))

    told, request = attempt.effects
    assert told == Noted((NOTE,))
    assert isinstance(request, Replace)
    assert (request.expected, request.record.beat) == (Version("n1", 1), None)
    held_now = attempt.holder
    assert (held_now.version, held_now.pending) == (Version("n1", 1), ())
    assert held_now.in_flight is not None
    assert held_now.in_flight.rvn == request.record.rvn
    assert held_now.deadline == min(round((sent_s + 9.8) * SECOND), held_now.in_flight.sent_at + 9_800_000_000)
    assert held_now.at_risk


def test_shorter_lease_that_never_came_bounds_nothing_below_a_note() -> None:
    """The note stands on the write before it."""
    attempt = holding().at(1).renew(timings(lease_duration=2.0)).unknown()
    assert attempt.holder.deadline < 3 * SECOND

    attempt.at(2).due().answer(noted("f1"))

    assert attempt.holder.deadline == 9_800_000_000


def test_note_on_a_write_of_somebody_else_is_a_loss() -> None:
    """Even where its token is the own, as tokens are where a store has none."""
    attempt = holding().at(2.5).due().answer(noted("another's"))

    assert attempt.lost.loss.reason is LossReason.STOLEN


@pytest.mark.parametrize(
    ("record", "over"),
    [
        (held("x", 3), None),
        (replace(held("x", 3), beat=Beat("y", ())), None),
        (free("x", 3), True),
        (held("x", 4), True),
        (broken("x", 4), None),
        (newer_format("s", 9, "x", 4), None),
    ],
)
def test_session_is_over_where_another_one_has_its_key_or_nobody(record: LockRecord, over: object) -> None:
    """One that an operator has broken, or that cannot be read, ends as any lock does: by a lease without a sign of life."""
    assert lease.is_session_over(SessionRef("s", 5000, 3), record, 0, None) is over


@pytest.mark.parametrize(
    ("absent_since", "over"), [(None, False), (1, False), (0, True)], ids=["now", "too short", "a lease"]
)
def test_session_without_a_record_is_over_when_that_was_seen_for_its_lease(
    absent_since: int | None, over: object
) -> None:
    """Its owner hears of it at the next renewal (Q4)."""
    assert lease.is_session_over(SessionRef("s", 5000, 3), None, 5 * SECOND, absent_since) is over
