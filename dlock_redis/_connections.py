"""The connections to one server that are kept while idle, in both colours.

The driver connects, encrypts and signs in; from then on its socket, or stream, is used directly, which halves the cost of a request and
bounds it by one deadline. Only a connection whose answers were read to their end is kept; any other is closed, so that no answer is ever
taken for that to another request.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import ResponseError

from dlock_core.errors import StoreError
from dlock_redis import _errors as errors
from dlock_redis._resp import IncompleteError, answers_in
from dlock_redis._scripts import LEAVE, Script
from dlock_redis._servers import closed_error
from dlock_redis._wire import wait_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlock_redis._servers import Source

IDLE_MAX = 64
_LEAVE_S = 0.25
_READ_SIZE = 65536


class _Idle:
    """A stack of idle connections. A forked child never touches those of its parent, and keeps them from being closed."""

    def __init__(self) -> None:
        self.open = True
        self._stack: list[Any] = []
        self._parents: list[Any] = []
        self._pid = os.getpid()

    def pop(self, key: str | None) -> Any:
        """Return a connection that still stands, or None."""
        if not self.open:
            raise closed_error(key)
        if self._pid != os.getpid():
            self._parents, self._stack, self._pid = self._stack, [], os.getpid()
        while True:
            try:
                link = self._stack.pop()
            except IndexError:
                return None
            if not link.stale():
                return link
            link.close()

    def push(self, link: Any) -> None:
        if self.open and len(self._stack) < IDLE_MAX:
            self._stack.append(link)
        else:
            link.close()

    def close(self) -> None:
        while self.open and (link := self.pop(None)) is not None:
            link.close()
        self.open = False


def _watch(peer: Any) -> Callable[[], object]:
    """Return what tells whether the server has closed the connection, or said something unasked."""
    if not hasattr(select, "poll"):
        return lambda: select.select([peer], [], [], 0)[0]
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    return lambda: poll.poll(0)


class _Link:
    """A connection of the blocking driver."""

    def __init__(self, connection: Any) -> None:
        self.close = connection.disconnect
        self.read = b""
        self._socket = connection._sock  # the driver has no public way to a time-out for one request
        self._timeout_s = -1.0
        self.stale = _watch(self._socket)

    def ask(self, commands: bytes, count: int, timeout_s: float) -> list[Any]:
        """Send, and read *count* answers. After a time-out *read* has what came of them."""
        deadline = time.monotonic() + timeout_s
        if timeout_s != self._timeout_s:
            self._limit(timeout_s)
        self.read = b""
        self._socket.sendall(commands)
        while True:
            if time.monotonic() > deadline - timeout_s * 0.9:
                self._limit(deadline - time.monotonic())
            more = self._socket.recv(_READ_SIZE)
            if not more:
                raise ConnectionResetError("the server closed the connection")
            self.read += more
            try:
                return answers_in(self.read, count)
            except IncompleteError:
                continue

    def _limit(self, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(timeout_s)
        self._timeout_s = timeout_s


class Connections:
    """The connections to one server, for threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._idle = _Idle()

    def run(self, script: Script, keys: Sequence[bytes], words: Sequence[bytes], *, key: str, timeout_s: float) -> Any:
        """Run *script*; one that the server does not know was not run, and is sent again with its text."""
        started = time.monotonic()
        answer = self._exchange(script.command(keys, words), 1, key, timeout_s)[0]
        if type(answer) is ResponseError:
            if errors.is_unknown_script(answer):
                rest_s = timeout_s - (time.monotonic() - started)
                answer = self._exchange(script.command(keys, words, whole=True), 1, key, rest_s)[0]
            errors.check([answer], key)
        return answer

    def ask(self, commands: Sequence[bytes], *, timeout_s: float) -> list[Any]:
        """Send *commands* in one go and return their answers; an error of the server is a value among them."""
        return self._exchange(b"".join(commands), len(commands), None, timeout_s) if commands else []

    def _exchange(self, commands: bytes, count: int, key: str | None, timeout_s: float) -> list[Any]:
        link = self._idle.pop(key)
        if link is None:
            started = time.monotonic()
            link = self._connected(key, timeout_s)
            timeout_s -= time.monotonic() - started
        whole = False
        try:
            answers: list[Any] = link.ask(commands, count, timeout_s)
            whole = not errors.is_misplaced(answers[0])
        except errors.TROUBLE as error:
            raise errors.trouble(error, key, sent=True) from error
        finally:
            if whole:
                self._idle.push(link)
            else:
                link.close()
        return answers

    def wait(self, key: str, place: bytes, timeout_s: float) -> None:
        """Enter the queue of *key* and block on *place* until it is woken, or *timeout_s*."""
        started = time.monotonic()
        link = self._idle.pop(key) or self._connected(key, timeout_s)
        whole = False
        try:
            rest_s = max(timeout_s - (time.monotonic() - started), 0.0)
            errors.check(link.ask(wait_commands(key, place, rest_s), 2, rest_s), key)
            whole = True
        except TimeoutError:
            errors.check_entered(link.read, key)
        except errors.TROUBLE as error:
            raise errors.trouble(error, key, sent=False) from error
        except BaseException as error:
            if not isinstance(error, StoreError):
                self._leave(key, place)
            raise
        finally:
            if whole:
                self._idle.push(link)
            else:
                link.close()

    def _leave(self, key: str, place: bytes) -> None:
        try:
            self.run(LEAVE, (key.encode(), place), (), key=key, timeout_s=_LEAVE_S)
        except StoreError:
            return  # its turn then lapses by itself

    def close(self) -> None:
        """Close what is idle now, and the rest when it comes back."""
        self._idle.close()

    def _connected(self, key: str | None, timeout_s: float) -> _Link:
        deadline = time.monotonic() + timeout_s
        with errors.unsent(key):
            connection = self._source.connection(max(timeout_s, 0.001))
            try:
                connection.connect()
                if time.monotonic() >= deadline:
                    raise redis.TimeoutError("connecting took all of the time")
            except BaseException:
                connection.disconnect()
                raise
        return _Link(connection)


