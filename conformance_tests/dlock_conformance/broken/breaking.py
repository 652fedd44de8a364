"""How a wire is broken: combinators for one step, and the faults that take more than an expression.

A fault of a step is a function of the wire, the right step and the request; it returns what the broken step answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dlock_conformance.wire.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.record import TOKEN_MAX, LockRecord
from dlock_core.store import Claim, Release, Replace, Reply

Step: TypeAlias = Callable[[Any], Any]
Patch: TypeAlias = Callable[[Wire], None]
Fault: TypeAlias = Callable[[Wire, Step, Any], Any]

STEPS = ("claim", "replace", "release")


def around(verbs: str | Sequence[str], fault: Fault) -> Patch:
    """Put *fault* in the place of the steps *verbs*."""

    def patch(wire: Wire) -> None:
        for verb in [verbs] if isinstance(verbs, str) else verbs:
            wire.steps[verb] = _faulty(wire, wire.steps[verb], fault)

    return patch


def _faulty(wire: Wire, step: Step, fault: Fault) -> Step:
    return lambda request: fault(wire, step, request)


def asking(verb: str, change: Callable[[LockRecord | None, Any], Any]) -> Patch:
    """Ask for what *change* makes of the record that stands and the request."""
    return around(verb, lambda wire, step, request: step(change(standing(wire, request), request)))


def answering(verbs: str | Sequence[str], change: Callable[[Any, Any], Any]) -> Patch:
    """Answer what *change* makes of the request and the right answer."""
    return around(verbs, lambda _, step, request: change(request, step(request)))


def writing(
    verbs: str | Sequence[str], change: Callable[[LockRecord | None, Any, LockRecord], LockRecord | None]
) -> Patch:
    """Write what *change* makes of the record before, the request and the right record, when the step is applied."""

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        old, reply = standing(wire, request), step(request)
        return put(wire, change(old, request, reply.record), request.record.key) if reply.applied else reply

    return around(verbs, fault)


def saying(**changes: Any) -> Patch:
    """Change what the store says of itself."""

    def patch(wire: Wire) -> None:
        told = wire.told
        wire.told = lambda: replace(told(), **changes)

    return patch


def setting(**attributes: Any) -> Patch:
    """Replace parts of the wire."""
    return lambda wire: wire.__dict__.update(attributes)


def for_threads(store: type[WiredStore]) -> Patch:
    """Have *store* as the face for threads, and the right one for tasks."""
    return setting(faces=(store, AsyncWiredStore))


def both(*patches: Patch) -> Patch:
    """Break several things."""

    def patch(wire: Wire) -> None:
        for each in patches:
            each(wire)

    return patch


def standing(wire: Wire, request: Any) -> LockRecord | None:
    """Return what stands under the key of *request*."""
    return wire.space.records.get(request.record.key)


def put(wire: Wire, record: LockRecord | None, key: str) -> Reply:
    """Write *record*, or remove what stands under *key*; return the grant."""
    if record is None:
        wire.space.records.pop(key, None)
    else:
        wire.space.records[key] = record
    return Reply(applied=True, record=record)


def unless(condition: Callable[[LockRecord, Any], bool]) -> Fault:
    """Refuse as is right where *condition* holds for what stands; else write without any condition."""

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        old = standing(wire, request)
        if old is None or condition(old, request):
            return step(request)
        return put(wire, request.record, request.record.key)

    return fault


def expecting_what_stands(
    compares: Callable[[int, int], bool],
) -> Callable[[LockRecord | None, Any], Any]:
    """Return a change of a request whose token compares so with the one that stands, and whose RVN is right: it expects what stands."""

    def change(old: LockRecord | None, request: Any) -> Any:
        name = "expect" if isinstance(request, Claim) else "expected"
        expected = getattr(request, name)
        if old is None or not isinstance(expected, tuple) or expected[0] != old.rvn:
            return request
        return request._replace(**{name: old.version}) if compares(expected[1], old.fencing_token) else request

    return change


def expecting_the_rvn_of(compares: Callable[[str, str], bool]) -> Callable[[LockRecord | None, Any], Any]:
    """Return a change of a replace or release that expects the RVN that stands, where the RVN that it expects compares so with it."""

    def change(old: LockRecord | None, request: Any) -> Any:
        if old is None or not compares(old.rvn, request.expected.rvn):
            return request
        return request._replace(expected=request.expected._replace(rvn=old.rvn))

    return change


def in_a_batch(change: Callable[[LockRecord | None, Any], Any]) -> Patch:
    """Ask for what *change* makes of each request of a batch and the record that stands."""
    return around(
        "replace_many", lambda wire, step, requests: step([change(standing(wire, each), each) for each in requests])
    )


# ---- steps in two parts


def claim_in_two_steps(wire: Wire, _: Step, request: Claim) -> Reply:
    """Look whether the key is free, and then write."""
    old = standing(wire, request)
    if old is not None and old.held:
        return Reply(applied=False, record=old)
    time.sleep(0)  # here another thread may come between
    token = 1 if old is None else old.fencing_token + 1
    return put(wire, replace(request.record, fencing_token=token), request.record.key)


def change_in_two_steps(wire: Wire, _: Step, request: Replace | Release) -> Reply:
    """Compare the version, and then write."""
    old = standing(wire, request)
    if old is None or not old.held or old.version != request.expected:
        return Reply(applied=False, record=old)
    time.sleep(0)  # here another thread may come between
    return put(wire, request.record, request.record.key)


def token_before_the_step(wire: Wire, step: Step, request: Claim) -> Reply:
    """Draw the token first, and write it with a claim that was granted a moment later."""
    old = standing(wire, request)
    token = 1 if old is None else old.fencing_token + 1
    time.sleep(0.0001)  # here another thread may come between
    reply: Reply = step(request)
    if not reply.applied or reply.record is None:
        return reply
    return put(wire, replace(reply.record, fencing_token=token), request.record.key)


def token_of_all_keys(wire: Wire, step: Step, request: Claim) -> Any:
    """Count the tokens of all keys together."""
    most = max((record.fencing_token for record in wire.space.records.values()), default=0)
    return step(
        request._replace(record=replace(request.record, fencing_token=max(most + 1, request.record.fencing_token)))
    )


def token_that_burns(wire: Wire, step: Step, request: Claim) -> Any:
    """Raise the token for the claim, whether it is applied or not."""
    old = standing(wire, request)
    if old is None or not old.held:
        return step(request)
    put(wire, replace(old, fencing_token=old.fencing_token + 1), old.key)
    return Reply(applied=False, record=old)


def claim_of_a_held_record(wire: Wire, step: Step, request: Claim) -> Any:
    """Take the record, whoever holds it."""
    old = standing(wire, request)
    if old is None or not old.held:
        return step(request)
    return put(wire, replace(request.record, fencing_token=old.fencing_token + 1), old.key)


def claim_of_a_lapsed_record(wire: Wire, step: Step, request: Claim) -> Any:
    """Let a record lapse by a clock: one with a lease of a millisecond is gone when the next claim comes."""
    old = standing(wire, request)
    if old is not None and old.held and old.lease_ms == 1:
        return claim_of_a_held_record(wire, step, request)
    return step(request)


def token_that_wraps(wire: Wire, step: Step, request: Claim) -> Any:
    """Begin again after the last token."""
    old = standing(wire, request)
    if old is not None and not old.held and old.fencing_token >= TOKEN_MAX:
        return put(wire, request.record, old.key)
    return step(request)
