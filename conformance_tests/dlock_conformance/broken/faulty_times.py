"""Clients of the store behind a socket whose time-outs are wrong, as :mod:`dlock_conformance.broken.faulty_links`."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

from dlock_conformance.wire.links import FRAME_BYTES, AsyncLinks, Links, answered, packed, received, unpacked

__all__ = [
    "AsyncLate",
    "AsyncOfEachPiece",
    "AsyncOfTheFirst",
    "AsyncOneAtATime",
    "AsyncSmallPool",
    "Late",
    "OfEachPiece",
    "OfTheFirst",
    "OneAtATime",
    "SmallPool",
]


class OneAtATime(Links):
    """Holds a mutex as long as a call has no answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._turn = threading.Lock()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait for its turn."""
        with self._turn:
            return super().ask(verb, request, more, timeout_s)


class AsyncOneAtATime(AsyncLinks):
    """The same for tasks."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._turn = asyncio.Lock()

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait for its turn."""
        async with self._turn:
            return await super().ask(verb, request, more, timeout_s)


POOL = 10


class SmallPool(OneAtATime):
    """Has ten connections, and waits for one as long as it takes."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._turn = threading.Semaphore(POOL)  # type: ignore[assignment]  # it is used as a mutex is


class AsyncSmallPool(AsyncOneAtATime):
    """The same for tasks."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._turn = asyncio.Semaphore(POOL)  # type: ignore[assignment]  # as above


LATE_S = 0.7


class Late(Links):
    """Gives the server some time more than its caller allows."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait longer."""
        return super().ask(verb, request, more, timeout_s + LATE_S)


class AsyncLate(AsyncLinks):
    """The same for tasks."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait longer."""
        return await super().ask(verb, request, more, timeout_s + LATE_S)


class OfTheFirst(Links):
    """Goes by the time-out of the first call, as where it belongs to the connection."""

    first: float | None = None

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait as long as the first."""
        self.first = self.first or timeout_s
        return super().ask(verb, request, more, self.first)


class AsyncOfTheFirst(AsyncLinks):
    """The same for tasks."""

    first: float | None = None

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Wait as long as the first."""
        self.first = self.first or timeout_s
        return await super().ask(verb, request, more, self.first)


class OfEachPiece(Links):
    """Gives each piece of an answer the time that the call has."""

    def exchanged(self, link: socket.socket, message: tuple[str, Any, Any], until: float) -> Any:
        """Begin the time-out anew whenever something comes."""
        link.settimeout(max(until - time.monotonic(), 0.001))
        link.sendall(packed(message))
        came = received(link)
        if message[0] == "wait" and came is True:
            link.sendall(packed(True))
        return came


class AsyncOfEachPiece(AsyncLinks):
    """The same for tasks."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Begin the time-out anew whenever something comes."""
        with self.using(timeout_s) as used:
            used.append(await asyncio.wait_for(self.taken(), timeout_s))
            reader, writer = used[0]
            writer.write(packed((verb, request, more)))
            frame = b""
            while len(frame) < FRAME_BYTES:
                piece = await asyncio.wait_for(reader.read(FRAME_BYTES - len(frame)), timeout_s)
                if not piece:
                    raise EOFError("the connection was closed")
                frame += piece
            came = unpacked(frame)
            if verb == "wait" and came is True:
                writer.write(packed(True))
        return answered(came)
