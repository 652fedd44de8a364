"""The asyncio client: the twin of :mod:`dlock_core.client`, native tasks and no thread, on the same engine."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast

from dlock_core.cost import cost_of
from dlock_core.engine.asyncio_runtime import AsyncRuntime, check_loop, running_loop
from dlock_core.engine.breaking import break_lock, break_session
from dlock_core.engine.client_context import CallOptions, ClientContext, check_capabilities
from dlock_core.engine.client_view import ClientView, is_listed, noting_failures
from dlock_core.engine.converting import convert
from dlock_core.engine.hints import check_keywords
from dlock_core.engine.joining import obtain
from dlock_core.engine.lease_view import KEEP, Keep, LeaseView
from dlock_core.engine.lock_all import acquire_all
from dlock_core.engine.opening import check_face, learn_store, load_options, named_store, opening_store
from dlock_core.engine.process import generation
from dlock_core.engine.pruning import Pruned, prune
from dlock_core.engine.raised import closed_error, interrupted_error, lost_error
from dlock_core.engine.store_in_threads import ThreadedStore
from dlock_core.engine.with_blocks import AsyncLock, AsyncLockAll, async_locked
from dlock_core.errors import AcquireTimeoutError, ConfigurationError, DLockError, LeaseStateError
from dlock_core.keywords import AcquireKeywords, ClientKeywords, LockKeywords, Seconds
from dlock_core.kit.lane import in_own_thread
from dlock_core.options import ClientOptions
from dlock_core.record import LockRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from dlock_core.aio_election import AsyncElection
    from dlock_core.aio_once import AsyncOnce
    from dlock_core.cost import Cost
    from dlock_core.engine.engine import Engine
    from dlock_core.once import SlotSource
    from dlock_core.store import AsyncLockStore, Guarantees, LockStore

__all__ = ["AsyncLease", "AsyncLockClient", "aconnect"]

_L = TypeVar("_L", bound="AsyncLease")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def aconnect(url: str | ClientOptions | None = None, /, **options: Unpack[ClientKeywords]) -> AsyncLockClient:
    """Return a client of *url* that is not open yet: open it by ``async with``, or by ``await``.

    Raises: as :func:`dlock_core.connect`: for wrong options at once, for trouble with the store when it is opened.
    """
    loaded = load_options(url, options)
    backend, store_options = named_store(loaded)

    async def open_store() -> AsyncLockStore:
        with opening_store(loaded):
            opening = backend.aopen(store_options)
            open_blocking = partial(backend.open, store_options)
            opened: Any = await (opening or in_own_thread(open_blocking, lambda late: late.close()))
            check_face(opened, asynchronous=opening is not None)
        store = opened if opening is not None else cast("AsyncLockStore", ThreadedStore(opened))
        try:
            check_capabilities(opened)
        except BaseException:
            await store.close()
            raise
        return store

    client = AsyncLockClient.__new__(AsyncLockClient)
    client._set_up(loaded, open_store)  # the other way to make one
    return client


class AsyncLease(LeaseView):
    """The twin of :class:`dlock_core.Lease`, for the event loop in which it was acquired."""

    __slots__ = ("_cancelled", "_cancelling", "_lost", "_stopping", "_task")

    def __init__(self, context: ClientContext, engine: Engine, key: str) -> None:
        super().__init__(context, engine, key)
        self._lost: asyncio.Event | None = None
        self._stopping: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._cancelling = 0

    @property
    def lost(self) -> asyncio.Event:
        """As :attr:`dlock_core.Lease.lost`."""
        self._check_process()
        if self._lost is None:
            self._lost = self._handle.signal_loss(asyncio.Event())
        return self._lost

    @property
    def stopping(self) -> asyncio.Event:
        """As :attr:`dlock_core.Lease.stopping`."""
        self._check_process()
        if self._stopping is None:
            self._stopping = self._handle.signal_stop(asyncio.Event())
        return self._stopping

    async def ensure(self, min_remaining: Seconds = 0) -> int:
        """As :meth:`dlock_core.Lease.ensure`."""
        self._alive()
        return await self._engine.ensure(self._handle, *self._wanted(min_remaining))

    async def renew(self, *, lease_duration: Seconds | None = None, data: bytes | None | Keep = KEEP) -> None:
        """As :meth:`dlock_core.Lease.renew`."""
        self._alive()
        self._engine.check(self._handle)
        await self._engine.renew(self._handle, self._leased(lease_duration), self._written(data))

    async def release(self, *, data: bytes | None | Keep = KEEP) -> None:
        """As :meth:`dlock_core.Lease.release`; cancelled, it is followed up."""
        if self._closed:
            return
        self._alive()
        payload = self._written(data)
        await self._engine.release(self._handle, payload, self)
        if self._handle.loss is not None:
            raise lost_error(self._handle)

    async def downgrade(self) -> AsyncLease:
        """Go on as a reader: return a lease with a new token, and end this one, a writer's. No writer comes in between, other readers may.

        Raises: LeaseStateError: this is no writer's; LockLostError; a StoreError or AcquireTimeoutError, and this lease goes on.
        """
        return await self._converted("read")

    async def try_upgrade(self) -> AsyncLease | None:
        """Go on as the writer, if nobody else reads now: return a lease with a new token, and end this one. Else None, and it goes on.

        It never waits: two readers that waited for each other's end would wait for ever.

        Raises: LeaseStateError: this is no reader's; LockLostError; a StoreError: this lease goes on, unless the writer may have its place.
        """
        try:
            return await self._converted("write")
        except AcquireTimeoutError:
            return None

    async def _converted(self, mode: Literal["read", "write"]) -> AsyncLease:
        self._alive()
        lease = AsyncLease(self._context, self._engine, self.key)
        await convert(self._engine, self, lease, mode)
        return lease

    async def __aenter__(self) -> Self:
        """Return the lease; with ``cancel_on_loss``, ``stopping`` cancels this task's block from now on."""
        self._alive()
        if self._handle.options.cancel_on_loss:
            self._task = task = asyncio.current_task()
            self._cancelling = 0 if task is None else task.cancelling()
            self._handle.signal_stop(_Canceller(self))
        return self

    async def __aexit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        """Release, by the rules of :class:`dlock_core.Lease`; our own cancellation of the body becomes LockLostError."""
        await self._leave(body_error, ours=self._end_cancelling(body_error))

    def _end_cancelling(self, body_error: BaseException | None) -> bool:
        """Cancel the task no more, and take back that it was; whether *body_error* is our own cancellation.

        Before any release: one that finds the loss, or while which another lock is lost, is no part of the body.
        """
        task, self._task = self._task, None
        if task is None or not self._cancelled:
            return False
        return task.uncancel() <= self._cancelling and isinstance(body_error, asyncio.CancelledError)

    async def _leave(self, body_error: BaseException | None, *, ours: bool) -> None:
        """Release after a body that ended with *body_error*, which may be *ours*: a cancellation by this lease."""
        if self._context.generation != generation():
            return
        if self._closed:
            if ours:
                raise interrupted_error(self._handle) from body_error
            return
        error: DLockError | None = None
        try:
            await self.release()
        except DLockError as failure:
            error = failure
        except BaseException:
            self._leave_to_scheduler()  # of a signal's handler, perhaps from before the release has begun
            raise
        if ours:
            interrupted = interrupted_error(self._handle)
            if error is not None and self.loss is None:
                interrupted.add_note(str(error))
            raise interrupted from body_error
        leaving = None if error is None else self._leaving(body_error, error)
        if leaving is not None:
            raise leaving

    def _cancel_body(self) -> None:
        task = self._task
        if task is None or self._cancelled:
            return
        if task is asyncio.current_task():
            # The call that noticed the loss raises it here and now. A cancellation would come after the block; only if the task stays in
            # it is it cancelled.
            cast("AsyncRuntime", self._engine.runtime).loop.call_soon(self._cancel_body)
            return
        self._cancelled = True
        task.cancel(f"lock {self.key!r} " + ("is about to be lost" if self.loss is None else "was lost"))

    def _alive(self) -> None:
        super()._alive()
        check_loop(cast("AsyncRuntime", self._engine.runtime), f"the lease of lock {self.key!r}")


