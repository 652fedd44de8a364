"""Real servers for tests: found, or started on a free loopback port and ended with this process.

    from dlock_conformance.servers import resolve

    server = resolve("redis")           # once per process; ServerMissingError says what to do
    print(server.url, server.found, server.version)

The order: a URL in the environment (``DLOCK_TEST_REDIS_URL``); a container, where Docker or Podman answers (testcontainers); a server
program on this machine; the project's own provisioning, in ``tools/servers`` of a checkout. ``DLOCK_TEST_SERVERS=container`` allows only
some of these ways: ``url``, ``container``, ``program``, ``provision``.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dlock_conformance.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Recipe", "Server", "ServerMissingError", "free_port", "resolve"]

_SCRIPTS = Path(__file__).parents[2] / "tools" / "servers"
_WAYS_VARIABLE = "DLOCK_TEST_SERVERS"
_ANSWER_S = 60.0
_PROBE_S = 2.0
_LOOK_EVERY_S = 0.05
# Ports below those of outgoing connections, of which one could be taken between the look at a port and the start of its server.
_PORTS, _BUS = range(10_000, 20_000), 10_000
_given: set[int] = set()
# Runs a server; a line on its standard input kills it and starts it again. When that input closes, which it does however the process at
# the other end ends, the server is ended and its folder removed.
_GUARD = """
folder=$0
while "$@" >/dev/null 2>&1 & server=$!; read -r _; do kill -KILL $server; wait $server; echo ended; done
kill -KILL $server; wait $server; rm -rf "$folder"
"""
_STOP_AT_THE_END = 'read -r _; exec "$0" stop "$1" >/dev/null 2>&1'


class ServerMissingError(Exception):
    """No such server could be had; the message says what was tried, and what to do."""


@dataclass(frozen=True)
class Server:
    """A server that answers. *restart* kills and starts it with its data, where that can be done."""

    name: str
    url: str
    found: str
    version: str = ""
    stand_in: bool = False
    restart: Callable[[], None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a proxy."""
        parts = urlsplit(self.url)
        if parts.hostname is None or parts.port is None:
            raise LookupError(f"the URL of the {self.name} server must have one host and a port")
        return parts.hostname, parts.port


_resolved: dict[str, Server | ServerMissingError] = {}
_mutex = threading.Lock()


def resolve(name: str) -> Server:
    """Return the server *name* (a key of ``RECIPES``), found or started once for this process.

    Raises: ServerMissingError: none can be had here.
    """
    recipe = RECIPES[name]
    with _mutex:
        if name not in _resolved:
            _resolved[name] = _look_for(name, recipe)
        found = _resolved[name]
    if isinstance(found, ServerMissingError):
        raise found
    return found


def _look_for(name: str, recipe: Recipe) -> Server | ServerMissingError:
    ways = {"url": _named, "container": _contained, "program": _installed, "provision": _provisioned}
    allowed = os.environ.get(_WAYS_VARIABLE) or ",".join(ways)
    tried = [
        f"{each!r} in {_WAYS_VARIABLE} is none of {', '.join(ways)}" for each in allowed.split(",") if each not in ways
    ]
    for way in [] if tried else allowed.split(","):
        try:
            return ways[way](name, recipe)
        except (LookupError, OSError, subprocess.SubprocessError) as error:
            tried.append(str(error))
    advice = f"set {recipe.variable}, or {recipe.advice}"
    return ServerMissingError(f"there is no {name} server: {'; '.join(tried)}. To have one: {advice}")


def _named(name: str, recipe: Recipe) -> Server:
    url = os.environ.get(recipe.variable)
    if not url:
        raise LookupError(f"{recipe.variable} is not set")
    server = Server(name, url, f"named by {recipe.variable}")
    if not _answers(server.address, recipe):
        raise LookupError(f"nothing answers at the address in {recipe.variable}")
    return server


def _contained(name: str, recipe: Recipe) -> Server:
    try:
        import docker  # type: ignore[import-untyped]  # published without types
        from testcontainers.core.container import DockerContainer
    except ImportError:
        raise LookupError("testcontainers is not installed") from None
    with warnings.catch_warnings():
        # Where no engine answers, the docker package leaves a socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _engine_answers(docker)
        gc.collect()
    if not answers:
        raise LookupError("no container engine answers")
    container: Any = DockerContainer(recipe.image).with_exposed_ports(recipe.port)
    if recipe.command:
        container.with_command(recipe.command)
    for variable, value in recipe.environment:
        container.with_env(variable, value)
    try:
        container.start()
    except docker.errors.DockerException as error:
        raise LookupError(f"the container {recipe.image} does not start: {error}") from None
    atexit.register(container.stop)
    host, port = container.get_container_host_ip(), int(container.get_exposed_port(recipe.port))
    _wait_for((host, port), recipe)
    if recipe.after_start:
        container.exec(list(recipe.after_start))
    url = recipe.url.format(address=f"{host}:{port}")
    return Server(name, url, f"container {recipe.image}", recipe.image.partition(":")[2])


