"""The store ``sqlite:///path``: one file, for all processes of one host. Needs nothing but Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_sqlite.options import SqliteOptions
from dlock_sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["SqliteOptions", "SqliteStore", "backend"]


class _Backend:
    options = SqliteOptions
    extra = ""

    def open(self, options: SqliteOptions) -> LockStore:
        return SqliteStore(options.path, synchronous=options.synchronous)

    def aopen(self, options: SqliteOptions) -> Awaitable[AsyncLockStore] | None:
        return None  # threads serve asyncio


backend = _Backend()
