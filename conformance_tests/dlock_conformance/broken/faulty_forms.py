"""Faults of one form of a verb: of a break, a takeover, a batch, a claim that waits. The common form of these stores is right."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import Patch, Step, around, put, standing
from dlock_conformance.broken.faulty import silent
from dlock_conformance.records import held
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Grade, Replace, Reply

LOWEST = Grade.C


def expecting_in(
    form: Callable[[LockRecord, Any], bool],
    *,
    rvn: Callable[[str, str], bool] = lambda stands, expects: stands == expects,
    token: Callable[[int, int], bool] = lambda *_: True,
) -> Callable[[LockRecord | None, Any], Any]:
    """Return a change of requests of one *form*: where RVN and token compare so with what stands, that is what it expects."""

    def change(old: LockRecord | None, request: Any) -> Any:
        name = "expect" if isinstance(request, Claim) else "expected"
        expected = getattr(request, name)
        if old is None or not isinstance(expected, tuple) or not form(old, request):
            return request
        fits = rvn(old.rvn, expected[0]) and token(old.fencing_token, expected[1])
        return request._replace(**{name: old.version}) if fits else request

    return change


def is_a_break(_: LockRecord, request: Replace) -> bool:
    """Whether *request* frees the key."""
    return not request.record.held


def is_a_takeover(old: LockRecord, request: Replace) -> bool:
    """Whether *request* gives the key to another holder."""
    return request.record.held and request.record.fencing_token > old.fencing_token


# ---- batches


def batches_of_their_own(wire: Wire) -> None:
    """Have a mutex for batches, and another one for all else."""
    mutex = threading.Lock()

    def fault(wire: Wire, _: Step, requests: Sequence[Replace]) -> Any:
        with mutex:
            return [renewed_in_two_steps(wire, request) for request in requests]

    around("replace_many", fault)(wire)


def renewed_in_two_steps(wire: Wire, request: Replace) -> Any:
    """Compare the version, and then write."""
    old = standing(wire, request)
    if old is None or not old.held or old.version != request.expected or request.keep_payload or wire.space.waiters:
        return wire.one_of_many(request)
    time.sleep(0)  # here another thread may come between
    return put(wire, request.record, old.key)


def matching_results(by: Callable[[LockRecord], Hashable]) -> Patch:
    """Match the results of a batch with its requests by something that two of them may share."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        found = {by(request.record): result for request, result in zip(requests, step(requests), strict=True)}
        return [found[by(request.record)] for request in requests]

    return around("replace_many", fault)


def written_in_a_batch(change: Callable[[LockRecord, Replace, LockRecord], LockRecord]) -> Patch:
    """Write in a batch what *change* makes of the record before, the request and the right record."""

    def fault(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        before = [standing(wire, request) for request in requests]
        return [
            result._replace(record=put(wire, change(old, request, result.record), old.key).record)
            if isinstance(result, Reply) and result.applied and old is not None and result.record is not None
            else result
            for old, request, result in zip(before, requests, step(requests), strict=True)
        ]

    return around("replace_many", fault)


def without_payload(result: Any) -> Any:
    """Return *result*, if it is a refusal without the payload of what refused."""
    if not isinstance(result, Reply) or result.applied or result.record is None:
        return result
    return result._replace(record=replace(result.record, data=None, attributes=()))


def silent_batch(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Wake nobody."""
    hidden, wire.space.waiters = wire.space.waiters, {}
    try:
        return step(requests)
    finally:
        hidden.update(wire.space.waiters)
        wire.space.waiters = hidden


def cutting_what_several_keep(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Keep the beginning of each payload."""
    return [
        put(wire, replace(reply.record, data=reply.record.data and reply.record.data[:4096]), reply.record.key)
        if reply.applied and request.keep_payload
        else reply
        for request, reply in zip(requests, step(requests), strict=True)
    ]


# ---- races


def several_of_their_own(wire: Wire) -> None:
    """Have a mutex for claims of several keys, and another one for all else."""
    mutex, right = threading.Lock(), wire.steps["claim_many"]

    def fault(wire: Wire, _: Step, requests: Sequence[Claim]) -> Any:
        with mutex:
            if any(standing(wire, request) is not None for request in requests):
                return right(requests)
            time.sleep(0)  # here another thread may come between
            return [put(wire, request.record, request.record.key) for request in requests]

    around("claim_many", fault)(wire)


def pruned_in_two_steps(wire: Wire, step: Step, asked: Any) -> Any:
    """Look what may go, and then remove it."""
    records, older_than_ms, dry_run = asked
    going = [record for record in records if step(([record], older_than_ms, True))]
    time.sleep(0)  # here another thread may come between
    for record in () if dry_run else going:
        wire.space._least_token = max(wire.space._least_token, record.fencing_token + 1)
        wire.space.records.pop(record.key, None)
    return len(going)


def kept_before_the_step(wire: Wire, step: Step, request: Claim) -> Any:
    """Read the payload that is to be kept, and write it with a claim that was granted a moment later."""
    old = standing(wire, request)
    if old is None or not request.keep_payload:
        return step(request)
    time.sleep(0.0001)  # here another thread may come between
    kept = replace(request.record, data=old.data, attributes=old.attributes)
    return step(request._replace(record=kept, keep_payload=False))


def tokens_of_several(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Give all of them the greatest of their tokens."""
    standings = [standing(wire, request) for request in requests]
    most = max([old.fencing_token + 1 for old in standings if old] + [each.record.fencing_token for each in requests])
    return step([each._replace(record=replace(each.record, fencing_token=most)) for each in requests])


# ---- waiting


def known_by_their_token(wire: Wire) -> None:
    """Wake those alone who saw the token of the record that is released."""
    enter, seen = wire.enter, dict[str, int]()

    def noted(record: LockRecord, wake: Callable[[], object]) -> bool:
        seen.setdefault(record.key, record.fencing_token)
        return enter(record, wake)

    def release(wire: Wire, step: Step, request: Any) -> Any:
        is_theirs = seen.get(request.record.key) in (None, request.expected.fencing_token)
        return step(request) if is_theirs else silent()(wire, step, request)

    wire.enter = noted
    around("release", release)(wire)


def answering_who_waits_by_the_ticket(wire: Wire) -> None:
    """Answer a claim that waits with what its ticket was granted before."""
    answers: dict[tuple[str, str], Reply] = {}

    def claim(_: Wire, step: Step, request: Claim) -> Any:
        name = (request.record.key, request.ticket or "")
        if name not in answers:
            reply: Reply = step(request)
            if not reply.applied:
                return reply
            answers[name] = reply
        return answers[name]

    around("claim_when_free", claim)(wire)


def reserving_what_was_broken(wire: Wire) -> None:
    """Keep a lock that was broken, for ever, for a claim with a ticket."""
    broken = set[str]()

    def replaced(_: Wire, step: Step, request: Replace) -> Any:
        reply = step(request)
        if reply.applied and not request.record.held:
            broken.add(request.record.key)
        return reply

    def claim(wire: Wire, step: Step, request: Claim) -> Any:
        old = standing(wire, request)
        if old is None or old.held or old.key not in broken or request.ticket is not None:
            return step(request)
        return Reply(applied=False, record=replace(held(old.key), fencing_token=old.fencing_token))

    around("replace", replaced)(wire)
    around("claim", claim)(wire)
