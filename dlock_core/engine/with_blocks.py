"""What ``with client.lock(…)`` and ``with client.lock_all(…)`` enter, both colours side by side; each is for one use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.engine.lease_view import raise_first
from dlock_core.errors import DLockError, LeaseStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlock_core.aio import AsyncLease, AsyncLockClient
    from dlock_core.client import Lease, LockClient
    from dlock_core.options import LockKeywords

__all__ = ["AsyncLock", "AsyncLockAll", "Lock", "LockAll"]


class Lock:
    """What ``with client.lock(key) as lease`` enters: asked for on entry, once."""

    __slots__ = ("_client", "_key", "_lease", "_options", "_used")

    def __init__(self, client: LockClient, key: str, options: LockKeywords) -> None:
        self._client, self._key, self._options = client, key, options
        self._lease: Lease | None = None
        self._used = False

    def __enter__(self) -> Lease:
        if self._used:
            raise LeaseStateError(f"this lock({self._key!r}) was used before; call lock() anew for each block")
        self._used = True
        self._lease = lease = self._client.acquire(self._key, **self._options)
        return lease

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        if self._lease is not None:
            self._lease.__exit__(kind, body_error, trace)


class LockAll:
    """``with client.lock_all(keys) as leases``: all or none."""

    def __init__(self, client: LockClient, keys: list[str], options: LockKeywords) -> None:
        self._client, self._keys, self._options = client, keys, options
        self._leases: dict[str, Lease] = {}
        self._used = False

    def __enter__(self) -> Mapping[str, Lease]:
        if self._used:
            raise LeaseStateError(f"this lock_all({self._keys!r}) was used before; call lock_all() anew for each block")
        self._used = True
        self._leases = self._client._acquire_all(self._keys, self._options)  # the client's own helper
        return self._leases

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        errors: list[DLockError] = []
        left = list(self._leases.values())
        try:
            while left:
                try:
                    left.pop().__exit__(kind, body_error, trace)
                except DLockError as error:
                    errors.append(error)
        except BaseException:
            for lease in left:
                lease._leave_to_scheduler()
            raise
        raise_first(errors)


class AsyncLock:
    """What ``async with client.lock(key) as lease`` enters: asked for on entry, once."""

    def __init__(self, client: AsyncLockClient, key: str, options: LockKeywords) -> None:
        self._client, self._key, self._options = client, key, options
        self._lease: AsyncLease | None = None
        self._used = False

    async def __aenter__(self) -> AsyncLease:
        if self._used:
            raise LeaseStateError(f"this lock({self._key!r}) was used before; call lock() anew for each block")
        self._used = True
        self._lease = lease = await self._client.acquire(self._key, **self._options)
        try:
            return await lease.__aenter__()
        except BaseException:
            lease._leave_to_scheduler()
            raise

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        if self._lease is not None:
            await self._lease.__aexit__(kind, body_error, trace)


class AsyncLockAll:
    """What ``async with client.lock_all(keys) as leases``: all or none."""

    def __init__(self, client: AsyncLockClient, keys: list[str], options: LockKeywords) -> None:
        self._client, self._keys, self._options = client, keys, options
        self._leases: dict[str, AsyncLease] = {}
        self._used = False

    async def __aenter__(self) -> Mapping[str, AsyncLease]:
        if self._used:
            raise LeaseStateError(f"this lock_all({self._keys!r}) was used before; call lock_all() anew for each block")
        self._used = True
        self._leases = await self._client._acquire_all(self._keys, self._options)  # the client's own helper
        try:
            for lease in self._leases.values():
                await lease.__aenter__()
        except BaseException:
            for lease in self._leases.values():
                lease._leave_to_scheduler()
            raise
        return self._leases

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        errors: list[DLockError] = []
        left = list(self._leases.values())
        try:
            while left:
                try:
                    await left.pop().__aexit__(kind, body_error, trace)
                except DLockError as error:
                    errors.append(error)
        except BaseException:
            for lease in left:
                lease._leave_to_scheduler()
            raise
        raise_first(errors)
