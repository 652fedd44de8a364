"""A server of the tests' own, which its script in ``tools/servers`` installs, starts and kills, so that they may disturb it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from dlock_conformance.servers import free_port

from tests.core.worlds import eventually

__all__ = ["ScriptedServer", "stop"]

_SCRIPTS = Path(__file__).parents[1] / "tools" / "servers"
_SCRIPT_S = 280


def stop(pid: int) -> None:
    """Have the process stand still; returns once all of its threads do, which may answer for a moment after the signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    eventually(
        lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] in "Tt" for task in tasks.iterdir())
    )


class ScriptedServer:
    """The server of *script*, on a free port; where it cannot be had, the test fails and says what to run, or what else to set.

    *words* are options for the server, where the script takes them.
    """

    def __init__(self, script: str, otherwise: str = "", *, words: Sequence[str] = (), **variables: str) -> None:
        self.port, self._words = free_port(), words
        self._script, self._otherwise, self._variables = script, otherwise, os.environ | variables
        self.told = self.start()

    @property
    def pid(self) -> int:
        """The process to be stopped and continued."""
        return int(self._run("pid"))

    def start(self) -> str:
        """Start it, or start it again; return what the script says of it."""
        return self._run("start", *self._words)

    def crash(self) -> None:
        """End it as hard as may be."""
        self._run("crash")

    def stop(self) -> None:
        """End it."""
        self._run("stop")

    def _run(self, verb: str, *words: str) -> str:
        command = [str(_SCRIPTS / self._script), verb, str(self.port), *words]
        done = subprocess.run(
            command, env=self._variables, capture_output=True, text=True, timeout=_SCRIPT_S, check=False
        )
        if done.returncode:
            pytest.fail(
                f"a server is required and could not be had: {done.stderr.strip()[-400:]}; "
                f"run tools/servers/{self._script} install" + (f", or set {self._otherwise}" if self._otherwise else "")
            )
        return done.stdout.strip()
