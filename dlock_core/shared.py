"""A client for a whole program: made where a module is imported, opened at its first use, and opened anew in each forked process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

from dlock_core.client import LockClient, connect
from dlock_core.client_once import Once
from dlock_core.engine.client_context import ClientContext, describe
from dlock_core.engine.jobs import JobRun
from dlock_core.engine.opening import load_options, named_store
from dlock_core.engine.with_blocks import locked
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.keywords import AcquireKeywords, ClientKeywords
    from dlock_core.options import ClientOptions

__all__ = ["shared_client"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def shared_client(url: str | ClientOptions | None = None, /, **options: Unpack[ClientKeywords]) -> LockClient:
    """Return the client that this program shares for *url* and these options; safe to call where a module is imported.

    It takes what :func:`connect` takes; equal options give the same client. The first lock opens the store, and so does ``election``;
    ``lock``, ``locked`` and ``once`` alone do not. A forked child, as of gunicorn, Celery or multiprocessing, opens a store of its
    own; the parent's locks stay the parent's. The client is closed at exit; after ``close()`` the next use opens the store again.

    Raises: ConfigurationError: an option is wrong, or no store is named. What ``connect`` raises otherwise, the first use raises, and the
        use after that tries again.
    """
    loaded = load_options(url, options)
    ClientContext(loaded, blocking=True)  # options that cannot work are refused now
    named_store(loaded)
    with _mutex:
        for client in _clients:
            if client.options == loaded:
                return client
        _clients.append(client := _SharedClient(loaded))
        return client


class _SharedClient(LockClient):
    """A client whose context, store and engine are those of the client that this process has opened."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self._own: LockClient | None = None
        self._inherited: list[LockClient] = []
        # Reentrant, as all here: a signal handler may use or close a client that its own thread is just opening.
        self._opening = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        """Take what belongs to one process from its client."""
        if name in {"_context", "_engine", "_owns_store", "_runtime", "_store"}:
            return getattr(self._opened(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        """Name the store, without secrets."""
        return f"<LockClient shared {describe(self.options)}>"

    def locked(self, key: str, **options: Unpack[AcquireKeywords]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """As the client's, without the store: functions are decorated where a module is imported."""
        return locked(self, ClientContext(self.options, blocking=True), key, options)

    @staticmethod
    def _once_kind() -> type[Once]:
        return _SharedOnce

    def leave_to_parent(self) -> None:
        """Forget the client of the process that was forked. It is kept: its end could close connections that are the parent's."""
        self._opening = threading.RLock()  # another thread of the parent may have held the old one
        if self._own is not None:
            self._inherited.append(self._own)
            self._own = None

    def _opened(self) -> LockClient:
        own = self._own
        if own is not None:
            return own
        with self._opening:
            if self._own is None:
                opened = connect(self.options)
                if self._own is None:
                    self._own = opened
                else:  # a signal handler of this thread was faster
                    opened.close()
            return self._own

    def _close(self, until: int = NEVER) -> None:
        with self._opening:
            own, self._own = self._own, None
        if own is not None:
            own._close(until)


class _SharedOnce(Once):
    """A run whose options are checked when it is made, and again, by what the store can do, when it is entered."""

    def __init__(self, client: LockClient, *job: Any) -> None:
        JobRun.__init__(self, ClientContext(client.options, blocking=True), *job)
        self._client, self._job = client, job

    def __enter__(self) -> Self:
        if not self._used:
            self._is_idle = False
            Once.__init__(self, self._client, *self._job)
        return super().__enter__()


_clients: list[_SharedClient] = []
_mutex = threading.RLock()


def _forked() -> None:
    global _mutex  # noqa: PLW0603  # another thread of the parent may have held the old one
    _mutex = threading.RLock()
    for client in _clients:
        client.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
