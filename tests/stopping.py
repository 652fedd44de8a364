"""Stop a process, for certain: a signal is on its way when ``kill`` returns, and until it has arrived the process still answers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["stop"]

_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.001


def stop(pid: int) -> None:
    """Send SIGSTOP to *pid*; return when all of its threads stand still."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _PATIENCE_S
    while not all(_stands_still(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < until, f"process {pid} does not stop"
        time.sleep(_LOOK_EVERY_S)


def _stands_still(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
