"""The memory store behind a wire: what a server adds to a dictionary, and nothing of the network.

It has requests to count, replies to lose, a table to be missing, records that others wrote and restarts. So every clause can be tried
in this process, and every clause can be broken in one place: :mod:`dlock_conformance.broken` patches a :class:`Wire`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from dlock_conformance.faults import SLOW_S, Fault
from dlock_conformance.harness import Opening, StoreHarness
from dlock_conformance.wire.errors import (
    NoReplyError,
    NoTableError,
    NotARecordError,
    NotSentError,
    WireError,
    translate,
)
from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.memory import MemorySpace
from dlock_core.record import LockRecord, Version, newer_format
from dlock_core.store import Capability, Claim, Grade, Guarantees, Release, Replace, Reply, TokenOrder

__all__ = ["AsyncWiredStore", "Wire", "WiredStore", "wired_harness"]

BATCH_LIMIT = 50
FORMAT = 2
CAPABILITIES = frozenset(Capability)


class Wire:
    """A server with one table, and the way to it. *steps* are what it does for each request, to be patched.

    *translate* makes errors of dlock of errors of the driver; *guarantees* is what the store says of itself.
    """

    kinds = frozenset(Fault) - {Fault.BUSY, Fault.TRICKLE}

    def __init__(self) -> None:
        self.space = MemorySpace()
        self.foreign: set[str] = set()
        self.newer: dict[str, Version] = {}
        self.ends: set[str] = set()  # the keys whose records this server will remove by itself
        self.provisioned = True
        self.requests = 0
        self.more_requests = 0  # those that a fault adds, which no proxy sees
        self.lenient = False
        self.faces: tuple[type[Any], ...] = (WiredStore, AsyncWiredStore)
        self.capabilities: frozenset[Any] = CAPABILITIES
        self.translate: Callable[[WireError, str, str | None], StoreError] = translate
        self.told: Callable[[], Guarantees] = guarantees
        self.on_close: Callable[[WiredStore | AsyncWiredStore], None] = lambda _: None
        self.enter, self.leave = self.space.enter, self.space.leave
        self.moved_on: Callable[[LockRecord], bool] = lambda seen: bool(seen.members) and self.space.moved_on(seen)
        self.steps: dict[str, Callable[[Any], Any]] = {
            "claim": self.space.claim,
            "claim_when_free": self.space.claim,
            "replace": self.space.replace,
            "release": self.space.release,
            "read": self._read,
            "read_age": self.space.read_age,
            "prune": lambda asked: self.space.prune(asked[0], older_than_ms=asked[1], dry_run=asked[2]),
            "scan": self._scan,
            "replace_many": self._replace_many,
            "claim_many": self._claim_many,
        }
        self.restart: Callable[[], None] = lambda: None
        self._fault: Fault | None = None
        self._late: list[tuple[str, Any]] = []
        self._healed = threading.Event()
        self._began_at: float | None = None  # the new connection, where it takes long

    def begin(self, fault: Fault) -> None:
        """Disturb the way."""
        self._healed.clear()
        self._fault, self._began_at = fault, None

    def heal(self) -> None:
        """Let all through; what was held back arrives now."""
        self._fault = None
        self._healed.set()
        late, self._late = self._late, []
        for verb, request in late:
            self.steps[verb](request)

    def ask(self, verb: str, request: Any) -> Any:
        """Do one request as the server does, for as long as the way is open."""
        fault = self._fault
        if fault in (Fault.REFUSE, Fault.DROP):
            raise NotSentError("no connection")
        if fault is Fault.SLOW_CONNECT and not self.connected():
            raise TimeoutError
        self.requests += 1
        if fault is Fault.HANG:
            self._late.append((verb, request))
            raise TimeoutError
        if not self.provisioned and not self.lenient:
            raise NoTableError("no such table")
        came = self.meet(verb, request)
        if fault in (Fault.LOSE_REPLY, Fault.CUT):
            raise NoReplyError("connection reset")
        return came

    def connected(self) -> bool:
        """Begin a connection, unless one was begun; whether it is made."""
        self._began_at = self._began_at or time.monotonic()
        return time.monotonic() - self._began_at >= SLOW_S

    def goes_on(self, request: Claim) -> Reply:
        """Do once more what a claim asked for that waits in the server: it is the same request."""
        reply: Reply = self.ask("claim_when_free", request)
        self.requests -= 1
        return reply

    def provision(self) -> None:
        """Make the table."""
        self.provisioned = True

    def promises(self) -> Guarantees:
        """Say what the server promises, if the table is there."""
        if not self.provisioned:
            raise NoTableError("no such table")
        return self.told()

    def patience(self, timeout_s: float) -> float:
        """How long the driver waits for a reply, where the caller allows *timeout_s*."""
        return timeout_s

    def hangs(self, timeout_s: float) -> None:
        """Wait as a thread does for a reply that does not come."""
        self._healed.wait(self.patience(timeout_s))

    async def ahangs(self, timeout_s: float) -> None:
        """Wait as a task does for a reply that does not come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience(timeout_s)):
                while not self._healed.is_set():  # noqa: ASYNC110  # another thread heals
                    await asyncio.sleep(0.01)

    def meet(self, verb: str, request: Any) -> Any:
        """Do the step, unless what stands there is not of this dlock."""
        key = getattr(getattr(request, "record", None), "key", request)
        if isinstance(key, str):
            if any(key == each or (verb == "scan" and each.startswith(key)) for each in self.foreign):
                raise NotARecordError("a hash of another program")
            if key in self.newer and verb != "scan":
                shown = newer_format(key, FORMAT, *self.newer[key])
                return {"read": shown, "read_age": (shown, 0)}.get(verb, Reply(applied=False, record=shown))
        return self.steps[verb](request)

    def _read(self, key: str) -> LockRecord | None:
        return self.space.records.get(key)

    def _scan(self, prefix: str) -> list[LockRecord]:
        with self.space.mutex:
            return [record for key, record in self.space.records.items() if key.startswith(prefix)]

    def _replace_many(self, requests: Sequence[Replace]) -> list[Any]:
        return [self.one_of_many(each) for each in requests]

    def _claim_many(self, requests: Sequence[Claim]) -> list[Reply]:
        keys = [request.record.key for request in requests]
        if self.foreign.intersection(keys):
            raise NotARecordError("a hash of another program")
        if self.newer.keys().isdisjoint(keys):
            return self.space.claim_many(requests)
        return [
            Reply(False, newer_format(key, FORMAT, *self.newer[key]) if key in self.newer else self._read(key))
            for key in keys
        ]

    def one_of_many(self, request: Replace) -> Any:
        """Do one replace of a batch."""
        key = request.record.key
        if key in self.foreign:
            return NotARecordError("a hash of another program")
        if key in self.newer:
            return Reply(applied=False, record=newer_format(key, FORMAT, *self.newer[key]))
        return self.space.replace(request)


