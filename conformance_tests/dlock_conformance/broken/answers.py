"""Stores that are wrong where an answer ends in its middle, a connection is never made, or a scan and a close last, as data."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance.broken import faulty_connections, faulty_lives
from dlock_conformance.broken.breaking import (
    STEPS,
    Fault,
    Patch,
    Step,
    answering,
    around,
    asking,
    both,
    for_threads,
    put,
    standing,
    writing,
)
from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NotSentError
from dlock_conformance.wire.links import AsyncLink, AsyncLinks, Links
from dlock_conformance.wire.wired import Wire, WiredStore
from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import plain_of
from dlock_core.record import LockRecord
from dlock_core.store import Replace, Reply

__all__ = ["LINKS_OF_ANSWERS", "OF_ANSWERS"]

# ---- answers that end in their middle


class HalfIsNothing(Links):
    """Takes what came until the connection ended for an answer, in which there is nothing."""

    def exchanged(self, link: socket.socket, message: tuple[str, Any, Any], until: float) -> Any:
        """As its name says."""
        watched = _Watched(link)
        try:
            return super().exchanged(watched, message, until)  # type: ignore[arg-type]  # it does what a socket does
        except EOFError:
            if not watched.came:
                raise
        return self.half()

    @staticmethod
    def half() -> Any:
        """Return what half an answer is."""


class _Watched:
    """A socket that knows whether anything came."""

    def __init__(self, link: socket.socket) -> None:
        self.sendall, self.settimeout, self._recv = link.sendall, link.settimeout, link.recv
        self.came = False

    def recv(self, size: int) -> bytes:
        """Receive."""
        some = self._recv(size)
        self.came = self.came or bool(some)
        return some


class HalfIsAnError(HalfIsNothing):
    """Raises what the decoder does."""

    @staticmethod
    def half() -> Any:
        """As its name says."""
        raise ValueError("Unterminated string")


class HalfWasNotSent(HalfIsNothing):
    """Takes it for the answer of a server that does not know what it was asked."""

    @staticmethod
    def half() -> Any:
        """As its name says."""
        raise NotSentError("an unknown answer")


class AsyncHalfIsAnError(AsyncLinks):
    """The same for tasks."""

    async def exchanged(self, link: AsyncLink, message: tuple[str, Any, Any]) -> Any:
        """As its name says."""
        try:
            return await super().exchanged(link, message)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ValueError("Unterminated string") from None
            raise


class AsyncHalfIsNothing(AsyncLinks):
    """The same for tasks."""

    async def exchanged(self, link: AsyncLink, message: tuple[str, Any, Any]) -> Any:
        """As its name says."""
        try:
            return await super().exchanged(link, message)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                return None
            raise


# ---- connections that are not made, not tried, not closed

CONNECT_S = 2.5


class ConnectsAtItsEase(Links):
    """Has some seconds to make a connection, whatever time-out the call has."""

    def taken(self, until: float) -> socket.socket:
        """As its name says."""
        return super().taken(max(until, time.monotonic() + CONNECT_S))


class AsyncConnectsAtItsEase(AsyncLinks):
    """The same for tasks: the time-out begins when there is a connection."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if not self.idle:
            try:
                async with asyncio.timeout(CONNECT_S):
                    self.kept(await self.taken())
            except TimeoutError as error:
                raise NotSentError("no connection") from error
        return await super().ask(verb, request, more, timeout_s)


class HasItTwice(Links):
    """Has the time-out to make a connection, and once more for the answer."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        self.kept(self.taken(time.monotonic() + timeout_s))
        return super().ask(verb, request, more, timeout_s)


class MakesOneAtATime(Links):
    """Makes one connection at a time, and each has the whole time-out when its turn has come."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._turn = threading.Lock()

    def taken(self, until: float) -> socket.socket:
        """As its name says."""
        left_s = until - time.monotonic()
        with self._turn:
            return super().taken(time.monotonic() + left_s)


class TriesEach(Links):
    """Keeps the other connections when one was lost, and finds out about each of them by a call."""

    def emptied(self) -> list[socket.socket]:
        """Return none, but at the end."""
        return [] if self.is_open else super().emptied()


