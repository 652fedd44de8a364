"""The store ``memory://``: one process, threads and tasks alike; also the reference for whoever writes a store.

``memory://`` is one space for the whole process, ``memory://name`` another; ``MemoryStore()`` has a space of its own. A record goes only
by ``prune``, which raises the least token of all new records above its token, so a token never goes back while the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from dlock_core.backend import StoreOptions, redact, url_parts
from dlock_core.clock import now_ns
from dlock_core.engine.blocking_store import BlockingStore
from dlock_core.engine.hints import warn
from dlock_core.engine.process import generation
from dlock_core.errors import ConfigurationError, StoreError, StoreUnavailableError
from dlock_core.kit.backend import Backend
from dlock_core.kit.outcome import outcome, wakes
from dlock_core.kit.removal import may_be_removed
from dlock_core.record import LockRecord, State
from dlock_core.store import Capability, Claim, Grade, Guarantees, Release, Replace, Reply, TokenOrder, mark_withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["AsyncMemoryStore", "MemoryOptions", "MemorySpace", "MemoryStore", "backend"]

_CAPABILITIES = frozenset(Capability)
_HELD = State.HELD


class MemorySpace:
    """The records of one space, and who waits for them. Both colours work on it; every step is under one mutex.

    *now* is its clock in ns, which only tells how old a record is. A signal handler may call a verb while its own thread is inside
    another: the mutex lets it in, and the verb that was interrupted decides again.
    """

    def __init__(self, now: Callable[[], int] = now_ns) -> None:
        self.now = now
        self.written_at: dict[str, int] = {}
        self.mutex = threading.RLock()
        self.records: dict[str, LockRecord] = {}
        self.waiters: dict[str, deque[Callable[[], object]]] = {}
        self._writes = 0
        self._least_token = 1

    def step(self, request: Claim | Replace | Release) -> Reply:
        """Clauses S1 to S8; a step that frees the key wakes the waiter that has waited longest."""
        with self.mutex:
            return self._step(request)

    claim = replace = release = step

    def replace_many(self, requests: Sequence[Replace]) -> list[Reply | StoreError]:
        """Clauses B1 to B3."""
        with self.mutex:
            return [self._step(request) for request in requests]

    def claim_many(self, requests: Sequence[Claim]) -> list[Reply]:
        """Clauses M1 to M4."""
        with self.mutex:
            while True:
                writes = self._writes
                standing = [self.records.get(request.record.key) for request in requests]
                replies = [
                    outcome(record, request, floor=self._least_token)
                    for record, request in zip(standing, requests, strict=True)
                ]
                if False in [reply.applied for reply in replies]:
                    return [
                        Reply(applied=False, record=record, age_ms=self._age_ms(record.key) if record else None)
                        for record in standing
                    ]
                granted = {reply.record.key: reply.record for reply in replies if reply.record is not None}
                written_at = dict.fromkeys(granted, self.now())
                # No signal handler runs from here to the end of this block: there is no call and no jump back.
                if self._writes == writes:
                    self._writes = writes + 1
                    self.records |= granted
                    self.written_at |= written_at
                    return replies

    def _step(self, request: Claim | Replace | Release) -> Reply:
        key = request.record.key
        while True:
            writes = self._writes
            reply = outcome(self.records.get(key), request, floor=self._least_token)
            if (record := reply.record) is None:
                return reply
            if not reply.applied:
                return reply._replace(age_ms=self._age_ms(key)) if type(request) is Claim else reply
            now = self.now()
            # Python runs signal handlers at calls and jumps back, and there is neither from here to the end of this block: a handler that
            # called a verb of this space has changed the number of writes by now, and the step is decided again.
            if self._writes == writes:
                self._writes = writes + 1
                self.records[key] = record
                self.written_at[key] = now
                break
        if self.waiters and wakes(request):
            self._wake(key)
        if self.waiters and type(request) is Replace and self.waiters.get(key):
            return reply._replace(wanted=True)
        return reply

    def read_age(self, key: str) -> tuple[LockRecord, int] | None:
        """Clause C1."""
        with self.mutex:
            record = self.records.get(key)
            return None if record is None else (record, self._age_ms(key))

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool) -> int:
        """Clauses P1 to P3. A record that a signal handler changes in between stays."""
        count = 0
        with self.mutex:
            for listed in records:
                key, writes = listed.key, self._writes
                least_token = max(self._least_token, listed.fencing_token + 1)
                goes = may_be_removed(self.records.get(key), listed, self._age_ms(key), older_than_ms)
                if goes and self._writes == writes:
                    count += 1
                    if not dry_run:
                        self._writes = writes + 1
                        self._least_token = least_token
                        del self.records[key]
                        del self.written_at[key]
        return count

    def _age_ms(self, key: str) -> int:
        now = self.now()
        return (now - self.written_at.get(key, now)) // 1_000_000

    def _wake(self, key: str) -> None:
        queue = self.waiters.get(key)
        while queue:
            with contextlib.suppress(IndexError):  # a signal handler was faster
                if queue.popleft()() is not False:
                    return

    def enter(self, record: LockRecord, wake: Callable[[], object]) -> bool:
        """Queue *wake* for the next release of the key; False if the key is free already.

        One that returns False has no use for the release, and the next is called instead.
        """
        with self.mutex:
            now = self.records.get(record.key)
            if now is None or now.state is not _HELD:
                return False
            self.waiters.setdefault(record.key, deque()).append(wake)
            return True

    def moved_on(self, seen: LockRecord) -> bool:
        """Whether the record *seen* stands no more."""
        now = self.records.get(seen.key)
        return now is None or now.version != seen.version

    def leave(self, key: str, wake: Callable[[], object], *, pass_on: bool) -> None:
        """Take *wake* off the queue; if it was woken and did not use it, wake the next one instead."""
        with self.mutex:
            queue = self.waiters.get(key)
            if queue is None:
                return
            try:
                queue.remove(wake)
            except ValueError:
                if pass_on:
                    self._wake(key)
            if not queue:
                self.waiters.pop(key, None)


class _Waiting:
    """A claim that waits: in the step that frees the key it is applied, and its caller woken."""

    def __init__(self, store: MemoryStore, request: Claim, wake: Callable[[], object]) -> None:
        self._store, self._request, self._wake = store, request, wake
        self._result: Reply | StoreError | None = None

    def __call__(self) -> bool:
        """Apply the claim to the key that was just freed; whether it took it."""
        try:
            self._store.check(self._request.record.key)
            self._result = self._store.space.step(self._request)
        except StoreError as error:  # the claimer's trouble, not that of who gives the key back
            self._result = error
        self._wake()
        return isinstance(self._result, Reply) and self._result.applied

    def enter(self) -> bool:
        """Queue; False if the key is free already."""
        return self._store.space.enter(self._request.record, self)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, _: object, interrupt: BaseException | None, *__: object) -> None:
        """Wait no more. What was granted meanwhile is known by its RVN."""
        self._store.space.leave(self._request.record.key, self, pass_on=False)
        if interrupt is not None and self._result is None:
            mark_withdrawn(interrupt, self._request)

    def reply(self) -> Reply:
        """Return the reply to the claim: if it was not applied while it waited, to one more try."""
        if isinstance(self._result, StoreError):
            raise self._result
        self._store.check(self._request.record.key)
        return self._result or self._store.space.step(self._request)


class MemoryStore:
    """The store for threads. Without a *space* it has one of its own."""

    capabilities = _CAPABILITIES
    batch_limit = 1_000_000

    def __init__(self, space: MemorySpace | None = None) -> None:
        self.space = MemorySpace() if space is None else space
        self._open = True

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:  # nothing here takes time
        """Create the record if nobody holds the key."""
        self.check(request.record.key)
        return self.space.step(request)

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is the expected one."""
        self.check(request.record.key)
        return self.space.step(request)

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version."""
        self.check(request.record.key)
        return self.space.step(request)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*."""
        self.check(key)
        return self.space.records.get(key)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*, in the order of keys."""
        self.check(None)
        with self.space.mutex:
            found = [record for key, record in self.space.records.items() if key.startswith(prefix)]
        yield from sorted(found, key=lambda record: record.key)

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each replace."""
        self.check(None)
        return self.space.replace_many(requests)

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Apply all claims or none."""
        self.check(None)
        return self.space.claim_many(requests)

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Return the record under *key* and the ms since it was written."""
        self.check(key)
        return self.space.read_age(key)

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """Remove those of *records* that are free, unchanged and old enough; return how many they are."""
        self.check(None)
        return self.space.prune(records, older_than_ms=older_than_ms, dry_run=dry_run)

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:  # first come, first woken
        """Return when *record*'s key was released after it, or after *timeout_s*."""
        self.check(record.key)
        woken = threading.Lock()
        woken.acquire()
        wake = woken.release
        if not self.space.enter(record, wake):
            return
        used = False
        try:
            used = self.space.moved_on(record) or woken.acquire(timeout=max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))
        finally:
            self.space.leave(record.key, wake, pass_on=not used)

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim the key in the step that frees it, or after *wait_s*."""
        self.check(request.record.key)
        woken = threading.Lock()
        woken.acquire()
        with _Waiting(self, request, woken.release) as waiting:
            if waiting.enter():
                woken.acquire(timeout=max(0.0, min(wait_s, threading.TIMEOUT_MAX)))
        return waiting.reply()

    def guarantees(self) -> Guarantees:
        """Say what a dictionary can promise."""
        return Guarantees(
            store="memory",
            version="1",
            grade=Grade.A,
            token=TokenOrder.ORDERED,
            deletes=False,
            refusal_linearizable=True,
            durable=False,
            failover="none: records end with the process",
            clock="none",
            notes=("one process only: its threads and tasks exclude each other, and nobody else",),
        )

    def provision(self) -> None:
        """Do nothing: nothing is needed."""

    def close(self) -> None:
        """Refuse what comes after; the space stays for its other users."""
        self._open = False

    def check(self, key: str | None) -> None:
        """Raise StoreUnavailableError after close()."""
        if not self._open:
            raise StoreUnavailableError("the memory store was closed; open a new one", key=key)


class AsyncMemoryStore(BlockingStore):
    """The store for tasks; shares its *space* with threads where it is given one. No call here suspends but those that wait."""

    capabilities = _CAPABILITIES
    batch_limit = MemoryStore.batch_limit
    store: MemoryStore

    def __init__(self, space: MemorySpace | None = None) -> None:
        self.store = MemoryStore(space)
        self.space = self.store.space

    async def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:  # first come, first woken
        """As :meth:`MemoryStore.wait`; a cancelled waiter passes an unused wake-up on."""
        self.store.check(record.key)
        woken, wake = _wake_up()
        if not self.space.enter(record, wake):
            return
        used = False
        try:
            # Not wait_for: that of Python 3.11 swallows a cancellation that comes together with the wake-up.
            async with asyncio.timeout(timeout_s):
                used = self.space.moved_on(record) or await woken
        except TimeoutError:
            return
        finally:
            self.space.leave(record.key, wake, pass_on=not used)

    async def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As :meth:`MemoryStore.claim_when_free`."""
        self.store.check(request.record.key)
        woken, wake = _wake_up()
        with _Waiting(self.store, request, wake) as waiting, contextlib.suppress(TimeoutError):
            if waiting.enter():
                async with asyncio.timeout(wait_s):
                    await woken
        return waiting.reply()


