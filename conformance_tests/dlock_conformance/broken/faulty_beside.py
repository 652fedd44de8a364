"""Faults of a store beside another call of its own: reads beside a scan or a write, and waits that remember what they saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dlock_conformance.broken.breaking import Patch, Step, put, setting
from dlock_conformance.wire.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Reply

# ---- what is read


def ending_at_what_is_gone(wire: Wire, step: Step, prefix: str) -> Iterator[LockRecord]:
    """List the keys, then read one after the other, and end where there is none any more."""
    for key in sorted(record.key for record in step(prefix)):
        record = wire.space.records.get(key)
        if record is None:
            return
        yield record


class _Remembers:
    """Shows by ``read_age`` what this store has written last, with the age of what stands."""

    wire: Wire

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)  # type: ignore[call-arg]  # mixed into a store
        self._mine: dict[str, LockRecord] = {}

    def remembered(self, verb: str, request: Any, came: Any) -> Any:
        """Return what this store makes of what *came*."""
        if verb in ("claim", "replace", "release") and came.record is not None:
            self._mine[request.record.key] = came.record
        if verb == "read_age" and came is not None and request in self._mine:
            return self._mine[request], came[1]
        return came


class Remembers(_Remembers, WiredStore):
    """For threads."""

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        return self.remembered(verb, request, super()._ask(verb, request, key, timeout_s))


class AsyncRemembers(_Remembers, AsyncWiredStore):
    """For tasks."""

    async def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        return self.remembered(verb, request, await super()._ask(verb, request, key, timeout_s))


class ScansPin(WiredStore):
    """Reads in the transaction of a scan that is not at its end."""

    _pinned: dict[str, LockRecord] | None = None

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Begin a transaction for the scan."""
        found = list(super().scan(prefix, timeout_s=timeout_s))
        self._pinned = dict(self.wire.space.records)
        try:
            yield from found
        finally:
            self._pinned = None

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Read in it."""
        came = super().read(key, timeout_s=timeout_s)
        return came if self._pinned is None else self._pinned.get(key)


# ---- waiting


class DecidesFirst(WiredStore):
    """Looks whether a key exists when a claim begins to wait, and not again."""

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim what existed then."""
        seen = self.wire.space.records.get(request.record.key)
        exists = seen is not None and seen.held
        return super().claim_when_free(
            request._replace(must_exist=request.must_exist and not exists), wait_s=wait_s, timeout_s=timeout_s
        )


class WaitsWhenClosed(WiredStore):
    """Looks whether it is closed in the verbs that all stores have."""

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Claim, open or not."""
        was, self.is_open = self.is_open, True
        try:
            return super().claim_when_free(request, wait_s=wait_s, timeout_s=timeout_s)
        finally:
            self.is_open = was


class KeepsTheFirst(WiredStore):
    """Keeps the payload that stood there when a claim began to wait."""

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """Write what was seen then."""
        seen = self.wire.space.records.get(request.record.key)
        came = super().claim_when_free(request, wait_s=wait_s, timeout_s=timeout_s)
        if not came.applied or came.record is None or seen is None or not (seen.held and request.keep_payload):
            return came
        return put(self.wire, replace(came.record, data=seen.data, attributes=seen.attributes), seen.key)


def waiting_by(change: Callable[[str], str]) -> Patch:
    """Know waiters by their keys as *change* makes them."""

    def patch(wire: Wire) -> None:
        space, leave, wake = wire.space, wire.space.leave, wire.space._wake

        def enter(record: LockRecord, wakes: Callable[[], object]) -> bool:
            with space.mutex:
                now = space.records.get(record.key)
                if now is None or not now.held:
                    return False
                space.waiters.setdefault(change(record.key), deque()).append(wakes)
                return True

        def left(key: str, wakes: Callable[[], object], *, pass_on: bool) -> None:
            leave(change(key), wakes, pass_on=pass_on)

        setting(enter=enter, leave=left)(wire)
        space._wake = lambda key: wake(change(key))  # type: ignore[method-assign]  # of this space alone

    return patch
