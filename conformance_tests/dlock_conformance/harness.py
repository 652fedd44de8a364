"""What the author of a store tells the suite: how it is opened, and what else may be done to it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import TypeAlias

from dlock_conformance.faults import Fault, Faults
from dlock_core.backend import backend_for
from dlock_core.record import LockRecord, Version
from dlock_core.store import AsyncLockStore, Capability, LockStore

__all__ = ["AnyStore", "Colour", "Opening", "StoreHarness", "missing_harness"]

AnyStore: TypeAlias = LockStore | AsyncLockStore


class Colour(StrEnum):
    """Which of its two faces a store shows."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True)
class Opening:
    """A way to open a store: by *url* through the installed backends, or by functions of one's own, which take precedence.

    Each opening gives a store object of its own; all of them meet the same records.
    """

    url: str | None = None
    _: KW_ONLY
    open_store: Callable[[], LockStore] | None = None
    aopen_store: Callable[[], AsyncLockStore | Awaitable[AsyncLockStore]] | None = None

    def open(self) -> LockStore:
        """Return a new store for threads."""
        if self.open_store is not None:
            return self.open_store()
        if self.url is None:
            raise AssertionError("this Opening has neither open_store nor url; give one, or set colours = ('async',)")
        backend = backend_for(self.url)
        return backend.open(backend.options.from_url(self.url))

    @property
    def has_async_face(self) -> bool:
        """Whether a store for the event loop can be opened; otherwise tasks use the one for threads."""
        if self.aopen_store is not None or self.url is None or self.open_store is not None:
            return self.aopen_store is not None
        backend = backend_for(self.url)
        found = backend.aopen(backend.options.from_url(self.url))
        if inspect.iscoroutine(found):
            found.close()
        return found is not None

    async def aopen(self) -> AsyncLockStore:
        """Return a new store for the running event loop."""
        if self.aopen_store is not None:
            opened: AsyncLockStore | Awaitable[AsyncLockStore] = self.aopen_store()
        elif self.url is None:
            raise AssertionError("this Opening has neither aopen_store nor url; give one, or set colours = ('sync',)")
        else:
            backend = backend_for(self.url)
            found = backend.aopen(backend.options.from_url(self.url))
            if found is None:
                raise AssertionError("the backend has no async face (aopen returned None); set colours = ('sync',)")
            opened = found
        return await opened if inspect.isawaitable(opened) else opened


@dataclass(frozen=True)
class StoreHarness(Opening):
    """An opening, and what the suite may rely on. Only the opening is needed.

    The suite does not test what is left out, and the report says so.

    Attributes:
        name, version: how the report calls the store; by default what ``guarantees()`` says.
        found: how the server was found, for the report.
        capabilities: what the store declares, once more, so that a capability cannot get lost unseen.
        page: how many records one page of a scan has, at most: the scans of the suite have more.
        race_rounds: rounds of the race for a new key, the others have a part of it; 2,000 is thorough, 300 is for slow stores.
        several_processes: other processes that open *url* meet the same records.
        token_floor: the store has a floor of its own for tokens, so that they do not count from 1: also where ``prune`` raises it, and
            tests share a store.
        restart: end the server as hard as may be, and start it again. Without it nothing is said of what survives.
        count_requests: how many requests the server had until now, those of the count itself not counted.
        faults: the way to the server, to be disturbed; *through_faults* opens a store on that way (by default as always).
        plant_foreign: put something under the key that no dlock wrote.
        remove: clear away, after the test, what was planted under the key.
        plant_newer: put a held record of the next format version under the key.
        expires: whether the server, or a job of the store, will remove by itself what stands under the key: ask the server (for a TTL), or
            move its clock by some days and look, also whether a claim would be applied then.
        unprovisioned: opens the store where the table, or whatever it needs, is missing.
        own_client: opens stores that are given one client, which they must not close.
        lease_s: leases of the client's tests, in seconds; renewals must have their answers within a sixth of it.
        allow_unsafe: names of what the client is told to accept.
        soon_s: how many seconds after a release the longest sleeper of its waiters may still sleep.
        tells_wanted: the answer to a renewal says whether somebody waits (N4); without it only that it never says so wrongly is tried.
        carried: returns a record as a store keeps it that cannot carry every field, and None for one that it cannot keep at all. The suite
            then asks for that to come back, and leaves the others out where it tries many records in one test.
        reset: called before each test. Not needed for the suite itself: each test has keys of its own.
    """

    _: KW_ONLY
    name: str = ""
    version: str = ""
    found: str = "in this process"
    capabilities: Collection[str] = ()
    page: int = 1000
    race_rounds: int = 300
    several_processes: bool = False
    token_floor: bool = False
    restart: Callable[[], None] | None = None
    count_requests: Callable[[], int] | None = None
    faults: Faults | None = None
    through_faults: Opening | None = None
    plant_foreign: Callable[[str], None] | None = None
    remove: Callable[[str], None] | None = None
    plant_newer: Callable[[str, Version], None] | None = None
    expires: Callable[[str], bool] | None = None
    unprovisioned: Opening | None = None
    own_client: Opening | None = None
    lease_s: float = 1.5
    allow_unsafe: frozenset[str] = frozenset()
    soon_s: float = 5.0
    tells_wanted: bool = False
    carried: Callable[[LockRecord], LockRecord | None] | None = None
    reset: Callable[[], None] | None = None

    def gives(self, name: str) -> bool:
        """Whether *name*, a capability, a fault or a field, can be relied on."""
        if name in tuple(Capability):
            return name in self.capabilities
        if name in tuple(Fault):
            return self.faults is not None and name in self.faults.kinds
        return bool(getattr(self, name))


def missing_harness(suite: type) -> NotImplementedError:
    """Return the error of a *suite* without its fixture."""
    return NotImplementedError(
        f"{suite.__name__} does not say how its store is opened; give it @pytest.fixture def harness(self): return StoreHarness('your://url')"
    )