def _wake_up() -> tuple[asyncio.Future[bool], Callable[[], None]]:
    """Return a future, and what sets it from any thread."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[bool] = loop.create_future()

    def set_woken() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # it was woken before, or is cancelled
            woken.set_result(True)

    def wake() -> None:
        # The releasing thread may outlive this loop: then nobody here waits any more, and its release has nothing to do with that.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_woken)

    return woken, wake


class MemoryOptions(StoreOptions):
    """``memory://`` or ``memory://name``."""

    name: str = ""

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the host part as the name of the space."""
        parts = url_parts(url, "write memory:// or memory://name")
        if parts.query:
            raise ConfigurationError(
                f"{redact(url)!r} has a query key that is no option; docs/options.md lists the options"
            )
        if parts.path not in ("", "/") or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(f"{redact(url)!r} has more than a name; write memory:// or memory://name")
        if settings:
            raise ConfigurationError(
                f"the memory store has no settings; remove {', '.join(map(repr, sorted(settings)))} from [store]"
            )
        return cls(name=parts.netloc)


# Of one process: a forked child begins anew, since its parent's mutexes may be held for ever, and its parent's holders do not exist there.
_spaces: dict[tuple[int, str], MemorySpace] = {}


def _space(options: MemoryOptions) -> MemorySpace:
    if generation():
        warn(
            "memory:// in a forked process: no other process sees its locks; name a store that processes share, such as sqlite:////var/lib/dlock/locks.db",
            RuntimeWarning,
        )
    return _spaces.setdefault((generation(), options.name), MemorySpace())


backend = Backend(
    MemoryOptions,
    open_store=lambda options: MemoryStore(_space(options)),
    aopen_store=lambda options: AsyncMemoryStore(_space(options)),
)