class _Canceller:
    """Cancels the body when the holder has to stop."""

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = weakref.ref(lease)

    def set(self) -> None:
        lease = self._lease()
        if lease is not None:
            lease._cancel_body()  # its other half


class AsyncLockClient(ClientView):
    """The twin of :class:`dlock_core.LockClient`, for an event loop. Opened by ``async with`` or ``await``; your own store stays open."""

    def __init__(
        self,
        store: AsyncLockStore | LockStore,
        options: ClientOptions | None = None,
        /,
        **keywords: Unpack[ClientKeywords],
    ) -> None:
        check_keywords(keywords)
        chosen = ClientOptions(**cast("dict[str, Any]", keywords)) if options is None else options.with_(**keywords)
        threaded: ThreadedStore | None = None
        check_capabilities(store)
        if not inspect.iscoroutinefunction(store.claim):
            threaded = ThreadedStore(cast("LockStore", store))
        given = cast("AsyncLockStore", store if threaded is None else threaded)

        async def open_store() -> AsyncLockStore:
            return given

        self._set_up(chosen, open_store)
        self._owns_store = False
        self._threads = threaded

    def _set_up(self, options: ClientOptions, open_store: Callable[[], Coroutine[Any, Any, AsyncLockStore]]) -> None:
        self.options = options
        self._context = ClientContext(options, blocking=False)
        self._open_store = open_store
        self._owns_store = True
        self._threads = None
        self._opened: Engine | None = None
        self._opening = asyncio.Lock()

    def lock(self, key: str, **options: Unpack[AcquireKeywords]) -> AbstractAsyncContextManager[AsyncLease]:
        """As :meth:`dlock_core.LockClient.lock`."""
        return AsyncLock(self, key, options)

    async def acquire(self, key: str, **options: Unpack[AcquireKeywords]) -> AsyncLease:
        """As :meth:`dlock_core.LockClient.acquire`; cancelled at any point, it leaves no lock behind for longer than a lease."""
        return await self._obtain(AsyncLease, key, self._context.full_key(key), self._context.resolve(options))

    async def try_acquire(self, key: str, **options: Unpack[AcquireKeywords]) -> AsyncLease | None:
        """As :meth:`dlock_core.LockClient.try_acquire`."""
        if "timeout" in options:
            raise ConfigurationError("try_acquire never waits; use acquire() with a timeout")
        try:
            return await self._obtain(
                AsyncLease, key, self._context.full_key(key), self._context.resolve({**options, "timeout": 0.0})
            )
        except AcquireTimeoutError:
            return None

    def lock_all(
        self, keys: Iterable[str], **options: Unpack[LockKeywords]
    ) -> AbstractAsyncContextManager[Mapping[str, AsyncLease]]:
        """As :meth:`dlock_core.LockClient.lock_all`."""
        return AsyncLockAll(self, self._context.ordered(keys), options)

    def semaphore(
        self, key: str, permits: int, **options: Unpack[LockKeywords]
    ) -> AbstractAsyncContextManager[AsyncLease]:
        """As :meth:`dlock_core.LockClient.semaphore`."""
        return self.lock(key, mode="exclusive", permits=permits, **options)

    def read_lock(self, key: str, **options: Unpack[LockKeywords]) -> AbstractAsyncContextManager[AsyncLease]:
        """As :meth:`dlock_core.LockClient.read_lock`."""
        return self.lock(key, mode="read", permits=None, **options)

    def write_lock(self, key: str, **options: Unpack[LockKeywords]) -> AbstractAsyncContextManager[AsyncLease]:
        """As :meth:`dlock_core.LockClient.write_lock`."""
        return self.lock(key, mode="write", permits=None, **options)

    def election(self, key: str, *, value: bytes | None = None, **options: Unpack[LockKeywords]) -> AsyncElection:
        """As :meth:`dlock_core.LockClient.election`.

        A term's block is cancelled when the stop grace begins, unless ``cancel_on_loss`` is given as False.
        """
        from dlock_core.aio_election import AsyncElection

        return AsyncElection(self, key, value, options)

    def locked(
        self, key: str, **options: Unpack[AcquireKeywords]
    ) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
        """As :meth:`dlock_core.LockClient.locked`, for coroutine functions."""
        return async_locked(self, self._context, key, options)

    def once(
        self,
        key: str,
        *,
        slot: SlotSource,
        at_least_for: Seconds = 0,
        at_most_for: Seconds | None = None,
        **options: Unpack[LockKeywords],
    ) -> AsyncOnce:
        """As :meth:`dlock_core.LockClient.once`."""
        from dlock_core.aio_once import AsyncOnce

        return AsyncOnce(self, key, slot, at_least_for, at_most_for, options)

    def cost(self) -> Cost:
        """As :meth:`dlock_core.LockClient.cost`."""
        return cost_of(self._engine.store)

    async def get(self, key: str) -> LockRecord | None:
        """As :meth:`dlock_core.LockClient.get`."""
        full = self._context.full_key(key)
        record = await self._open_engine.read(full, self._context.store_timeout_s())
        return None if record is None else self._context.strip(record)

    async def scan(self, prefix: str = "") -> AsyncGenerator[LockRecord, None]:
        """As :meth:`dlock_core.LockClient.scan`."""
        engine = self._open_engine
        async for record in engine.store.scan(
            self._context.full_prefix(prefix), timeout_s=self._context.store_timeout_s()
        ):
            if is_listed(record):
                yield self._context.strip(record)

    async def break_lock(self, key: str, *, fencing_token: int, now: bool = False, rvn: str | None = None) -> bool:
        """As :meth:`dlock_core.LockClient.break_lock`."""
        return await break_lock(self._open_engine.driver, self._context, key, fencing_token, rvn, free_now=now)

    async def break_session(self, session: str) -> bool:
        """As :meth:`dlock_core.LockClient.break_session`."""
        return await break_session(self._open_engine.driver, self._context, session)

    async def prune(self, *, older_than: Seconds, prefix: str = "", dry_run: bool = False) -> Pruned:
        """As :meth:`dlock_core.LockClient.prune`."""
        return await prune(self._open_engine.store, self._context, older_than, prefix, dry_run=dry_run)

    async def guarantees(self) -> Guarantees:
        """As :meth:`dlock_core.LockClient.guarantees`."""
        return await self._open_engine.store.guarantees()

    async def provision(self) -> None:
        """As :meth:`dlock_core.LockClient.provision`."""
        await self._open_engine.store.provision()

    async def close(self) -> None:
        """As :meth:`dlock_core.LockClient.close`."""
        engine = self._opened
        if engine is None or self._context.generation != generation():
            return
        check_loop(self._runtime, "the client")
        errors = await engine.close()
        await self._runtime.close()
        if self._owns_store:
            try:
                await engine.store.close()
            except DLockError as error:
                errors.append(error)
        if self._threads is not None:
            self._threads.end_threads()
        if errors:
            raise ExceptionGroup("closing the client", errors)

    async def __aenter__(self) -> Self:
        """Open the store, and ask it for its guarantees."""
        self._context.check_process()
        running_loop()
        async with self._opening:  # tasks may share a client, and each await it
            await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; where the body raised, that exception leaves, with what failed here as a note."""
        with noting_failures(exc):
            await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the client and return it."""
        return self.__aenter__().__await__()

    @property
    def _engine(self) -> Engine:
        self._context.check_process()
        if self._opened is None:
            raise LeaseStateError(
                "the client is not open yet; write 'async with aconnect(…) as client' or 'client = await aconnect(…)'"
            )
        check_loop(self._runtime, "the client")
        return self._opened

    async def _open(self) -> None:
        if self._opened is not None:
            if self._opened.closed:
                raise closed_error()
            return
        store = await self._open_store()
        try:
            await learn_store(self._context, store, is_own=self._owns_store)
        except BaseException:
            if self._owns_store:
                await store.close()
            raise
        self._runtime = AsyncRuntime(self._clock)
        self._opened = self._runtime.engine = self._new_engine(store, self._runtime)

    async def _obtain(self, kind: type[_L], key: str, full: str, call: CallOptions) -> _L:
        engine = self._engine
        lease = kind(self._context, engine, key)
        try:
            await obtain(engine, lease, full, call.options, call.timings)
        except BaseException:
            lease._leave_to_scheduler()
            raise
        return lease

    async def _acquire_all(self, keys: list[str], options: LockKeywords) -> dict[str, AsyncLease]:
        engine = self._engine
        leases = {key: AsyncLease(self._context, engine, key) for key in keys}
        await acquire_all(engine, self._context, leases, options)
        return leases
