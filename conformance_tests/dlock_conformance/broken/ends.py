"""Stores that are wrong where they begin or end, or while there is no server: opening, first calls, closing, and how long they try."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dlock_conformance.broken import faulty_connections, faulty_lives, faulty_pools
from dlock_conformance.broken.breaking import Fault, Patch, Step, around, for_threads, setting, standing
from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NotARecordError, NotSentError
from dlock_conformance.wire.links import AsyncLinks, Links
from dlock_conformance.wire.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.errors import OutcomeUnknownError, RecordError, StoreUnavailableError
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Grade, Guarantees

__all__ = ["LINKS_OF_ENDS", "OF_ENDS"]

# ---- while there is no server

AWAY_S = 3.0


class AsksOn(WiredStore):
    """Asks a server that refuses again and again, whatever time-out the call has."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        until = time.monotonic() + AWAY_S
        while True:
            try:
                return super()._ask(verb, request, key, timeout_s)
            except StoreUnavailableError as error:
                if not isinstance(error.__cause__, NotSentError) or time.monotonic() > until:
                    raise
                time.sleep(0.05)


class AsksOnForRecords(AsksOn):
    """As above, and only where it reads."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        ask = super()._ask if verb in ("read", "read_age", "scan") else super(AsksOn, self)._ask
        return ask(verb, request, key, timeout_s)


class BatchesTakeLonger(WiredStore):
    """Gives each record of a batch the time-out of the call."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        return super()._ask(verb, request, key, timeout_s * (len(request) if verb == "replace_many" else 1))


class PausesAfterALoss(WiredStore):
    """Gives a server some time that has lost a reply, and says so then."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        try:
            return super()._ask(verb, request, key, timeout_s)
        except OutcomeUnknownError as error:
            if "reset" in str(error.__cause__):
                time.sleep(AWAY_S)
            raise


def leaving_its_transaction_open(*verbs: str) -> Patch:
    """Leave a transaction open where one of *verbs* meets what is not dlock's: others write nothing until the next call of that store."""
    holders = list[WiredStore]()

    class LeavesOpen(WiredStore):
        def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
            if self in holders:
                holders.remove(self)
            if holders and verb not in ("read", "read_age", "scan"):
                raise StoreUnavailableError("somebody else writes", key=key) from TimeoutError()
            try:
                return super()._ask(verb, request, key, timeout_s)
            except RecordError:
                if verb in verbs:
                    holders.append(self)
                raise

    return for_threads(LeavesOpen)


# ---- scans that do not come to their end


class ScansKeepOthersOut(WiredStore):
    """Has one cursor, which its writes wait for."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._cursor = threading.Lock()

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        if verb not in ("claim", "replace", "release"):
            return super()._ask(verb, request, key, timeout_s)
        if not self._cursor.acquire(timeout=timeout_s):
            raise StoreUnavailableError("the cursor is in use", key=key) from TimeoutError()
        try:
            return super()._ask(verb, request, key, timeout_s)
        finally:
            self._cursor.release()

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As its name says."""
        with self._cursor:
            yield from super().scan(prefix, timeout_s=timeout_s)


