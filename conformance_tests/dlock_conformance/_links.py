"""The connections of the store behind a socket, as drivers and their pools have them, for threads and for tasks.

A frame is the number of what it carries, which is kept in this process: so nothing that comes over a socket is decoded, and all else is as
over a network.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any, TypeAlias

from dlock_conformance._wire_errors import NoReplyError, NotSentError

__all__ = ["AsyncLink", "AsyncLinks", "Links", "ReplyTimeoutError", "answered", "packed", "received", "received_by"]

AsyncLink: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_FRAME = struct.Struct("!Q")
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
    while len(frame) < _FRAME.size:
        if until is not None:
            link.settimeout(_left(until))
        if not (more := link.recv(_FRAME.size - len(frame))):
            raise EOFError("the connection was closed")
        frame += more
    return unpacked(frame)


async def received_by(reader: asyncio.StreamReader) -> Any:
    """As :func:`received`, for tasks."""
    return unpacked(await reader.readexactly(_FRAME.size))


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError("the time-out was over")
    return left


class Links:
    """The connections of a store for threads: as many as there are calls at once. One whose call did not end well is not used again."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.idle: list[socket.socket] = []
        self.mutex = threading.Lock()

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Send a request, and return the answer to it.

        Raises: WireError: there is none, or it is an error.
        """
        until = time.monotonic() + timeout_s
        link = self.taken(until)
        try:
            came = self.exchanged(link, (verb, request, more), until)
        except TimeoutError as error:
            self.lost(link)
            raise ReplyTimeoutError(f"no reply within {timeout_s} s") from error
        except (OSError, EOFError) as error:
            self.lost(link)
            self.close()  # the server is another one by now, or has none of the others either
            raise NoReplyError("the connection was lost") from error
        except BaseException:
            self.lost(link)
            raise
        self.kept(link)
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

    def kept(self, link: socket.socket) -> None:
        """Use *link* again."""
        with self.mutex:
            self.idle.append(link)

    def lost(self, link: socket.socket) -> None:
        """Use *link* no more: what comes on it is the answer to nobody."""
        link.close()

    def close(self) -> None:
        """Close those that are idle."""
        with self.mutex:
            idle, self.idle = self.idle, []
        for link in idle:
            link.close()


class AsyncLinks:
    """The connections of a store for tasks, as :class:`Links`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.idle: list[AsyncLink] = []

    async def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """Send a request, and return the answer to it.

        Raises: WireError: there is none, or it is an error.
        """
        link: AsyncLink | None = None
        try:
            async with asyncio.timeout(timeout_s):
                link = await self.taken()
                came = await self.exchanged(link, (verb, request, more))
        except TimeoutError as error:
            self.lost(link)
            raise ReplyTimeoutError(f"no reply within {timeout_s} s") from error
        except (OSError, EOFError) as error:
            self.lost(link)
            await self.close()  # as for threads
            raise NoReplyError("the connection was lost") from error
        except BaseException:
            self.lost(link)
            raise
        self.kept(link)
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

    def kept(self, link: AsyncLink) -> None:
        """Use *link* again."""
        self.idle.append(link)

    def lost(self, link: AsyncLink | None) -> None:
        """Use *link* no more: what comes on it is the answer to nobody."""
        if link is not None:
            link[1].transport.abort()

    async def close(self) -> None:
        """Close those that are idle."""
        idle, self.idle = self.idle, []
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
