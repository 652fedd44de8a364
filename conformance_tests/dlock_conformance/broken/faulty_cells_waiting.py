"""Faults of claims that wait beside those who only wait, and of waiters in one state of a key: what is common is right."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from dlock_conformance.broken.breaking import Patch, Step, around, setting
from dlock_conformance.broken.faulty_cells import keeping_the_token
from dlock_conformance.wire.wired import Wire, waits
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Release, Replace

Wake = Callable[[], object]

CHANNEL_CHARACTERS = 63


class ByTheStart(dict[str, Any]):
    """A dictionary that tells keys apart by their first characters alone, as a server does whose channels have short names."""

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return what stands under the start of *key*."""
        return super().get(key[:CHANNEL_CHARACTERS], default)

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Put *default* under the start of *key* unless something stands there."""
        return super().setdefault(key[:CHANNEL_CHARACTERS], default)

    def pop(self, key: str, default: Any = None, /) -> Any:
        """Remove what stands under the start of *key*."""
        return super().pop(key[:CHANNEL_CHARACTERS], default)


def silent_where_it_raises(_: LockRecord | None, request: Replace) -> Replace:
    """Forget that a replace wakes, where it raises the token."""
    return request._replace(wakes=request.wakes and request.record.fencing_token == request.expected.fencing_token)


def known_by_the_start(wire: Wire) -> None:
    """Know waiters by the start of their keys."""
    wire.space.waiters = ByTheStart()


def need_not_wait(is_so: Callable[[LockRecord | None], bool]) -> Patch:
    """Queue a waiter unless *is_so* is true of what stands."""

    def patch(wire: Wire) -> None:
        space = wire.space

        def enter(record: LockRecord, wake: Wake) -> bool:
            with space.mutex:
                if is_so(space.records.get(record.key)):
                    return False
                space.waiters.setdefault(record.key, deque()).append(wake)
                return True

        wire.enter = enter

    return patch


def seeing_tokens(wire: Wire) -> None:
    """See of a shared lock that stands only whether it has another token."""

    def moved_on(seen: LockRecord) -> bool:
        now = wire.space.records.get(seen.key)
        return bool(seen.members) and (now is None or now.fencing_token != seen.fencing_token)

    wire.moved_on = moved_on


def keeping_the_token_unless_it_waits(wire: Wire) -> None:
    """Grant the token of the tombstone once more to a claim that need not wait."""
    refused = set[str]()

    def claim(wire: Wire, step: Step, request: Claim) -> Any:
        if request.record.rvn in refused:
            return step(request)
        reply = keeping_the_token(wire, step, request)
        if not reply.applied:
            refused.add(request.record.rvn)
        return reply

    around("claim_when_free", claim)(wire)


def knowing_claims(wire: Wire, queued: Callable[[str, Wake], None]) -> None:
    """Call *queued* with the key and the wake-up of each claim that has begun to wait."""
    enter, asked = wire.enter, set[str]()

    def claim(_: Wire, step: Step, request: Claim) -> Any:
        reply = step(request)
        if reply.applied:
            asked.discard(request.record.rvn)
        else:
            asked.add(request.record.rvn)
        return reply

    def entered(record: LockRecord, wake: Wake) -> bool:
        with wire.space.mutex:
            has_to_wait = enter(record, wake)
            # Who only waits names the record that stands, and a claim the one that it will write.
            if has_to_wait and record.rvn in asked:
                queued(record.key, wake)
            return has_to_wait

    around("claim_when_free", claim)(wire)
    wire.enter = entered


def serving_claims_first(wire: Wire) -> None:
    """Put claims that wait before all who only wait."""
    claims = set[Wake]()

    def queued(key: str, wake: Wake) -> None:
        queue = wire.space.waiters[key]
        queue.remove(wake)
        queue.insert(sum(each in claims for each in queue), wake)
        claims.add(wake)

    knowing_claims(wire, queued)


def passing_claims_over(is_so: Callable[[Replace | Release], bool]) -> Patch:
    """Serve no claim that waits by a replace or release of which *is_so* is true."""

    def patch(wire: Wire) -> None:
        claims = set[Wake]()
        knowing_claims(wire, lambda _, wake: claims.add(wake))

        def fault(wire: Wire, step: Step, request: Replace | Release) -> Any:
            waiters, key = wire.space.waiters, request.record.key
            with wire.space.mutex:
                queue = waiters.get(key)
                if not queue or not is_so(request):
                    return step(request)
                left = waiters[key] = deque(each for each in queue if each not in claims)
                try:
                    return step(request)
                finally:
                    waiters[key] = deque(each for each in queue if each in claims or each in left)

        around(("replace", "release"), fault)(wire)

    return patch


def noting_who_is_refused(wire: Wire, refused: Callable[[Claim], None]) -> None:
    """Call *refused* with each claim that is refused because its wait is over."""
    enter, leave, goes_on = wire.enter, wire.leave, wire.goes_on
    # A claim goes on as soon as it has left the queue: its thread, or the thread of its task, does nothing else in between.
    last = threading.local()

    def entered(record: LockRecord, wake: Wake) -> bool:
        last.is_over = False
        return enter(record, wake)

    def left(key: str, wake: Wake, *, pass_on: bool) -> None:
        last.is_over = pass_on
        leave(key, wake, pass_on=pass_on)

    def went_on(request: Claim) -> Any:
        reply = goes_on(request)
        if last.is_over and waits(reply):
            refused(request)
        return reply

    setting(enter=entered, leave=left, goes_on=went_on)(wire)


def applied_though_refused(wire: Wire) -> None:
    """Apply a claim whose wait is over in the next release."""
    over: dict[str, Claim] = {}

    def release(wire: Wire, step: Step, request: Release) -> Any:
        with wire.space.mutex:
            reply = step(request)
            late = over.pop(request.record.key, None) if reply.applied else None
            if late is not None:
                wire.space.claim(late)
            return reply

    noting_who_is_refused(wire, lambda request: over.update({request.record.key: request}))
    around("release", release)(wire)


def queued_though_refused(wire: Wire) -> None:
    """Leave a claim whose wait is over in the queue, and wake it in place of the next."""

    def refused(request: Claim) -> None:
        with wire.space.mutex:
            wire.space.waiters.setdefault(request.record.key, deque()).append(lambda: None)

    noting_who_is_refused(wire, refused)
