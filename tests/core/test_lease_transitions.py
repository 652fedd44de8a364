"""The table of the machine: what may come in which state, and that nothing else changes anything."""

from __future__ import annotations

import sys

import pytest

from dlock_core import lease
from dlock_core.errors import (
    LeaseStateError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.record import LossReason, OwnerState
from dlock_core.states import (
    Answer,
    Begin,
    Cease,
    Due,
    Ended,
    Event,
    Failure,
    Free,
    GiveUp,
    LeaseState,
    New,
    Outcome,
    Payload,
    Probed,
    Progress,
    Read,
    Renew,
    Retry,
    Woken,
)
from dlock_core.store import Reply
from dlock_core.timings import NEVER
from tests.core.attempts import Attempt, held, holding, timings
from tests.state_diagram import MACHINE, as_text

EVENTS: dict[type[Event], Event] = {
    Begin: Begin("x", 0),
    Answer: Answer("f1", Reply(applied=False, record=None), "x"),
    Probed: Probed("f1", OwnerState.UNKNOWN, "x"),
    Failure: Failure("f1", unknown=True, new_rvn="x"),
    Due: Due("x"),
    Retry: Retry("x"),
    Woken: Woken("x"),
    Renew: Renew("x"),
    Progress: Progress(),
    Cease: Cease(LossReason.EXPIRED),
    Free: Free("x"),
    GiveUp: GiveUp("x"),
}

STATES: dict[str, LeaseState] = {
    "New": Attempt().state,
    "Seeking": Attempt().begin().state,
    "Confirming": Attempt().begin().at(6).grant().state,
    "Held": holding().state,
    "Releasing": holding().free().state,
    "Cleaning": Attempt().begin().give_up().state,
    "Lost": holding().at(9.8).due().state,
    "Ended": holding().free().grant().state,
}

POSSIBLE: dict[str, set[type[Event]]] = {
    "New": {Begin},
    "Seeking": {Answer, Probed, Failure, Due, Woken, GiveUp},
    "Confirming": {Answer, Failure, Due, Free, GiveUp},
    "Held": {Answer, Failure, Due, Renew, Progress, Cease, Free, GiveUp},
    "Releasing": {Answer, Failure, Due, Retry},
    "Cleaning": {Answer, Failure, Due, Retry},
    "Lost": {Answer, Failure, Due, Free},
    "Ended": {Answer, Failure, Due, Retry},
}


def test_table_is_what_the_protocol_allows() -> None:
    """A new transition must be added here on purpose."""
    table = {(state.__name__, event) for state, event in lease.TRANSITIONS}

    assert table == {(name, event) for name, events in POSSIBLE.items() for event in events}


@pytest.mark.parametrize(
    ("name", "event"),
    [(name, event) for name, events in POSSIBLE.items() for event in EVENTS if event not in events],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_event_that_cannot_come_raises_and_names_the_state(name: str, event: type) -> None:
    """A driver's mistake is told, not guessed at."""
    with pytest.raises(LeaseStateError, match=f"lock 'k' is {name.lower()}; {event.__name__.lower()} is not possible"):
        lease.step(STATES[name], EVENTS[event], 0)


@pytest.mark.parametrize("attempt", [Attempt().begin(), holding().at(2.5).due()], ids=["seeking", "held"])
@pytest.mark.parametrize(
    "event",
    [Answer("other", Reply(applied=True, record=held("other")), "x"), Failure("other", unknown=True, new_rvn="x")],
)
def test_answer_to_another_request_raises(attempt: Attempt, event: Event) -> None:
    """An answer that was not asked for must not change a lease."""
    with pytest.raises(LeaseStateError, match="which was not asked"):
        lease.step(attempt.state, event, attempt.now)


@pytest.mark.parametrize("event", [Due("x"), Woken("x")])
def test_seeking_one_request_at_a_time(event: Event) -> None:
    """No second request beside one under way."""
    with pytest.raises(LeaseStateError, match="while a request is under way"):
        lease.step(Attempt().begin().state, event, 0)


def test_what_was_not_asked_has_no_answer() -> None:
    """Of whatever kind it is; while a late grant is confirmed nothing else is begun."""
    unasked: list[Event] = [
        Answer("other", Reply(applied=False, record=None), "x"),
        Failure("other", unknown=True, new_rvn="x"),
        Probed("other", OwnerState.UNKNOWN, "x"),
    ]
    for event in unasked:
        with pytest.raises(LeaseStateError, match="'other', which was not asked"):
            lease.step(Attempt().begin().state, event, 0)
    with pytest.raises(LeaseStateError, match="while a request is under way"):
        lease.step(STATES["Confirming"], Due("x"), 0)


def test_release_that_was_applied_shows_no_other_holder() -> None:
    """What stands then is its own tombstone."""
    ended = STATES["Ended"]
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.RELEASED
    assert ended.holder is None


@pytest.mark.parametrize(
    "state", [holding().free(), Attempt().begin().give_up().due(), holding().at(9.8).due(), holding().free().grant()]
)
@pytest.mark.parametrize(
    "event", [Answer("other", Reply(applied=True, record=None), "x"), Failure("other", unknown=True, new_rvn="x")]
)
def test_late_answers_change_nothing_once_the_end_has_begun(state: Attempt, event: Event) -> None:
    """What was under way when the release or the clean-up began may still be answered."""
    assert lease.step(state.state, event, state.now) == (state.state, ())


@pytest.mark.parametrize(
    "state", [holding().free(), Attempt().begin().give_up().due(), holding().at(9.8).due(), holding().free().grant()]
)
def test_due_changes_nothing_where_nothing_is_due(state: Attempt) -> None:
    """A request is under way, or nothing is left to do."""
    assert lease.step(state.state, Due("x"), state.now) == (state.state, ())


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_states_are_small_hashable_values(state: LeaseState) -> None:
    """They can be kept in sets, compared and counted."""
    assert hash(state) == hash(type(state)(*state))
    assert sys.getsizeof(state) < 200


def test_fresh_attempt_is_due_for_nothing() -> None:
    """Only Held, Releasing and Cleaning want to be woken by a scheduler."""
    assert isinstance(STATES["New"], New)
    assert {name for name, state in STATES.items() if lease.due_at(state) < NEVER} == {"Held", "Cleaning"}


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (StoreUnavailableError("-"), False),
        (StoreSetupError("-"), False),
        (RecordError("-"), False),
        (OutcomeUnknownError("-"), True),
        (StoreError("-"), True),
    ],
)
def test_only_errors_that_say_so_mean_that_nothing_was_applied(error: StoreError, unknown: bool) -> None:
    """What an adapter raises of its own counts as unknown."""
    assert lease.heard("r", error, "n", 0.5) == Failure("r", unknown, "n", 0.5)


