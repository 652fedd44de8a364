"""The stream that wakes waiters: one watch of all the bells of a client. Who frees a key removes the bell of the first who waits there.

As long as it runs, the places of the waiters are kept.
"""

from __future__ import annotations

import asyncio
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

from dlock_core.errors import StoreUnavailableError
from dlock_core.kit import DaemonThread

if TYPE_CHECKING:
    from dlock_core.kit import Exchange

_LOOK_S = 0.5
_OPEN_S = 10.0


def _checked(answer: Any) -> Any:
    if answer.canceled:
        raise StoreUnavailableError(f"etcd ended the watch of the locks: {answer.cancel_reason or 'no reason given'}")
    return answer


class Stream:
    """A watch, read by a thread of its own: gRPC has no time-out for the next answer."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._came: SimpleQueue[Any] = SimpleQueue()
        DaemonThread("dlock-etcd-watch", self._read).begin()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._came.put(answer)
        except grpc.RpcError as error:
            self._came.put(error)
        else:
            self._came.put(StoreUnavailableError("etcd ended the watch of the locks"))

    def try_next(self, timeout_s: float = _LOOK_S) -> Any:
        try:
            came = self._came.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(came, Exception):
            raise came
        return _checked(came)

    def close(self) -> None:
        self._call.cancel()


class AsyncStream:
    """As :class:`Stream`. A read that is cancelled would end the call, so it goes on until something comes."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def try_next(self, timeout_s: float = _LOOK_S) -> Any:
        reading = self._reading = self._reading or asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({reading}, timeout=timeout_s)
        if not done:
            return None
        self._reading = None
        answer = reading.result()
        if answer is grpc.aio.EOF:
            raise StoreUnavailableError("etcd ended the watch of the locks")
        return _checked(answer)

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def opened(stream: Any) -> Exchange[Any]:
    """Return *stream*, in steps, once etcd has said that it is open."""
    try:
        if (yield stream.try_next(_OPEN_S)) is None:
            raise StoreUnavailableError(f"etcd did not open the watch of the locks within {_OPEN_S:.0f} s")
    except BaseException:
        yield stream.close()
        raise
    return stream