def _engine_answers(docker: Any) -> bool:
    try:
        docker.from_env().close()
    except docker.errors.DockerException:
        return False
    return True


def _installed(name: str, recipe: Recipe) -> Server:
    program = shutil.which(recipe.program) if recipe.program and recipe.arguments else None
    if program is None:
        raise LookupError(f"{recipe.program or 'no server program'} is not on this machine")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    version = re.search(recipe.version, said)
    data = Path(os.environ.get("DLOCK_TEST_DATA") or tempfile.gettempdir())
    data.mkdir(parents=True, exist_ok=True)
    port, folder = free_port(), tempfile.mkdtemp(prefix=f"dlock-{name}-", dir=data)
    command = [program, *(word.format(port=port, folder=folder) for word in recipe.arguments)]
    guard = _guarded(_GUARD, folder, *command)
    _wait_for(("127.0.0.1", port), recipe)

    def restart() -> None:
        assert guard.stdin is not None
        assert guard.stdout is not None
        guard.stdin.write(b"restart\n")
        guard.stdin.flush()
        guard.stdout.readline()
        _wait_for(("127.0.0.1", port), recipe)

    url = recipe.url.format(address=f"127.0.0.1:{port}")
    return Server(name, url, program, version.group(1) if version else "", restart=restart)


def _provisioned(name: str, recipe: Recipe) -> Server:
    script = _SCRIPTS / recipe.script
    if not script.is_file():
        raise LookupError("this is no checkout of dlock, whose tools/servers could install one")
    with _installing():
        program = _run(script, "install", name)
    if recipe.arguments:
        return _installed(name, recipe._replace(program=program or recipe.program))
    port = str(free_port())
    _run(script, "start", port, name=name)
    _guarded(_STOP_AT_THE_END, str(script), port)

    def restart() -> None:
        _run(script, "crash", port)
        _run(script, "start", port)

    return Server(
        name,
        recipe.url.format(address=f"127.0.0.1:{port}"),
        f"{recipe.script_gives} (tools/servers/{recipe.script})",
        stand_in="stand-in" in recipe.script_gives,
        restart=restart if recipe.script_crashes else None,
    )


@contextmanager
def _installing() -> Iterator[None]:
    """Let one process at a time install: neither apt nor Maven takes two."""
    folder = Path(os.environ.get("DLOCK_TEST_CACHE") or Path.home() / ".cache" / "dlock-servers")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go where the file is closed
        yield


def _run(script: Path, *arguments: str, name: str = "") -> str:
    environment = {
        "DLOCK_SERVER": name,  # for a script that knows several
        "DLOCK_PYTHON": sys.executable,
        **os.environ,
    }  # this Python can fetch wheels; the machine's own may have no pip
    done = subprocess.run(
        [script, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=580
    )
    if done.returncode:
        raise LookupError(f"{script.name} {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def _guarded(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    guard = subprocess.Popen(
        ["bash", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_end, guard)
    return guard


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Close the guard's standard input, at which it ends the server, and wait for it."""
    guard.communicate()


def _wait_for(address: tuple[str, int], recipe: Recipe) -> None:
    until = time.monotonic() + _ANSWER_S
    while not _answers(address, recipe):
        if time.monotonic() > until:
            raise LookupError(
                f"the server on port {address[1]} was started and does not answer within {_ANSWER_S:.0f} s"
            )
        time.sleep(_LOOK_EVERY_S)


def _answers(address: tuple[str, int], recipe: Recipe) -> bool:
    with suppress(OSError), socket.create_connection(address, _PROBE_S) as probe:
        probe.settimeout(_PROBE_S)
        probe.sendall(recipe.ping)
        said = probe.recv(64)
        return bool(said) and said.startswith(recipe.pong)
    return False


def free_port() -> int:
    """Return a loopback port that is free, and so is the port 10,000 above, on which a Redis Cluster has its bus.

    No other process of this user gets it from here as long as this one lives, and the system gives neither to an outgoing connection.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.socket() as probe, socket.socket() as above:
            fcntl.lockf(_reserved(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                above.bind(("127.0.0.1", port + _BUS))
                _given.add(port)
                return port
    raise LookupError(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free")


@cache
def _reserved() -> int:
    """Return the descriptor of a file of which each process locks the bytes of its ports; closed with the process."""
    return os.open(Path(tempfile.gettempdir()) / f"dlock-ports-{os.getuid()}", os.O_WRONLY | os.O_CREAT)
