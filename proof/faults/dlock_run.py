"""A party that holds by ``dlock run``, again and again; the command has the effects."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from proof.faults import held_command
from proof.faults.party import now

if TYPE_CHECKING:
    from proof.faults.party import Scene

__all__ = ["run"]

_WAITS_S = 20


def run(scene: Scene) -> None:
    """Work on the one key that it has; the program ``dlock`` is forked, not started, since it has been imported."""
    [key] = scene.order.keys
    line = scene.line()
    while True:
        line.tell("wait", key, now())
        pid = os.fork()
        if pid == 0:
            _become_dlock(scene, key)
        os.waitpid(pid, 0)


def _become_dlock(scene: Scene, key: str) -> None:
    from dlock_core.command.app import run as dlock

    order = scene.order
    command = [sys.executable, "-I", "-S", held_command.__file__, order.book, scene.who, key, str(order.lease_s)]
    options = ["--url", order.url, "--lease", str(order.lease_s), "--timeout", str(_WAITS_S)]
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # that it lost its lock, or could not reach its store, is what is tried here
    try:
        dlock(["run", "-q", *options, key, "--", *command])
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(1)
