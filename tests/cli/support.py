"""The command as users run it: real processes on one SQLite file."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from dlock_core import LockRecord, connect

PATIENCE_S = 30.0
# Takes the terminal on stdin as its own, as a login does, then becomes a shell with job control.
_LOGIN = """
import fcntl, os, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
"""


class Shell:
    """Runs ``dlock``; whatever was started is ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'locks.db'}"
        # pytest-xdist says how wide a terminal is, also to a program that has one of its own.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DLOCK_", "COLUMNS"))}
        self.environment = {**inherited, "DLOCK_URL": self.url, "XDG_STATE_HOME": str(folder)}
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self,
        *arguments: str,
        program: tuple[str, ...] = ("-m", "dlock_core"),
        through: str = "",
        container: tuple[str, ...] = (),
        **more: Any,
    ) -> subprocess.Popen[str]:
        """Start the command, with pipes; *through* are redirections of a shell, *container* is a command that runs it.

        No function runs in the child before it: a library of another test may have threads that a fork must not meet.
        """
        shell = ["sh", "-c", f'exec "$@" {through}', "sh"] if through else []
        settings: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*container, *shell, sys.executable, *program, *arguments],
            env=self.environment,
            cwd=self.folder,
            text=True,
            **(settings | more),
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def holding(self, *options: str, key: str = "k", script: str = "read line") -> subprocess.Popen[str]:
        """Start a run whose command says that it runs, then executes *script*; return when it said so."""
        process = self.start("run", *options, key, "--", "sh", "-c", f"echo running; {script}")
        assert line(process.stdout) == "running"
        return process

    def waiting(
        self, *options: str, key: str = "k", command: tuple[str, ...] = ("echo", "ran")
    ) -> subprocess.Popen[str]:
        """Start a run on a key that is held; return when it has begun to ask for it."""
        process = self.start("run", "--verbose", *options, key, "--", *command)
        while "asking for" not in line(process.stderr):
            pass
        return process

    def record(self, key: str = "k") -> LockRecord | None:
        """Look into the store."""
        with connect(self.url) as client:
            return client.get(key)

    def held(self, key: str = "k") -> bool:
        """Whether the store says that the key is held."""
        record = self.record(key)
        return record is not None and record.held

    def json(self, *arguments: str) -> Any:
        """Run the command and parse its output."""
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class Terminal:
    """A terminal with a shell in it."""

    def __init__(self, shell: Shell) -> None:
        self.master, slave = os.openpty()
        environment = shell.environment | {
            "PS1": "ready$ ",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [sys.executable, "-c", _LOGIN]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment, cwd=shell.folder
        )
        os.close(slave)
        self.text = ""
        self.expect(r"ready\$ ")

    def type(self, text: str) -> None:
        """Type *text*."""
        os.write(self.master, text.encode())

    def go_on(self) -> None:
        """Continue the command that is stopped; return when the keyboard is its own: the shell shows the command before that."""
        self.type("fg\n")
        deadline = time.monotonic() + PATIENCE_S
        while os.tcgetpgrp(self.master) == self.process.pid:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def expect(self, pattern: str) -> str:
        """Read until *pattern* appears; return what came until then."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.text)):
            assert select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0], self.text
            self.text += os.read(self.master, 4096).decode()
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before


def line(stream: IO[str] | None) -> str:
    """Read one line; its end is what a test waits for."""
    assert stream is not None
    text = stream.readline()
    assert text, "the stream has ended"
    return text.rstrip("\n")


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the exit code and what was printed."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def finish_with_line(process: subprocess.Popen[str]) -> int:
    """Let a command that reads a line go on, and return the exit code."""
    process.communicate("\n", timeout=PATIENCE_S)
    return process.returncode