def test_grant_without_a_record_is_of_unknown_outcome() -> None:
    """It breaks clause S7, and may have been made."""
    assert lease.heard("r", Reply(applied=True, record=None), "n") == Failure("r", unknown=True, new_rvn="n")


def test_what_was_heard_is_handed_on_with_what_the_client_knows() -> None:
    """A refusal shows whether it is of an own write that was given up, and brings the clocks and the last observation along."""
    record = held("h")
    granted, refused = Reply(applied=True, record=record), Reply(applied=False, record=record, age_ms=7)
    nothing = Reply(applied=False, record=None)
    seen = lease.observe(record, 3)

    assert lease.heard("r", granted, "n", 0.5, [record.rvn]) == Answer("r", granted, "n")
    assert lease.heard("r", refused, "n", 0.5, [record.rvn], wall_ms=9, seen=seen) == Answer(
        "r", refused, "n", abandoned=True, jitter=0.5, wall_ms=9, age_ms=7, seen=seen
    )
    assert lease.heard("r", refused, "n") == Answer("r", refused, "n", age_ms=7)
    assert lease.heard("r", nothing, "n", 0.5, ["x"]) == Answer("r", nothing, "n", abandoned=False, jitter=0.5)


def test_what_a_scheduler_asks_of_a_held_lock() -> None:
    """Which of its writes was applied, what may be sent when, and by which timings."""
    attempt = holding().at(2).renew()
    state, renewal = attempt.holder, attempt.request
    renewed = state._replace(timings=timings(lease_duration=20.0))

    plain, rvn, now = Renew("n"), state.version.rvn, state.sent_at
    assert lease.is_applied(state, plain, [rvn, "x"], now)
    assert not lease.is_applied(state, plain, ["x"], now)
    assert lease.is_applied(state, plain, ["x"], now - 1)
    for more in (Renew("n", timings(lease_duration=20.0)), Renew("n", payload=Payload(b"other", ()))):
        assert lease.is_applied(state, more, [rvn], now)
        assert not lease.is_applied(state, more, ["x"], now - 1)
    assert not lease.is_applied(Attempt().state, plain, [rvn], now)
    assert lease.may_be_sent(state, Read("k", "r", aged=False), state.deadline)
    assert lease.may_be_sent(state, renewal, state.deadline - 1)
    assert not lease.may_be_sent(state, renewal, state.deadline)
    assert not lease.may_be_sent(Attempt().state, renewal, 0)
    assert lease.timings_of(renewed) is renewed.timings
    assert lease.timings_of(Attempt().state) == timings()


def test_states_in_the_docstring_are_those_of_the_table() -> None:
    """``python -m tests.state_diagram`` writes them."""
    assert f"\n\n{as_text()}\n\n" in MACHINE.read_text()
