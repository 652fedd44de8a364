"""Jobs that run once per slot, for asyncio: the twin of :mod:`dlock_core.client_once`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from dlock_core.aio import AsyncLease
from dlock_core.engine.jobs import JobRun
from dlock_core.engine.user_calls import check_colour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from dlock_core.aio import AsyncLockClient

__all__ = ["AsyncOnce"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class AsyncOnce(JobRun):
    """The twin of :class:`dlock_core.Once`, for one event loop."""

    _with = "async with"

    def __init__(self, client: AsyncLockClient, *job: Any) -> None:
        super().__init__(client._context, *job)
        self._client = client
        self._job = job

    @property
    def lease(self) -> AsyncLease | None:
        """As :attr:`dlock_core.Once.lease`."""
        return self._lease if isinstance(self._lease, AsyncLease) else None

    async def finish(self, result: bytes | None = None) -> None:
        """As :meth:`dlock_core.Once.finish`."""
        await self._finish(result)

    async def __aenter__(self) -> Self:
        """As :meth:`dlock_core.Once.__enter__`."""
        self._is_idle = False
        client, engine = self._client, self._client._open_engine
        try:
            await self._decide(engine, lambda: AsyncLease(client._context, engine, self.key))
            if self.lease is not None:
                await self.lease.__aenter__()
        except BaseException:
            self._leave_to_scheduler()
            raise
        return self

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        """As :meth:`dlock_core.Once.__exit__`."""
        lease = self.lease
        if lease is None:
            return
        ours = lease._end_cancelling(body_error)
        if body_error is not None or not self._runs(lease):
            await lease._leave(body_error, ours=ours)
            return
        leaving = await self._end(lease)
        if leaving is not None:
            raise leaving

    def __call__(self, function: Callable[_P, Awaitable[_R]], /) -> Callable[_P, Coroutine[Any, Any, _R | None]]:
        """As :meth:`dlock_core.Once.__call__`, of a coroutine function."""
        self._is_idle = False
        check_colour(function, asynchronous=True, key=self._job[0])

        @functools.wraps(function)
        async def call(*args: _P.args, **keywords: _P.kwargs) -> _R | None:
            async with AsyncOnce(self._client, *self._job) as job:
                if not job.due:
                    return None
                value: _R = await function(*args, **keywords)
                if isinstance(value, bytes):
                    await job.finish(value)
                return value

        return call
