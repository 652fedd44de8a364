"""What ``with client.lock(…)`` and ``with client.lock_all(…)`` enter, both colours side by side; each is for one use."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from dlock_core.engine.closing import SILENCES_MAX
from dlock_core.engine.hints import warn
from dlock_core.engine.lease_view import raise_first
from dlock_core.engine.raised import lost_error
from dlock_core.engine.user_calls import check_colour, check_ended
from dlock_core.errors import DLockError, LeaseStateError, StoreUnavailableError
from dlock_core.states import Releasing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from dlock_core.aio import AsyncLease, AsyncLockClient
    from dlock_core.client import Lease, LockClient
    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.lease_view import LeaseView
    from dlock_core.keywords import AcquireKeywords

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _OneUse:
    """What is entered once, and tells whoever treats it as a lease, or never enters it, what it is."""

    __slots__ = ("_asked", "_client", "_got", "_options", "_used")
    _method = "lock"
    _with, _await = "with", ""

    def __init__(self, client: Any, asked: Any, options: Any) -> None:
        self._client, self._asked, self._options = client, asked, options
        self._got: Any = None
        self._used = False

    def _use(self) -> None:
        if self._used:
            raise LeaseStateError(f"this {self} was used before; call {self._method}() anew for each block")
        self._used = True

    def __str__(self) -> str:
        return f"{self._method}({self._asked!r})"

    def __bool__(self) -> bool:
        self._used = True  # the program is told
        raise LeaseStateError(
            f"{self} is neither true nor false, it acquires where a with block enters it: {self._with} client.{self} as …; "
            f"for a yes or no: if (lease := {self._await}client.try_acquire(key)) is not None"
        )

    def acquire(self, *_: object, **__: object) -> NoReturn:
        self._used = True
        raise LeaseStateError(
            f"{self} acquires where a with block enters it; without a block: lease = {self._await}client.acquire(key)"
        )

    def __del__(self) -> None:
        if not getattr(self, "_used", True):  # a signal that raises may come before it is set
            warn(
                f"{self} was never entered, so nothing was locked; write: {self._with} client.{self} as …",
                RuntimeWarning,
            )


class _AsyncOneUse(_OneUse):
    """As :class:`_OneUse`, of the asyncio client."""

    __slots__ = ()
    _with, _await = "async with", "await "


def _leave_unasked(lease: LeaseView, body_error: BaseException | None) -> None:
    """Have *lease* given back by the scheduler, since the store does not answer: each further release would wait for its time-out.

    Raises: LockLostError: it was lost, and the body has not failed.
    """
    if lease._closed:
        return
    lease._leave_to_scheduler()
    if lease._handle.is_in_hand():
        return  # by an outer block
    silence = StoreUnavailableError("the store has not confirmed the releases before it")
    error = silence if lease.loss is None else lost_error(lease._handle)
    if (leaving := lease._leaving(body_error, error)) is not None:
        raise leaving


class Lock(_OneUse):
    """What ``with client.lock(key) as lease`` enters: asked for on entry, once."""

    __slots__ = ()
    _client: LockClient
    _got: Lease | None

    def __enter__(self) -> Lease:
        self._use()
        self._got = lease = self._client.acquire(self._asked, **self._options)
        return lease

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        if self._got is not None:
            self._got.__exit__(kind, body_error, trace)


class LockAll(_OneUse):
    """``with client.lock_all(keys) as leases``: all or none."""

    __slots__ = ()
    _method = "lock_all"
    _client: LockClient
    _got: dict[str, Lease] | None

    def __enter__(self) -> Mapping[str, Lease]:
        self._use()
        self._got = leases = self._client._acquire_all(self._asked, self._options)  # the client's own helper
        return leases

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        errors: list[DLockError] = []
        left, silences = [] if self._got is None else list(self._got.values()), 0
        try:
            while left:
                lease = left.pop()
                try:
                    if silences >= SILENCES_MAX:
                        _leave_unasked(lease, body_error)
                    lease.__exit__(kind, body_error, trace)
                except DLockError as error:
                    errors.append(error)
                silences += type(lease._handle.state) is Releasing
        except BaseException:
            for lease in left:
                lease._leave_to_scheduler()
            raise
        raise_first(errors)


class AsyncLock(_AsyncOneUse):
    """What ``async with client.lock(key) as lease`` enters: asked for on entry, once."""

    __slots__ = ()
    _client: AsyncLockClient
    _got: AsyncLease | None

    async def __aenter__(self) -> AsyncLease:
        self._use()
        self._got = lease = await self._client.acquire(self._asked, **self._options)
        try:
            return await lease.__aenter__()
        except BaseException:
            lease._leave_to_scheduler()
            raise

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        if self._got is not None:
            await self._got.__aexit__(kind, body_error, trace)


def locked(
    client: LockClient, context: ClientContext, key: str, options: AcquireKeywords
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return the decorator ``client.locked(key)``.

    Raises: ConfigurationError: an option or the key is wrong.
    """
    _check(context, key, options)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        check_colour(function, asynchronous=False, key=key)

        @functools.wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
            with Lock(client, key, options):
                result = function(*args, **keywords)
                check_ended(function, result)
                return result

        return call

    return decorate


def async_locked(
    client: AsyncLockClient, context: ClientContext, key: str, options: AcquireKeywords
) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
    """Return the twin of :func:`locked`."""
    _check(context, key, options)

    def decorate(function: Callable[_P, Awaitable[_R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
        check_colour(function, asynchronous=True, key=key)

        @functools.wraps(function)
        async def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
            async with AsyncLock(client, key, options):
                return await function(*args, **keywords)

        return call

    return decorate


def _check(context: ClientContext, key: str, options: AcquireKeywords) -> None:
    context.full_key(key)
    context.resolve(options)


class AsyncLockAll(_AsyncOneUse):
    """``async with client.lock_all(keys) as leases``: all or none."""

    __slots__ = ()
    _method = "lock_all"
    _client: AsyncLockClient
    _got: dict[str, AsyncLease] | None

    async def __aenter__(self) -> Mapping[str, AsyncLease]:
        self._use()
        self._got = leases = await self._client._acquire_all(self._asked, self._options)  # the client's own helper
        try:
            for lease in leases.values():
                await lease.__aenter__()
        except BaseException:
            for lease in leases.values():
                lease._leave_to_scheduler()
            raise
        return leases

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        errors: list[DLockError] = []
        left, silences = [] if self._got is None else list(self._got.values()), 0
        ours = {lease: lease._end_cancelling(body_error) for lease in reversed(left)}
        try:
            while left:
                lease = left.pop()
                try:
                    if silences >= SILENCES_MAX:
                        _leave_unasked(lease, body_error)
                    await lease._leave(body_error, ours=ours[lease])
                except DLockError as error:
                    errors.append(error)
                silences += type(lease._handle.state) is Releasing
        except BaseException:
            for lease in left:
                lease._leave_to_scheduler()
            raise
        raise_first(errors)
