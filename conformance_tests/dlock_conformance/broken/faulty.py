"""Faults that take more than an expression: answers from elsewhere, trouble told wrongly, life and wake-ups."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import STEPS, Fault, Patch, Step, answering, around, both, setting, standing
from dlock_conformance.records import held
from dlock_conformance.wire.errors import NotARecordError, WireError
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord
from dlock_core.store import Release, Replace, Reply

# ---- answers from elsewhere


def stale_reads(wire: Wire) -> None:
    """Read from a replica that is one write behind."""
    before: dict[str, LockRecord | None] = {}

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        old, reply = standing(wire, request), step(request)
        if reply.applied:
            before[request.record.key] = old
        return reply

    around(STEPS, fault)(wire)
    wire.steps["read"] = before.get


def cached_refusals(wire: Wire) -> None:
    """Refuse with the record that was seen first."""
    first: dict[str, LockRecord] = {}

    def change(request: Any, reply: Reply) -> Reply:
        if reply.record is not None:
            first.setdefault(request.record.key, reply.record)
        return reply if reply.applied else reply._replace(record=first.get(request.record.key))

    answering(STEPS, change)(wire)


def refusal_by_exception(_: Any, reply: Reply) -> Reply:
    """Let out what the driver raises when a condition fails."""
    if not reply.applied:
        raise WireError("the conditional request failed")
    return reply


def keyed(change: Callable[[str], str]) -> Patch:
    """Store every key as *change* makes it; the caller is shown its own."""

    def fault(_: Wire, step: Step, request: Any) -> Any:
        key = request.record.key
        reply = step(request._replace(record=replace(request.record, key=change(key))))
        return reply._replace(record=reply.record and replace(reply.record, key=key))

    def read(_: Wire, step: Step, key: str) -> Any:
        record = step(change(key))
        return record and replace(record, key=key)

    return both(around(STEPS, fault), around("read", read))


def scanning(choose: Callable[[LockRecord, str], bool]) -> Patch:
    """Scan for the records that *choose* likes."""
    return around(
        "scan", lambda wire, _, prefix: [record for record in wire.space.records.values() if choose(record, prefix)]
    )


def scanning_by_places(wire: Wire) -> None:
    """Read each page from the place, in the order of keys, at which the last one ended."""

    def pages(wire: Wire, _: Step, prefix: str) -> Any:
        place, records = 0, wire.space.records
        while page := sorted(key for key in records if key.startswith(prefix))[place : place + 5]:
            yield from (records[key] for key in page)
            place += 5

    around("scan", pages)(wire)


def scanning_by_times(wire: Wire) -> None:
    """Read the records in the order in which they were written last, so that what is written meanwhile comes again."""

    def pages(wire: Wire, _: Step, prefix: str) -> Any:
        last, written_at = -1, wire.space.written_at
        while left := [(at, key) for key, at in written_at.items() if at > last and key.startswith(prefix)]:
            last, key = min(left)
            yield wire.space.records[key]

    around("scan", pages)(wire)


# ---- trouble


def translating(kind: type[WireError], error: Callable[[str, str | None], Exception]) -> Patch:
    """Say something else for one of the driver's errors."""

    def patch(wire: Wire) -> None:
        right: Callable[..., Any] = wire.translate
        wrong: Any = lambda cause, verb, key: error(verb, key) if type(cause) is kind else right(cause, verb, key)  # noqa: E731
        wire.translate = wrong

    return patch


def without_reply(answer: Callable[[Any], Any]) -> Patch:
    """Answer a write whose reply was lost."""

    def patch(wire: Wire) -> None:
        ask = wire.ask

        def answered(verb: str, request: Any) -> Any:
            try:
                return ask(verb, request)
            except WireError:
                if verb not in STEPS:
                    raise
                return answer(request)

        setting(ask=answered)(wire)

    return patch


def sending_again(wire: Wire) -> None:
    """Repeat what got no reply, as drivers with retries do."""
    ask = wire.ask

    def again(verb: str, request: Any) -> Any:
        try:
            return ask(verb, request)
        except WireError:
            return ask(verb, request)

    setting(ask=again)(wire)


def causeless(wire: Wire) -> None:
    """Put an error of ours between the driver's and the one that is raised."""
    right = wire.translate

    def middle(error: WireError, verb: str, key: str | None) -> Any:
        raise right(error, verb, key) from None

    setting(translate=middle)(wire)


def foreign_is(answer: Callable[[str], Any]) -> Patch:
    """Take what is not ours for something that is: *answer* by verb."""

    def patch(wire: Wire) -> None:
        right = wire.meet

        def lenient(verb: str, request: Any) -> Any:
            try:
                return right(verb, request)
            except NotARecordError:
                return answer(verb)

        setting(meet=lenient)(wire)

    return patch


def foreign_is_free(wire: Wire) -> None:
    """Claim over what is not ours."""
    right = wire.meet

    def lenient(verb: str, request: Any) -> Any:
        if verb == "claim":
            wire.foreign.discard(request.record.key)
        return right(verb, request)

    setting(meet=lenient)(wire)