class ScansUseUp(WiredStore):
    """Has ten cursors, and closes them at the end of a scan only."""

    left = 10

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As its name says."""
        if not self.left:
            raise StoreUnavailableError("no cursor is free") from TimeoutError()
        self.left -= 1
        yield from super().scan(prefix, timeout_s=timeout_s)
        self.left += 1


def cursor_after_close(error: Exception | None) -> Patch:
    """Have the cursor of a scan meet the end of its store, and raise *error* then, or end."""

    class Cursor(WiredStore):
        def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
            for record in super().scan(prefix, timeout_s=timeout_s):
                yield record
                if not self.is_open and error is None:
                    return
                if not self.is_open and error is not None:
                    raise error

    return for_threads(Cursor)


# ---- what is promised, and which clock decides


def saying_to_tasks(**changes: Any) -> Patch:
    """Have the face for tasks promise something else."""

    class Says(AsyncWiredStore):
        async def guarantees(self) -> Guarantees:
            return replace(self.wire.told(), **changes)

    return setting(faces=(WiredStore, Says))


def lapsing(grace_ms: int, *expected: Expect) -> Fault:
    """Free what is held when its lease is over by the clock of the store, with some grace, for a claim that expects one of these."""

    def fault(wire: Wire, step: Step, request: Claim) -> Any:
        old = standing(wire, request)
        if old is None or not old.held or not old.lease_ms or request.expect not in expected:
            return step(request)
        if wire.space._age_ms(old.key) > old.lease_ms + grace_ms:
            wire.space.records[old.key] = replace(
                old, state=State.FREE, lease_ms=None, session=None, beat=None, members=None, delay_ms=None
            )
        return step(request)

    return fault


# ---- keys of its own


def counters_in_the_way(_: Wire, step: Step, request: Claim) -> Any:
    """Take the key of a lock for that of a counter."""
    if request.record.key.endswith(":token"):
        raise NotARecordError("a counter")
    return step(request)


def queue_in_the_way(wire: Wire, step: Step, request: Any) -> Any:
    """Remove the queue of those who wait, with the lock that has its name."""
    wire.space.records.pop(f"{request.record.key}.queue", None)
    return step(request)


# ---- connections


class Eager(Links):
    """Connects when it is opened."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.kept(socket.create_connection(address, 5))


class Greets(Links):
    """Asks for something when it is opened, and says what the driver does."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.ask("read", "greeting", "", 5)


class AsyncOneGreets(AsyncLinks):
    """The first call greets the server for all that wait for that, and tells them what came of it."""

    greeted: asyncio.Future[Any] | None = None

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if self.greeted is None:
            self.greeted = asyncio.get_running_loop().create_future()
            try:
                self.greeted.set_result(await super().ask("read", "greeting", "", timeout_s))
            except BaseException as error:
                self.greeted.set_exception(error)
                raise
        await self.greeted
        return await super().ask(verb, request, more, timeout_s)


class AsyncOneTaskGreets(AsyncLinks):
    """One task greets the server, for which all first calls wait: who cancels a call cancels it."""

    greeting: asyncio.Future[Any] | None = None

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if self.greeting is None:
            self.greeting = asyncio.ensure_future(super().ask("read", "greeting", "", timeout_s))
        await self.greeting
        return await super().ask(verb, request, more, timeout_s)


class CloseJoins(Links):
    """Waits at its end for all that is under way."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._under_way, self._changed = 0, threading.Condition()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        self._count(1)
        try:
            return super().ask(verb, request, more, timeout_s)
        finally:
            self._count(-1)

    def close(self) -> None:
        """As its name says."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, 3600)
        super().close()

    def _count(self, more: int) -> None:
        with self._changed:
            self._under_way += more
            self._changed.notify_all()


class CloseJoinsCalls(CloseJoins):
    """As above, but for waits."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        ask = Links.ask if verb == "wait" else CloseJoins.ask
        return ask(self, verb, request, more, timeout_s)


class AsyncCloseJoinsCalls(AsyncLinks):
    """As :class:`CloseJoinsCalls`."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.under_way: set[asyncio.Task[Any]] = set()

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        task = asyncio.ensure_future(super().ask(verb, request, more, timeout_s))
        if verb != "wait":
            self.under_way.add(task)
            task.add_done_callback(self.under_way.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """As its name says."""
        await asyncio.gather(*self.under_way, return_exceptions=True)
        await super().close()


class CloseBreaks(Links):
    """Closes at its end also what is in use, whose calls raise what Python does."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._used: set[socket.socket] = set()
        self._closed = False

    def exchanged(self, link: socket.socket, message: tuple[str, Any, Any], until: float) -> Any:
        """As its name says."""
        self._used.add(link)
        try:
            return super().exchanged(link, message, until)
        except (OSError, EOFError):
            if self._closed:
                raise ValueError("I/O operation on closed file") from None
            raise
        finally:
            self._used.discard(link)

    def close(self) -> None:
        """As its name says."""
        self._closed = True
        for link in list(self._used):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        super().close()


