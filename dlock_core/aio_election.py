"""Elections for asyncio: the twin of :mod:`dlock_core.client_election`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, Unpack, cast

from dlock_core.aio import AsyncLease
from dlock_core.election import leader_of
from dlock_core.engine.elections import BLOCK, Candidate, Observer, body_name
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import AcquireTimeoutError
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from dlock_core.aio import AsyncLockClient
    from dlock_core.clock import Cancellable
    from dlock_core.election import Leader
    from dlock_core.engine.asyncio_runtime import AsyncRuntime
    from dlock_core.keywords import LockKeywords, Seconds

__all__ = ["AsyncElection", "AsyncTerm"]

_log = guarded_logger("dlock.client")
# How often in a lease the event loop is looked at.
_LOOKS = 10


class AsyncTerm(AsyncLease):
    """The twin of :class:`dlock_core.Term`. Its ``async with`` block is cancelled when the stop grace begins, and at a loss."""

    __slots__ = ()

    @property
    def term(self) -> int:
        """As :attr:`dlock_core.Term.term`."""
        return self.fencing_token

    @property
    def value(self) -> bytes | None:
        """As :attr:`dlock_core.Term.value`."""
        return self.data

    async def __aenter__(self) -> Self:
        """As :meth:`dlock_core.Term.__enter__`."""
        self._begin_body()
        return await super().__aenter__()

    async def proclaim(self, value: bytes | None) -> None:
        """As :meth:`dlock_core.Term.proclaim`."""
        await self.renew(data=value)

    async def resign(self) -> None:
        """As :meth:`dlock_core.Term.resign`."""
        await self.release()


class AsyncElection:
    """The twin of :class:`dlock_core.Election`, for one event loop."""

    def __init__(self, client: AsyncLockClient, key: str, value: bytes | None, options: LockKeywords) -> None:
        self._client = client
        self._candidate = Candidate(client._context, key, value, {"cancel_on_loss": True, **options})
        self._warned = False

    @property
    def key(self) -> str:
        """The key."""
        return self._candidate.key

    async def campaign(self, **options: Unpack[LockKeywords]) -> AsyncTerm:
        """As :meth:`dlock_core.Election.campaign`."""
        return await self._campaign(BLOCK, options)

    async def try_campaign(self) -> AsyncTerm | None:
        """As :meth:`dlock_core.Election.try_campaign`."""
        try:
            return await self._campaign(BLOCK, {"timeout": 0.0})
        except AcquireTimeoutError:
            return None

    async def run(self, body: Callable[[AsyncTerm], Awaitable[object]], *, rejoin: bool = True) -> None:
        """As :meth:`dlock_core.Election.run`; *body* is a coroutine function, and is cancelled when the stop grace begins."""

        async def campaign() -> AsyncTerm:
            return await self._campaign(body_name(body), {})

        async def lead(term: AsyncTerm) -> None:
            with self._loop_watched(term, body_name(body)):
                async with term:
                    await body(term)

        await self._candidate.run(self._client._open_engine, campaign, lead, rejoin=rejoin)

    async def leader(self) -> Leader | None:
        """As :meth:`dlock_core.Election.leader`."""
        timeout_s = self._client._context.store_timeout_s()
        record = await self._client._open_engine.read(self._candidate.full_key, timeout_s)
        return leader_of(self.key, record)

    async def observe(self, *, poll_period: Seconds | None = None) -> AsyncGenerator[Leader, None]:
        """As :meth:`dlock_core.Election.observe`."""
        observer = Observer(self._client._context, self._client._open_engine, self._candidate, poll_period)
        while (leader := await observer.next_change()) is not None:
            yield leader

    async def _campaign(self, body: str, options: LockKeywords) -> AsyncTerm:
        client, candidate = self._client, self._candidate
        call = candidate.resolve(options)

        async def obtain() -> AsyncTerm:
            return await client._obtain(AsyncTerm, self.key, candidate.full_key, call)

        return await candidate.campaign(client._engine, obtain, body)

    @contextmanager
    def _loop_watched(self, term: AsyncTerm, body: str) -> Iterator[None]:
        """Warn, once, if the event loop stands still for so long that renewals come late."""
        runtime = cast("AsyncRuntime", self._client._engine.runtime)
        timings = term._handle.state.terms.timings
        lease_ns = timings.lease_ns
        timer: Cancellable | None = None
        due = 0

        def look() -> None:
            nonlocal timer, due
            late_ns = runtime.now() - due
            if late_ns > timings.lateness_ns and not self._warned:
                self._warned = True
                _log.warning(
                    "election %r: the event loop stood still for %.2f s while %s ran; renewals may be %.2f s late. Run what blocks "
                    "in a thread, by asyncio.to_thread",
                    self.key,
                    late_ns / NANOS,
                    body,
                    timings.lateness_ns / NANOS,
                )
            if not self._warned:
                plan()

        def plan() -> None:
            nonlocal timer, due
            due = runtime.now() + lease_ns // _LOOKS
            timer = self._client._clock.call_later(runtime.loop, lease_ns / _LOOKS / NANOS, look)

        if not self._warned:
            plan()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
