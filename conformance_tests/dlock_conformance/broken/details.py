"""Stores that are right but for one member of several, for who looks, or for a sign that few keys and owners have, as data."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken import faulty
from dlock_conformance.broken.breaking import (
    STEPS,
    Patch,
    Step,
    answering,
    around,
    for_threads,
    put,
    saying,
    setting,
    standing,
    writing,
)
from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.broken.faulty_times import OneAtATime
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NoReplyError, NotSentError, WireError
from dlock_conformance.wire.links import Links, ReplyTimeoutError
from dlock_conformance.wire.wired import BATCH_LIMIT, Wire, WiredStore
from dlock_core.errors import OutcomeUnknownError, RecordError, StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Grade, Release, Replace, Reply

# What the suite takes for a page where the harness does not say.
PAGE = 1000

__all__ = ["LINKS_OF_DETAILS", "OF_DETAILS"]


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


def silent_where_it_keeps(_: Wire, step: Step, request: Replace) -> Any:
    """Forget that a replace wakes, where it keeps the payload."""
    return step(request._replace(wakes=request.wakes and not request.keep_payload))


def silent_where_it_writes(wire: Wire, step: Step, request: Release) -> Any:
    """Wake nobody where a release has data, which another statement writes."""
    return step(request) if request.record.data is None else faulty.silent()(wire, step, request)


def bringing_back(wire: Wire) -> None:
    """Have a restart bring back what was removed."""
    removed: dict[str, LockRecord] = {}

    def prune(_: Wire, step: Step, asked: Any) -> Any:
        removed.update({record.key: record for record in asked[0]})
        return step(asked)

    def restart() -> None:
        wire.space.records = removed | wire.space.records

    around("prune", prune)(wire)
    wire.restart = restart


def cutting_by_a_restart(wire: Wire) -> None:
    """Have a restart bring back 4 KiB of data at most."""

    def restart() -> None:
        for key, record in list(wire.space.records.items()):
            wire.space.records[key] = replace(record, data=record.data and record.data[:4096])

    wire.restart = restart


# ---- the clock of the server


def removing(after_s: float, which: Callable[[LockRecord], bool]) -> Patch:
    """Remove a record so long after it was written, of those of which *which* says so."""

    def patch(wire: Wire) -> None:
        meet = wire.meet

        def met(verb: str, request: Any) -> Any:
            space = wire.space
            for key, record in list(space.records.items()):
                if which(record) and space.now() - space.written_at.get(key, space.now()) > after_s * 10**9:
                    space.records.pop(key, None)
            return meet(verb, request)

        setting(meet=met)(wire)

    return patch


def is_over(wire: Wire, key: str) -> bool:
    """Whether the lease of what stands under *key* was over some time ago, by the clock of the server."""
    record, now = wire.space.records.get(key), wire.space.now()
    lease_ms = record.lease_ms if record is not None and record.held else None
    return lease_ms is not None and now - wire.space.written_at.get(key, now) > 20 * lease_ms * 10**6


def without_what_lapsed(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Leave out of a batch what the clock of the server says is over."""
    return [
        Reply(applied=False, record=standing(wire, each)) if is_over(wire, each.record.key) else step([each])[0]
        for each in requests
    ]


def refusing_what_lapsed(wire: Wire, step: Step, request: Release) -> Any:
    """Refuse to release what the clock of the server says is over."""
    return Reply(applied=False, record=standing(wire, request)) if is_over(wire, request.record.key) else step(request)


def taking_what_lapsed(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
    """Let several claims have what the clock of the server says is over."""
    for each in requests:
        old = standing(wire, each)
        if old is not None and is_over(wire, old.key):
            put(wire, replace(old, state=State.FREE, lease_ms=None, delay_ms=None), old.key)
    return step(requests)


# ---- connections and scans that are used up, and forks


class LosesPlaces(Links):
    """Has thirty connections, and one less with each call whose time-out was over."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._places = threading.Semaphore(30)

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if not self._places.acquire(timeout=timeout_s):
            raise NotSentError("no connection is free")
        try:
            came = super().ask(verb, request, more, timeout_s)
        except ReplyTimeoutError:
            raise
        except BaseException:
            self._places.release()
            raise
        self._places.release()
        return came


class KeepsCursors(WiredStore):
    """Has twenty cursors, and closes each when its scan has been read to its end."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._cursors = threading.Semaphore(20)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As its name says."""
        if not self._cursors.acquire(timeout=timeout_s):
            raise StoreUnavailableError("too many cursors are open") from WireError("no cursor")
        yield from super().scan(prefix, timeout_s=timeout_s)
        self._cursors.release()


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


def disordered(wire: Wire) -> None:
    """Read each page after the first in the order of RVNs, and go on after the key that comes last in it."""

    def scan(_: Wire, step: Step, prefix: str) -> Any:
        found: list[LockRecord] = sorted(step(prefix), key=lambda record: record.key)
        given, rest = found[:PAGE], found[PAGE:]
        while rest:
            page = sorted(rest, key=lambda record: record.rvn)[:PAGE]
            given += page
            rest = [record for record in rest if record.key > page[-1].key]
        return given

    around("scan", scan)(wire)


def _escaped(prefix: str) -> str:
    return re.sub(r"\\(.)", r"\1", prefix)


OF_DETAILS: tuple[Broken, ...] = (
    Broken("a lock is re-entrant", "S2", around("claim", reentrant)),
    Broken("a claim after the last token is told as unknown", "S18", around("claim", exhausted_as_unknown)),
    Broken("a full batch loses its last", "B3", around("replace_many", without_the_last)),
    Broken("who leaves and keeps the payload wakes nobody", "N1", around("replace", silent_where_it_keeps)),
    Broken("a release that writes data wakes nobody", "N1", around("release", silent_where_it_writes)),
    Broken("a tombstone is removed after half a second", "S18", removing(0.5, lambda record: not record.held)),
    Broken("a lock under a session is removed after a second", "S18", removing(1, lambda record: bool(record.session))),
    Broken("a batch renews no lease that is over", "S5", around("replace_many", without_what_lapsed)),
    Broken("a lease that is over is released by nobody", "S5", around("release", refusing_what_lapsed)),
    Broken("several claims take what has lapsed", "S2", around("claim_many", taking_what_lapsed)),
    Broken("grade C is nothing to accept", "S20", saying(grade=Grade.C)),
    Broken("the notes are a text", "S20", saying(notes="one server")),
    Broken("a restart cuts what is large", "S18", cutting_by_a_restart),
    Broken("a restart brings back what was pruned", "P2", bringing_back),
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
        faulty.scanning(lambda record, prefix: record.key.startswith(_escaped(prefix))),
    ),
    Broken("a page after the first has another order", "S10", disordered, on_socket=False),
    Broken("slashes before a key are cut", "S12", faulty.keyed(lambda key: key.lstrip("/"))),
    Broken("a byte order mark before a key is cut", "S12", faulty.keyed(lambda key: key.lstrip("\ufeff"))),
    Broken("two per cent signs in a key are one", "S12", faulty.keyed(lambda key: key.replace("%%", "%"))),
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
        faulty.translating(NoReplyError, lambda verb, key: RecordError(f"{verb} met half a record", key=key)),
    ),
    Broken("scans that are left use cursors up", "S10", for_threads(KeepsCursors), (Colour.SYNC,), on_socket=False),
)
LINKS_OF_DETAILS: tuple[BrokenLinks, ...] = (
    BrokenLinks("each time-out costs one of thirty connections", "S15", LosesPlaces, None),
    BrokenLinks("a forked child waits for a turn of its parent", "S22", OneAtATime, None),
)
