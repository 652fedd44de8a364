"""Faults of one branch or of one value: what a store does in all other cases is right."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from dlock_conformance.broken.breaking import Fault, Patch, Step, answering, around, put, standing
from dlock_conformance.wire.errors import NotARecordError
from dlock_conformance.wire.wired import Wire
from dlock_core.errors import RecordError
from dlock_core.record import TOKEN_MAX, LockRecord, NewerRecord, State
from dlock_core.store import Claim, Release, Replace, Reply

Change: TypeAlias = Callable[[LockRecord], LockRecord]

WRITES = ("claim", "claim_when_free", "replace", "release", "replace_many", "claim_many")


def storing(
    verbs: str | Sequence[str],
    change: Callable[[LockRecord | None, LockRecord], LockRecord],
    where: Callable[[Any], bool] = lambda _: True,
) -> Patch:
    """Answer what is right, and store what *change* makes of the record before and of that, for requests of which *where* is true."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        several = not isinstance(asked, (Claim, Replace, Release))
        requests = list(asked) if several else [asked]
        before = [standing(wire, request) for request in requests]
        came = step(asked)
        for old, request, reply in zip(before, requests, came if several else [came], strict=True):
            if isinstance(reply, Reply) and reply.applied and reply.record is not None and where(request):
                put(wire, change(old, reply.record), request.record.key)
        return came

    return around(verbs, fault)


def losing(*names: str) -> Callable[[LockRecord | None, LockRecord], LockRecord]:
    """Return a change of a record that leaves out *names*."""
    nothing: dict[str, Any] = dict.fromkeys(names)
    return lambda _, new: replace(new, **nothing)


def keeping(*names: str) -> Callable[[LockRecord | None, LockRecord], LockRecord]:
    """Return a change of a record that keeps those of *names* that it leaves out, where the format has room for them."""

    def change(old: LockRecord | None, new: LockRecord) -> LockRecord:
        for name in names:
            if old is not None and getattr(new, name) is None:
                with suppress(RecordError):
                    new = replace(new, **{name: getattr(old, name)})
        return new

    return change


def altering(name: str, change: Callable[[Any], Any], verbs: Sequence[str] = WRITES) -> Patch:
    """Store the field *name*, where a record has it, as *change* makes it."""

    def changed(_: LockRecord | None, new: LockRecord) -> LockRecord:
        value = getattr(new, name)
        return new if value is None else replace(new, **{name: change(value)})

    return storing(verbs, changed)


def named_otherwise(change: Callable[[str], str]) -> Patch:
    """Store attributes under names as *change* makes them."""
    return altering("attributes", lambda pairs: tuple(sorted({change(name): value for name, value in pairs}.items())))


# ---- tokens


def given_what_it_asks_for(wire: Wire, step: Step, request: Claim) -> Any:
    """Give a claim the least token that it asks for, though a greater one stood there."""
    reply = step(request)
    if not reply.applied or request.record.fencing_token == 1:
        return reply
    return put(wire, replace(reply.record, fencing_token=request.record.fencing_token), request.record.key)


def with_token(record: LockRecord, token: int) -> LockRecord:
    """Return *record* with another token."""
    return replace(record, fencing_token=token)


def ending_with_the_tokens(_: Wire, step: Step, request: Replace) -> Any:
    """Refuse to write a record with the last token."""
    if request.expected.fencing_token >= TOKEN_MAX:
        return Reply(applied=False, record=None)
    return step(request)


# ---- keys


def number_at_the_end(key: str) -> str:
    """Return *key* with the number that is its last part, if it is one, in one form for all that are equal."""
    start, _, end = key.rpartition("/")
    return (
        f"{start}/{float(end)!r}" if re.fullmatch(r"[0-9.]{1,15}", end) and end.count(".") < 2 and end != "." else key
    )


def keyed_in(verb: str, change: Callable[[str], str]) -> Patch:
    """Store keys as *change* makes them in *verb* alone, of one request or of several; the caller is shown its own."""

    def asked(request: Any) -> Any:
        return request._replace(record=replace(request.record, key=change(request.record.key)))

    def shown(request: Any, reply: Reply) -> Reply:
        return reply._replace(record=reply.record and replace(reply.record, key=request.record.key))

    def fault(_: Wire, step: Step, request: Any) -> Any:
        if isinstance(request, Claim):
            return shown(request, step(asked(request)))
        return [shown(*pair) for pair in zip(request, step([asked(each) for each in request]), strict=True)]

    return around(verb, fault)


# ---- batches


