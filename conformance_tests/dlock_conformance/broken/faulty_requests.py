"""Faults that meet what few requests bring or expect, or those who wait while something else happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import STEPS, Patch, Step, answering, around, standing
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord, Member, SessionRef, State
from dlock_core.store import Claim, Expect, Replace, Reply

MIB = 1024 * 1024
WRITES = (*STEPS, "claim_when_free", "replace_many", "claim_many")
Where = Callable[[LockRecord | None, Any], bool]


def any_version_for(where: Callable[[LockRecord], bool]) -> Callable[[LockRecord | None, Any], Any]:
    """Return a change of a claim: what it expects is forgotten where *where* is true of what it brings."""
    return lambda _, request: request._replace(expect=Expect.ANY) if where(request.record) else request


def below_a_note(old: LockRecord | None, request: Any) -> Any:
    """Let a replace that expects the version below a note expect what stands."""
    if old is None or old.beat is None or request.expected != (old.beat.own, old.fencing_token):
        return request
    return request._replace(expected=old.version)


def same_number(stands: str, expects: str) -> bool:
    """Whether two RVNs are one number, in a column of numbers."""
    try:
        return float(stands) == float(expects)
    except ValueError:
        return stands == expects


def known_by_its_owner(old: LockRecord | None, request: Any, new: LockRecord) -> LockRecord:
    """Give the last holder its own token again."""
    if old is None or not old.owner or old.owner != new.owner:
        return new
    return replace(new, fencing_token=max(old.fencing_token, request.record.fencing_token))


def in_15_digits(_: LockRecord | None, new: LockRecord) -> LockRecord:
    """Keep the token of a session as a number of 15 digits."""
    if new.session is None:
        return new
    return replace(new, session=new.session._replace(fencing_token=int(float(f"{new.session.fencing_token:.15g}"))))


def as_the_first(name: str, alike: Callable[[Any], Hashable]) -> Callable[[Wire, Step, Sequence[Any]], Any]:
    """Return a fault of many requests: the field *name* of the first is written for all others that are *alike*."""

    def fault(_: Wire, step: Step, requests: Sequence[Any]) -> Any:
        first: dict[Hashable, Any] = {}
        asked = []
        for request in requests:
            value = getattr(request.record, name)
            if value is not None:
                value = first.setdefault(alike(value), value)
            asked.append(request._replace(record=replace(request.record, **{name: value})))
        return step(asked)

    return fault


def by_its_key(session: SessionRef) -> Hashable:
    """Return what two sessions may share."""
    return session.key


def by_their_number(members: tuple[str, tuple[SessionRef, ...], tuple[Member, ...]]) -> Hashable:
    """Return what two shared locks may share."""
    return members[0], len(members[2])


def matched_by(name: Callable[[Replace], Hashable]) -> Patch:
    """Match the results of a batch with its requests by something of the request that two of them may share."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        found = {name(request): result for request, result in zip(requests, step(requests), strict=True)}
        return [found[name(request)] for request in requests]

    return around("replace_many", fault)