class _AsyncLink:
    """A connection of the driver for asyncio."""

    def __init__(self, connection: Any) -> None:
        self.read = b""
        self._connection = connection
        self._reader, self._writer = connection._reader, connection._writer  # as in _Link
        # What the event loop has read already shows in the stream, which has no public way to look; what it has not yet in the socket.
        readable = _watch(self._writer.get_extra_info("socket"))
        self.stale = lambda: (
            self._reader.at_eof() or bool(self._reader._buffer) or self._writer.is_closing() or readable()
        )

    async def ask(self, commands: bytes, count: int) -> list[Any]:
        """As :meth:`_Link.ask`; the caller bounds it."""
        self.read = b""
        self._writer.write(commands)
        while True:
            more = await self._reader.read(_READ_SIZE)
            if not more:
                raise ConnectionResetError("the server closed the connection")
            self.read += more
            try:
                return answers_in(self.read, count)
            except IncompleteError:
                continue

    def close(self) -> None:
        """Close at once, without waiting for the other side: TLS would shake hands once more, and the loop may end before it has."""
        self._writer.transport.abort()
        self._connection._close()  # its disconnect() needs a running task, which a closing loop has not


class AsyncConnections:
    """The connections to one server, for tasks; as :class:`Connections`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._idle = _Idle()

    async def run(
        self, script: Script, keys: Sequence[bytes], words: Sequence[bytes], *, key: str, timeout_s: float
    ) -> Any:
        """As :meth:`Connections.run`."""
        started = time.monotonic()
        answer = (await self._exchange(script.command(keys, words), 1, key, timeout_s))[0]
        if type(answer) is ResponseError:
            if errors.is_unknown_script(answer):
                rest_s = timeout_s - (time.monotonic() - started)
                answer = (await self._exchange(script.command(keys, words, whole=True), 1, key, rest_s))[0]
            errors.check([answer], key)
        return answer

    async def ask(self, commands: Sequence[bytes], *, timeout_s: float) -> list[Any]:
        """As :meth:`Connections.ask`."""
        return await self._exchange(b"".join(commands), len(commands), None, timeout_s) if commands else []

    async def _exchange(self, commands: bytes, count: int, key: str | None, timeout_s: float) -> list[Any]:
        link: Any = self._idle.pop(key)
        sent = link is not None
        whole = False
        try:
            async with asyncio.timeout(timeout_s):
                if link is None:
                    link = await self._connected(timeout_s)
                    sent = True
                answers: list[Any] = await link.ask(commands, count)
            whole = not errors.is_misplaced(answers[0])
        except errors.TROUBLE as error:
            raise errors.trouble(error, key, sent=sent) from error
        finally:
            if whole:
                self._idle.push(link)
            elif link is not None:
                link.close()
        return answers

    async def wait(self, key: str, place: bytes, timeout_s: float) -> None:
        """As :meth:`Connections.wait`."""
        link: Any = self._idle.pop(key)
        whole = False
        try:
            async with asyncio.timeout(timeout_s):
                started = time.monotonic()
                link = link or await self._connected(timeout_s)
                rest_s = max(timeout_s - (time.monotonic() - started), 0.0)
                errors.check(await link.ask(wait_commands(key, place, rest_s), 2), key)
            whole = True
        except TimeoutError:
            errors.check_entered(b"" if link is None else link.read, key)
        except errors.TROUBLE as error:
            raise errors.trouble(error, key, sent=False) from error
        except BaseException as error:
            if not isinstance(error, StoreError):
                await self._leave(key, place)
            raise
        finally:
            if whole:
                self._idle.push(link)
            elif link is not None:
                link.close()

    async def _leave(self, key: str, place: bytes) -> None:
        try:
            await self.run(LEAVE, (key.encode(), place), (), key=key, timeout_s=_LEAVE_S)
        except StoreError:
            return  # its turn then lapses by itself

    async def close(self) -> None:
        """As :meth:`Connections.close`."""
        self._idle.close()

    async def _connected(self, timeout_s: float) -> _AsyncLink:
        connection = self._source.connection(timeout_s)
        try:
            await connection.connect()
        except BaseException:
            connection._close()  # as in _AsyncLink
            raise
        return _AsyncLink(connection)
