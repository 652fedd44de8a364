"""The connections of the store behind a socket, as drivers and their pools have them, for threads and for tasks.

A frame is the number of what it carries, which is kept in this process: so nothing that comes over a socket is decoded, and all else is as
over a network.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeAlias, TypeVar

from dlock_conformance.wire.errors import NoReplyError, NotSentError

__all__ = [
    "FRAME_BYTES",
    "AsyncLink",
    "AsyncLinks",
    "Links",
    "ReplyTimeoutError",
    "answered",
    "packed",
    "received",
    "received_by",
    "unpacked",
]

AsyncLink: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Link = TypeVar("_Link")

_FRAME = struct.Struct("!Q")
FRAME_BYTES = _FRAME.size
_numbers = itertools.count(1)
_carried: dict[int, Any] = {}


class ReplyTimeoutError(NoReplyError):
    """The time-out of a call was over."""


def packed(value: object) -> bytes:
    """Return the frame that carries *value*."""
    number = next(_numbers)
    _carried[number] = value
    return _FRAME.pack(number)


def unpacked(frame: bytes) -> Any:
    """Return what *frame* carries."""
    return _carried.pop(_FRAME.unpack(frame)[0])


def received(link: socket.socket, until: float | None = None) -> Any:
    """Return what the next frame of *link* carries.

    Raises: EOFError: the other side has left. TimeoutError: it has not come *until* then.
    """
    frame = b""
    while len(frame) < FRAME_BYTES:
        if until is not None:
            link.settimeout(_left(until))
        if not (more := link.recv(FRAME_BYTES - len(frame))):
            raise EOFError("the connection was closed")
        frame += more
    return unpacked(frame)


async def received_by(reader: asyncio.StreamReader) -> Any:
    """As :func:`received`, for tasks."""
    return unpacked(await reader.readexactly(FRAME_BYTES))


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError("the time-out was over")
    return left


class _Pool(Generic[_Link]):
    """Connections of either colour: as many as there are calls at once. One whose call did not end well is not used again."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.is_open, self.pid = True, os.getpid()
        self.idle: list[_Link] = []
        self.mutex = threading.Lock()

    @contextmanager
    def using(self, timeout_s: float) -> Iterator[list[_Link]]:
        """Have the block put the connection of its call into the list that it is given: what becomes of it is seen to here.

        Raises: WireError: there is no answer.
        """
        if os.getpid() != self.pid:
            raise NotSentError("these connections are of the parent of this process")
        used: list[_Link] = []
        try:
            yield used
        except BaseException as error:
            for link in used:
                self.lost(link)
            if isinstance(error, TimeoutError):
                raise ReplyTimeoutError(f"no reply within {timeout_s} s") from error
            if isinstance(error, (OSError, EOFError)):
                for link in self.emptied():  # the server is another one by now, or has none of the others either
                    self.lost(link)
                raise NoReplyError("the connection was lost") from error
            raise
        self.kept(used[0])
        if not self.is_open:  # it was closed meanwhile
            for link in self.emptied():
                self.lost(link)

    def emptied(self) -> list[_Link]:
        """Return the idle connections, which are idle no more."""
        with self.mutex:
            idle, self.idle = self.idle, []
        return idle

    def kept(self, link: _Link) -> None:
        """Use *link* again."""
        with self.mutex:
            self.idle.append(link)

    def lost(self, link: _Link) -> None:
        """Use *link* no more: what comes on it is the answer to nobody."""
        raise NotImplementedError


class Links(_Pool[socket.socket]):
    """The connections of a store for threads."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Send a request, and return the answer to it.

        Raises: WireError: there is none, or it is an error.
        """
        until = time.monotonic() + timeout_s
        with self.using(timeout_s) as used:
            used.append(self.taken(until))
            came = self.exchanged(used[0], (verb, request, more), until)
        return answered(came)

    def taken(self, until: float) -> socket.socket:
        """Return an idle connection, or a new one."""
        with self.mutex:
            if self.idle:
                return self.idle.pop()
        try:
            link = socket.create_connection(self.address, _left(until))
        except OSError as error:
            raise NotSentError(str(error)) from error
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def exchanged(self, link: socket.socket, message: tuple[str, Any, Any], until: float) -> Any:
        """Send *message* on *link*, and return what comes."""
        link.settimeout(_left(until))
        link.sendall(packed(message))
        came = received(link, until)
        if message[0] == "wait" and came is True:
            link.sendall(packed(True))
        return came

    def lost(self, link: socket.socket) -> None:
        """As :meth:`_Pool.lost`."""
        link.close()

    def close(self) -> None:
        """Close those that are idle, and the others at the ends of their calls."""
        self.is_open = False
        for link in self.emptied():
            link.close()


class AsyncLinks(_Pool[AsyncLink]):
    """The connections of a store for tasks."""

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As :meth:`Links.ask`."""
        with self.using(timeout_s) as used:
            async with asyncio.timeout(timeout_s):
                used.append(await self.taken())
                came = await self.exchanged(used[0], (verb, request, more))
        return answered(came)

    async def taken(self) -> AsyncLink:
        """Return an idle connection, or a new one."""
        if self.idle:
            return self.idle.pop()
        try:
            return await asyncio.open_connection(*self.address)
        except OSError as error:
            raise NotSentError(str(error)) from error

    async def exchanged(self, link: AsyncLink, message: tuple[str, Any, Any]) -> Any:
        """Send *message* on *link*, and return what comes."""
        reader, writer = link
        writer.write(packed(message))
        await writer.drain()
        came = await received_by(reader)
        if message[0] == "wait" and came is True:
            writer.write(packed(True))
        return came

    def lost(self, link: AsyncLink) -> None:
        """As :meth:`_Pool.lost`."""
        link[1].transport.abort()

    async def close(self) -> None:
        """As :meth:`Links.close`."""
        self.is_open = False
        idle = self.emptied()
        for _, writer in idle:
            writer.close()
        for _, writer in idle:
            with suppress(OSError):
                await writer.wait_closed()


def answered(came: Any) -> Any:
    """Return an answer, or raise the error that it is."""
    if isinstance(came, Exception):
        raise came
    return came
