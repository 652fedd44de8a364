"""Starlette: a client that lives as long as the application, and locks whose refusal is an answer to the request.

    locks = Locks("redis://host/0")
    app = Starlette(routes=[...], lifespan=locks.lifespan)

    async def pay(request):
        async with locks.hold(request, "order/{order}") as lease: ...

FastAPI has a dependency on top: :mod:`dlock_contrib.fastapi`.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from string import Formatter
from typing import TYPE_CHECKING, Unpack

from starlette.exceptions import HTTPException

from dlock_core import AcquireTimeoutError, ConfigurationError, LeaseStateError, aconnect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import HTTPConnection

    from dlock_core import AcquireKeywords, AsyncLease, AsyncLockClient, ClientKeywords, ClientOptions

__all__ = ["Locks"]

_STATUSES = range(400, 600)


class Locks:
    """The locks of an application; safe to make where a module is imported.

    It takes what :func:`dlock_core.aconnect` takes, and gathers the options now, as :meth:`dlock_core.ClientOptions.load` says. A request
    whose lock is held by another one is answered with *status*, 409 or 423, and with *retry_after* seconds as ``Retry-After``.

    Raises: ConfigurationError: an option is wrong, or no store is named.
    """

    def __init__(
        self,
        url: str | ClientOptions | None = None,
        /,
        *,
        status: int = 409,
        retry_after: float = 1,
        **options: Unpack[ClientKeywords],
    ) -> None:
        self._unopened = aconnect(url, **options)  # it checks the options
        if status not in _STATUSES:
            raise ConfigurationError(f"status={status!r} is not the status of an answer that refuses; give 409 or 423")
        seconds: object = retry_after
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ConfigurationError(f"retry_after={seconds!r} is not a number of seconds, 0 or more")
        self._status, self._retry_after = status, retry_after
        self._client: AsyncLockClient | None = None

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Open the client, and close it when the application ends: as ``lifespan=locks.lifespan``, or inside of a lifespan of your own.

        Raises: as :func:`dlock_core.aconnect`.
        """
        async with aconnect(self._unopened.options) as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    @property
    def client(self) -> AsyncLockClient:
        """The client.

        Raises: LeaseStateError: the lifespan has not begun, or is over.
        """
        if self._client is None:
            raise LeaseStateError(
                "the locks are not open; give the application their lifespan: FastAPI(lifespan=locks.lifespan), or Starlette"
            )
        return self._client

    def check(self, key: str, **options: Unpack[AcquireKeywords]) -> None:
        """Check a *key* and options as they will be given to :meth:`hold`; a key with names in braces is not known yet.

        Raises: ConfigurationError: no lock can have them, or the braces cannot be read.
        """
        try:
            names = [name for _, name, _, _ in Formatter().parse(key) if name is not None]
        except ValueError as error:
            raise ConfigurationError(
                f"key {key!r} cannot be read: {error}; write {{{{ for a brace of the key itself"
            ) from error
        if not all(name[:1].isidentifier() for name in names):
            raise ConfigurationError(
                f"key {key!r} has braces without a name; write that of a path parameter, as {{order}}"
            )
        self._unopened.locked("path" if names else key, **options)

    @asynccontextmanager
    async def hold(
        self, request: HTTPConnection, key: str, **options: Unpack[AcquireKeywords]
    ) -> AsyncIterator[AsyncLease]:
        """Hold *key*, with the names of path parameters in braces, while the block runs; without a ``timeout`` it does not wait.

        Raises: HTTPException: another one holds the lock, or the path makes a key of it that no lock can have. As
            :meth:`dlock_core.LockClient.acquire` otherwise.
        """
        client = self.client
        if "timeout" not in client.options.model_fields_set:
            options = {"timeout": 0, **options}
        try:
            full = key.format_map(request.path_params)
        except KeyError as error:
            raise ConfigurationError(
                f"key {key!r} names {error}, which is not a path parameter of {request.url.path}"
            ) from None
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(f"key {key!r} does not fit {request.path_params}: {error}") from error
        if full != key:
            try:
                client.holds(full)  # checks the key, and asks nobody
            except ConfigurationError as error:
                raise HTTPException(400, str(error)) from None
        try:
            lease = await client.acquire(full, **options)
        except AcquireTimeoutError as error:
            headers = {"Retry-After": str(math.ceil(self._retry_after))}
            raise HTTPException(self._status, f"{full} is in use; try again later", headers) from error
        async with lease:
            yield lease
