"""Faults of stores that are right up to a number, and in another form beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlock_conformance._breaking import Fault, Step, put, standing
from dlock_conformance.wired import AsyncWiredStore, Wire, WiredStore
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Replace

# ---- batches, several claims, prunes


def held_is_enough_after(count: int) -> Fault:
    """Compare the versions of the first *count* of a batch, and of the others only that they are held."""

    def fault(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        came = list(step(requests[:count]))
        for each in requests[count:]:
            old = standing(wire, each)
            came += [put(wire, each.record, each.record.key)] if old is not None and old.held else step([each])
        return came

    return fault


def dropping_payloads_after(count: int) -> Fault:
    """Keep the payloads of the first *count* of a batch."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        return step([*requests[:count], *(each._replace(keep_payload=False) for each in requests[count:])])

    return fault


def seeing_only(count: int) -> Fault:
    """See what stands under the first *count* of several keys, if it is free, and begin the tokens of the others anew."""

    def fault(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
        records = wire.space.records
        free = {each.record.key: standing(wire, each) for each in requests[count:]}
        unseen = {key: record for key, record in free.items() if record is not None and not record.held}
        for key in unseen:
            del records[key]
        came = step([*requests[:count], *(each._replace(must_exist=False) for each in requests[count:])])
        if not came[0].applied:
            records.update(unseen)
        return came

    return fault


def as_the_first(name: str) -> Fault:
    """Do all of several claims with the flag *name* of the first."""
    return lambda _, step, requests: step([each._replace(**{name: getattr(requests[0], name)}) for each in requests])


def floor_of_the_first(count: int) -> Fault:
    """Raise the floor by the first *count* of a page."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        before, came = wire.space._least_token, step(asked)
        if came and not asked[2]:
            wire.space._least_token = max(before, *(record.fencing_token + 1 for record in asked[0][:count]))
        return came

    return fault


def least_age_in_32_bits(_: Wire, step: Step, asked: Any) -> Any:
    """Take the least age as a number with a sign."""
    records, older_than_ms, dry_run = asked
    return step((records, (older_than_ms + 2**31) % 2**32 - 2**31, dry_run))


class _KnowsTheFloor:
    """Reads the floor of new tokens when it is opened, and raises it by its own prunes."""

    wire: Wire

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)  # type: ignore[call-arg]  # mixed into a store
        self._floor = wire.space._least_token

    def as_known(self, verb: str, request: Any, ask: Callable[[str, Any], Any]) -> Any:
        """Ask a server that has the floor that this store knows."""
        space = self.wire.space
        with space.mutex:
            right = space._least_token
            if verb.startswith("claim"):
                space._least_token = self._floor
            try:
                return ask(verb, request)
            finally:
                if verb == "prune":
                    self._floor = space._least_token
                elif verb.startswith("claim"):
                    space._least_token = right


def knowing_the_floor(wire: Wire) -> None:
    """Have both faces remember the floor."""

    class Knows(_KnowsTheFloor, WiredStore):
        def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
            ask = super()._ask
            return self.as_known(verb, request, lambda verb, request: ask(verb, request, key, timeout_s))

    class AsyncKnows(_KnowsTheFloor, AsyncWiredStore):
        async def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
            ask = super()._ask
            # The right store answers without a pause, unless a test makes it hang.
            return await self.as_known(verb, request, lambda verb, request: ask(verb, request, key, timeout_s))

    wire.faces = (Knows, AsyncKnows)


# ---- scans


def pages_in_utf16(wire: Wire, step: Step, prefix: str) -> Any:
    """Sort the keys as UTF-16 does, and go on after the last key of a page as code points do."""
    last = ""
    while page := sorted(
        (record for record in step(prefix) if record.key > last), key=lambda record: record.key.encode("utf-16-be")
    )[:100]:
        yield from page
        last = page[-1].key


def without(old: LockRecord | None, request: Any, new: LockRecord) -> LockRecord:
    """Leave out data of no bytes where it is kept."""
    return replace(new, data=new.data or None) if request.keep_payload else new
