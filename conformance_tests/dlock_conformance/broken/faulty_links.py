"""Clients of the store behind a socket with one fault each, as drivers and pools have them: the server is right, and so is each condition.

A fault of both colours is a class for threads and one for tasks; None stands where one colour cannot have it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dlock_conformance.broken.faulty_times import (
    AsyncLate,
    AsyncOfEachPiece,
    AsyncOfTheFirst,
    AsyncOneAtATime,
    AsyncSmallPool,
    Late,
    OfEachPiece,
    OfTheFirst,
    OneAtATime,
    SmallPool,
)
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NoReplyError, NotSentError, WireError
from dlock_conformance.wire.links import (
    AsyncLink,
    AsyncLinks,
    Links,
    ReplyTimeoutError,
    answered,
    packed,
    received,
    received_by,
)

__all__ = ["BROKEN_LINKS", "BrokenLinks"]


class BrokenLinks(NamedTuple):
    """A client that a test of *clause* must reject: *links* for threads, *alinks* for tasks."""

    name: str
    clause: str
    links: type[Links] | None
    alinks: type[AsyncLinks] | None

    @property
    def colours(self) -> tuple[Colour, ...]:
        """The colours that have the fault."""
        return tuple(
            colour
            for colour, client in zip((Colour.SYNC, Colour.ASYNC), (self.links, self.alinks), strict=True)
            if client
        )

    @property
    def clients(self) -> tuple[type[Links], type[AsyncLinks]]:
        """Both clients, a right one where the fault is of the other colour."""
        return self.links or Links, self.alinks or AsyncLinks


# ---- answers that are taken by another call


class UsedAgain(Links):
    """Uses a connection again whose call was given up: its answer is still to come."""

    def lost(self, link: socket.socket) -> None:
        """As if all were well."""
        self.kept(link)


class AsyncUsedAgain(AsyncLinks):
    """The same for tasks."""

    def lost(self, link: AsyncLink) -> None:
        """As if all were well."""
        self.kept(link)


class AsyncUsedAfterCancel(AsyncLinks):
    """Looks at errors, and a cancellation is none: its connection is used again."""

    def lost(self, link: AsyncLink) -> None:
        """Keep what nothing went wrong with."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            self.kept(link)
            return
        super().lost(link)


class OneForAll(Links):
    """One connection for all threads: each sends whole, and reads whole, and not always in the same order."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._link: socket.socket | None = None
        self._sends, self._reads = threading.Lock(), threading.Lock()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Send, and read what comes next."""
        if verb != "read":
            return super().ask(verb, request, more, timeout_s)
        until = time.monotonic() + timeout_s
        with self._sends:
            if self._link is None:
                self._link = self.taken(until)
            self._link.sendall(packed((verb, request, more)))
        try:
            with self._reads:
                return answered(received(self._link, until))
        except TimeoutError as error:
            raise ReplyTimeoutError(f"no reply within {timeout_s} s") from error

    def close(self) -> None:
        """Close it, too."""
        super().close()
        if self._link is not None:
            self._link.close()


class AsyncOneForAll(AsyncLinks):
    """One connection for all tasks; who waits no more is taken off the queue, and what comes goes to the next in it."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._link: AsyncLink | None = None
        self._waiters: deque[asyncio.Future[Any]] = deque()
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Queue, and wait for what comes."""
        if verb != "read":
            return await super().ask(verb, request, more, timeout_s)
        if self._link is None:
            self._link = await self.taken()
            self._reader = asyncio.create_task(self._read(self._link))
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._link[1].write(packed((verb, request, more)))
        try:
            async with asyncio.timeout(timeout_s):
                return answered(await waiter)
        except TimeoutError as error:
            raise NoReplyError(f"no reply within {timeout_s} s") from error
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def _read(self, link: AsyncLink) -> None:
        while True:
            came = await received_by(link[0])
            if self._waiters:
                self._waiters.popleft().set_result(came)

    async def close(self) -> None:
        """Close it, too."""
        await super().close()
        if self._link is not None and self._reader is not None:
            self._reader.cancel()
            self.lost(self._link)


# ---- what is told


class SentAgain(Links):
    """Sends on a new connection what got no answer on the old one."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Try twice."""
        try:
            return super().ask(verb, request, more, timeout_s)
        except NoReplyError:
            return super().ask(verb, request, more, timeout_s)


class AsyncSentAgain(AsyncLinks):
    """The same for tasks."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Try twice."""
        try:
            return await super().ask(verb, request, more, timeout_s)
        except NoReplyError:
            return await super().ask(verb, request, more, timeout_s)


def telling(tell: Callable[[str, Any, WireError], BaseException | None]) -> tuple[type[Links], type[AsyncLinks]]:
    """Return clients that raise what *tell* makes of an error, by the verb and what was asked beside the request."""

    class Telling(Links):
        def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            try:
                return super().ask(verb, request, more, timeout_s)
            except WireError as error:
                raise (tell(verb, more, error) or error) from error.__cause__

    class AsyncTelling(AsyncLinks):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            try:
                return await super().ask(verb, request, more, timeout_s)
            except WireError as error:
                raise (tell(verb, more, error) or error) from error.__cause__

    return Telling, AsyncTelling


