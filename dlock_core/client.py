"""The blocking client: what is used from threads, and needs no event loop."""

from __future__ import annotations

import atexit
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast

from dlock_core.cost import cost_of
from dlock_core.engine.blocking_runtime import BlockingRuntime, run_blocking
from dlock_core.engine.blocking_store import BlockingStore
from dlock_core.engine.breaking import break_lock, break_session
from dlock_core.engine.client_context import CallOptions, ClientContext, check_capabilities
from dlock_core.engine.client_view import ClientView, is_listed, noting_failures
from dlock_core.engine.converting import convert
from dlock_core.engine.hints import check_event_loop, check_keywords
from dlock_core.engine.joining import obtain
from dlock_core.engine.lease_view import KEEP, Keep, LeaseView
from dlock_core.engine.lock_all import acquire_all
from dlock_core.engine.opening import load_options, open_store, whole_commands
from dlock_core.engine.process import generation, members
from dlock_core.engine.pruning import Pruned, prune
from dlock_core.engine.raised import lost_error
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.engine.with_blocks import Lock, LockAll, locked
from dlock_core.errors import AcquireTimeoutError, ConfigurationError, DLockError, UnsupportedError
from dlock_core.keywords import AcquireKeywords, ClientKeywords, LockKeywords, Seconds
from dlock_core.options import ClientOptions
from dlock_core.record import LockRecord
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from dlock_core.client_election import Election
    from dlock_core.client_once import Once
    from dlock_core.cost import Cost
    from dlock_core.engine.engine import Engine
    from dlock_core.once import SlotSource
    from dlock_core.store import AsyncLockStore, Guarantees, LockStore

__all__ = ["Lease", "LockClient", "connect"]

_log = guarded_logger("dlock.client")
_L = TypeVar("_L", bound="Lease")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def connect(url: str | ClientOptions | None = None, /, **options: Unpack[ClientKeywords]) -> LockClient:
    """Open the store of *url* and return a client of it. An unreachable or an unsafe store fails here: it is asked for its guarantees.

    ``help(dlock_core.ClientKeywords)`` lists the options. With ``provision=True`` it first creates what the store lacks: a table, an index.

    Without *url* the options are gathered as :meth:`ClientOptions.load` says (``DLOCK_URL``, ``DLOCK_CONFIG``).

    Raises: ConfigurationError (MissingDriverError, UnsafeStoreError, UnsupportedError), StoreError.
    """
    loaded = load_options(url, options)
    ClientContext(loaded, blocking=True)
    store = open_store(loaded)
    try:
        with whole_commands(loaded):
            client = LockClient(store, loaded)
    except BaseException:
        store.close()
        raise
    client._owns_store = True  # made here
    return client