def up_to_a_mib(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Do as much of a batch as a packet of the server holds, and tell all as done."""
    done, size = 0, 0
    for request in requests:
        size += len(request.record.data or b"")
        done += size < MIB
    return [*step(requests[:done]), *(Reply(True, request.record) for request in requests[done:])]


def of_a_page_256(_: Wire, step: Step, asked: Any) -> Any:
    """Remove a part of a page, and count the rest."""
    return step((asked[0][:256], *asked[1:])) + max(0, len(asked[0]) - 256)


def what_is_gone_whatever_its_rvn(wire: Wire, step: Step, asked: Any) -> Any:
    """Compare no RVN of a record that is gone."""

    def found(listed: LockRecord) -> LockRecord:
        stands = wire.space.records.get(listed.key)
        gone = stands is not None and stands.state is State.GONE and stands.fencing_token == listed.fencing_token
        return stands if gone and stands is not None else listed

    return step(([found(listed) for listed in asked[0]], *asked[1:]))


# ---- ages


def as_old_as_before(where: Callable[[Any], bool]) -> Callable[[Wire, Step, Any], Any]:
    """Return a fault of a write: the record stays as old as it was, for requests of which *where* is true."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        written_at = wire.space.written_at
        several = [asked] if isinstance(asked, (Claim, Replace)) else asked
        before = {request.record.key: written_at.get(request.record.key) for request in several if where(request)}
        came = step(asked)
        written_at.update({key: at for key, at in before.items() if at is not None})
        return came

    return fault


def aged_since_its_begin(wire: Wire) -> None:
    """Tell a claim that has waited the age of the record that stood when it came."""
    began: dict[str, tuple[float, int]] = {}

    def change(request: Claim, reply: Reply) -> Reply:
        if reply.applied or reply.age_ms is None:
            return reply
        at, age_ms = began.setdefault(request.record.rvn, (time.monotonic(), reply.age_ms))
        return reply._replace(age_ms=age_ms + int((time.monotonic() - at) * 1000))

    answering("claim_when_free", change)(wire)


# ---- those who wait


def silent(where: Where) -> Callable[[Wire, Step, Any], Any]:
    """Return a fault of a step: nobody is woken by a request of which, and of what stands, *where* is true."""

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        if not where(standing(wire, request), request):
            return step(request)
        hidden, wire.space.waiters = wire.space.waiters, {}
        try:
            return step(request)
        finally:
            wire.space.waiters = hidden

    return fault


def forgetting_who_waits(when: Callable[[Any, Any], bool]) -> Callable[[Wire, Step, Any], Any]:
    """Return a fault of a step: who waits is forgotten, where *when* is true of the request and its answer."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        came = step(asked)
        if when(asked, came):
            several = [asked] if hasattr(asked, "record") else asked
            keys = [each.record.key for each in several] if type(several) is not str else [r.key for r in came]
            for key in keys:
                wire.space.waiters.pop(key, None)
        return came

    return fault


def after(count: int) -> Callable[[Any, Any], bool]:
    """Return whether the first of the requests is of a key that was written so often."""
    written: dict[str, int] = {}

    def counted(asked: Any, _: Any) -> bool:
        key = (asked if hasattr(asked, "record") else asked[0]).record.key
        written[key] = written.get(key, 0) + 1
        return written[key] >= count

    return counted


def taking_one(wire: Wire, step: Step, request: Any) -> Any:
    """Take the first who waits from his place, though nothing was written."""
    reply = step(request)
    queue = wire.space.waiters.get(request.record.key)
    if not reply.applied and queue:
        queue.popleft()
    return reply


def when_it_has_waited(change: Callable[[Claim], Claim]) -> Patch:
    """Ask for what *change* makes of a claim once it has waited."""

    def patch(wire: Wire) -> None:
        came = set[str]()

        def fault(_: Wire, step: Step, request: Claim) -> Any:
            if request.record.rvn in came:
                return step(change(request))
            came.add(request.record.rvn)
            return step(request)

        around("claim_when_free", fault)(wire)

    return patch


def refused_as_at_first(wire: Wire) -> None:
    """Refuse a claim that has waited with what it was shown first."""
    first: dict[str, Reply] = {}

    def change(request: Claim, reply: Reply) -> Reply:
        return reply if reply.applied else first.setdefault(request.record.rvn, reply)

    answering("claim_when_free", change)(wire)


def brought(request: Claim, **fields: Any) -> Claim:
    """Return *request* with other *fields* in what it brings."""
    return request._replace(record=replace(request.record, **fields))


def under_a_session(old: LockRecord | None, _: Any) -> bool:
    """Whether a session keeps what stands."""
    return old is not None and old.session is not None


def anything(*_: Any) -> bool:
    """Whatever the request is for."""
    return True