def patient(long: Callable[[str, Any], bool]) -> tuple[type[Links], type[AsyncLinks]]:
    """Return clients that wait without a time-out for what *long* says."""

    class Patient(Links):
        def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            return super().ask(verb, request, more, 10 * timeout_s + 5 if long(verb, more) else timeout_s)

    class AsyncPatient(AsyncLinks):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            return await super().ask(verb, request, more, 10 * timeout_s + 5 if long(verb, more) else timeout_s)

    return Patient, AsyncPatient


class AsyncNotCancelled(AsyncLinks):
    """Makes an error of a cancellation."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Take whatever comes for the connection's trouble."""
        try:
            return await super().ask(verb, request, more, timeout_s)
        except asyncio.CancelledError as error:
            raise NoReplyError("the call was interrupted") from error


# ---- what is left


class LeftOpen(Links):
    """Leaves its connections to the collector of garbage, which a cycle keeps waiting."""

    left: list[socket.socket] = []  # noqa: RUF012  # of the class, as connections are that nobody closes

    def close(self) -> None:
        """Forget them."""
        self.left += self.idle
        self.idle = []


class AsyncLeftOpen(AsyncLinks):
    """The same for tasks."""

    left: list[AsyncLink] = []  # noqa: RUF012  # as above

    async def close(self) -> None:
        """Forget them."""
        self.left += self.idle
        self.idle = []


class WithThreads(Links):
    """Looks after its connections in threads that nobody ends."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        for _ in range(4):
            threading.Thread(target=threading.Event().wait, args=(300,), daemon=True).start()


BROKEN_LINKS: tuple[BrokenLinks, ...] = (
    BrokenLinks("a connection is used again whose call was given up", "S15", UsedAgain, AsyncUsedAgain),
    BrokenLinks("a connection is used again whose call was cancelled", "S15", None, AsyncUsedAfterCancel),
    BrokenLinks("threads on one connection read each other's answers", "S15", OneForAll, None),
    BrokenLinks("a task that has left the queue leaves its answer to the next", "S15", None, AsyncOneForAll),
    BrokenLinks("one mutex for all calls", "S13", OneAtATime, AsyncOneAtATime),
    BrokenLinks("a pool of ten is waited for without a time-out", "S13", SmallPool, AsyncSmallPool),
    BrokenLinks("a time-out is late by a constant", "S13", Late, AsyncLate),
    BrokenLinks("the first time-out is that of the connection", "S13", OfTheFirst, AsyncOfTheFirst),
    BrokenLinks("a time-out begins anew with each piece of an answer", "S13", OfEachPiece, AsyncOfEachPiece),
    BrokenLinks("what got no answer is sent again", "S15", SentAgain, AsyncSentAgain),
    BrokenLinks(
        "a connection that was closed is told as not sent",
        "S14",
        *telling(lambda _, __, error: NotSentError(str(error)) if isinstance(error, NoReplyError) else None),
    ),
    BrokenLinks(
        "a wait raises what the driver does",
        "S17",
        *telling(lambda verb, _, error: error.__cause__ if verb == "wait" else None),
    ),
    BrokenLinks(
        "read_age raises what the driver does",
        "S17",
        *telling(lambda verb, _, error: error.__cause__ if verb == "read_age" else None),
    ),
    BrokenLinks(
        "a prune raises what the driver does",
        "S17",
        *telling(lambda verb, _, error: error.__cause__ if verb == "prune" else None),
    ),
    BrokenLinks(
        "a claim that waits raises what the driver does",
        "S17",
        *telling(lambda verb, _, error: error.__cause__ if verb == "claim_when_free" else None),
    ),
    BrokenLinks(
        "the second page of a scan raises what the driver does",
        "S17",
        *telling(lambda verb, place, error: error.__cause__ if verb == "scan" and place else None),
    ),
    BrokenLinks("a wait has no time-out of its own", "S17", *patient(lambda verb, _: verb == "wait")),
    BrokenLinks(
        "a claim that waits has no time-out of its own", "S13", *patient(lambda verb, _: verb == "claim_when_free")
    ),
    BrokenLinks("a prune has no time-out", "S13", *patient(lambda verb, _: verb == "prune")),
    BrokenLinks(
        "the second page of a scan has no time-out", "S17", *patient(lambda verb, place: verb == "scan" and bool(place))
    ),
    BrokenLinks("a cancelled call is told as one without an answer", "S17", None, AsyncNotCancelled),
    BrokenLinks("close leaves connections open", "S22", LeftOpen, AsyncLeftOpen),
    BrokenLinks("close leaves the threads that look after connections", "S22", WithThreads, None),
)