class Lease(LeaseView):
    """What is held: an exclusive right to the key, with an end. Any thread may use it.

    Leaving its ``with`` block releases it. The body's exception is never replaced: a loss becomes a note on it. A body that ended well
    while the lease was valid raises nothing, even if the release gets no answer; one whose lease was lost raises LockLostError, one whose
    client was closed elsewhere before its end LeaseStateError.
    """

    __slots__ = ("_lost", "_stopping")

    def __init__(self, context: ClientContext, engine: Engine, key: str) -> None:
        check_event_loop()
        super().__init__(context, engine, key)
        self._lost: threading.Event | None = None
        self._stopping: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lock is lost. A signal to wait for; ``is_valid`` decides."""
        self._check_process()
        with self._engine.runtime.mutex:
            if self._lost is None:
                self._lost = self._handle.signal_loss(threading.Event())
            return self._lost

    @property
    def stopping(self) -> threading.Event:
        """An event that is set ``stop_grace`` before the lock ends, and at a loss: end the work now.

        It stays set, even where a later renewal keeps the lock.
        """
        self._check_process()
        with self._engine.runtime.mutex:
            if self._stopping is None:
                self._stopping = self._handle.signal_stop(threading.Event())
            return self._stopping

    def ensure(self, min_remaining: Seconds = 0) -> int:
        """Return the fencing token while the lock is held for *min_remaining* seconds at least; call it before each effect.

        Makes no request unless too little remains: then it renews, once, for a longer lease where need be, and never shortens one.

        Raises: LockLostError; LeaseStateError after the release or in a forked child; a StoreError where the renewal failed.
        """
        self._alive()
        return run_blocking(self._engine.ensure(self._handle, *self._wanted(min_remaining)))

    def renew(self, *, lease_duration: Seconds | None = None, data: bytes | None | Keep = KEEP) -> None:
        """Renew now; with *lease_duration* (seconds) or *data*, change what the record carries from now on.

        Raises: LockLostError; LeaseStateError after the release; a StoreError where it is not known to be applied: the renewals go on.
        """
        self._alive()
        self._engine.check(self._handle)
        run_blocking(self._engine.renew(self._handle, self._leased(lease_duration), self._written(data)))

    def release(self, *, data: bytes | None | Keep = KEEP) -> None:
        """Give the key back; *data* replaces what the record carries. A second call does nothing.

        Raises: LockLostError; LeaseStateError: the client was closed elsewhere, which gave it back; a StoreError: it is followed up.
        """
        if self._closed:
            return
        self._alive()
        payload = self._written(data)
        run_blocking(self._engine.release(self._handle, payload, self))
        if self._handle.loss is not None:
            raise lost_error(self._handle)

    def downgrade(self) -> Lease:
        """Go on as a reader: return a lease with a new token, and end this one, a writer's. No writer comes in between, other readers may.

        Raises: LeaseStateError: this is no writer's; LockLostError; a StoreError or AcquireTimeoutError, and this lease goes on.
        """
        return self._converted("read")

    def try_upgrade(self) -> Lease | None:
        """Go on as the writer, if nobody else reads now: return a lease with a new token, and end this one. Else None, and it goes on.

        It never waits: two readers that waited for each other's end would wait for ever.

        Raises: LeaseStateError: this is no reader's; LockLostError; a StoreError: this lease goes on, unless the writer may have its place.
        """
        try:
            return self._converted("write")
        except AcquireTimeoutError:
            return None

    def _converted(self, mode: Literal["read", "write"]) -> Lease:
        self._alive()
        lease = Lease(self._context, self._engine, self.key)
        run_blocking(convert(self._engine, self, lease, mode))
        return lease

    def __enter__(self) -> Self:
        """Return the lease."""
        self._alive()
        return self

    def __exit__(self, kind: object, body_error: BaseException | None, trace: object) -> None:
        """Release, by the rules of :class:`Lease`; silent in a forked child."""
        error: DLockError | None = None
        try:
            if not self._closed and self._context.generation == generation():
                self.release()
        except DLockError as failure:
            error = failure
        except BaseException:
            self._leave_to_scheduler()  # of a signal's handler, perhaps from before the release has begun
            raise
        leaving = None if error is None else self._leaving(body_error, error)
        if leaving is not None:
            raise leaving


class LockClient(ClientView):
    """A client of one store: makes locks, and renews all that are held, on one thread. Thread-safe; cannot be pickled.

    A store that you opened and hand over stays yours to close; one that ``connect`` opened is closed with the client.
    """

    options: ClientOptions
    _engine: Engine

    def __init__(
        self, store: LockStore, options: ClientOptions | None = None, /, **keywords: Unpack[ClientKeywords]
    ) -> None:
        check_keywords(keywords)
        self.options = (
            ClientOptions(**cast("dict[str, Any]", keywords)) if options is None else options.with_(**keywords)
        )
        self._context = ClientContext(self.options, blocking=True)
        if inspect.iscoroutinefunction(getattr(store, "claim", None)):
            raise UnsupportedError(
                f"{type(store).__name__} is a store for asyncio; use AsyncLockClient or aconnect() with it"
            )
        check_capabilities(store)
        self._store = store
        self._owns_store = False
        self._context.learn(store.guarantees(), store)
        self._runtime = BlockingRuntime(self._clock)
        self._engine = self._new_engine(cast("AsyncLockStore", BlockingStore(store)), self._runtime)
        self._runtime.engine = self._engine
        # Whoever holds a lease keeps its client, which releases it at exit.
        self._runtime.client = self
        _open_clients.add(self)

    def lock(self, key: str, **options: Unpack[AcquireKeywords]) -> AbstractContextManager[Lease]:
        """Return a context manager that acquires *key* on entry, yields the lease, and releases it. One use.

        ``help(dlock_core.AcquireKeywords)`` lists the options.
        """
        return Lock(self, key, options)

    def acquire(self, key: str, **options: Unpack[AcquireKeywords]) -> Lease:
        """Wait for *key*, at most ``timeout`` seconds, and return the lease.

        Raises: AcquireTimeoutError; StoreError, where the store cannot be reached for a lease's time (10 s at most); ConfigurationError;
            RecordError, where something else is stored under the key; LeaseStateError, where the client is closed.
        """
        return self._obtain(Lease, key, self._context.full_key(key), self._context.resolve(options))

    def try_acquire(self, key: str, **options: Unpack[AcquireKeywords]) -> Lease | None:
        """Return the lease of *key*, or None if it is held; never waits. Repeated over a whole lease, it takes over from a dead holder.

        Raises: as :meth:`acquire`, but no AcquireTimeoutError.
        """
        if "timeout" in options:
            raise ConfigurationError("try_acquire never waits; use acquire() with a timeout")
        try:
            return self._obtain(
                Lease, key, self._context.full_key(key), self._context.resolve({**options, "timeout": 0.0})
            )
        except AcquireTimeoutError:
            return None

    def lock_all(
        self, keys: Iterable[str], **options: Unpack[LockKeywords]
    ) -> AbstractContextManager[Mapping[str, Lease]]:
        """Return a context manager that holds all of *keys* or none: taken in one order by every client, so nobody deadlocks.

        Up to 64 free keys are one request, where the store can claim several in one step.
        """
        return LockAll(self, self._context.ordered(keys), options)

    def semaphore(self, key: str, permits: int, **options: Unpack[LockKeywords]) -> AbstractContextManager[Lease]:
        """Return a context manager that holds one of the *permits* of *key*, or ``weight`` of them; all holders together have no more.

        ``slot`` of the lease is the number of its permit. All clients should give the same *permits*. At most 128 hold a key together.
        """
        return self.lock(key, mode="exclusive", permits=permits, **options)

    def read_lock(self, key: str, **options: Unpack[LockKeywords]) -> AbstractContextManager[Lease]:
        """Return a context manager that holds *key* as one of its readers: no writer has it meanwhile. At most 128 hold it together."""
        return self.lock(key, mode="read", permits=None, **options)

    def write_lock(self, key: str, **options: Unpack[LockKeywords]) -> AbstractContextManager[Lease]:
        """Return a context manager that holds *key* as its only writer: nobody else has it meanwhile. New readers wait behind it."""
        return self.lock(key, mode="write", permits=None, **options)

    def election(self, key: str, *, value: bytes | None = None, **options: Unpack[LockKeywords]) -> Election:
        """Return a candidate for the leadership of *key*, and an observer of it; observers see *value*. Makes no request.

        The options are those of a lock. ``stop_grace`` is a quarter of the lease by default.

        Raises: ConfigurationError: the stop grace does not fit the lease; the message names the terms.
        """
        from dlock_core.client_election import Election

        return Election(self, key, value, options)

    def locked(self, key: str, **options: Unpack[AcquireKeywords]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Return a decorator: each call of the function holds *key*, as ``with lock(key)`` does.

        Raises: ConfigurationError: an option or the key is wrong.
        """
        return locked(self, self._context, key, options)

    def once(
        self,
        key: str,
        *,
        slot: SlotSource,
        at_least_for: Seconds = 0,
        at_most_for: Seconds | None = None,
        **options: Unpack[LockKeywords],
    ) -> Once:
        """Return a run of the job *key*: a context manager that tells whether *slot* is due here, and a decorator. Makes no request yet.

        *slot* names the run, by a text or a number that grows, or is a function that returns one (:mod:`dlock_core.slots`). ``busy`` is
        true if another process runs the job, and was seen to renew. With *timeout* the run waits so long for the end of the other; with
        0 not at all. A run of more than *at_most_for* seconds is lost. For *at_least_for* seconds after the beginning of a run no other
        begins, by the wall clocks.

        Raises: ConfigurationError: an option or the slot is wrong.
        """
        return self._once_kind()(self, key, slot, at_least_for, at_most_for, options)

    def cost(self) -> Cost:
        """Say how many requests this client has sent, and what DynamoDB bills for them. No I/O."""
        return cost_of(self._store)

    def get(self, key: str) -> LockRecord | None:
        """Return what is stored under *key*, linearizable; None if nothing, or if it was deleted on release.

        A record that says ``held`` may be that of a dead holder, which only time shows.
        """
        full = self._context.full_key(key)
        record = run_blocking(self._open_engine.read(full, self._context.store_timeout_s()))
        return None if record is None else self._context.strip(record)

    def scan(self, prefix: str = "") -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*. For operators: it may be stale."""
        self._check_open()
        for record in self._store.scan(self._context.full_prefix(prefix), timeout_s=self._context.store_timeout_s()):
            if is_listed(record):
                yield self._context.strip(record)

    def break_lock(self, key: str, *, fencing_token: int, now: bool = False, rvn: str | None = None) -> bool:
        """Break the grant *fencing_token* of *key*: raise the token, and keep the key closed for one lease.

        By then its holder must have stopped.
        With *now*, and where the lock has no lease, the key is free at once: its holder may still work, until its next renewal.
        With *rvn*, as *get* shows it, only that version of the record is broken; each renewal makes another one. Where records have no
        token (``token = none``), only the RVN tells two grants apart.
        Returns: False if that grant is over, and nothing was broken.
        """
        return run_blocking(break_lock(self._open_engine.driver, self._context, key, fencing_token, rvn, free_now=now))

    def break_session(self, session: str) -> bool:
        """Break the session whose key is *session*, as the record of a lock that it keeps says (``record.session.key``).

        All its locks are lost. Nobody has them before one lease of the session is over: by then its owner has heard of it. False: it is
        over, or was broken, already.
        """
        return run_blocking(break_session(self._open_engine.driver, self._context, session))

    def prune(self, *, older_than: Seconds, prefix: str = "", dry_run: bool = False) -> Pruned:
        """Remove the records under *prefix* that are free, carry no data, and were not written for *older_than* seconds (25 h or more).

        Later tokens are greater than the removed ones. *dry_run* only counts. Do not use it where programs acquire locks without a lease.

        Raises: ConfigurationError; UnsupportedError: the store needs the records, or the locks have no lease; StoreError: some may be gone.
        """
        return run_blocking(prune(self._open_engine.store, self._context, older_than, prefix, dry_run=dry_run))

    def guarantees(self) -> Guarantees:
        """Ask the store what it promises."""
        return run_blocking(self._open_engine.store.guarantees())

    def provision(self) -> None:
        """Create what the store needs: table, index. May be repeated; no lock call ever does it."""
        run_blocking(self._open_engine.store.provision())

    def close(self) -> None:
        """Release all that is held, going on after an error, and end the renewals. May be repeated.

        Holders in other threads have their ``stopping`` set. A term or a job is released when its body ends, for which this waits for the
        stop grace; any other lock at once, and the end of its block raises LeaseStateError.

        Raises: ExceptionGroup: of all that failed.
        """
        self._close()

    def __enter__(self) -> Self:
        """Return the client."""
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close; where the body raised, that exception leaves, with what failed here as a note."""
        with noting_failures(exc):
            self.close()

    @staticmethod
    def _once_kind() -> type[Once]:
        from dlock_core.client_once import Once

        return Once

    def _obtain(self, kind: type[_L], key: str, full: str, call: CallOptions) -> _L:
        lease = kind(self._context, self._engine, key)
        try:
            run_blocking(obtain(self._engine, lease, full, call.options, call.timings))
        except BaseException:
            lease._leave_to_scheduler()
            raise
        return lease

    def _acquire_all(self, keys: list[str], options: LockKeywords) -> dict[str, Lease]:
        leases = {key: Lease(self._context, self._engine, key) for key in keys}
        run_blocking(acquire_all(self._engine, self._context, leases, options))
        return leases

    def _close(self, until: int = NEVER) -> None:
        if self._context.generation != generation():
            return  # a forked child's copy: its threads and locks are the parent's
        errors = run_blocking(self._engine.close(until))
        self._runtime.close()
        _open_clients.discard(self)
        if self._owns_store:
            try:
                self._store.close()
            except DLockError as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("closing the client", errors)


_open_clients: weakref.WeakSet[LockClient] = weakref.WeakSet()


def _release_at_exit() -> None:
    """Free what is still held when the interpreter ends, within one request time-out of each client, and without new threads."""
    for client in members(_open_clients):
        until = client._runtime.now() + client._context.default.timings.timeout_ns
        try:
            client._close(until)  # this module's own
        except ExceptionGroup as group:
            for error in group.exceptions:
                _log.warning("at exit: %s", error)
        except Exception as error:  # noqa: BLE001  # what a store raises must not keep the other clients from releasing
            _log.warning("at exit: %r", error)


atexit.register(_release_at_exit)
