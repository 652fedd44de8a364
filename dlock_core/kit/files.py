"""Files that somebody writes anew under programs that run, as certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def mark_of(path: Any) -> tuple[int, ...]:
    """Return what differs when there is another file at *path*, or another content; () where none is named or it cannot be read."""
    try:
        seen = Path(path).stat()
    except (OSError, TypeError, ValueError):
        return ()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns
