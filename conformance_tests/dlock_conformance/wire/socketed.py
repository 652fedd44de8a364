"""The wired memory store behind a real socket, with clients as drivers have them: half of all faults of stores live in connections.

A request is a frame, its answer another; a link carries one of them at a time. So a time-out, a cancelled call and a lost reply are as they
are over a network, and :mod:`dlock_conformance.broken.faulty_links` breaks the clients as drivers are broken.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from dlock_conformance.harness import Opening, StoreHarness
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.wire.errors import WireError
from dlock_conformance.wire.links import AsyncLinks, Links, ReplyTimeoutError, packed, received
from dlock_conformance.wire.wired import (
    AsyncWiredStore,
    Wire,
    WiredStore,
    translated,
    waits,
    wired_harness,
    without_members,
    without_table,
)
from dlock_core.errors import StoreError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Reply

__all__ = ["AsyncSocketStore", "SocketServer", "SocketStore", "socket_harness"]

PAGE = 500
# What the server has to tell the end of a wait: who leaves without its answer is known to have left a moment later.
ANSWERED_S = 0.15


class SocketServer:
    """Serves *wire* on a free loopback port, each connection in a thread."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._links: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="socket-server", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End the connections that there are, as a server does that is killed."""
        for link in list(self._links):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links.add(link)
                threading.Thread(target=self._serve, args=(link,), name="socket-server", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        # The last three: it speaks another language, as who looks for a server that had this port before, and a child of a fork.
        with link, suppress(OSError, EOFError, KeyError, TypeError, ValueError):
            while True:
                verb, request, more = received(link)
                try:
                    answer: Any = self._answer(link, verb, request, more)
                except (WireError, StoreError) as error:
                    answer = error
                if verb == "wait" and answer is True:
                    self._wake(link, request)
                else:
                    link.sendall(packed(answer))
        self._links.discard(link)

    def _answer(self, link: socket.socket, verb: str, request: Any, more: Any) -> Any:
        if verb == "wait":
            return self._wait(link, request, more)
        if verb == "claim_when_free":
            return self._claim_when_free(link, request, more)
        came = self.wire.ask(verb, request)
        if verb != "scan":
            return came
        return sorted((record for record in came if record.key > more), key=lambda record: record.key)[:PAGE]

    def _wake(self, link: socket.socket, record: LockRecord) -> None:
        """Tell a waiter; if it has left before it said that it knows, the next is woken instead."""
        try:
            link.sendall(packed(True))
            received(link)
        except (OSError, EOFError):
            self.wire.leave(record.key, lambda: None, pass_on=True)
            raise

    def _wait(self, link: socket.socket, record: LockRecord, wait_s: float) -> bool:
        """Wait for the release; whether it woke this one.

        Raises: EOFError: the waiter has left.
        """
        woken, bell = socket.socketpair()
        with woken, bell:

            def wake() -> None:
                with suppress(OSError):  # of one that has left, and should not be called any more
                    bell.send(b".")

            if not self.wire.enter(record, wake):
                return True
            moved_on = self.wire.moved_on(record)
            ready, _, _ = select.select([link, woken], [], [], 0 if moved_on else wait_s)
            used = moved_on or ready == [woken]
            self.wire.leave(record.key, wake, pass_on=not used)
            if link in ready:
                raise EOFError("the waiter has left")
            return used

    def _claim_when_free(self, link: socket.socket, request: Claim, wait_s: float) -> Reply:
        until = time.monotonic() + wait_s
        reply: Reply = self.wire.ask("claim_when_free", request)
        while waits(reply) and (left_s := until - time.monotonic()) > 0:
            self._wait(link, without_members(request), left_s)
            reply = self.wire.goes_on(request)
        return reply


class SocketStore(WiredStore):
    """The store for threads."""

    def __init__(self, wire: Wire, links: Links, *, owns: bool = True) -> None:
        super().__init__(wire)
        self.links, self.owns = links, owns

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """As the port says."""
        last = ""
        while page := self._ask("scan", prefix, None, timeout_s, last):
            yield from page
            last = page[-1].key

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As the port says."""
        with translated(self, "wait", record.key), suppress(ReplyTimeoutError):
            self.links.ask("wait", record, 0.9 * timeout_s, timeout_s + ANSWERED_S)

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As the port says."""
        with translated(self, "claim_when_free", request.record.key):
            reply: Reply = self.links.ask("claim_when_free", request, wait_s, wait_s + timeout_s)
            return reply

    def close(self) -> None:
        """As the port says."""
        super().close()
        if self.owns:
            self.links.close()

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float, more: str = "") -> Any:
        with translated(self, verb, key):
            return self.links.ask(verb, request, more, timeout_s)


