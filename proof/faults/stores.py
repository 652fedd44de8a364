"""The stores that are disturbed: a SQLite file, and servers of our own behind a proxy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

from dlock_conformance.proxy import FaultProxy, has_headers
from dlock_conformance.servers import RECIPES, ServerMissingError, free_port, resolve

from dlock_core.backend import backend_for
from tests.backends import is_request
from tests.cluster import Cluster
from tests.etcd.cluster import EtcdCluster
from tests.scripted import ScriptedServer
from tests.zookeeper.cluster import ZooKeeperCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BODIES", "STORES", "Disturbed", "Size", "open_store"]

_SCRIPTS = Path(__file__).parents[2] / "tools" / "servers"
_ANSWERS_S = 60.0
_SCRIPT_S = 580.0
_WARM_UP = 500


class Size(NamedTuple):
    """How long a lease is in the cells of a store, how many keys are worked on at once, by `dlock run` too, and at what part it polls."""

    lease_s: float
    keys: int
    run_keys: int
    polls: int | None = None


STORES = {
    "sqlite": Size(0.6, 24, 2),
    "redis": Size(0.6, 40, 2),
    # Nothing wakes who waits there: all that poll at the pace of the defaults would have this machine do nothing else.
    "dynamodb": Size(1.5, 24, 1, polls=10),
    "etcd": Size(1.5, 24, 1),
    "mongodb": Size(1.0, 20, 1),
    "mysql": Size(1.0, 24, 1, polls=10),
    "postgres": Size(1.0, 24, 2),
    "zookeeper": Size(2.0, 24, 1),
}
CLUSTERS: dict[str, Callable[..., Cluster]] = {"etcd": EtcdCluster, "zookeeper": ZooKeeperCluster}
# A busy machine leaves a process without a processor for longer than the stop grace of a shorter lease; bodies that pause prove nothing.
_LEASE_OF_BODIES_S = 2.0
# With that lease more keys ask the store no more often.
_KEYS_OF_BODIES = STORES | {"dynamodb": STORES["dynamodb"]._replace(keys=48, polls=4)}
BODIES = {name: size._replace(lease_s=max(_LEASE_OF_BODIES_S, size.lease_s)) for name, size in _KEYS_OF_BODIES.items()}
"""The sizes of the cells whose holders are bodies, of elections and of jobs."""


class Disturbed(Protocol):
    """A store at *url*, and at *proxied* through *proxy*. One that has a server can be stopped, restarted, and cut off."""

    url: str
    proxied: str
    version: str
    proxy: FaultProxy
    file: Path | None

    def stop(self) -> None:
        """Stop the server's process."""

    def go_on(self) -> None:
        """Let it go on."""

    def restart(self) -> None:
        """Kill the server, and start it again with its data; of a cluster, the member that leads."""

    def restart_all(self) -> None:
        """Do so with all members of a cluster at once."""

    def close(self) -> None:
        """End it."""


class _File:
    """A SQLite file. It has no server to disturb."""

    proxy: FaultProxy

    def __init__(self, folder: Path) -> None:
        self.file: Path | None = folder / "locks.db"
        self.url = self.proxied = f"sqlite:///{self.file}"
        self.version = sqlite3.sqlite_version

    def _no_server(self) -> None:
        raise LookupError("SQLite has no server that could be disturbed; choose a cell that disturbs the holder")

    stop = go_on = restart = restart_all = _no_server

    def close(self) -> None:
        """Leave the file to its folder."""


class _Redis:
    """A Redis server that writes each change to disk before it answers."""

    file: Path | None = None

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
        self._port = free_port()
        self._command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        self._start()
        self.proxy = FaultProxy("127.0.0.1", self._port)
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.proxied = f"redis://{self.proxy.address}/0"

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

    restart_all = restart

    def close(self) -> None:
        """End it."""
        self.proxy.close()
        self._process.kill()
        self._process.wait()