class CloseSaysGoodBye(Links):
    """Says good-bye to its server, and what the driver does where there is none."""

    def close(self) -> None:
        """As its name says."""
        self.ask("read", "good-bye", "", 1)
        super().close()


_SYNC = (Colour.SYNC,)

OF_ENDS: tuple[Broken, ...] = (
    Broken("a call has its time-out twice", "S13", setting(patience=lambda timeout_s: 2 * timeout_s), on_socket=False),
    Broken("a server that refuses is asked on", "S13", for_threads(AsksOn), _SYNC, on_socket=False),
    Broken("reads ask a server on that refuses", "S13", for_threads(AsksOnForRecords), _SYNC, on_socket=False),
    Broken("each record of a batch has the time-out", "S13", for_threads(BatchesTakeLonger), _SYNC, on_socket=False),
    Broken("a call pauses after a lost reply", "S13", for_threads(PausesAfterALoss), _SYNC, on_socket=False),
    Broken(
        "a foreign record leaves the transaction of a replace open",
        "S16",
        leaving_its_transaction_open("replace"),
        _SYNC,
        on_socket=False,
    ),
    Broken(
        "a foreign record leaves the transaction of several open",
        "S16",
        leaving_its_transaction_open("replace_many", "claim_many"),
        _SYNC,
        on_socket=False,
    ),
    Broken("writes wait for the end of a scan", "S10", for_threads(ScansKeepOthersOut), _SYNC, on_socket=False),
    Broken("a scan that is not read to its end keeps a cursor", "S10", for_threads(ScansUseUp), _SYNC, on_socket=False),
    Broken(
        "a scan raises what the driver does when its store is closed",
        "S17",
        cursor_after_close(ValueError("the cursor is closed")),
        _SYNC,
        on_socket=False,
    ),
    Broken("a scan ends when its store is closed", "S17", cursor_after_close(None), _SYNC, on_socket=False),
    Broken("tasks are promised another grade", "S20", saying_to_tasks(grade=Grade.B), _SYNC, on_socket=False),
    Broken("tasks are promised more", "S20", saying_to_tasks(failover="nothing is lost"), _SYNC, on_socket=False),
    Broken("a lease lapses by the clock of the store", "S2", around("claim", lapsing(400, *Expect))),
    Broken("a lease lapses for who expects nothing", "S2", around("claim", lapsing(300, Expect.ANY))),
    Broken("a lock has the key of a counter", "S12", around("claim", counters_in_the_way)),
    Broken("a lock has the key of a queue", "S12", around(("replace", "release"), queue_in_the_way)),
    Broken("close leaves a thread", "S22", setting(on_close=faulty_connections.leaving_a_thread)),
    Broken("close leaves a descriptor", "S22", setting(on_close=faulty_connections.leaving_a_descriptor)),
    Broken("a close gives back what is held", "S22", faulty_lives.closing_with_its_locks),
    Broken("close closes the client that was given", "S22", faulty_lives.closing_the_client),
    Broken("close does nothing", "S22", setting(on_close=lambda store: setattr(store, "is_open", True))),
    Broken("close fails the second time", "S22", faulty_lives.closing_once),
)
LINKS_OF_ENDS: tuple[BrokenLinks, ...] = (
    BrokenLinks("opening connects, and raises what the system does", "S17", Eager, None),
    BrokenLinks("opening greets, and raises what the driver does", "S17", Greets, None),
    BrokenLinks("the first call tells the others that it was cancelled", "S17", None, AsyncOneGreets),
    BrokenLinks("the first call that is cancelled cancels the others", "S17", None, AsyncOneTaskGreets),
    BrokenLinks("each thread that has called keeps a connection", "S22", faulty_pools.OneForEachThread, None),
    BrokenLinks("each thread that has called keeps a worker", "S22", faulty_pools.WorkerForEachThread, None),
    BrokenLinks("close stays for a wait", "S22", CloseJoins, None),
    BrokenLinks("close stays for a call", "S22", CloseJoinsCalls, AsyncCloseJoinsCalls),
    BrokenLinks("a call breaks by a close", "S22", CloseBreaks, None),
    BrokenLinks("close raises what the driver does", "S22", CloseSaysGoodBye, None),
)
