"""How the command starts: what it loads, an interrupt while it loads, and systems that lack POSIX names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.support import PATIENCE_S, finish, finish_with_line, line

if TYPE_CHECKING:
    from tests.cli.support import Shell

# Interrupts the command at the import of one module; everything else is the command's own code.
INTERRUPTED = """
import builtins, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as where it is not ignored, which a job in the background inherits
from dlock_core.__main__ import main

chosen = sys.argv.pop(1)
load = builtins.__import__

def interrupted(name, *more):
    if name == chosen:
        signal.raise_signal(signal.SIGINT)
    return load(name, *more)

builtins.__import__ = interrupted
main()
"""

# Takes away what Windows lacks, then loads each module of the command.
LIKE_WINDOWS = """
import importlib, os, pkgutil, signal, sys
import asyncio, click, pydantic  # they know Windows

for name in "HUP QUIT USR1 USR2 TSTP TTIN TTOU PIPE XFSZ CHLD CONT KILL".split():
    name = "SIG" + name
    del signal.Signals._member_map_[name]
    delattr(signal, name)
for name in ("pthread_sigmask", "SIG_BLOCK"):
    delattr(signal, name)
for name in ("fork", "uname", "setsid", "setpgid", "killpg", "getpgrp", "tcsetpgrp", "tcgetpgrp", "WNOHANG", "WUNTRACED"):
    delattr(os, name)
for name in ("fcntl", "pwd", "termios"):
    sys.modules[name] = None
import dlock_core.command
for module in pkgutil.iter_modules(dlock_core.command.__path__):
    importlib.import_module(f"dlock_core.command.{module.name}")
from dlock_core.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["click", "dlock_core.command.app", "dlock_core.command.run"])
def test_interrupt_while_the_command_loads_ends_it_without_a_traceback(shell: Shell, module: str) -> None:
    """Nothing is held yet, so the process ends as one that does not heed the signal; no line of Python is shown."""
    code, out, err = finish(shell.start(module, "run", "k", "--", "echo", "ran", program=("-c", INTERRUPTED)))

    assert code == -signal.SIGINT
    assert (out, err) == ("", "")


@pytest.mark.parametrize("arguments", [("ls",), ("show", "k"), ("doctor",), ("--help",)])
def test_command_of_operators_works_without_the_names_that_windows_lacks(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    """They need no process of their own."""
    shell.run("init")
    done = shell.run(*arguments, program=("-c", LIKE_WINDOWS))

    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "k" in arguments else 0)


def test_run_is_refused_in_words_where_the_system_cannot_fork(shell: Shell) -> None:
    """The exit code is that of a wrong use, and nothing is run."""
    done = shell.run("run", "k", "--", "echo", "ran", program=("-c", LIKE_WINDOWS))

    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "dlock: dlock run needs processes as POSIX systems have them; this system has none\n"


def test_start_loads_only_what_is_used() -> None:
    """Importing the package loads neither pydantic nor asyncio; a blocking client loads no asyncio; the command's help loads no store."""
    program = "import sys; {}; print(*sorted(sys.modules))"
    loaded = {
        statement: set(
            subprocess.run(
                [sys.executable, "-c", program.format(statement)],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.split()
        )
        for statement in ("import dlock_core", "from dlock_core import connect", "import dlock_core.command.app")
    }

    assert not loaded["import dlock_core"] & {"pydantic", "asyncio", "dlock_core.client"}
    assert not loaded["from dlock_core import connect"] & {"asyncio", "ssl", "tomllib", "json.tool", "subprocess"}
    assert not loaded["import dlock_core.command.app"] & {"asyncio", "rich", "statistics", "dlock_core.client"}


# Adopts orphans, as the first process of a container does.
AS_FIRST_PROCESS = """
import ctypes, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
from dlock_core.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers")
def test_first_process_of_a_container_buries_the_orphans_of_the_command(shell: Shell) -> None:
    """Else each would take a number of the container's for as long as the command runs."""
    script = "sh -c 'sleep 0.1 & echo $!'; read line; exit 3"
    process = shell.start("run", "k", "--", "sh", "-c", script, program=("-c", AS_FIRST_PROCESS))
    orphan = Path("/proc", line(process.stdout))

    until = time.monotonic() + PATIENCE_S
    while orphan.exists() and time.monotonic() < until:
        time.sleep(0.01)

    assert not orphan.exists()
    assert finish_with_line(process) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers")
def test_signal_ends_the_first_process_of_a_container_while_it_starts(shell: Shell) -> None:
    """The kernel drops one that it has no handler for: the container would be killed only when its time to end is over."""
    config = shell.folder / "config"
    os.mkfifo(config)
    shell.environment["DLOCK_CONFIG"] = str(config)
    container = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork")
    process = shell.start("run", "k", "--", "echo", "ran", container=container)

    with config.open("w"):  # returns when dlock reads it
        [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        code, out, _ = finish(process)

    assert (code, out) == (143, "")
