"""Stores that are right but for what trouble, time or a long life does to one verb, as data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dlock_conformance.broken import faulty_calls, faulty_lives, faulty_pools
from dlock_conformance.broken.breaking import Patch, Step, around, setting
from dlock_conformance.broken.faulty_calls import playing
from dlock_conformance.broken.faulty_links import BrokenLinks, telling
from dlock_conformance.broken.faulty_pools import one_at_a_time, used_again_after
from dlock_conformance.broken.steps import Broken
from dlock_conformance.faults import Fault
from dlock_conformance.wire.errors import NoReplyError, NotSentError
from dlock_conformance.wire.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim

__all__ = ["LINKS_OF_LIVES", "OF_LIVES"]

RESET = (ConnectionResetError, BrokenPipeError)
HOUR_NS = 3600 * 10**9
WRITES = ("claim", "replace", "release", "replace_many", "claim_many", "prune")


def getting_older(wire: Wire) -> None:
    """Have a restart set the server's clock on by an hour."""

    def restart() -> None:
        for key in wire.space.written_at:
            wire.space.written_at[key] -= HOUR_NS

    wire.restart = restart


def made_young(wire: Wire, step: Step, request: Claim) -> Any:
    """Note a refused claim as a write."""
    came, key = step(request), request.record.key
    if not came.applied and key in wire.space.written_at:
        wire.space.written_at[key] = wire.space.now()
    return came


def provisioning_the_floor(wire: Wire) -> None:
    """Have ``provision()`` write the least token of absent keys anew."""
    least = wire.space._least_token

    def provision() -> None:
        wire.space._least_token = least

    setting(provision=provision)(wire)


def provisioning_the_waiters(wire: Wire) -> None:
    """Have ``provision()`` begin with nobody who waits."""

    def provision() -> None:
        wire.space.waiters.clear()

    setting(provision=provision)(wire)


def provisioning_unguarded(wire: Wire) -> None:
    """Have ``provision()`` raise what the driver does."""

    def provision() -> None:
        if wire._fault is Fault.REFUSE:
            raise ConnectionRefusedError

    setting(provision=provision)(wire)


class KeepsPlaces(WiredStore):
    """Keeps the place of a ticket whose wait is over; who comes again under it is not queued."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._places = set[tuple[str, str]]()

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait, and stay in the queue when nobody came."""
        until = time.monotonic() + timeout_s
        if (record.key, ticket) in self._places:
            time.sleep(timeout_s)
            return
        super().wait(record, ticket=ticket, timeout_s=timeout_s)
        if time.monotonic() >= until:
            self._places.add((record.key, ticket))


class AsyncKeepsPlaces(AsyncWiredStore):
    """The same for tasks."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._places = set[tuple[str, str]]()

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Wait, and stay in the queue when nobody came."""
        until = time.monotonic() + timeout_s
        if (record.key, ticket) in self._places:
            await asyncio.sleep(timeout_s)
            return
        await super().wait(record, ticket=ticket, timeout_s=timeout_s)
        if time.monotonic() >= until:
            self._places.add((record.key, ticket))


def keeping_places(wire: Wire) -> None:
    """Know a waiter by its ticket, also one that has left."""
    wire.faces = (KeepsPlaces, AsyncKeepsPlaces)


def is_taken_over(old: LockRecord, new: LockRecord) -> bool:
    """Whether *new* has another holder than *old*, without a release between them."""
    return new.held and old.held and new.fencing_token != old.fencing_token


def collecting_in_a_look(wire: Wire) -> None:
    """Remove a tombstone of more than a second that an age is asked of."""

    def fault(wire: Wire, step: Step, key: str) -> Any:
        came = step(key)
        if came is not None and came[0].state is State.GONE and came[1] > 1_000:
            faulty_lives.lose(wire, lambda record: record.key == key)
        return came

    around("read_age", fault)(wire)


