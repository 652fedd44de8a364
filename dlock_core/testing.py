"""What a user's own tests need: a clock that is advanced by hand, and stores that misbehave on demand.

The pytest fixture ``lock_client`` (a client on a memory store, with real time) comes with the package.

    with FakeClock() as clock, clock.client(lease_duration=20) as client:
        lease = client.acquire("billing/42", auto_renew=False)
        clock.advance(21)
        assert not lease.is_valid
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from dlock_core.aio import AsyncLockClient
from dlock_core.client import LockClient
from dlock_core.clock import Cancellable
from dlock_core.errors import OutcomeUnknownError, StoreUnavailableError
from dlock_core.memory import AsyncMemoryStore, MemoryStore
from dlock_core.options import to_seconds
from dlock_core.timings import nanoseconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from dlock_core.keywords import ClientKeywords, Seconds
    from dlock_core.record import LockRecord
    from dlock_core.store import AsyncLockStore, Capability, Claim, Guarantees, LockStore, Release, Replace, Reply

__all__ = ["AsyncFaultyStore", "FakeClock", "FaultyStore"]

_T = TypeVar("_T")

_GLANCE_S = 0.02
_WALL_MS = 1_700_000_000_000
# What is delivered late has all the time it needs.
_LATE_S = 10.0
VERBS = ("claim", "replace", "release", "read")


class _Timer:
    def __init__(self, clock: FakeClock, due: int, fire: Callable[[], object]) -> None:
        self._clock, self.due, self.fire = clock, due, fire

    def cancel(self) -> None:
        self._clock._timers.pop(self, None)  # its other half


class FakeClock:
    """A clock that stands still until :meth:`advance`. Clients made by :meth:`client` and :meth:`aclient` live by it.

    Advance an asyncio client's clock from its event loop, and let the loop run afterwards. A client for threads renews on a thread of its
    own, a moment after :meth:`advance`: before the next step wait until ``lease.remaining`` has grown, or give ``auto_renew=False`` and
    renew in the test. A call that waits for a lock goes on when another thread advances.
    """

    def __init__(self) -> None:
        self._now = 1_000_000_000
        self.skew = 0.0
        self._mutex = threading.Lock()
        self._waiting: dict[threading.Condition, int] = {}
        self._timers: dict[_Timer, None] = {}  # in the order of making: what is due at one instant is called in it

    def now(self) -> int:
        """Return the instant, in ns."""
        return self._now

    def wall_ms(self) -> int:
        """Return the wall clock, in ms since 1970: it goes on with the clock, and :attr:`skew` seconds wrong."""
        return _WALL_MS + self._now // 1_000_000 + round(self.skew * 1000)

    def advance(self, seconds: Seconds) -> None:
        """Let *seconds*, or a timedelta, pass, and wake whoever waited for that.

        Raises: ValueError: it is not a finite duration of 0 or more.
        """
        passed = nanoseconds(to_seconds(seconds))
        with self._mutex:
            self._now += passed
            waiting = list(self._waiting)
            due = [timer for timer in self._timers if timer.due <= self._now]
            for timer in due:
                del self._timers[timer]
        for condition in waiting:
            with condition:
                condition.notify_all()
        for timer in sorted(due, key=lambda timer: timer.due):
            timer.fire()

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until notified, or until :meth:`advance` has passed *seconds*; part of the clients' port."""
        if seconds <= 0:
            return
        with self._mutex:
            self._waiting[condition] = self._waiting.get(condition, 0) + 1
        try:
            # Not for ever: the clock may have been advanced between the caller's look at it and this call.
            condition.wait(_GLANCE_S)
        finally:
            with self._mutex:
                self._waiting[condition] -= 1
                if not self._waiting[condition]:
                    del self._waiting[condition]

    def call_later(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> Cancellable:
        """Have *loop* call *callback* when *seconds* were passed; part of the clients' port."""
        if seconds <= 0:
            return loop.call_soon(callback)
        timer = _Timer(self, self._now + nanoseconds(seconds), lambda: loop.call_soon_threadsafe(callback))
        with self._mutex:
            self._timers[timer] = None
        return timer

    def client(self, store: LockStore | None = None, /, **options: Unpack[ClientKeywords]) -> LockClient:
        """Return a client that lives by this clock, on *store* or a memory store of its own.

        A store that notifies waits in real time for what is to be advanced by hand: wrap it in :class:`FaultyStore`.
        """
        kind = type("LockClient", (LockClient,), {"_clock": self})
        made: LockClient = kind(FaultyStore() if store is None else store, **options)
        return made

    def aclient(self, store: AsyncLockStore | None = None, /, **options: Unpack[ClientKeywords]) -> AsyncLockClient:
        """Return an asyncio client that lives by this clock, unopened."""
        kind = type("AsyncLockClient", (AsyncLockClient,), {"_clock": self})
        made: AsyncLockClient = kind(AsyncFaultyStore() if store is None else store, **options)
        return made

    def __enter__(self) -> Self:
        """Return the clock."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: the clock holds nothing."""


class _FaultyBase:
    """The faults that can be planned. Each stands for the next *times* requests of a verb, in the order of planning."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """How often each verb was asked."""
        self._mutex = threading.Lock()
        self._planned: dict[str, list[str]] = {verb: [] for verb in VERBS}
        self._late: list[tuple[str, Any]] = []
        self._outages = 0

    def lose_reply(self, verb: str, times: int = 1) -> None:
        """Apply the request, then raise OutcomeUnknownError."""
        self._plan("lost", verb, times)

    def lose_request(self, verb: str, times: int = 1) -> None:
        """Raise OutcomeUnknownError without applying the request, ever."""
        self._plan("vanished", verb, times)

    def fail(self, verb: str, times: int = 1) -> None:
        """Raise StoreUnavailableError: the request was certainly not applied."""
        self._plan("unsent", verb, times)

    def delay(self, verb: str, times: int = 1) -> None:
        """Raise OutcomeUnknownError, and apply the request at the next ``deliver()``."""
        self._plan("late", verb, times)

    def duplicate(self, verb: str, times: int = 1) -> None:
        """Answer as ever, and apply the request once more at the next ``deliver()``."""
        self._plan("twice", verb, times)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Return a context manager within which nothing is sent; outages may overlap."""
        with self._mutex:
            self._outages += 1
        try:
            yield
        finally:
            with self._mutex:
                self._outages -= 1

    def _plan(self, fault: str, verb: str, times: int) -> None:
        if verb not in VERBS:
            raise ValueError(f"unknown verb {verb!r}; verbs: {', '.join(VERBS)}")
        with self._mutex:
            self._planned[verb].extend([fault] * times)

    def _meet_fault(self, verb: str, request: Any) -> str | None:
        """Return the fault that is planned for *request*; raise it at once where the request is not applied now."""
        with self._mutex:
            self.requests[verb] += 1
            if self._outages:
                fault: str | None = "unsent"
            else:
                fault = self._planned[verb].pop(0) if self._planned[verb] else None
            if fault in ("late", "twice"):
                self._late.append((verb, request))
        if fault in ("unsent", "vanished", "late"):
            raise _trouble(fault, verb, request)
        return fault

    def _take_late(self) -> list[tuple[str, Any]]:
        with self._mutex:
            late, self._late = self._late, []
        return late


def _trouble(fault: str, verb: str, request: Any) -> StoreUnavailableError | OutcomeUnknownError:
    key = request if isinstance(request, str) else str(request.record.key)
    if fault == "unsent":
        return StoreUnavailableError(f"{verb} of {key!r} was not sent (injected)", key=key)
    return OutcomeUnknownError(f"the reply to {verb} of {key!r} was lost (injected)", key=key)


class FaultyStore(_FaultyBase):
    """A store around *store* (by default a memory store) that loses, delays and repeats on demand.

    Notifications and batches are left out: each request is one call.
    """

    def __init__(self, store: LockStore | None = None) -> None:
        super().__init__()
        self.store: LockStore = MemoryStore() if store is None else store

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Claim."""
        return self._do("claim", self.store.claim, request, timeout_s)

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace."""
        return self._do("replace", self.store.replace, request, timeout_s)

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Release."""
        return self._do("release", self.store.release, request, timeout_s)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read."""
        return self._do("read", self.store.read, key, timeout_s)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Scan, without faults."""
        return self.store.scan(prefix, timeout_s=timeout_s)

    def guarantees(self) -> Guarantees:
        """Say what the store inside promises."""
        return self.store.guarantees()

    def provision(self) -> None:
        """Provision."""
        self.store.provision()

    def close(self) -> None:
        """Close the store inside."""
        self.store.close()

    def deliver(self) -> None:
        """Apply, in order, what was delayed or is to be applied twice."""
        for verb, request in self._take_late():
            getattr(self.store, verb)(request, timeout_s=_LATE_S)

    def _do(self, verb: str, call: Callable[..., _T], request: Any, timeout_s: float) -> _T:
        fault = self._meet_fault(verb, request)
        answer = call(request, timeout_s=timeout_s)
        if fault == "lost":
            raise _trouble(fault, verb, request)
        return answer


class AsyncFaultyStore(_FaultyBase):
    """The twin of :class:`FaultyStore`."""

    def __init__(self, store: AsyncLockStore | None = None) -> None:
        super().__init__()
        self.store: AsyncLockStore = AsyncMemoryStore() if store is None else store

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Claim."""
        return await self._do("claim", self.store.claim, request, timeout_s)

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace."""
        return await self._do("replace", self.store.replace, request, timeout_s)

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Release."""
        return await self._do("release", self.store.release, request, timeout_s)

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read."""
        return await self._do("read", self.store.read, key, timeout_s)

    def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """Scan, without faults."""
        return self.store.scan(prefix, timeout_s=timeout_s)

    async def guarantees(self) -> Guarantees:
        """Say what the store inside promises."""
        return await self.store.guarantees()

    async def provision(self) -> None:
        """Provision."""
        await self.store.provision()

    async def close(self) -> None:
        """Close the store inside."""
        await self.store.close()

    async def deliver(self) -> None:
        """Apply, in order, what was delayed or is to be applied twice."""
        for verb, request in self._take_late():
            await getattr(self.store, verb)(request, timeout_s=_LATE_S)

    async def _do(self, verb: str, call: Callable[..., Awaitable[_T]], request: Any, timeout_s: float) -> _T:
        fault = self._meet_fault(verb, request)
        answer = await call(request, timeout_s=timeout_s)
        if fault == "lost":
            raise _trouble(fault, verb, request)
        return answer
