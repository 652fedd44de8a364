"""Several keys at once: all of them are held in the end, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.engine.closing import SILENCES_MAX
from dlock_core.engine.driver import id_of, new_rvn
from dlock_core.engine.event_hook import note_event
from dlock_core.engine.joining import obtain
from dlock_core.engine.membership import check_exclusive
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import AcquireTimeoutError, LockLostError, StoreError
from dlock_core.events import EventKind
from dlock_core.states import Failure, Releasing
from dlock_core.store import CLAIM_MANY_MAX, Capability
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlock_core.engine.client_context import ClientContext
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle, View
    from dlock_core.engine.lease_view import LeaseView
    from dlock_core.keywords import LockKeywords
    from dlock_core.options import LockOptions
    from dlock_core.store import Reply
    from dlock_core.timings import Timings

    # The attempts that were begun together, by key, each with its next request.
    Attempts = dict[str, tuple[Handle, Any]]

_log = guarded_logger("dlock.engine")


class _Wish(NamedTuple):
    """What is asked for: *keys* for *leases*, since *started* and until *give_up_at*."""

    keys: Sequence[str]
    leases: Sequence[LeaseView]
    options: LockOptions
    timings: Timings
    started: int
    give_up_at: int

    def pairs(self) -> list[tuple[str, LeaseView]]:
        return list(zip(self.keys, self.leases, strict=True))


async def acquire_all(
    engine: Engine, context: ClientContext, leases: Mapping[str, LeaseView], options: LockKeywords
) -> None:
    """Obtain all keys of *leases*, or none: in one step where the store can and all are free, else one after the other, in this order.

    Those already won are renewed while the others are waited for.

    Raises: ConfigurationError: the options ask for a shared lock.
    """
    call = context.resolve(options)
    check_exclusive(call.options, "lock_all")
    started = engine.runtime.now()
    keys = [context.full_key(key) for key in leases]
    wish = _Wish(keys, list(leases.values()), call.options, call.timings, started, started + call.timings.wait_ns)
    begun: Attempts = {}
    try:
        if _may_be_one_step(engine, wish):
            await _claim_together(engine, wish, begun)
        await _acquire_each(engine, wish, begun)
    except BaseException:
        for key, lease in wish.pairs():
            if key in begun and engine.part(begun[key][0], lease):
                engine.driver.give_up(begun[key][0])
        for lease in wish.leases:
            lease._leave_to_scheduler()
        raise


def _may_be_one_step(engine: Engine, wish: _Wish) -> bool:
    """Whether all keys may be claimed at once. A lock without a lease expects what it has seen, and what is held here may be joined."""
    return (
        Capability.ATOMIC_MULTI in engine.store.capabilities
        and 1 < len(wish.keys) <= CLAIM_MANY_MAX
        and wish.timings.lease_ms is not None
        and not engine.closed
        and engine.driver.held.keys().isdisjoint(wish.keys)
    )


async def _claim_together(engine: Engine, wish: _Wish, begun: Attempts) -> None:
    """Claim all keys in one request. Unless certainly nothing of it was applied, *begun* has the attempts, to be gone on with.

    To each machine it is a claim of its own: without an answer each reads its key, and adopts what it wrote or has it cleaned up.
    """
    driver = engine.driver
    for key, view in wish.pairs():
        begun[key] = engine.begin(key, wish.options, wish.timings, wish.give_up_at, view)
    claims = [claim for _, claim in begun.values()]
    results: Sequence[Reply | StoreError]
    try:
        timeout_s = wish.timings.acquire_timeout_ns / NANOS
        results = await engine.store.claim_many(claims, timeout_s=timeout_s)  # type: ignore[attr-defined]  # a capability
    except StoreError as error:
        results = [error] * len(claims)
    events = [
        driver.heard(handle, id_of(claim), result, new_rvn())
        for (handle, claim), result in zip(begun.values(), results, strict=True)
    ]
    if not any(event.unknown if isinstance(event, Failure) else event.reply.applied for event in events):
        begun.clear()  # nobody knows of them
        return
    for key, event in zip(wish.keys, events, strict=True):
        handle = begun[key][0]
        note_event(driver, EventKind.REQUESTED, handle, handle.asked_at)
        begun[key] = handle, driver.advance(handle, event)


async def _acquire_each(engine: Engine, wish: _Wish, begun: Attempts) -> None:
    """Go on with the attempts that were begun, and obtain the other keys, in their order; begin again while keys are lost meanwhile."""
    keys, timings = wish.keys, wish.timings
    while True:
        won: list[LeaseView] = []
        try:
            for position, (key, view) in enumerate(wish.pairs(), start=1):
                if key in begun:
                    await engine.pursue(*begun.pop(key), keys[position:])
                else:
                    await obtain(engine, view, key, wish.options, timings, wish.give_up_at, keys[position:])
                won.append(view)
            for view in won:
                await _renew_if_older(engine, view._handle, timings.handout_min_ns)
        except LockLostError as error:
            await _release_all(engine, won)
            if error.loss.key not in [view._handle.key for view in won]:
                raise  # lost by an earlier block of this client that still is open: waiting would be for itself
            if engine.runtime.now() >= wish.give_up_at:
                raise _timed_out(keys, engine.runtime.now() - wish.started, error) from error
            # One was lost while another was waited for: start again, within the same time.
        except Exception:
            await _release_all(engine, won)
            raise
        else:
            return


async def _renew_if_older(engine: Engine, handle: Handle, least_ns: int) -> None:
    """Renew where less than *least_ns* of the lease is left, however long ``max_hold`` lets it be held.

    Raises: LockLostError; the store's error where the renewal failed.
    """
    engine.check(handle)
    if handle.deadline - engine.runtime.now() < least_ns:
        await engine.renew(handle)


def _timed_out(keys: Sequence[str], waited_ns: int, error: LockLostError) -> AcquireTimeoutError:
    waited, loss = waited_ns / NANOS, error.loss
    message = f"could not hold {len(keys)} locks together within {waited:.1f} s: {error}"
    return AcquireTimeoutError(message, key=loss.key, timeout=waited, holder=loss.record, outcome_unknown=False)


async def _release_all(engine: Engine, views: Sequence[View]) -> None:
    silences = 0
    for view in reversed(views):
        handle = view._handle
        if not engine.part(handle, view):
            continue  # others have joined it
        if silences >= SILENCES_MAX:  # each further one would wait for its time-out
            engine.discard(handle)
            continue
        try:
            await engine.release(handle, None)
        except StoreError as error:
            _log.warning("the release of lock %r was not confirmed; it is followed up: %s", handle.key, error)
        silences += type(handle.state) is Releasing