def keeping_as_the_first(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Keep the payloads of all of a batch if its first keeps its own."""
    return step([each._replace(keep_payload=requests[0].keep_payload) for each in requests])


def done_after_what_is_foreign(wire: Wire, _: Step, requests: Sequence[Replace]) -> Any:
    """End a batch at what cannot be read, and tell the rest of it as done."""
    came: list[Any] = []
    for request in requests:
        ended = any(isinstance(each, NotARecordError) for each in came)
        came.append(Reply(applied=True, record=request.record) if ended else wire.one_of_many(request))
    return came


def shown_what_was_asked(requests: Sequence[Replace], came: Sequence[Any]) -> Any:
    """Show in the refusal of one of a batch that keeps its payload what was asked for."""
    return [
        each._replace(record=request.record)
        if isinstance(each, Reply) and not each.applied and each.record is not None and request.keep_payload
        else each
        for request, each in zip(requests, came, strict=True)
    ]


def refused_with_the_first_seen(verb: str) -> Patch:
    """Refuse several requests of *verb* with the records that were seen first."""
    first: dict[str, LockRecord] = {}

    def change(_: Any, came: Sequence[Any]) -> Any:
        return [
            each._replace(record=first.setdefault(each.record.key, each.record))
            if isinstance(each, Reply) and not each.applied and each.record and type(each.record) is not NewerRecord
            else each
            for each in came
        ]

    return answering(verb, change)


def forgetting_who_waits(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Renew in a batch, and forget those who wait."""
    came = step(requests)
    for request, each in zip(requests, came, strict=True):
        if isinstance(each, Reply) and each.applied and request.record.held:
            wire.space.waiters.pop(request.record.key, None)
    return came


# ---- ages and removal


def by_the_writers_clock(wire: Wire) -> None:
    """Take for the age of a record the time since its writer's stamp, where it has one."""
    aged = wire.space._age_ms

    def age_ms(key: str) -> int:
        record = wire.space.records.get(key)
        times = record and record.times
        return int(time.time() - times.written_at_s) * 1000 if times else aged(key)

    wire.space._age_ms = age_ms  # type: ignore[method-assign]  # of this space alone


def age_before_the_record(wire: Wire, step: Step, key: str) -> Any:
    """Read the age, and then the record."""
    came = step(key)
    time.sleep(0.001)  # another request
    return came and (wire.space.records.get(key, came[0]), came[1])


def comparing_listed(compares: Callable[[LockRecord, LockRecord], bool]) -> Fault:
    """Prune what compares so with what was listed."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        records = []
        for listed in asked[0]:
            old = wire.space.records.get(listed.key)
            records.append(old if old is not None and compares(old, listed) else listed)
        return step((records, *asked[1:]))

    return fault


def pruning_what_is_foreign(wire: Wire, step: Step, asked: Any) -> Any:
    """Remove what cannot be read, as if it were free and old."""
    if not asked[2]:
        wire.foreign.difference_update(record.key for record in asked[0])
    return step(asked)


def below_the_floor_where(where: Callable[[Claim], bool]) -> Fault:
    """Grant a claim of which *where* is true without regard to the least token that a prune has left."""

    def fault(wire: Wire, step: Step, request: Claim) -> Any:
        if not where(request):
            return step(request)
        with wire.space.mutex:
            right, wire.space._least_token = wire.space._least_token, 1
            try:
                return step(request)
            finally:
                wire.space._least_token = right

    return fault


def floor_of(which: Callable[[LockRecord], bool]) -> Fault:
    """Raise the floor of a prune by those alone of which *which* is true."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        with wire.space.mutex:
            before = wire.space._least_token
            went = [each.fencing_token for each in asked[0] if which(each) and step(([each], asked[1], True))]
            came = step(asked)
            if not asked[2]:
                wire.space._least_token = max([before, *(token + 1 for token in went)])
            return came

    return fault


# ---- the life of records


def told_swept(goes: Callable[[LockRecord], bool]) -> Patch:
    """Remove by ``guarantees()`` what *goes* says."""

    def patch(wire: Wire) -> None:
        told = wire.told

        def swept() -> Any:
            for key in [key for key, record in wire.space.records.items() if goes(record)]:
                del wire.space.records[key]
            return told()

        wire.told = swept

    return patch


def sweeping_beside(goes: Callable[[LockRecord], bool]) -> Fault:
    """Remove what *goes* says, but for the keys of the requests."""

    def fault(wire: Wire, step: Step, requests: Sequence[Any]) -> Any:
        came, asked = step(requests), {each.record.key for each in requests}
        for key in [key for key, record in wire.space.records.items() if key not in asked and goes(record)]:
            del wire.space.records[key]
        return came

    return fault


def ending_where(verb: str, where: Callable[[Any], bool]) -> Patch:
    """Have the server remove later what a request of *verb* writes of which *where* is true."""

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        came = step(request)
        if came.applied:
            (wire.ends.add if where(request) else wire.ends.discard)(request.record.key)
        return came

    return around(verb, fault)


def sweeping_what_it_reads(wire: Wire, step: Step, key: str) -> Any:
    """Remove what is read, if it is gone."""
    came = step(key)
    if came is not None and came[0].state is State.GONE:
        del wire.space.records[key]
    return came
