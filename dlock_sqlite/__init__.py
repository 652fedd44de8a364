"""The store ``sqlite:///path``: one file, for all processes of one host. Needs nothing but Python."""

from __future__ import annotations

from dlock_core.kit import Backend
from dlock_sqlite.options import SqliteOptions
from dlock_sqlite.store import SqliteStore

__all__ = ["SqliteOptions", "SqliteStore", "backend"]


backend = Backend(
    SqliteOptions,
    open_store=lambda options: SqliteStore(options.path, synchronous=options.synchronous),
    look_store=lambda options: SqliteStore(options.path, synchronous=options.synchronous, creates=False),
    remedies={
        "sqlite-network-filesystem": "put the file on a local disk, or use a store that is a server",
        "sqlite-second-name": "mount the folder that the file is in, not the file alone; remove a hard link, and open the file by one name",
    },
)
