"""Faults of one form of a verb in one state of a key, or of one field: all other cells of that table are right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from dlock_conformance.broken.breaking import Fault, Patch, Step, around, put, setting, standing
from dlock_conformance.broken.faulty_forms import is_a_takeover
from dlock_conformance.records import held
from dlock_conformance.wire.errors import NotARecordError
from dlock_conformance.wire.wired import Wire
from dlock_core.errors import RecordError
from dlock_core.record import TOKEN_MAX, LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply

Form: TypeAlias = Callable[[LockRecord, Any], bool]

RARE = ("stamp", "process", "broken", "session", "beat", "members", "delay_ms", "times")
DAY_MS = 86_400_000


def keeps(_: LockRecord, request: Any) -> bool:
    """Whether *request* keeps the payload."""
    return bool(request.keep_payload)


def hides(_: LockRecord, request: Any) -> bool:
    """Whether *request* hides the record."""
    return bool(request.record.state is State.GONE)


def where(form: Form, fault: Fault) -> Fault:
    """Have *fault* in requests of one *form* alone."""

    def chosen(wire: Wire, step: Step, request: Any) -> Any:
        old = standing(wire, request)
        return step(request) if old is None or not form(old, request) else fault(wire, step, request)

    return chosen


def one_by_one(fault: Fault) -> Fault:
    """Have *fault* in each replace of a batch."""
    return lambda wire, _, requests: [fault(wire, wire.one_of_many, request) for request in requests]


# ---- conditions


def reviving(form: Form) -> Fault:
    """Take what is not held, in its version, for held in requests of one *form*."""

    def fault(wire: Wire, step: Step, request: Replace | Release) -> Any:
        with wire.space.mutex:
            old = standing(wire, request)
            if old is not None and not old.held and old.version == request.expected and form(old, request):
                wire.space.records[old.key] = replace(old, state=State.HELD)
            return step(request)

    return fault


def creating_where_it_keeps(wire: Wire, step: Step, request: Replace | Release) -> Any:
    """Take an absent key for one that is held as expected, where the payload is to be kept."""
    with wire.space.mutex:
        record, (rvn, token) = request.record, request.expected
        taken = wire.space.records.keys() | wire.newer.keys() | wire.foreign
        if request.keep_payload and record.key not in taken:
            wire.space.records[record.key] = replace(record, state=State.HELD, rvn=rvn, fencing_token=token)
        return step(request)


def newer_is_ours_in(form: Form) -> Patch:
    """Take a record of the next format for one of this format in a replace or release of one *form*."""

    def patch(wire: Wire) -> None:
        right = wire.meet

        def lenient(verb: str, request: Any) -> Any:
            if isinstance(request, (Replace, Release)) and wire.newer.get(request.record.key) == request.expected:
                rvn, token = request.expected
                ours = held(request.record.key, rvn=rvn, token=token)
                if form(ours, request):
                    del wire.newer[ours.key]
                    wire.space.records[ours.key] = ours
            return right(verb, request)

        setting(meet=lenient)(wire)

    return patch


# ---- tokens


def keeping_the_token(wire: Wire, step: Step, request: Claim) -> Any:
    """Grant the token of the tombstone once more, or a greater one that is asked for."""
    with wire.space.mutex:
        old, reply = standing(wire, request), step(request)
        if old is None or not reply.applied:
            return reply
        token = max(old.fencing_token, request.record.fencing_token)
        return put(wire, replace(reply.record, fencing_token=token), old.key)


def asking_for_any_token(request: Claim) -> Claim:
    """Return *request* without the least token that it asks for."""
    return request._replace(record=replace(request.record, fencing_token=1))


def below_the_floor(wire: Wire, step: Step, asked: Any) -> Any:
    """Grant without regard to the least token that a prune has left."""
    with wire.space.mutex:
        right, wire.space._least_token = wire.space._least_token, 1
        try:
            return step(asked)
        finally:
            wire.space._least_token = right


def floor_of_the_last(wire: Wire, step: Step, asked: Any) -> Any:
    """Prune, and begin above the last that went, though one before it may have had a greater token."""
    records, older_than_ms, dry_run = asked
    with wire.space.mutex:
        before = wire.space._least_token
        went = [record for record in records if step(([record], older_than_ms, True))]
        came = step(asked)
        if went and not dry_run:
            wire.space._least_token = max(before, went[-1].fencing_token + 1)
        return came


def restarting_without_the_floor(wire: Wire) -> None:
    """Forget by a restart the least token that a prune has left."""
    setting(restart=lambda: setattr(wire.space, "_least_token", 1))(wire)


def granting_the_last_token_again(wire: Wire, step: Step, asked: Any) -> Any:
    """Grant the last token to each claim that has no condition."""
    requests = [asked] if isinstance(asked, Claim) else asked

    def granted(request: Claim) -> bool:
        key, old = request.record.key, standing(wire, request)
        ours = key not in wire.newer and key not in wire.foreign and not (old and old.held)
        return ours and request.expect is Expect.ANY and not request.must_exist

    with wire.space.mutex:
        if all(granted(request) for request in requests):
            for old in [standing(wire, request) for request in requests]:
                if old is not None and old.fencing_token == TOKEN_MAX:
                    wire.space.records[old.key] = replace(old, fencing_token=TOKEN_MAX - 1)
        return step(asked)


# ---- fields


def keeping(old: LockRecord, request: Any, *names: str) -> Any:
    """Return *request* so that it keeps those of *names* that it leaves out, as far as the format has room for them."""
    record = request.record
    for name in names:
        if getattr(record, name) is None and getattr(old, name) is not None:
            with suppress(RecordError):
                record = replace(record, **{name: getattr(old, name)})
    return request._replace(record=record)


def keeping_what_is_left_out(old: LockRecord | None, request: Any) -> Any:
    """Return *request* so that it keeps all that it leaves out, where it keeps the payload."""
    return keeping(old, request, *RARE) if old is not None and request.keep_payload else request


def keeping_what_is_gone(old: LockRecord | None, request: Claim) -> Claim:
    """Return *request* so that it keeps the payload of what is gone, where it keeps the payload."""
    if old is None or old.state is not State.GONE or not request.keep_payload:
        return request
    return request._replace(record=replace(request.record, data=old.data, attributes=old.attributes))


def without_what_is_rare(record: LockRecord, names: Sequence[str] = RARE) -> LockRecord:
    """Return *record* without what few records have."""
    left_out: dict[str, Any] = dict.fromkeys(names)
    return replace(record, **left_out)


def refused_in_part(reply: Any) -> Any:
    """Return *reply*, if it is a refusal without what few records have."""
    if not isinstance(reply, Reply) or reply.applied or reply.record is None:
        return reply
    return reply._replace(record=without_what_is_rare(reply.record))


def recording(change: Callable[[LockRecord], LockRecord]) -> Fault:
    """Write what *change* makes of each record that is to be written."""
    return lambda _, step, request: step(request._replace(record=change(request.record)))


def recording_several(change: Callable[[LockRecord], LockRecord]) -> Fault:
    """Write what *change* makes of each record that is to be written, of several."""
    return lambda _, step, requests: step([each._replace(record=change(each.record)) for each in requests])


def members_sorted(record: LockRecord) -> LockRecord:
    """Return *record* with its members in the order of their names."""
    if record.members is None:
        return record
    return replace(record, members=record.members._replace(members=tuple(sorted(record.members.members))))


def members_cut(record: LockRecord) -> LockRecord:
    """Return *record* with its first 64 members."""
    if record.members is None:
        return record
    return replace(record, members=record.members._replace(members=record.members.members[:64]))


def notes_cut(record: LockRecord) -> LockRecord:
    """Return *record* with the first 16 notes of its beat."""
    return replace(record, beat=record.beat and record.beat._replace(notes=record.beat.notes[:16]))


def integers_as_floats(record: LockRecord) -> LockRecord:
    """Return *record* with integers that were floats for a moment."""
    return replace(
        record,
        attributes=tuple(
            (name, max(-(2**63) + 1, min(2**63 - 1, int(float(value)))) if type(value) is int else value)
            for name, value in record.attributes
        ),
    )


# ---- several keys


def lease_of_the_first(_: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Write the lease of the first for all that have one."""
    first = requests[0].record.lease_ms if requests else None

    def changed(record: LockRecord) -> LockRecord:
        has_a_plain_one = record.lease_ms is not None and record.delay_ms is None
        return replace(record, lease_ms=first) if first is not None and has_a_plain_one else record

    return step([each._replace(record=changed(each.record)) for each in requests])


