"""What a SQLite path or its user lacks, where SQLite says only that something cannot be opened or written."""

# A path is text here, as in _file.py.
# ruff: noqa: PTH110, PTH120

from __future__ import annotations

import errno
import os

# SQLite has room for 512, with what it adds to the name.
_PATH_MAX_BYTES = 504


def missing_right(path: str) -> str | None:
    """Return what to do so that this user can use the SQLite file *path* (absolute); None if nothing is known to be in the way."""
    if _is_too_long(path):
        return "give a shorter path: SQLite takes 504 bytes, and most file systems 247 for the name of its last part"
    directory = os.path.dirname(path)
    above, folders = directory, [directory]
    while (above := os.path.dirname(above)) != folders[-1]:
        folders.append(above)
    for folder in reversed(folders):
        if not _may(folder, os.X_OK):
            return f"give this user the right to enter the directory {folder!r}: chmod +x"
    if _is_read_only(directory):
        return f"mount the file system of {directory!r} for writing"
    if not os.path.exists(path) and _takes_no_files(directory):
        return f"the file system of {directory!r} takes no files; give a path on a disk"
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name) and not _may(name, os.R_OK | os.W_OK):
            return f"give this user read and write permission on {name!r}, or run as its owner"
    if not _may(directory, os.W_OK):
        return f"give this user write permission on the directory {directory!r}, where SQLite makes the -wal and -shm files"
    return None


def _is_too_long(path: str) -> bool:
    try:
        os.stat(f"{path}-journal")  # noqa: PTH116  # the longest name that SQLite makes
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return True
    return len(os.fsencode(path)) > _PATH_MAX_BYTES


def _may(path: str, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _is_read_only(directory: str) -> bool:
    return hasattr(os, "statvfs") and bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def _takes_no_files(directory: str) -> bool:
    """Whether its file system has no room at all, as those have that only show the state of the kernel."""
    room = os.statvfs(directory) if hasattr(os, "statvfs") else None
    return room is not None and room.f_blocks == room.f_files == 0