def ending_by_age(goes: Callable[[LockRecord], bool]) -> Patch:
    """Have the server, which does not tell, remove what *goes* says 2 s after its last write."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        latest = wire.space.now() - 2 * 10**9
        faulty_lives.lose(wire, lambda record: goes(record) and wire.space.written_at[record.key] < latest)
        return step(asked)

    return around(("read", *WRITES), fault)


def with_places_for(count: int) -> Patch:
    """Know only the *count* who came last of those who wait for a key."""

    def patch(wire: Wire) -> None:
        enter = wire.enter

        def entering(record: LockRecord, wake: Callable[[], object]) -> bool:
            waiters = wire.space.waiters.get(record.key)
            if waiters and len(waiters) >= count:
                wire.leave(record.key, waiters[0], pass_on=False)
            return enter(record, wake)

        wire.enter = entering

    return patch


OF_LIVES: tuple[Broken, ...] = (
    Broken("a tombstone ends after two seconds", "S18", ending_by_age(lambda record: not record.held)),
    Broken("a lapsed lease ends after two seconds", "S18", ending_by_age(faulty_lives.has_lapsed)),
    Broken("only the eight who came last are woken", "N3", with_places_for(8)),
    Broken("a replace that wakes asks first", "S23", around("replace", faulty_lives.costing(lambda r, _: r.wakes))),
    Broken(
        "a batch under sessions asks first",
        "S23",
        around("replace_many", faulty_lives.costing(lambda asked, _: any(each.record.session for each in asked))),
    ),
    Broken("a restart takes back a takeover", "S18", faulty_lives.going_back_if(is_taken_over)),
    Broken(
        "a restart takes back a break", "S18", faulty_lives.going_back_if(lambda old, new: old.held and not new.held)
    ),
    Broken(
        "a restart takes back a claim of a tombstone", "S18", faulty_lives.going_back_if(lambda old, _: not old.held)
    ),
    Broken("a restart forgets the beats of sessions", "S18", faulty_lives.leaving_out(beat=None)),
    Broken("a restart forgets the members of locks", "S18", faulty_lives.leaving_out(members=None)),
    Broken("a look at an old tombstone removes it", "S18", collecting_in_a_look),
    Broken("a restart makes all records an hour older", "C2", getting_older),
    Broken("a refused claim makes the record young", "C2", around("claim", made_young)),
    Broken("provisioning lets tokens go back after a prune", "P2", provisioning_the_floor),
    Broken("provisioning forgets those who wait", "N1", provisioning_the_waiters),
    Broken("provisioning raises what the driver does", "S17", provisioning_unguarded, on_socket=False),
    Broken("the second wait under a ticket is not woken", "N1", keeping_places, on_socket=False),
)

LINKS_OF_LIVES: tuple[BrokenLinks, ...] = (
    # ---- what is sent
    BrokenLinks("a renewal is sent again after a lost connection", "S15", *faulty_calls.sent_again("replace")),
    BrokenLinks("several claims are sent again after a lost connection", "S15", *faulty_calls.sent_again("claim_many")),
    BrokenLinks("a prune is sent again after a lost connection", "S15", *faulty_calls.sent_again("prune")),
    BrokenLinks(
        "a step that has no answer in half of its time-out is sent again",
        "S15",
        *playing(faulty_calls.sent_again_halfway),
    ),
    BrokenLinks("a batch is sent 20 at a time", "S23", *playing(faulty_calls.in_chunks)),
    BrokenLinks(
        "a call that is told as not sent is sent later by a thread that was busy", "S14", faulty_pools.Queued, None
    ),
    BrokenLinks(
        "a step that is told as not sent is sent when the server is back",
        "S14",
        faulty_calls.SendsLater,
        faulty_calls.AsyncSendsLater,
    ),
    BrokenLinks(
        "a prune without an answer is told as not sent",
        "S14",
        *telling(
            lambda verb, _, error: (
                NotSentError(str(error)) if verb == "prune" and isinstance(error, NoReplyError) else None
            )
        ),
    ),
    BrokenLinks(
        "a connection that was reset is told as not sent",
        "S14",
        *telling(lambda _, __, error: NotSentError(str(error)) if isinstance(error.__cause__, RESET) else None),
    ),
    # ---- answers
    BrokenLinks(
        "a connection is used again whose wait was given up",
        "S15",
        *used_again_after(TimeoutError, "wait"),
    ),
    BrokenLinks(
        "a connection is used again whose write was given up",
        "S15",
        *used_again_after(TimeoutError, "replace", "release", "replace_many"),
    ),
    BrokenLinks(
        "a connection is used again whose write was cancelled",
        "S15",
        None,
        used_again_after(asyncio.CancelledError, *WRITES)[1],
    ),
    BrokenLinks("writers on one connection read each other's answers", "S15", faulty_pools.OneForWrites, None),
    BrokenLinks(
        "a read without an answer shows what the last one showed",
        "S9",
        *playing(faulty_calls.showing_the_last),
    ),
    BrokenLinks(
        "a scan that is cut off between two pages ends as if it were whole", "S17", *playing(faulty_calls.cut_off)
    ),
    # ---- time
    BrokenLinks("one mutex for all writes", "S13", *one_at_a_time(*WRITES)),
    BrokenLinks("a claim that waits holds the mutex of the writes", "S13", *faulty_pools.waits_that_hold_up(*WRITES)),
    BrokenLinks(
        "the time-out of a replace or a release begins anew with each piece of an answer",
        "S13",
        *faulty_pools.of_each_piece("replace", "release"),
    ),
    BrokenLinks(
        "the time-out of a claim that waits bounds its wait too", "W1", *playing(faulty_calls.waiting_in_its_time_out)
    ),
    BrokenLinks(
        "a wait of more than a minute raises what the driver does",
        "S17",
        *playing(faulty_calls.no_longer_than_a_minute),
    ),
    BrokenLinks("a wait sleeps on when its connection is lost", "N1", *playing(faulty_calls.deaf_to_its_end)),
    BrokenLinks("no wait is woken after one has lost its connection", "N1", *playing(faulty_calls.deaf_later)),
    # ---- what is left
    BrokenLinks(
        "a connection whose call had no answer is left open",
        "S22",
        faulty_pools.LostOpen,
        faulty_pools.AsyncLostOpen,
    ),
    BrokenLinks("the socket of a refused connection is left open", "S22", faulty_pools.RefusedOpen, None),
    BrokenLinks(
        "close leaves the connections of claims that wait",
        "S22",
        faulty_pools.WaitsApart,
        faulty_pools.AsyncWaitsApart,
    ),
    BrokenLinks(
        "close leaves the connection of a scan that was not read to its end",
        "S22",
        faulty_pools.ScansKeep,
        faulty_pools.AsyncScansKeep,
    ),
)
