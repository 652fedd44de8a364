"""What a SQLite file promises where it lies: the file system, the version of SQLite, ``synchronous``."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dlock_core.store import Grade, Guarantees, TokenOrder

_VOLATILE = frozenset({"ramfs", "tmpfs"})
_MOUNT_INFO = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """Where a file system is mounted, and the type of it."""

    point: bytes
    kind: str


def mount_of(path: str) -> Mount | None:
    """Return the mount that *path* is on, or None where this system does not say."""
    try:
        return nearest_mount(path, Path(_MOUNT_INFO).read_bytes())
    except OSError:
        return None


def unsafe_traits(path: str, mount: Mount | None) -> tuple[tuple[str, str], ...]:
    """Return (name, reason) of what a user must accept by name."""
    traits = []
    if mount is not None and is_shared_with_hosts(mount.kind):
        reason = (
            f"{path!r} is on {mount.kind}, a network file system: SQLite's locks and shared memory don't reach other hosts, so two of them"
            " can hold one lock"
        )
        traits.append(("sqlite-network-filesystem", reason))
    with suppress(OSError):  # it is not there yet
        alone, status = mount is not None and mount.point == os.fsencode(path), Path(path).stat()
        if stat.S_ISREG(status.st_mode) and (alone or status.st_nlink > 1):
            name = "is mounted by itself" if alone else "has another name, as a hard link"
            reason = (
                f"{path!r} {name}: SQLite's log is beside the name by which the file is opened, so who opens it by the other one"
                " has another log, and two can hold one lock"
            )
            traits.append(("sqlite-second-name", reason))
    return tuple(traits)


def guarantees_of(
    synchronous: str, kind: str | None, unsafe: tuple[tuple[str, str], ...], *, is_unmade: bool = False
) -> Guarantees:
    """Return what a file promises on a file system of this *kind*."""
    notes = ["one host only: its processes exclude each other, and nobody else"]
    if is_unmade:
        notes.append("the file is not there yet: the first program that opens it makes it, with mode 0600")
    if synchronous == "normal":
        notes.append("synchronous=normal: a power cut can take back the last grants, whose tokens are then given again")
    if kind in _VOLATILE:
        notes.append(f"the file is on {kind}: a restart of the host removes it, and tokens begin again")
    if kind is None:
        notes.append("the type of the file system is not known here: make sure that it is a local disk")
    if not wal_reset_is_fixed(sqlite3.sqlite_version_info):
        notes.append(f"SQLite {sqlite3.sqlite_version} has a rare race that can damage a file, repaired in 3.51.3")
    durable = synchronous != "normal" and kind not in _VOLATILE
    return Guarantees(
        store="sqlite",
        version=sqlite3.sqlite_version,
        grade=Grade.C if unsafe else Grade.A if durable else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=durable,
        failover="none: one file on one host",
        clock="none; with server_clock, and for waits below a lease, this host's, counted from boot: it measures ages within one boot",
        notes=tuple(notes),
        unsafe=unsafe,
    )


def wal_reset_is_fixed(version: tuple[int, ...]) -> bool:
    """Whether this SQLite has the repair of the WAL-reset bug: a rare race of two checkpoints that can damage the file."""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


# ---- file systems

# Where a line of mountinfo has the mount point: see proc(5).
_POINT = 4
_REMOTE = frozenset(
    (
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncp", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("vboxsf", "virtiofs", "vmhgfs", "wekafs"),
    )
)
_LOCAL_FUSE = frozenset(
    {"fuse.bindfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs-3g"}
)


def is_shared_with_hosts(kind: str) -> bool:
    """Whether another host's kernel may have files of this *kind* of file system open; an unknown FUSE one is taken for such."""
    return kind in _REMOTE or (kind.partition(".")[0] == "fuse" and kind not in _LOCAL_FUSE)


def nearest_mount(path: str, mount_info: bytes) -> Mount | None:
    """Return the mount that *path* (absolute, resolved) is on, from what ``/proc/self/mountinfo`` says."""
    best, sought = None, os.fsencode(path)
    for line in mount_info.split(b"\n"):
        fields, _, rest = line.partition(b" - ")
        words = fields.split(b" ")
        if len(words) <= _POINT or not rest:
            continue
        point = words[_POINT].decode("unicode_escape").encode("latin-1")
        inside = point in (b"/", sought) or sought.startswith(point + b"/")
        # Of two mounts on one point the later hides the earlier.
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, os.fsdecode(rest.split(b" ")[0]))
    return best
