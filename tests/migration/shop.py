"""Where the names of the page are tried out: clients on one real store, living by a clock that the exercise moves."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from dlock_core import DLockError, Lease, LockClient
from dlock_core.store import LockStore
from dlock_core.testing import FaultyStore
from tests.core.worlds import _ParkingClock

__all__ = ["ANY_STORE", "EXERCISES", "Shop", "exercise"]

T = TypeVar("T")

PATIENCE_S = 30.0
_STEP_S = 0.5
_GLANCE_S = 0.002


class Shop:
    """Clients for one exercise; what they leave behind is given back after it."""

    def __init__(self, store: LockStore, url: str) -> None:
        self.store = store
        self.url = url
        self.clock = _ParkingClock()
        self.prefix = f"migration/{secrets.token_hex(6)}/"
        self._clients: list[LockClient] = []
        self._leases: list[Lease] = []

    def client(self, store: LockStore | None = None, **options: Any) -> LockClient:
        """Return one more client. Its store is one that can be told to misbehave."""
        settings: dict[str, Any] = {"lease_duration": 10, "prefix": self.prefix, "request_timeout": 5} | options
        client = self.clock.client(FaultyStore(self.store) if store is None else store, **settings)
        self._clients.append(client)
        obtain = client._obtain

        def kept(*arguments: Any) -> Lease:
            self._leases.append(obtain(*arguments))
            return self._leases[-1]

        client._obtain = kept  # type: ignore[method-assign,assignment]  # a lease that nobody keeps warns of it
        return client

    def dies(self, key: str, **options: Any) -> int:
        """Have somebody acquire *key* and never renew it; return the token."""
        return self.client(auto_renew=False).acquire(key, **options).fencing_token

    def taken(self, key: str, **options: Any) -> Lease:
        """Wait for *key*, which somebody dead holds."""
        lease, _ = self.while_time_passes(lambda: self.client().acquire(key, **options))
        return lease

    def while_time_passes(self, work: Callable[[], T]) -> tuple[T, float]:
        """Do *work*, which waits, while the clock goes on; return its result and how many seconds of the clock it took."""
        began, done = self.clock.now(), Future[T]()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  # handed on
                done.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until = time.monotonic() + PATIENCE_S
        while not done.done() and time.monotonic() < until:
            thread.join(_GLANCE_S)  # it tells nobody that it waits
            if self.clock.parks(thread.ident):
                self.clock.advance(_STEP_S)
        return done.result(0), (self.clock.now() - began) / 1e9

    def eventually(self, fact: Callable[[], bool]) -> None:
        """Wait until *fact* is true, which another thread brings about."""
        until = time.monotonic() + PATIENCE_S
        while not fact():
            assert time.monotonic() < until, "it did not come true"
            time.sleep(_GLANCE_S)  # it tells nobody

    def close(self) -> None:
        """Give back what the exercise has left."""
        for client in self._clients:
            with suppress(DLockError, ExceptionGroup):
                client.close()


EXERCISES: dict[str, Callable[[Shop], None]] = {}
# Of these no store can get anything wrong: they are tried on the embedded stores only.
ANY_STORE: set[str] = set()


def exercise(name: str, *, any_store: bool = False) -> Callable[[Callable[[Shop], None]], Callable[[Shop], None]]:
    """Enter a function as what proves that *name*, as the page writes it, does what the page says."""

    def enter(function: Callable[[Shop], None]) -> Callable[[Shop], None]:
        assert name not in EXERCISES, f"{name} has two exercises"
        EXERCISES[name] = function
        if any_store:
            ANY_STORE.add(name)
        return function

    return enter
