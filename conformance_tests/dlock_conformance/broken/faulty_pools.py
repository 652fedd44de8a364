"""Clients of the store behind a socket whose connections go wrong in one verb, or in one kind of trouble: of all else they are right.

A fault of both colours is a class for threads and one for tasks; None stands where one colour cannot have it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from dlock_conformance.broken.faulty_calls import Clients
from dlock_conformance.broken.faulty_times import AsyncOfEachPiece, AsyncOneAtATime, OfEachPiece, OneAtATime
from dlock_conformance.wire.errors import NoReplyError, NotSentError
from dlock_conformance.wire.links import AsyncLink, AsyncLinks, Links, ReplyTimeoutError, answered, packed, received

__all__ = [
    "AsyncLostOpen",
    "AsyncScansKeep",
    "AsyncWaitsApart",
    "LostOpen",
    "OneForEachThread",
    "OneForWrites",
    "Queued",
    "RefusedOpen",
    "ScansKeep",
    "WaitsApart",
    "WorkerForEachThread",
    "of_each_piece",
    "one_at_a_time",
    "used_again_after",
    "waits_that_hold_up",
]

WORKERS = 10


# ---- answers that are taken by another call

_asked: ContextVar[str] = ContextVar("_asked")


def used_again_after(given_up: type[BaseException], *verbs: str) -> Clients:
    """Return clients that use a connection again whose call of *verbs* ended so: its answer is still to come."""

    def is_kept() -> bool:
        return _asked.get("") in verbs and isinstance(sys.exception(), given_up)

    class UsedAgain(Links):
        def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            _asked.set(verb)
            return super().ask(verb, request, more, timeout_s)

        def lost(self, link: socket.socket) -> None:
            (self.kept if is_kept() else super().lost)(link)

    class AsyncUsedAgain(AsyncLinks):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            _asked.set(verb)
            return await super().ask(verb, request, more, timeout_s)

        def lost(self, link: AsyncLink) -> None:
            (self.kept if is_kept() else super().lost)(link)

    return UsedAgain, AsyncUsedAgain


class OneForWrites(Links):
    """One connection for the replaces and releases of all threads: each sends whole, and reads whole, and not always in the same order."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._link: socket.socket | None = None
        self._sends, self._reads = threading.Lock(), threading.Lock()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Send, and read what comes next."""
        if verb not in ("replace", "release"):
            return super().ask(verb, request, more, timeout_s)
        until = time.monotonic() + timeout_s
        try:
            with self._sends:
                link = self._link = self._link or self.taken(until)
                link.sendall(packed((verb, request, more)))
            with self._reads:
                came = received(link, until)
        except (OSError, EOFError) as error:
            with self._sends:
                self._closed()
            raise (ReplyTimeoutError if isinstance(error, TimeoutError) else NoReplyError)("no reply") from error
        return answered(came)

    def _closed(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def close(self) -> None:
        """Close it, too."""
        super().close()
        self._closed()


# ---- time


class Queued(Links):
    """Has ten threads that ask; what is not begun in its time-out is told as not sent, and stays in their queue."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._workers = ThreadPoolExecutor(WORKERS)

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Have it asked."""
        future = self._workers.submit(super().ask, verb, request, more, timeout_s)
        try:
            return future.result(timeout_s + 0.05)
        except TimeoutError as error:
            if future.running() or future.done():
                raise ReplyTimeoutError(f"no reply within {timeout_s} s") from error
            raise NotSentError("all threads are busy") from error

    def close(self) -> None:
        """End the threads, too."""
        self._workers.shutdown(wait=False)
        super().close()


def one_at_a_time(*verbs: str) -> Clients:
    """Return clients that hold a mutex as long as a call of *verbs* has no answer."""

    class Turns(OneAtATime):
        def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            ask = super().ask if verb in verbs else super(OneAtATime, self).ask
            return ask(verb, request, more, timeout_s)

    class AsyncTurns(AsyncOneAtATime):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            ask = super().ask if verb in verbs else super(AsyncOneAtATime, self).ask
            return await ask(verb, request, more, timeout_s)

    return Turns, AsyncTurns


def waits_that_hold_up(*verbs: str) -> Clients:
    """Return clients whose claims that wait hold a mutex, for which *verbs* wait."""

    class HeldUp(OneAtATime):
        def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            if verb == "claim_when_free":
                return super().ask(verb, request, more, timeout_s)
            if verb in verbs:
                with self._turn:
                    pass
            return super(OneAtATime, self).ask(verb, request, more, timeout_s)

    class AsyncHeldUp(AsyncOneAtATime):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            if verb == "claim_when_free":
                return await super().ask(verb, request, more, timeout_s)
            if verb in verbs:
                async with self._turn:
                    pass
            return await super(AsyncOneAtATime, self).ask(verb, request, more, timeout_s)

    return HeldUp, AsyncHeldUp


def of_each_piece(*verbs: str) -> Clients:
    """Return clients that begin the time-out of *verbs* anew whenever a piece of the answer comes."""

    class Pieces(OfEachPiece):
        def exchanged(self, link: socket.socket, message: tuple[str, Any, Any], until: float) -> Any:
            exchanged = super().exchanged if message[0] in verbs else super(OfEachPiece, self).exchanged
            return exchanged(link, message, until)

    class AsyncPieces(AsyncOfEachPiece):
        async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
            ask = super().ask if verb in verbs else super(AsyncOfEachPiece, self).ask
            return await ask(verb, request, more, timeout_s)

    return Pieces, AsyncPieces


# ---- what is left


class LostOpen(Links):
    """Puts a connection aside whose call had no answer."""

    left: list[socket.socket] = []  # noqa: RUF012  # of the class, as connections are that nobody closes

    def lost(self, link: socket.socket) -> None:
        """Leave it open."""
        self.left.append(link)


class AsyncLostOpen(AsyncLinks):
    """The same for tasks, unless the call was cancelled."""

    left: list[AsyncLink] = []  # noqa: RUF012  # as above

    def lost(self, link: AsyncLink) -> None:
        """Leave it open."""
        if isinstance(sys.exception(), asyncio.CancelledError):
            super().lost(link)
        else:
            self.left.append(link)


class RefusedOpen(Links):
    """Leaves the socket open of a connection that was refused."""

    left: list[socket.socket] = []  # noqa: RUF012  # as above

    def taken(self, until: float) -> socket.socket:
        """Connect in two steps."""
        with self.mutex:
            if self.idle:
                return self.idle.pop()
        link = socket.socket()
        try:
            link.settimeout(max(until - time.monotonic(), 0.001))
            link.connect(self.address)
        except OSError as error:
            self.left.append(link)
            raise NotSentError(str(error)) from error
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link


class WaitsApart(Links):
    """Has other connections for claims that wait, which close() forgets."""

    left: list[Links] = []  # noqa: RUF012  # as above

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._apart = Links(address)
        self.left.append(self._apart)

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Ask on one of those, or these."""
        ask = self._apart.ask if verb == "claim_when_free" else super().ask
        return ask(verb, request, more, timeout_s)


