"""Servers are found in order, answer, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from dlock_conformance.servers import RECIPES, Server, ServerMissingError

STARTED = """
import sys, time
from dlock_conformance import servers
servers._contained = servers._named
print(servers.resolve("redis").address[1], flush=True)
time.sleep(300)
"""
PORTS = """
import sys
from dlock_conformance.servers import free_port
print(*(free_port() for _ in range(300)), flush=True)
sys.stdin.read()
"""
NAMED = """
from dlock_conformance.servers import ServerMissingError, resolve
try:
    print(resolve("redis"))
except ServerMissingError as error:
    print("missing:", error)
"""


def environment(**changes: str) -> dict[str, str]:
    """Return an environment in which the suite can be imported."""
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]), **changes}


def answers(port: int) -> bool:
    """Whether somebody listens on *port*."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_server_ends_with_the_process_however_that_ends(dlock_server: Callable[[str], Server]) -> None:
    """Also by SIGKILL: nothing is left running."""
    dlock_server("redis")  # skips where there is none
    command = [sys.executable, "-c", STARTED]
    with subprocess.Popen(
        command, env=environment(DLOCK_TEST_REDIS_URL=""), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert answers(port)

        process.send_signal(signal.SIGKILL)

    until = time.monotonic() + 10
    while answers(port) and time.monotonic() < until:
        time.sleep(0.05)  # the guard notices, ends the server and waits for it
    assert not answers(port)


def test_a_url_in_the_environment_comes_first(dlock_server: Callable[[str], Server]) -> None:
    """It is taken as it is, and the report says so."""
    server = dlock_server("redis")

    command = [sys.executable, "-c", NAMED]
    done = subprocess.run(
        command,
        env=environment(DLOCK_TEST_REDIS_URL=server.url),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert f"url={server.url!r}" in done.stdout
    assert "named by DLOCK_TEST_REDIS_URL" in done.stdout


def test_no_port_is_given_twice_nor_to_two_processes() -> None:
    """Nor is it one of those from which the system serves outgoing connections, on which a server would fail to begin now and then."""
    given: list[int] = []
    with ExitStack() as stack:
        for _ in range(2):
            asked = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PORTS],
                    env=environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert asked.stdout is not None
            given += map(int, asked.stdout.readline().split())

    assert len(set(given)) == len(given) == 600
    assert max(given) < 32_768


@pytest.mark.parametrize("name", RECIPES)
def test_every_server_has_a_variable_a_container_and_a_script(name: str) -> None:
    """So that each of the four ways is open for each."""
    recipe = RECIPES[name]

    assert recipe.variable == f"DLOCK_TEST_{name.upper()}_URL"
    assert recipe.image
    assert (Path(__file__).parents[1] / "tools" / "servers" / recipe.script).is_file()
    assert issubclass(ServerMissingError, Exception)


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        ("url", "DLOCK_TEST_REDIS_URL is not set. To have one"),
        ("url,magic", "'magic' in DLOCK_TEST_SERVERS is none of url"),
    ],
)
def test_only_the_ways_that_are_allowed_are_tried(allowed: str, told: str) -> None:
    """A run that is to show one way must not pass by another."""
    variables = environment(DLOCK_TEST_REDIS_URL="", DLOCK_TEST_SERVERS=allowed)

    done = subprocess.run([sys.executable, "-c", NAMED], env=variables, capture_output=True, text=True, check=True)

    assert told in done.stdout
