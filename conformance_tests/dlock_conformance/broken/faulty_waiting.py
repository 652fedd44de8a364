"""Faults of waiting and of tickets: the conditions of these stores are right."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import Patch, Step, around, standing
from dlock_conformance.records import held
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Reply, mark_withdrawn


def knowing(newest: bool) -> Patch:  # read as a word: knowing the newest
    """Know one waiter of each key: the newest, or else the first."""

    def patch(wire: Wire) -> None:
        enter, waiters = wire.enter, wire.space.waiters

        def enter_alone(record: LockRecord, wake: Callable[[], object]) -> bool:
            queue = waiters.get(record.key)
            if queue and newest:
                queue.clear()
            return True if queue else enter(record, wake)

        wire.enter = enter_alone

    return patch


def returning_at_once(wire: Wire) -> None:
    """Have a wait in name only."""
    wire.enter = lambda record, wake: False  # the names are those of the server's


def reserving(wire: Wire) -> None:
    """Keep a free key, for ever, for those who have waited for it."""
    enter, waited = wire.enter, set[str]()

    def noted(record: LockRecord, wake: Callable[[], object]) -> bool:
        waited.add(record.key)
        return enter(record, wake)

    def claim(wire: Wire, step: Step, request: Claim) -> Any:
        old = standing(wire, request)
        if old is not None and not old.held and old.key in waited and request.ticket is None:
            return Reply(applied=False, record=replace(held(old.key), fencing_token=old.fencing_token))
        return step(request)

    wire.enter = noted
    around("claim", claim)(wire)


def reserving_for_who_left(wire: Wire) -> None:
    """Keep a free key, for ever, for a waiter that has left."""
    reserving(wire)
    leave, reserved = wire.leave, wire.steps["claim"]
    left = set[str]()

    def noted(key: str, wake: Callable[[], object], *, pass_on: bool) -> None:
        if pass_on:
            left.add(key)
        leave(key, wake, pass_on=pass_on)

    def claim(wire: Wire, _: Step, request: Claim) -> Any:
        return reserved(request) if request.record.key in left else wire.space.claim(request)

    wire.leave = noted
    around("claim", claim)(wire)


def granting_to_the_ticket(wire: Wire) -> None:
    """Take a claim with the ticket of the holder for the same claim, which it was granted."""
    tickets: dict[str, str | None] = {}

    def claim(wire: Wire, step: Step, request: Claim) -> Any:
        old = standing(wire, request)
        if old is not None and old.held and request.ticket and tickets.get(old.key) == request.ticket:
            return Reply(applied=True, record=old)
        reply = step(request)
        if reply.applied:
            tickets[request.record.key] = request.ticket
        return reply

    around("claim", claim)(wire)


def answering_by_the_ticket(wire: Wire) -> None:
    """Answer a claim whose ticket was granted before with the answer from then."""
    answers: dict[tuple[str, str], Reply] = {}

    def claim(_: Wire, step: Step, request: Claim) -> Any:
        name = (request.record.key, request.ticket or "")
        if name in answers:
            return answers[name]
        reply: Reply = step(request)
        if reply.applied and request.ticket:
            answers[name] = reply
        return reply

    around("claim", claim)(wire)


def hiding(_: Claim, reply: Reply) -> Reply:
    """Answer a refusal without the record that stands."""
    return reply if reply.applied else reply._replace(record=None)


def serving_the_newest(wire: Wire) -> None:
    """Put who comes at the head of the queue."""
    enter = wire.enter

    def enter_first(record: LockRecord, wake: Callable[[], object]) -> bool:
        waits = enter(record, wake)
        if waits:
            wire.space.waiters[record.key].rotate(1)
        return waits

    wire.enter = enter_first


def serving_once(wire: Wire) -> None:
    """Forget the others who wait when the first is woken."""
    leave = wire.leave

    def leave_alone(key: str, wake: Callable[[], object], *, pass_on: bool) -> None:
        if not pass_on:
            wire.space.waiters.pop(key, None)
        leave(key, wake, pass_on=pass_on)

    wire.leave = leave_alone


def never_leaving(wire: Wire) -> None:
    """Keep the places of those who have left, and wake them too."""
    wire.leave = lambda key, wake, *, pass_on: None  # the names are those of the server's


def applying_later(wire: Wire) -> None:
    """Apply the first claim that was refused once the key is free, whoever still waits for that."""
    refused: dict[str, Claim] = {}

    def claim(_: Wire, step: Step, request: Claim) -> Any:
        reply = step(request)
        if not reply.applied:
            refused.setdefault(request.record.key, request)
        return reply

    def release(wire: Wire, step: Step, request: Any) -> Any:
        reply = step(request)
        left = refused.pop(request.record.key, None)
        if reply.applied and left is not None:
            wire.space.claim(left)
        return reply

    around("claim_when_free", claim)(wire)
    around("release", release)(wire)


def withdrawing_by_word(wire: Wire) -> None:
    """Say of each claim that is cancelled that it was withdrawn, and apply it later."""
    applying_later(wire)
    leave, asked = wire.leave, dict[str, Claim]()

    def claim(_: Wire, step: Step, request: Claim) -> Any:
        asked[request.record.key] = request
        return step(request)

    def left(key: str, wake: Callable[[], object], *, pass_on: bool) -> None:
        leave(key, wake, pass_on=pass_on)
        interrupt = sys.exception()
        if isinstance(interrupt, asyncio.CancelledError) and key in asked:
            mark_withdrawn(interrupt, asked[key])

    wire.leave = left
    around("claim_when_free", claim)(wire)