def guarantees() -> Guarantees:
    """Say what a dictionary behind a wire promises."""
    return Guarantees(
        "wired memory", "1", Grade.A, TokenOrder.ORDERED, False, True, True, "none: there is one server", "none"
    )


class WiredStore:
    """The store for threads."""

    batch_limit = BATCH_LIMIT

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.capabilities = wire.capabilities
        self.is_open = True

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = self._ask("claim", request, request.record.key, timeout_s)
        return reply

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = self._ask("replace", request, request.record.key, timeout_s)
        return reply

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = self._ask("release", request, request.record.key, timeout_s)
        return reply

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As the port says."""
        record: LockRecord | None = self._ask("read", key, key, timeout_s)
        return record

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """As the port says."""
        aged: tuple[LockRecord, int] | None = self._ask("read_age", key, key, timeout_s)
        return aged

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """As the port says."""
        count: int = self._ask("prune", (records, older_than_ms, dry_run), None, timeout_s)
        return count

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As the port says."""
        yield from self._ask("scan", prefix, None, timeout_s)

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As the port says."""
        return results(self.wire, self._ask("replace_many", requests, None, timeout_s), requests)

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """As the port says."""
        replies: Sequence[Reply] = self._ask("claim_many", requests, None, timeout_s)
        return replies

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As the port says."""
        with translated(self, "wait", record.key):
            woken = threading.Event()
            if not self.wire.enter(record, woken.set):
                return
            used = False
            try:
                used = self.wire.moved_on(record) or woken.wait(timeout_s)
            finally:
                self.wire.leave(record.key, woken.set, pass_on=not used)

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As the port says."""
        until = time.monotonic() + wait_s
        reply: Reply = self._ask("claim_when_free", request, request.record.key, timeout_s)
        while waits(reply) and (left_s := until - time.monotonic()) > 0:
            self.wait(without_members(request), ticket=request.ticket or "", timeout_s=left_s)
            with translated(self, "claim_when_free", request.record.key):
                reply = self.wire.goes_on(request)
        return reply

    def guarantees(self) -> Guarantees:
        """As the port says."""
        with translated(self, "guarantees", None):
            return self.wire.promises()

    def provision(self) -> None:
        """As the port says."""
        self.wire.provision()

    def close(self) -> None:
        """As the port says."""
        self.is_open = False
        self.wire.on_close(self)

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        with translated(self, verb, key):
            try:
                return self.wire.ask(verb, request)
            except TimeoutError:
                self.wire.hangs(timeout_s)
                raise NoReplyError(f"no reply within {timeout_s} s") from None


class AsyncWiredStore:
    """The store for tasks."""

    batch_limit = BATCH_LIMIT

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.capabilities = wire.capabilities
        self.is_open = True

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = await self._ask("claim", request, request.record.key, timeout_s)
        return reply

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = await self._ask("replace", request, request.record.key, timeout_s)
        return reply

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As the port says."""
        reply: Reply = await self._ask("release", request, request.record.key, timeout_s)
        return reply

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As the port says."""
        record: LockRecord | None = await self._ask("read", key, key, timeout_s)
        return record

    async def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """As the port says."""
        aged: tuple[LockRecord, int] | None = await self._ask("read_age", key, key, timeout_s)
        return aged

    async def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """As the port says."""
        count: int = await self._ask("prune", (records, older_than_ms, dry_run), None, timeout_s)
        return count

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """As the port says."""
        for record in await self._ask("scan", prefix, None, timeout_s):
            yield record

    async def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """As the port says."""
        return results(self.wire, await self._ask("replace_many", requests, None, timeout_s), requests)

    async def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """As the port says."""
        replies: Sequence[Reply] = await self._ask("claim_many", requests, None, timeout_s)
        return replies

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As the port says."""
        with translated(self, "wait", record.key):
            loop, woken = asyncio.get_running_loop(), asyncio.Event()

            def wake() -> None:
                loop.call_soon_threadsafe(woken.set)

            if not self.wire.enter(record, wake):
                return
            used = False
            try:
                async with asyncio.timeout(timeout_s):
                    used = self.wire.moved_on(record) or await woken.wait()
            except TimeoutError:
                return
            finally:
                self.wire.leave(record.key, wake, pass_on=not used)

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As the port says."""
        until = time.monotonic() + wait_s
        reply: Reply = await self._ask("claim_when_free", request, request.record.key, timeout_s)
        while waits(reply) and (left_s := until - time.monotonic()) > 0:
            await self.wait(without_members(request), ticket=request.ticket or "", timeout_s=left_s)
            with translated(self, "claim_when_free", request.record.key):
                reply = self.wire.goes_on(request)
        return reply

    async def guarantees(self) -> Guarantees:
        """As the port says."""
        with translated(self, "guarantees", None):
            return self.wire.promises()

    async def provision(self) -> None:
        """As the port says."""
        self.wire.provision()

    async def close(self) -> None:
        """As the port says."""
        self.is_open = False
        self.wire.on_close(self)

    async def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        with translated(self, verb, key):
            try:
                return self.wire.ask(verb, request)
            except TimeoutError:
                await self.wire.ahangs(timeout_s)
                raise NoReplyError(f"no reply within {timeout_s} s") from None


def without_members(request: Claim) -> LockRecord:
    """Return the record by which a claim waits: it has seen no members that could have moved on."""
    return replace(request.record, members=None)


def waits(reply: Reply) -> bool:
    """Whether a claim was refused by a record that may be released."""
    return not reply.applied and reply.record is not None and reply.record.held


@contextmanager
def translated(store: WiredStore | AsyncWiredStore, verb: str, key: str | None) -> Iterator[None]:
    """Let nothing of the driver's out, and nothing through a store that was closed."""
    if not store.is_open:
        raise StoreUnavailableError("the store was closed; open a new one", key=key)
    try:
        yield
    except WireError as error:
        raise store.wire.translate(error, verb, key) from error


