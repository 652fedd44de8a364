"""The stores that are disturbed: a SQLite file, and a Redis server of our own behind a proxy."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import ServerMissingError, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Disturbed", "open_store"]

_ANSWERS_S = 60.0


class Disturbed(Protocol):
    """A store at *url*. One that has a server can be stopped, restarted, and cut off by *proxy*."""

    url: str
    version: str
    proxy: FaultProxy

    def stop(self) -> None:
        """Stop the server's process."""

    def go_on(self) -> None:
        """Let it go on."""

    def restart(self) -> None:
        """Kill the server, and start it again with its data."""


class _File:
    """A SQLite file. It has no server to disturb."""

    proxy: FaultProxy

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/locks.db"
        self.version = sqlite3.sqlite_version

    def _no_server(self) -> None:
        raise LookupError("SQLite has no server that could be disturbed; choose a cell that disturbs the holder")

    stop = go_on = restart = _no_server


class _Redis:
    """A Redis server that writes each change to disk before it answers."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            resolve("redis")  # installs it, or says what to do
            program = shutil.which("redis-server")
        if program is None:
            raise ServerMissingError(
                "these cells stop and kill a redis-server of their own; install redis-server on this machine"
            )
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v=([\d.]+)", told)
        self.version = found.group(1) if found else "?"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        self._start()
        self.proxy = FaultProxy("127.0.0.1", self._port)
        self.url = f"redis://{self.proxy.address}/0"

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _ANSWERS_S
        while not self._answers():
            if time.monotonic() > until or self._process.poll() is not None:
                self._process.kill()
                raise ServerMissingError(f"redis-server did not answer on port {self._port} within {_ANSWERS_S:g} s")
            time.sleep(0.02)  # until it listens

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the server's process."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill the server, and start it again with its data."""
        self._process.kill()
        self._process.wait()
        self._start()

    def close(self) -> None:
        """End it."""
        self.proxy.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def open_store(name: str, folder: Path) -> Iterator[Disturbed]:
    """Yield the store *name*, with its data in *folder*.

    Raises: SystemExit: there is no such store here.
    """
    if name == "sqlite":
        yield _File(folder)
    elif name == "redis":
        store = _Redis(folder)
        try:
            yield store
        finally:
            store.close()
    else:
        raise SystemExit(f"unknown store {name!r} for the fault cells; these are there: sqlite, redis")
