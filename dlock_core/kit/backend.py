"""The object behind an adapter's entry point, made of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dlock_core.backend import StoreOptions
    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["Backend"]


class Backend:
    """A :class:`~dlock_core.backend.StoreBackend`. Both functions get an instance of *options*; *extra* names the pip extra of the driver.

    Without *aopen_store* asyncio clients use the store of *open_store* through threads.
    """

    def __init__(
        self,
        options: type[StoreOptions],
        *,
        open_store: Callable[[Any], LockStore],
        aopen_store: Callable[[Any], Awaitable[AsyncLockStore]] | None = None,
        extra: str = "",
    ) -> None:
        self.options = options
        self.extra = extra
        self._open = open_store
        self._aopen = aopen_store

    def open(self, options: Any) -> LockStore:
        """Open the store for threads."""
        return self._open(options)

    def aopen(self, options: Any) -> Awaitable[AsyncLockStore] | None:
        """Open the store for asyncio; None where there is none."""
        return None if self._aopen is None else self._aopen(options)
