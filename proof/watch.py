"""What is watched at each step of the machine: that the step may be, and what it has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core import lease
from dlock_core.record import LossReason
from dlock_core.states import (
    Answer,
    Cleaning,
    Confirming,
    Effect,
    Ended,
    Event,
    Free,
    Held,
    LeaseState,
    Lost,
    Probed,
    Releasing,
    Risk,
    Seeking,
    Verb,
)
from dlock_core.store import Replace

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["notes", "problem", "transition_name"]


def problem(before: LeaseState, event: Event, after: LeaseState, now: int) -> str | None:
    """Check what needs no store: the shape of a step."""
    if type(after) not in lease.TRANSITIONS[type(before), type(event)].leads_to:
        return f"I5: {type(before).__name__} became {type(after).__name__} by {type(event).__name__}"
    if type(event) is Free and type(after) is Held:
        return "F8c: a release was put off"
    if type(after) is Held and type(before) is not Held and not lease.is_valid(after, now):
        return "F5: a grant was handed out after its end"
    if type(before) is not Held:
        return None
    if (
        type(after) is Lost
        and after.loss.reason in (LossReason.EXPIRED, LossReason.UNREACHABLE)
        and before.deadline > now
    ):
        return "I6: lost before the deadline without a proof"
    if before.deadline <= now and type(after) is Held and before.in_flight != after.in_flight:
        return "F8g: a lease is followed after its deadline"
    return None


def transition_name(before: type, event: type, after: type) -> str:
    """Name what the machine's table declares: that *event* may lead from the state *before* to the state *after*."""
    return f"{before.__name__} + {event.__name__} -> {after.__name__}"


def notes(before: LeaseState, event: Event, after: LeaseState, effects: tuple[Effect, ...], now: int) -> Iterator[str]:
    """Name what is worth having been reached."""
    if Risk(at_risk=False) in effects:
        yield "risk healed"
    match before:
        case Seeking():
            yield from _notes_of_seeking(event, after, effects)
            yield from _notes_of_early(event, after, effects, now)
        case Held() | Confirming():
            yield from _notes_of_holding(before, event, after)
        case Releasing():
            refused = type(event) is Answer and not event.reply.applied
            if type(after) is Releasing and after.version != before.version:
                yield "release chasing a renewal"
            found = after.holder if type(after) is Ended and refused else None
            if found is not None and not found.held and found.fencing_token == before.version.fencing_token:
                yield "lost release adopted"
        case Cleaning(in_flight=in_flight) if (
            in_flight is not None and in_flight.verb is Verb.RELEASE and type(event) is Answer
        ):
            yield "abandoned acquire cleaned up" if event.reply.applied else "clean-up met another version"


def _notes_of_seeking(event: Event, after: LeaseState, effects: tuple[Effect, ...]) -> Iterator[str]:
    if type(after) is Held or type(after) is Confirming:
        if type(event) is Answer and not event.reply.applied:
            yield "lost claim adopted"
        if type(after) is Confirming:
            yield "late grant"
    elif type(after) is Cleaning:
        yield "attempt abandoned"
    elif type(event) is Answer and event.abandoned and any(type(effect) is Replace for effect in effects):
        yield "own orphan taken over"


def _notes_of_early(event: Event, after: LeaseState, effects: tuple[Effect, ...], now: int) -> Iterator[str]:
    if type(event) is Probed:
        yield f"owner probed {event.owner.value}"
    if type(after) is not Seeking or not any(type(effect) is Replace for effect in effects):
        return
    if type(event) is Answer and event.age_ms is not None and after.ends_at <= now and _is_young(after, now):
        yield "taken over by the store's clock"
    if type(event) is Probed and _is_young(after, now):
        yield "taken over from a dead owner"


def _is_young(state: Seeking, now: int) -> bool:
    """Whether what was seen has not stood unchanged for a lease: who only observes would wait."""
    return state.seen is not None and now < state.seen.seen_at + state.seen.lease_ns


def _notes_of_holding(before: Held | Confirming, event: Event, after: LeaseState) -> Iterator[str]:
    if type(after) is Lost:
        yield f"lost: {after.loss.reason.value}"
    elif type(after) is Held or type(after) is Confirming:
        if type(before) is Confirming and type(after) is Held:
            yield "late grant renewed before hand-out"
        grant = before.grant if type(before) is Confirming else before
        renewed = after.grant if type(after) is Confirming else after
        if type(event) is Answer and not event.reply.applied and grant.version != renewed.version:  # type: ignore[union-attr]
            yield "lost renewal adopted"