class AsyncWaitsApart(AsyncLinks):
    """The same for tasks."""

    left: list[AsyncLinks] = []  # noqa: RUF012  # as above

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._apart = AsyncLinks(address)
        self.left.append(self._apart)

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Ask on one of those, or these."""
        ask = self._apart.ask if verb == "claim_when_free" else super().ask
        return await ask(verb, request, more, timeout_s)


class ScansKeep(Links):
    """Has a connection for each scan until that is read to its end, which close() forgets."""

    left: list[socket.socket] = []  # noqa: RUF012  # as above

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._scans: list[socket.socket] = []

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Take one with the first page, and give it back with the last."""
        if verb == "scan" and not more:
            self._scans.append(self.taken(time.monotonic() + timeout_s))
        came = super().ask(verb, request, more, timeout_s)
        if verb == "scan" and not came and self._scans:
            self.kept(self._scans.pop())
        return came

    def close(self) -> None:
        """Forget them."""
        super().close()
        self.left += self._scans


class AsyncScansKeep(AsyncLinks):
    """The same for tasks."""

    left: list[AsyncLink] = []  # noqa: RUF012  # as above

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._scans: list[AsyncLink] = []

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Take one with the first page, and give it back with the last."""
        if verb == "scan" and not more:
            self._scans.append(await self.taken())
        came = await super().ask(verb, request, more, timeout_s)
        if verb == "scan" and not came and self._scans:
            self.kept(self._scans.pop())
        return came

    async def close(self) -> None:
        """Forget them."""
        await super().close()
        self.left += self._scans


# ---- threads of the program


class OneForEachThread(Links):
    """Keeps a connection for each thread that has ever called."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._of = dict[threading.Thread, list[socket.socket]]()

    def taken(self, until: float) -> socket.socket:
        """As its name says."""
        mine = self._of.get(threading.current_thread())
        return mine.pop() if mine else super().taken(until)

    def kept(self, link: socket.socket) -> None:
        """As its name says."""
        self._of.setdefault(threading.current_thread(), []).append(link)

    def emptied(self) -> list[socket.socket]:
        """All of them."""
        of, self._of = self._of, {}
        return [link for links in of.values() for link in links]


class WorkerForEachThread(Links):
    """Has a thread for each thread that has ever called, and asks there."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._of = dict[threading.Thread, ThreadPoolExecutor]()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        worker = self._of.setdefault(threading.current_thread(), ThreadPoolExecutor(1, "worker"))
        return worker.submit(super().ask, verb, request, more, timeout_s).result()

    def close(self) -> None:
        """End them."""
        super().close()
        for worker in self._of.values():
            worker.shutdown(wait=False)