class AsyncTriesEach(AsyncLinks):
    """The same for tasks."""

    def emptied(self) -> list[AsyncLink]:
        """Return none, but at the end."""
        return [] if self.is_open else super().emptied()


class KeepsWhatComesBack(Links):
    """Closes what is idle, and keeps what comes back after that."""

    def close(self) -> None:
        """As its name says."""
        super().close()
        self.is_open = True


class AsyncKeepsWhatComesBack(AsyncLinks):
    """The same for tasks."""

    async def close(self) -> None:
        """As its name says."""
        await super().close()
        self.is_open = True


class SharedByForks(Links):
    """Speaks in a forked child on the connections of its parent."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        self.pid = os.getpid()
        return super().ask(verb, request, more, timeout_s)


# ---- scans, and what meets a close


class ScansHaveOneTime(WiredStore):
    """Has one time-out for all pages of a scan."""

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As its name says."""
        until = time.monotonic() + timeout_s
        for record in super().scan(prefix, timeout_s=timeout_s):
            if time.monotonic() > until:
                raise StoreUnavailableError("the time-out was over") from TimeoutError()
            yield record


class ScansStayInTheirThread(WiredStore):
    """Has a cursor for each thread."""

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As its name says."""
        begun = threading.get_ident()
        for record in super().scan(prefix, timeout_s=timeout_s):
            if threading.get_ident() != begun:
                raise StoreUnavailableError("the cursor is of another thread") from RuntimeError()
            yield record


class ScansAreLists(WiredStore):
    """Reads all before it gives any."""

    def scan(self, prefix: str, *, timeout_s: float) -> Any:
        """As its name says."""
        return list(super().scan(prefix, timeout_s=timeout_s))


class ForgetsItsWire(WiredStore):
    """Has no wire any more when it was closed, not even for a call that has begun."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        came = super()._ask(verb, request, key, timeout_s)
        if not self.is_open:
            raise AttributeError("'NoneType' object has no attribute 'ask'")
        return came


# ---- the clock of the caller


def _ahead_ms() -> int:
    return round((time.time() - time.clock_gettime(time.CLOCK_REALTIME)) * 1000)


def aged_by_the_caller(_: str, came: Any) -> Any:
    """Take the age by the clock of whoever asks."""
    return came and (came[0], max(0, came[1] + _ahead_ms()))


def pruned_by_the_caller(_: Wire, step: Step, asked: Any) -> Any:
    """Take what was written before an instant on the clock of whoever asks."""
    records, older_than_ms, dry_run = asked
    return step((records, older_than_ms - _ahead_ms(), dry_run))


def stamped_by_the_writer() -> Patch:
    """Have the writer say when it writes, and the server tell the age since then."""
    ahead: dict[str, int] = {}

    def writes(_: Wire, step: Step, asked: Any) -> Any:
        ahead[asked.record.key] = _ahead_ms()
        return step(asked)

    def reads(_: Wire, step: Step, key: str) -> Any:
        came = step(key)
        return came and (came[0], max(0, came[1] - ahead.get(key, 0)))

    return both(around(("claim", "replace", "release"), writes), around("read_age", reads))


# ---- what is kept, and where pages and lines end


def floor_of_the_first_call() -> Fault:
    """Read the floor of new tokens once, when it is needed first."""
    known = list[int]()

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        right = wire.space._least_token
        known.append(right)
        wire.space._least_token = known[0]
        try:
            return step(asked)
        finally:
            wire.space._least_token = right

    return fault


def knowing_the_first_floor(wire: Wire) -> None:
    """Have several claims do so, of each server once."""
    around("claim_many", floor_of_the_first_call())(wire)


def without_one_more(_: str, came: Any) -> Any:
    """Ask for the next page where two more are left."""
    return came[:-1] if len(came) % 500 == 1 and len(came) > 1 else came


def owner_of_one_line(_: LockRecord | None, __: Any, new: LockRecord) -> LockRecord:
    """End the owner at what some take for the end of a line."""
    return replace(new, owner=new.owner.partition("\u2028")[0])


def filled(old: LockRecord | None, request: Any, new: LockRecord) -> LockRecord:
    """Put the data of the request where those that are kept are none."""
    keeps = request.keep_payload and old is not None and old.data is None
    return replace(new, data=request.record.data) if keeps else new


