"""Stores that are right but for one member of several, for who looks, or for a sign that few keys and owners have, as data."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance import _faulty
from dlock_conformance._breaking import STEPS, Step, answering, around, put, standing, writing
from dlock_conformance._broken_steps import Broken
from dlock_conformance._wire_errors import NoReplyError
from dlock_conformance.harness import Colour
from dlock_conformance.wired import BATCH_LIMIT, Wire
from dlock_core.errors import OutcomeUnknownError, RecordError, StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Replace, Reply

__all__ = ["OF_DETAILS"]


def reentrant(wire: Wire, step: Step, request: Claim) -> Any:
    """Let in whose process holds the key already, under the same owner."""
    old = standing(wire, request)
    mine = old is not None and old.held and old.process is not None
    if old is not None and mine and (old.owner, old.process) == (request.record.owner, request.record.process):
        put(wire, replace(old, state=State.FREE, lease_ms=None), old.key)
    return step(request)


def exhausted_as_unknown(_: Wire, step: Step, request: Claim) -> Any:
    """Say of a claim for which there is no greater token that it may have been applied."""
    try:
        return step(request)
    except StoreUnavailableError as error:
        raise OutcomeUnknownError("the server raised an overflow", key=request.record.key) from error


# ---- members of a batch


def without_the_last(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Leave out the last of a batch that is full."""
    most = BATCH_LIMIT - 1
    return [*step(requests[:most]), *(Reply(applied=False, record=standing(wire, each)) for each in requests[most:])]


def waking_as_the_first(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Wake for all of a batch, or for none, as its first asks."""
    return step([each._replace(wakes=requests[0].wakes) for each in requests])


def one_error_for_the_others(_: Any, came: Sequence[Any]) -> Any:
    """Tell each refusal of a batch as the error that another of it has met."""
    errors = [each for each in came if not isinstance(each, Reply)]
    return [errors[0] if errors and isinstance(each, Reply) and not each.applied else each for each in came]


def refused_by_what_stood_before(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Show in the refusals of a batch what a request before it has read."""
    before = [standing(wire, each) for each in requests]
    time.sleep(0.001)
    return [
        result._replace(record=old) if isinstance(result, Reply) and not result.applied else result
        for old, result in zip(before, step(requests), strict=True)
    ]


def oldest_of_all(_: Any, came: Sequence[Reply]) -> Any:
    """Tell with each of several refusals the age of the oldest record."""
    age_ms = max((each.age_ms or 0 for each in came), default=0)
    return [each if each.age_ms is None else each._replace(age_ms=age_ms) for each in came]


# ---- who looks


def made_young_for(wire: Wire, key: str) -> None:
    """Note that *key* was used, as a cache does."""
    if key in wire.space.written_at:
        wire.space.written_at[key] = wire.space.now()


def young_by_a_read(wire: Wire, step: Step, key: str) -> Any:
    """Count the age from the last use."""
    came = step(key)
    made_young_for(wire, key)
    return came


def young_by_a_scan(wire: Wire, step: Step, prefix: str) -> Any:
    """Count the age from the last use, and what is listed is used."""
    came: list[LockRecord] = step(prefix)
    for record in came:
        made_young_for(wire, record.key)
    return came


def young_by_a_batch(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Note each of a batch as written, also what was refused."""
    came = step(requests)
    for request in requests:
        made_young_for(wire, request.record.key)
    return came


def _escaped(prefix: str) -> str:
    return re.sub(r"\\(.)", r"\1", prefix)


OF_DETAILS: tuple[Broken, ...] = (
    Broken("a lock is re-entrant", "S2", around("claim", reentrant)),
    Broken("a claim after the last token is told as unknown", "S18", around("claim", exhausted_as_unknown)),
    Broken("a full batch loses its last", "B3", around("replace_many", without_the_last)),
    Broken("a batch wakes as its first asks", "N1", around("replace_many", waking_as_the_first)),
    Broken(
        "an error in a batch is that of its refusals, too", "B2", answering("replace_many", one_error_for_the_others)
    ),
    Broken(
        "a batch shows in refusals what it has read before",
        "B1",
        around("replace_many", refused_by_what_stood_before),
        colours=(Colour.SYNC,),
    ),
    Broken("several refusals have the age of the oldest", "C2", answering("claim_many", oldest_of_all)),
    Broken("a read makes the record young", "C2", around("read", young_by_a_read)),
    Broken("a scan makes records young", "C2", around("scan", young_by_a_scan)),
    Broken("a refusal in a batch makes the record young", "C2", around("replace_many", young_by_a_batch)),
    Broken(
        "a backslash in a prefix is an escape",
        "S10",
        _faulty.scanning(lambda record, prefix: record.key.startswith(_escaped(prefix))),
    ),
    Broken("slashes before a key are cut", "S12", _faulty.keyed(lambda key: key.lstrip("/"))),
    Broken("a byte order mark before a key is cut", "S12", _faulty.keyed(lambda key: key.lstrip("\ufeff"))),
    Broken("two per cent signs in a key are one", "S12", _faulty.keyed(lambda key: key.replace("%%", "%"))),
    Broken(
        "two backslashes in an owner are one",
        "S11",
        writing(STEPS, lambda _, __, new: replace(new, owner=new.owner.replace("\\\\", "\\"))),
    ),
    Broken("RVNs are kept in lower case", "S11", writing(STEPS, lambda _, __, new: replace(new, rvn=new.rvn.lower()))),
    Broken(
        "the key of a session is kept in lower case",
        "S11",
        writing(
            STEPS,
            lambda _, __, new: replace(new, session=new.session and new.session._replace(key=new.session.key.lower())),
        ),
    ),
    Broken(
        "a reply that is lost is told as a damaged record",
        "S17",
        _faulty.translating(NoReplyError, lambda verb, key: RecordError(f"{verb} met half a record", key=key)),
    ),
)
