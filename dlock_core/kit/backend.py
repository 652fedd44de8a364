"""The object behind an adapter's entry point, made of functions."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreSetupError
from dlock_core.kit.exchange import aperform, perform

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dlock_core.backend import StoreOptions
    from dlock_core.kit.exchange import Exchange
    from dlock_core.store import AsyncLockStore, LockStore


class Backend:
    """A :class:`~dlock_core.backend.StoreBackend`. The functions get an instance of *options*; *extra* names the pip extra of the driver.

    *aopen_store* may be a coroutine function. Without it asyncio clients use the store of *open_store* through threads.
    *look_store* opens a store that creates nothing, for ``dlock ls`` and ``dlock doctor``, where *open_store* opens one that would; its
    ``is_unmade`` says that there is nothing to read yet. *policy* states the rights that the server's user needs, for
    ``dlock doctor --policy``: text, or a function that returns what is printed as JSON. *remedies* says by the name of an unsafe trait
    what to do about it, for ``dlock doctor``. With *learns* a store is asked for its guarantees when it is opened, since only then it
    knows its capabilities; what 'dlock init' would make is said to who asks next.
    """

    def __init__(
        self,
        options: type[StoreOptions],
        *,
        open_store: Callable[[Any], LockStore],
        aopen_store: Callable[[Any], AsyncLockStore | Awaitable[AsyncLockStore]] | None = None,
        look_store: Callable[[Any], LockStore] | None = None,
        learns: bool = False,
        extra: str = "",
        policy: str | Callable[[Any], object] | None = None,
        remedies: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options
        self.extra = extra
        self.policy = policy
        self.remedies = remedies or {}
        self._open = open_store
        self._aopen = aopen_store
        self._look = look_store
        self._learns = learns

    def open(self, options: Any) -> LockStore:
        """Open the store for threads."""
        store: LockStore = perform(self._opening(self._open, options))
        return store

    def look(self, options: Any) -> LockStore:
        """Open the store for threads, for a look at it that creates nothing."""
        return self.open(options) if self._look is None else self._look(options)

    def aopen(self, options: Any) -> Awaitable[AsyncLockStore] | None:
        """Open the store for asyncio; None where there is none."""
        return None if self._aopen is None else aperform(self._opening(self._aopen, options))

    def _opening(self, open_store: Callable[[Any], Any], options: Any) -> Exchange[Any]:
        store = open_store(options)
        if isawaitable(store):
            store = yield store
        longest_s = getattr(options, "_inspect_timeout_s", None)
        if longest_s is not None and hasattr(store, "inspect_timeout_s"):
            store.inspect_timeout_s = min(store.inspect_timeout_s, longest_s)
        try:
            if self._learns:
                yield store.guarantees()
        except BaseException as error:
            # What is missing may be about to be made. All else, as a refused login, is said at once: pymongo would search in vain next.
            if not isinstance(error, StoreSetupError) or "dlock init" not in str(error):
                yield store.close()
                raise
        return store