def matching_replies(by: Callable[[LockRecord], Hashable]) -> Fault:
    """Match the replies to several claims with them by something that two of them may share."""

    def fault(_: Wire, step: Step, requests: Sequence[Claim]) -> Any:
        found = {by(request.record): reply for request, reply in zip(requests, step(requests), strict=True)}
        return [found[by(request.record)] for request in requests]

    return fault


def in_pieces(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Do 25 in each transaction."""
    came: list[Reply] = []
    for place in range(0, len(requests), 25):
        came += step(requests[place : place + 25])
    if all(reply.applied for reply in came):
        return came
    return [reply._replace(applied=False, record=None if reply.applied else reply.record) for reply in came]


# ---- ages


def a_day_old(reply: Reply) -> Reply:
    """Return *reply*, if it is a refusal by a record with the age of a day."""
    return reply if reply.applied or reply.record is None else reply._replace(age_ms=DAY_MS)


def age_since_the_grant(wire: Wire) -> None:
    """Refuse a claim with the time since the last grant, whatever was written after it."""
    granted: dict[str, int] = {}

    def claim(wire: Wire, step: Step, request: Claim) -> Any:
        key, reply = request.record.key, step(request)
        if reply.applied:
            granted[key] = wire.space.now()
        elif reply.record is not None and key in granted:
            return reply._replace(age_ms=(wire.space.now() - granted[key]) // 1_000_000)
        return reply

    def replaced(wire: Wire, step: Step, request: Replace) -> Any:
        old, reply = standing(wire, request), step(request)
        if reply.applied and old is not None and is_a_takeover(old, request):
            granted[old.key] = wire.space.now()
        return reply

    around("claim", claim)(wire)
    around("replace", replaced)(wire)


def keeping_the_ages(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Let what several claims write be as old as what stood there."""
    written_at, keys = wire.space.written_at, {request.record.key for request in requests}
    before = {key: written_at[key] for key in keys if key in written_at}
    came = step(requests)
    written_at.update(before)
    return came


def age_without_case(wire: Wire, step: Step, key: str) -> Any:
    """Read the age of the first record whose key differs in case alone."""
    found = next((each for each in sorted(wire.space.records) if each.lower() == key.lower()), key)
    came = step(found)
    return came and (replace(came[0], key=key), came[1])


# ---- batches


def wanted_for_all(_: Any, came: Sequence[Any]) -> Any:
    """Say wanted of all of a batch if somebody waits for one of its keys."""
    wanted = any(isinstance(each, Reply) and each.wanted for each in came)
    return [each._replace(wanted=wanted) if isinstance(each, Reply) and each.applied else each for each in came]


def failing_for_a_newer_format(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Let one record of a newer format fail a batch of several."""
    if len(requests) > 1 and any(request.record.key in wire.newer for request in requests):
        raise NotARecordError("it is of format 2")
    return step(requests)


# ---- removal and scans


def pruning_of_a_page(choose: Callable[[list[bool]], int]) -> Fault:
    """Prune the first records of a page, as many as *choose* says by which of them may go."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        records, older_than_ms, dry_run = asked
        with wire.space.mutex:
            may_go = [bool(step(([record], older_than_ms, True))) for record in records]
            return step((records[: choose(may_go)], older_than_ms, dry_run))

    return fault


def pruning_by_the_first_age(wire: Wire, step: Step, asked: Any) -> Any:
    """Prune all of a page if its first record is old enough."""
    records, older_than_ms, dry_run = asked
    with wire.space.mutex:
        first = wire.space.read_age(records[0].key) if records else None
        return 0 if first is None or first[1] < older_than_ms else step((records, 0, dry_run))


def pruning_a_newer_format(wire: Wire, step: Step, asked: Any) -> Any:
    """Remove records of a newer format too, as if they were free and old."""
    records, _, dry_run = asked
    going = [record.key for record in records if wire.newer.get(record.key) == record.version]
    for key in () if dry_run else going:
        del wire.newer[key]
    return len(going) + step(asked)


def scanning_without_case(_: Wire, step: Step, prefix: str) -> Any:
    """Read each page after the last key of the one before, compared without case."""
    rows, last = sorted(step(prefix), key=lambda record: (record.key.lower(), record.key)), ""
    while page := [record for record in rows if record.key.lower() > last][:100]:
        yield from page
        last = page[-1].key.lower()


def scanning_to_the_next_character(_: Wire, step: Step, prefix: str) -> Any:
    """Scan up to the prefix with its last character raised by one, though nothing is above the last of all characters."""
    end = prefix and prefix[:-1] + chr(min(ord(prefix[-1]) + 1, 0x10FFFF))
    return [record for record in step(prefix) if not end or record.key < end]


def scanning_the_floor_too(wire: Wire, step: Step, prefix: str) -> Any:
    """Take the row of the least token for a record in a scan of everything, and fail."""
    if not prefix and wire.space._least_token > 1:
        raise NotARecordError("it keeps the least token")
    return step(prefix)