def results(wire: Wire, came: Sequence[Any], requests: Sequence[Replace]) -> Sequence[Reply | StoreError]:
    """Return the results of a batch, with the errors among them translated."""
    if len(came) != len(requests):
        return came
    return [
        wire.translate(result, "replace", request.record.key) if isinstance(result, WireError) else result
        for result, request in zip(came, requests, strict=True)
    ]


def without_table(wire: Wire) -> Wire:
    """Return a server without the table; what is patched of *wire* is patched of it, too."""
    bare = Wire()
    patched = {name: value for name, value in vars(wire).items() if name in ("translate", "lenient", "promises")}
    bare.__dict__.update(patched, provisioned=False)
    return bare


def wired_harness(wire: Wire, **changes: Any) -> StoreHarness:
    """Return a harness that can do to *wire* all that a harness can do."""
    bare = without_table(wire)

    def open_store() -> WiredStore:
        store: WiredStore = wire.faces[0](wire)
        return store

    async def aopen_store() -> AsyncWiredStore:
        store: AsyncWiredStore = wire.faces[1](wire)
        return store

    options: dict[str, Any] = {
        "capabilities": {each.value for each in CAPABILITIES},
        "tells_wanted": True,
        "restart": wire.restart,
        "count_requests": lambda: wire.requests,
        "faults": wire,
        "expires": wire.ends.__contains__,
        "plant_foreign": wire.foreign.add,
        "plant_newer": wire.newer.__setitem__,
        "unprovisioned": Opening(open_store=lambda: WiredStore(bare), aopen_store=lambda: AsyncWiredStore(bare)),
        "own_client": Opening(open_store=open_store, aopen_store=aopen_store),
    }
    return StoreHarness(open_store=open_store, aopen_store=aopen_store, **{**options, **changes})