def newer_is_ours_to(*verbs: str) -> Patch:
    """Take a record of the next format as one of this format in *verbs*; without any, in all."""

    def patch(wire: Wire) -> None:
        right = wire.meet

        def lenient(verb: str, request: Any) -> Any:
            if not verbs or verb in verbs:
                for key, version in wire.newer.items():
                    wire.space.records[key] = held(key, rvn=version.rvn, token=version.fencing_token)
                wire.newer.clear()
            return right(verb, request)

        setting(meet=lenient)(wire)

    return patch


# ---- batches and wake-ups


def first_only(limit: int) -> Fault:
    """Do the first of a batch, and say that all were done."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        return [*step(requests[:limit]), *(Reply(applied=True, record=each.record) for each in requests[limit:])]

    return fault


def all_with_the_first(name: str) -> Fault:
    """Write the field *name* of the first of a batch for all of it."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        first = {name: getattr(requests[0].record, name)} if requests else {}
        return step([each._replace(record=replace(each.record, **first)) for each in requests])

    return fault


def translating_a_batch(error: Callable[[str], Exception]) -> Patch:
    """Say something else for each of the driver's errors that a batch meets."""

    def patch(wire: Wire) -> None:
        right: Callable[..., Any] = wire.translate
        wrong: Any = lambda cause, verb, key: error(verb) if verb == "replace_many" else right(cause, verb, key)  # noqa: E731
        wire.translate = wrong

    return patch


def all_or_none(_: Any, came: Sequence[Any]) -> Any:
    """Tell all of a batch as refused if one is."""
    good = all(isinstance(each, Reply) and each.applied for each in came)
    return came if good else [each._replace(applied=False) if isinstance(each, Reply) else each for each in came]


def told_as_done(requests: Any, came: Sequence[Any]) -> Any:
    """Tell all of a batch as done."""
    return [
        each if isinstance(each, WireError) else Reply(applied=True, record=request.record)
        for request, each in zip(requests, came, strict=True)
    ]


def raising_the_first(_: Any, came: Sequence[Any]) -> Any:
    """Let one record that cannot be read fail the batch."""
    for each in came:
        if isinstance(each, WireError):
            raise each
    return came


def missing_the_release(wire: Wire) -> None:
    """Wait for the next release, without a look whether one has come."""
    space = wire.space

    def enter(record: LockRecord, wake: Callable[[], object]) -> bool:
        with space.mutex:
            space.waiters.setdefault(record.key, deque()).append(wake)
        return True

    wire.enter = enter


def silent(before: float = 0.0) -> Fault:
    """Wake one before the release is written, *before* seconds, and nobody after it; with 0, nobody at all."""

    def fault(wire: Wire, step: Step, request: Release) -> Any:
        queue = wire.space.waiters.get(request.record.key)
        if before and queue:
            queue.popleft()()
            time.sleep(before)
        hidden, wire.space.waiters = wire.space.waiters, {}
        try:
            return step(request)
        finally:
            hidden.update(wire.space.waiters)
            wire.space.waiters = hidden

    return fault


def waking_all(wire: Wire, step: Step, request: Release) -> Any:
    """Tell everybody."""
    reply = step(request)
    queue = wire.space.waiters.get(request.record.key)
    while reply.applied and queue:
        queue.popleft()()
    return reply


def waiting_too_long(wire: Wire) -> None:
    """Look for the release in the driver's own time."""
    enter, done = wire.enter, threading.Event()

    def patient(record: LockRecord, wake: Callable[[], object]) -> bool:
        done.wait(2.1)
        return enter(record, wake)

    wire.enter = patient


def not_passing_on(wire: Wire) -> None:
    """Leave with a wake-up that was not used."""
    leave = wire.leave
    setting(leave=lambda key, wake, *, pass_on: leave(key, wake, pass_on=False))(wire)


# ---- ages


def keeping_the_age(wire: Wire, step: Step, request: Any) -> Any:
    """Let what is written be as old as what stood there."""
    written_at = wire.space.written_at
    before = written_at.get(request.record.key)
    came = step(request)
    if before is not None:
        written_at[request.record.key] = before
    return came


def pruning(goes: Callable[[LockRecord, LockRecord, int, int], bool]) -> Callable[[Wire, Step, Any], Any]:
    """Remove what *goes* says: by what stands, what was listed, the age of the former, and the least age."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        space, going = wire.space, []
        for listed in asked[0]:
            aged = space.read_age(listed.key)
            if aged is not None and goes(aged[0], listed, aged[1], asked[1]):
                going.append(aged[0])
        if not asked[2]:
            for record in going:
                space._least_token = max(space._least_token, record.fencing_token + 1)
                del space.records[record.key]
        return len(going)

    return fault


def forgetting_the_floor(wire: Wire, step: Step, asked: Any) -> Any:
    """Prune, and begin at 1 again."""
    came = step(asked)
    wire.space._least_token = 1
    return came


def forgetting_earlier_floors(wire: Wire, step: Step, asked: Any) -> Any:
    """Prune, and begin above what went just now, though more may have gone before."""
    wire.space._least_token = 1
    return step(asked)
