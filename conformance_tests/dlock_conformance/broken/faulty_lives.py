"""Faults of the life of a store and of its records: what is lost, what ends by itself, and what a verb costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import Fault, Patch, Step, around, setting
from dlock_conformance.records import LAPSED_MS, fresh
from dlock_conformance.wire.errors import WireError
from dlock_conformance.wire.wired import Wire
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Release, Replace


def forgetting(what: Callable[[LockRecord], bool]) -> Patch:
    """Lose records by a restart."""
    return lambda wire: setting(restart=lambda: lose(wire, what))(wire)


def ending(verbs: str | Sequence[str], which: Callable[[LockRecord], bool]) -> Patch:
    """Have the server remove later what *verbs* write, of what *which* says."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        came = step(asked)
        records = [each.record for each in ([asked] if isinstance(asked, (Claim, Replace, Release)) else asked)]
        wire.ends.difference_update(record.key for record in records)
        wire.ends.update(record.key for record in records if which(record))
        return came

    return around(verbs, fault)


def ending_after(count: int) -> Patch:
    """Have the server remove later what was renewed *count* times."""
    renewals: dict[str, int] = {}

    def fault(wire: Wire, step: Step, asked: Replace) -> Any:
        key = asked.record.key
        renewals[key] = renewals.get(key, 0) + 1
        if renewals[key] >= count:
            wire.ends.add(key)
        return step(asked)

    return around("replace", fault)


def has_lapsed(record: LockRecord) -> bool:
    """Whether the lease of *record* is over, or as good as that."""
    return record.held and record.lease_ms in (1, LAPSED_MS)


def sweeping_elsewhere(goes: Callable[[LockRecord], bool]) -> Fault:
    """Remove what *goes* says, but for what was asked for."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        came = step(asked)
        lose(wire, lambda record: record.key != asked.record.key and goes(record))
        return came

    return fault


def closing_swept(goes: Callable[[LockRecord], bool]) -> Patch:
    """Remove what *goes* says when a store is closed."""

    def patch(wire: Wire) -> None:
        wire.on_close = lambda _: lose(wire, goes)

    return patch


def forgetting_what_came_by(verb: str, least: int = 1) -> Patch:
    """Lose by a restart what the requests of *verb*, of which *least* or more came in one, have written."""

    def patch(wire: Wire) -> None:
        written = set[str]()

        def fault(_: Wire, step: Step, asked: Sequence[Any]) -> Any:
            written.update(each.record.key for each in asked if len(asked) >= least)
            return step(asked)

        around(verb, fault)(wire)
        wire.restart = lambda: lose(wire, lambda record: record.key in written)

    return patch


def collecting(verb: str, goes: Callable[[LockRecord], bool]) -> Patch:
    """Remove in *verb* what *goes* says."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        came = step(asked)
        lose(wire, goes)
        return came

    return around(verb, fault)


def lose(wire: Wire, goes: Callable[[LockRecord], bool]) -> None:
    """Remove the records that *goes* says."""
    for key in [key for key, record in wire.space.records.items() if goes(record)]:
        del wire.space.records[key]


def provisioning(goes: Callable[[LockRecord], bool]) -> Patch:
    """Remove in ``provision()`` what *goes* says."""
    return lambda wire: setting(provision=lambda: lose(wire, goes))(wire)


def closing_with_its_locks(wire: Wire) -> None:
    """Give back at the end what the last claim has got."""
    got = [""]

    def fault(_: Wire, step: Step, request: Any) -> Any:
        got[0] = request.record.key
        return step(request)

    around("claim", fault)(wire)
    wire.on_close = lambda _: lose(wire, lambda record: record.key == got[0])


def going_back(wire: Wire) -> None:
    """Keep what claims and releases write, and renewals in memory alone, which a restart forgets."""
    kept: dict[str, LockRecord] = {}

    def fault(_: Wire, step: Step, request: Any) -> Any:
        reply = step(request)
        if reply.applied:
            kept[request.record.key] = reply.record
        return reply

    around(("claim", "release"), fault)(wire)
    wire.restart = lambda: wire.space.records.update(kept)


def going_back_if(which: Callable[[LockRecord, LockRecord], bool]) -> Patch:
    """Have a restart take back the last write of a record, of which *which* says so by what stood and what was written."""

    def patch(wire: Wire) -> None:
        before: dict[str, LockRecord] = {}

        def fault(wire: Wire, step: Step, request: Any) -> Any:
            old = wire.space.records.get(request.record.key)
            reply = step(request)
            if reply.applied and old is not None:
                before.pop(old.key, None)
                if which(old, reply.record):
                    before[old.key] = old
            return reply

        around(("claim", "replace", "release"), fault)(wire)
        wire.restart = lambda: wire.space.records.update(before)

    return patch


def leaving_out(**fields: Any) -> Patch:
    """Have a restart bring back records with *fields* in place of theirs."""

    def patch(wire: Wire) -> None:
        def restart() -> None:
            for key, record in wire.space.records.items():
                wire.space.records[key] = replace(record, **fields)

        wire.restart = restart

    return patch


def new_guarantees(wire: Wire) -> None:
    """Promise something else each time."""
    told = wire.told
    wire.told = lambda: replace(told(), version=fresh())


def closing_the_client(wire: Wire) -> None:
    """Close the client that was given."""

    def closed(verb: str, _: Any) -> Any:
        raise WireError(f"the client is closed; no {verb}")

    wire.on_close = lambda _: setting(ask=closed)(wire)


def closing_once(wire: Wire) -> None:
    """Fail when closed a second time."""
    closed: set[object] = set()

    def close(store: object) -> None:
        if store in closed:
            raise ValueError("closed already")
        closed.add(store)

    wire.on_close = close


def costing(extra: Callable[[Any, Any], int]) -> Fault:
    """Ask the server more than once: *extra* times, by the request and the answer."""

    def fault(wire: Wire, step: Step, request: Any) -> Any:
        came = step(request)
        count = extra(request, came)
        wire.requests += count
        wire.more_requests += count
        return came

    return fault