class _Cluster:
    """Three members of etcd or ZooKeeper. What goes through the proxy goes to one of them, which hands it on to the leader."""

    file: Path | None = None

    def __init__(self, name: str, folder: Path) -> None:
        resolve(name)  # installs it, or says what to do
        self._cluster = CLUSTERS[name](DLOCK_TEST_DATA=str(folder))
        self.url = f"{name}://{self._cluster.endpoints}/proof"
        # Syncs and pings of ZooKeeper may stand for requests: the cells count none.
        of_name: dict[str, Any] = {"is_request": has_headers, "is_answered": has_headers} if name == "etcd" else {}
        self.proxy = FaultProxy("127.0.0.1", self._cluster.members[0].port, **of_name)
        self.proxied = f"{name}://{self.proxy.address}/proof"
        backend = backend_for(self.url)
        with closing(backend.open(backend.options.from_url(self.url))) as store:
            store.provision()
            self.version = f"{store.guarantees().version}, three members"

    def stop(self) -> None:
        """Stop a majority, the leader among them."""
        leader = self._cluster.leader()
        other = next(member for member in self._cluster.members if member is not leader)
        self._cluster.pause(leader, other)

    def go_on(self) -> None:
        """Let all members go on."""
        self._cluster.go_on()

    def restart(self) -> None:
        """Kill the leader, and start it again with its data."""
        leader = self._cluster.leader()
        leader.crash()
        leader.start()

    def restart_all(self) -> None:
        """Kill all members at once, and start them again with their data."""
        self._cluster.each(ScriptedServer.crash)
        self._cluster.each(ScriptedServer.start)

    def close(self) -> None:
        """End all members."""
        self.proxy.close()
        self._cluster.close()


class _Scripted:
    """A server that its script in ``tools/servers`` installs, starts and kills, if its kind has no class here; for MongoDB a stand-in."""

    file: Path | None = None

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._port = name, str(free_port())
        self._script = _SCRIPTS / RECIPES[name].script
        # DynamoDB Local takes any credentials, and boto3 insists on some.
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            os.environ.setdefault(variable, "testing")
        self._variables = os.environ | {"DLOCK_DDB_DIR": str(folder / "dynamodb")}
        self._run("start")
        self.proxy = FaultProxy("127.0.0.1", int(self._port), is_request=partial(is_request, name))
        self.url, self.proxied = self._url(f"127.0.0.1:{self._port}"), self._url(self.proxy.address)
        backend = backend_for(self.url)
        with closing(backend.open(backend.options.from_url(self.url))) as store:
            store.provision()
            self.version = f"{store.guarantees().version} ({RECIPES[name].script_gives})"
            # A Java machine is slow until it has compiled what it does most.
            for number in range(_WARM_UP if name == "dynamodb" else 0):
                store.read(f"warm-up/{number}", timeout_s=_ANSWERS_S)

    def _url(self, address: str) -> str:
        if self._name == "dynamodb":
            return f"dynamodb://eu-west-1/dlock-proof?endpoint_url={quote(f'http://{address}', safe='')}"
        if self._name == "mysql":
            return f"mysql://root@{address}/locks?ssl_mode=disabled"
        if self._name == "postgres":
            return f"postgresql://postgres@{address}/postgres?sslmode=disable"
        return f"mongodb://{address}/dlock-proof?directConnection=true"

    def _run(self, verb: str) -> str:
        done = subprocess.run(
            [self._script, verb, self._port],
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SCRIPT_S,
        )
        if done.returncode:
            raise ServerMissingError(
                f"these cells stop and kill a {self._name} server of their own, and {self._script.name} {verb} failed:"
                f" {done.stderr.strip()[-300:]}; mend that, or leave {self._name} out of --stores"
            )
        return done.stdout.strip()

    def _signal(self, number: int) -> None:
        server = int(self._run("pid"))
        # PostgreSQL has a process for each connection.
        children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
        for each in (server, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def stop(self) -> None:
        """Stop the server's process."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill the server, and start it again with its data."""
        if self._name == "dynamodb":
            self._signal(signal.SIGKILL)
        else:
            self._run("crash")
        self._run("start")

    restart_all = restart

    def close(self) -> None:
        """End it."""
        self.proxy.close()
        self._run("stop")


@contextmanager
def open_store(name: str, folder: Path) -> Iterator[Disturbed]:
    """Yield the store *name*, with its data in *folder*.

    Raises: SystemExit: there is no such store here. ServerMissingError: its server can't be had; the message says what to do.
    """
    if name not in STORES:
        raise SystemExit(f"unknown store {name!r} for the fault cells; these are there: {', '.join(STORES)}")
    store: Disturbed
    if name == "sqlite":
        store = _File(folder)
    elif name == "redis":
        store = _Redis(folder)
    elif name in CLUSTERS:
        store = _Cluster(name, folder)
    else:
        store = _Scripted(name, folder)
    with closing(store):
        yield store
