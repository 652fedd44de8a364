"""Faults of claims of several keys in one step: all but that step are right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import Step, answering, around
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.store import Claim, Reply

__all__ = ["OF_SEVERAL", "lacking_a_method"]


def lacking_a_method(wire: Wire) -> None:
    """Declare the capability without the method."""
    wire.faces = tuple(type(face.__name__, (face,), {"claim_many": None}) for face in (WiredStore, AsyncWiredStore))


def one_by_one(wire: Wire, _: Step, requests: Sequence[Claim]) -> Any:
    """Claim each for itself, whatever becomes of the others."""
    replies = [wire.space.claim(request) for request in requests]
    good = all(reply.applied for reply in replies)
    return [reply._replace(applied=good, record=reply.record) for reply in replies]


def only_the_first(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Write two of those that were granted."""
    replies = step(requests)
    for reply in replies[2:]:
        if reply.applied:
            del wire.space.records[reply.record.key]
    return replies


def looking_first(wire: Wire, _: Step, requests: Sequence[Claim]) -> Any:
    """Look whether all are free, and then claim one after the other."""
    standing = [wire.space.records.get(request.record.key) for request in requests]
    if any(record is not None and record.held for record in standing):
        return [Reply(applied=False, record=record) for record in standing]
    replies = []
    for request in requests:
        time.sleep(0)  # here another thread may come between
        replies.append(wire.space.claim(request))
    good = all(reply.applied for reply in replies)
    return [reply._replace(applied=good) for reply in replies]


def any_of_them(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Look at the first key alone, and write all."""
    if not step(requests[:1])[0].applied:
        return [Reply(False, wire.space.records.get(request.record.key)) for request in requests]
    granted = {request.record.key: request.record for request in requests[1:]}
    wire.space.records |= granted
    first = wire.space.records[requests[0].record.key]
    return [Reply(True, record) for record in (first, *granted.values())]


OF_SEVERAL: tuple[Broken, ...] = (
    Broken("several claims are several steps", "M2", around("claim_many", one_by_one)),
    Broken("several claims look first and write then", "M3", around("claim_many", looking_first), (Colour.SYNC,)),
    Broken("only the first of several claims are written", "M1", around("claim_many", only_the_first)),
    Broken("several claims depend on the first key alone", "M2", around("claim_many", any_of_them)),
    Broken(
        "several claims replace the data",
        "M1",
        around("claim_many", lambda _, step, asked: step([each._replace(keep_payload=False) for each in asked])),
    ),
    Broken(
        "several claims make what must exist",
        "M2",
        around("claim_many", lambda _, step, asked: step([each._replace(must_exist=False) for each in asked])),
    ),
    Broken(
        "several claims begin their tokens anew",
        "M1",
        answering(
            "claim_many",
            lambda _, replies: [
                each._replace(record=replace(each.record, fencing_token=1)) if each.applied else each
                for each in replies
            ],
        ),
    ),
    Broken("several claims answer in another order", "M1", answering("claim_many", lambda _, replies: replies[::-1])),
    Broken(
        "a refusal of several shows nothing",
        "M2",
        answering(
            "claim_many", lambda _, replies: [each if each.applied else each._replace(record=None) for each in replies]
        ),
    ),
    Broken(
        "of several claims 25 are written",
        "M4",
        around(
            "claim_many",
            lambda _, step, asked: [*step(asked[:25]), *(Reply(True, each.record) for each in asked[25:])],
        ),
    ),
)