def filled_in_a_batch(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
    """Do the same for each of a batch."""
    before = [standing(wire, each) for each in requests]
    came = step(requests)
    for old, each, reply in zip(before, requests, came, strict=True):
        if isinstance(reply, Reply) and reply.applied and reply.record is not None:
            put(wire, filled(old, each, reply.record), each.record.key)
    return came


_SYNC = (Colour.SYNC,)

OF_ANSWERS: tuple[Broken, ...] = (
    Broken(
        "the late answer to one read is taken for that to the next",
        "S15",
        faulty_connections.late_answers,
        on_socket=False,
    ),
    Broken("readers at once get each other's answers", "S15", faulty_connections.one_answer_for_all, _SYNC),
    Broken(
        "a claim brings its payload where none is kept",
        "S4",
        asking(
            "claim",
            lambda old, asked: asked._replace(
                keep_payload=asked.keep_payload and bool(old and (old.data is not None or old.attributes))
            ),
        ),
    ),
    Broken("a claim brings its data where none are kept", "S4", writing("claim", filled)),
    Broken("a replace brings its data where none are kept", "S4", writing("replace", filled)),
    Broken("a release brings its data where none are kept", "S4", writing("release", filled)),
    Broken("a batch brings its data where none are kept", "S4", around("replace_many", filled_in_a_batch)),
    Broken("a restart forgets claims of two", "S18", faulty_lives.forgetting_what_came_by("claim_many", 2)),
    Broken("a restart forgets a batch of two", "S18", faulty_lives.forgetting_what_came_by("replace_many", 2)),
    Broken("several claims know the first floor", "P2", knowing_the_first_floor),
    Broken("an owner ends with its line", "S11", writing("claim", owner_of_one_line)),
    Broken("a scan loses the one after a full page", "S10", answering("scan", without_one_more)),
    Broken("a scan has one time-out for all its pages", "S10", for_threads(ScansHaveOneTime), _SYNC, on_socket=False),
    Broken("a scan stays in its thread", "S10", for_threads(ScansStayInTheirThread), _SYNC, on_socket=False),
    Broken("a scan is a list", "S10", for_threads(ScansAreLists), _SYNC, on_socket=False),
    Broken("a close breaks calls that have begun", "S22", for_threads(ForgetsItsWire), _SYNC, on_socket=False),
    Broken(
        "a reply says by a number whether it was applied",
        "S7",
        answering(STEPS, lambda _, y: y._replace(applied=int(y.applied))),
    ),
    Broken(
        "a reply has plain values for a record",
        "S7",
        answering(STEPS, lambda _, y: y._replace(record=plain_of(y.record))),
    ),
    Broken("an age is by the caller's clock", "C2", answering("read_age", aged_by_the_caller), on_socket=False),
    Broken("a prune is by the caller's clock", "C2", around("prune", pruned_by_the_caller), on_socket=False),
    Broken("an age is since the writer's clock said", "C2", stamped_by_the_writer(), on_socket=False),
)
LINKS_OF_ANSWERS: tuple[BrokenLinks, ...] = (
    BrokenLinks("half an answer is taken for absence", "S9", HalfIsNothing, AsyncHalfIsNothing),
    BrokenLinks("half an answer raises what the decoder does", "S17", HalfIsAnError, AsyncHalfIsAnError),
    BrokenLinks("half an answer is told as not sent", "S15", HalfWasNotSent, None),
    BrokenLinks("a connection has seconds of its own to be made", "S13", ConnectsAtItsEase, AsyncConnectsAtItsEase),
    BrokenLinks("the answer has the time-out that the connection had", "S13", HasItTwice, None),
    BrokenLinks("connections are made in turn, each in the whole time-out", "S13", MakesOneAtATime, None),
    BrokenLinks("connections that were lost are tried one after the other", "S14", TriesEach, AsyncTriesEach),
    BrokenLinks("a forked child speaks on the connections of its parent", "S22", SharedByForks, None),
    BrokenLinks("what comes back after a close is kept", "S22", KeepsWhatComesBack, AsyncKeepsWhatComesBack),
)