class AsyncSocketStore(AsyncWiredStore):
    """The store for tasks."""

    def __init__(self, wire: Wire, links: AsyncLinks, *, owns: bool = True) -> None:
        super().__init__(wire)
        self.links, self.owns = links, owns

    async def scan(self, prefix: str, *, timeout_s: float) -> Any:
        """As the port says."""
        last = ""
        while page := await self._ask("scan", prefix, None, timeout_s, last):
            for record in page:
                yield record
            last = page[-1].key

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As the port says."""
        with translated(self, "wait", record.key), suppress(ReplyTimeoutError):
            await self.links.ask("wait", record, 0.9 * timeout_s, timeout_s + ANSWERED_S)

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As the port says."""
        with translated(self, "claim_when_free", request.record.key):
            reply: Reply = await self.links.ask("claim_when_free", request, wait_s, wait_s + timeout_s)
            return reply

    async def close(self) -> None:
        """As the port says."""
        await super().close()
        if self.owns:
            await self.links.close()

    async def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float, more: str = "") -> Any:
        with translated(self, verb, key):
            return await self.links.ask(verb, request, more, timeout_s)


async def closed_at_last(client: AsyncLinks) -> None:
    """Close *client* when its loop ends, which cancels all tasks."""
    try:
        await asyncio.Event().wait()
    finally:
        await client.close()


@contextmanager
def socket_harness(
    wire: Wire, links: tuple[type[Links], type[AsyncLinks]] = (Links, AsyncLinks), **changes: Any
) -> Iterator[StoreHarness]:
    """Yield a harness that can do to *wire*, through a socket and the clients *links*, all that a harness can do."""
    bare = without_table(wire)
    with (
        closing(SocketServer(wire)) as server,
        closing(SocketServer(bare)) as empty,
        closing(FaultProxy(*server.address)) as proxy,
    ):
        address, own = ("127.0.0.1", proxy.port), dict[Any, Any]()

        def opening(wire: Wire, address: tuple[str, int], *, given: bool = False) -> Opening:
            def open_store() -> SocketStore:
                client = own.setdefault(None, links[0](address)) if given else links[0](address)
                return SocketStore(wire, client, owns=not given)

            async def aopen_store() -> AsyncSocketStore:
                loop = asyncio.get_running_loop()
                if not given:
                    return AsyncSocketStore(wire, links[1](address))
                if loop not in own:
                    client = links[1](address)
                    own[loop] = client, loop.create_task(closed_at_last(client))
                return AsyncSocketStore(wire, own[loop][0], owns=False)

            return Opening(open_store=open_store, aopen_store=aopen_store)

        def restart() -> None:
            server.cut()
            wire.restart()

        stores = opening(wire, address)
        options: dict[str, Any] = {
            "open_store": stores.open_store,
            "aopen_store": stores.aopen_store,
            "page": PAGE,
            "restart": restart,
            "count_requests": lambda: proxy.requests() + wire.more_requests,
            "faults": proxy,
            "unprovisioned": opening(bare, empty.address),
            "own_client": opening(wire, address, given=True),
        }
        yield replace(wired_harness(wire), **{**options, **changes})
        if None in own:
            own[None].close()
