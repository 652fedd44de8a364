"""Owner probes: whether whoever wrote a record is dead, by the processes of this host, or by what the user knows.

A process is known by its boot, the namespaces in which its number and its start time count, its number, and its start time: a number alone
is given out again, and containers of one machine share the boot. Whatever differs or cannot be read makes the answer ``unknown``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dlock_core.clock import boot
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.record import LockRecord, OwnerState, ProcessIdentity

if TYPE_CHECKING:
    from dlock_core.engine.handle import Runtime
    from dlock_core.keywords import OwnerProbe

_log = guarded_logger("dlock.engine")

SAME_HOST = "same-host"
_PROC = Path("/proc")
# In /proc/PID/stat, behind the name in parentheses: see proc(5).
_STATE, _GROUP, _STARTED = 0, 2, 19
_OVER = ("Z", "X", "x")


def identity(child_group: int | None = None) -> ProcessIdentity | None:
    """Return who this process is; None where that cannot be told. *child_group*: a process group that does its work."""
    name, pid = boot(), os.getpid()
    try:
        # Another pid namespace's /proc would tell of other processes.
        if name is None or str((_PROC / "self").readlink()) != str(pid):
            return None
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        return ProcessIdentity(name, namespace, pid, int(_stat(_PROC / str(pid))[_STARTED]), child_group)
    except (OSError, ValueError, IndexError):
        return None


def same_host(record: LockRecord) -> OwnerState:
    """Tell whether the process that wrote *record* lives, if it is one of this host that this process can see."""
    process, here = record.process, identity()
    if process is None or here is None:
        return OwnerState.UNKNOWN
    if (process.boot_id, process.pid_namespace) != (here.boot_id, here.pid_namespace):
        return OwnerState.UNKNOWN
    try:
        # To kill(2), 0 and negative numbers are whole groups of processes.
        if min(process.pid, process.child_group or process.pid) < 1:
            return OwnerState.UNKNOWN
        if process.child_group is not None and _group_lives(process.child_group):
            return OwnerState.ALIVE
        return _state_of(process)
    except (OSError, ValueError, IndexError, TypeError, OverflowError):  # a store hands on whatever the record says
        return OwnerState.UNKNOWN


def _state_of(process: ProcessIdentity) -> OwnerState:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return OwnerState.DEAD
    except PermissionError:
        return OwnerState.ALIVE
    folder = _PROC / str(process.pid)
    try:
        stat = _stat(folder)
    except FileNotFoundError:
        # Hidden, or gone in this very moment: the next look tells.
        return OwnerState.UNKNOWN
    if int(stat[_STARTED]) != process.started_at:
        return OwnerState.DEAD
    return OwnerState.DEAD if _is_over(folder, stat) else OwnerState.ALIVE


def _is_over(folder: Path, stat: list[str]) -> bool:
    """Whether the process is a zombie; its first thread may have ended while others work on."""
    return stat[_STATE] in _OVER and all(_stat(task)[_STATE] in _OVER for task in (folder / "task").iterdir())


def _group_lives(group: int) -> bool:
    """Whether any process of *group* works. Zombies that nobody reaps do not; whoever cannot be seen may.

    Raises: OSError: none was seen to, but a process ended while it was looked at, and may have left one behind. The next look tells.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    _stat(_PROC / "1")  # of another user, so: nobody is hidden
    members, gone = 0, list[OSError]()
    for folder in _PROC.iterdir():
        try:
            if folder.name.isdigit() and (stat := _stat(folder))[_GROUP] == str(group):
                members += 1
                if not _is_over(folder, stat):
                    return True
        except OSError as error:
            gone.append(error)
    if gone:
        raise gone[0]
    return members == 0


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


async def owner_of(record: LockRecord, probe: OwnerProbe, runtime: Runtime, timeout_s: float) -> OwnerState:
    """Ask *probe*; trouble with it, or no answer in time, is ``unknown``."""
    if not callable(probe):
        return same_host(record)
    try:
        found = await runtime.run_probe(probe, record, timeout_s)
        return OwnerState(found)
    except TimeoutError:
        _log.warning("the owner probe for lock %r did not answer within %.1f s", record.key, timeout_s)
    except ValueError as error:
        _log.warning("the owner probe for lock %r must answer alive, dead or unknown: %s", record.key, error)
    except Exception:  # noqa: BLE001  # the user's code; what it raises is logged
        _log.exception("the owner probe for lock %r raised", record.key)
    return OwnerState.UNKNOWN
