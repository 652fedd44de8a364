"""The end of a client: everything that it holds is released, and what is unresolved is followed up for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.engine.driver import new_rvn
from dlock_core.engine.event_hook import drain
from dlock_core.engine.handle import Handle
from dlock_core.engine.raised import unresolved_error
from dlock_core.errors import LeaseStateError, OutcomeUnknownError
from dlock_core.states import Cleaning, Ended, Held, Lost, Releasing, Retry
from dlock_core.timings import NANOS, NEVER

if TYPE_CHECKING:
    from dlock_core.engine.engine import Engine

# How often a client that is being closed looks for what is unresolved, within one request time-out.
_LOOKS = 8
SILENCES_MAX = 2  # after so many releases without an answer the others are not tried


async def release_all(engine: Engine, until: int) -> list[Exception]:
    """Release everything, going on after errors; return them. Past *until*, or if the store is silent, what is left lapses.

    Sessions end after the locks that they keep, or, with an *until*, in their place.

    Holders in other threads and tasks are told to stop. Of those a term or a job is given back by its body alone, for whose end this waits
    for the stop grace. Interrupted, it leaves the rest to the scheduler.
    """
    errors: list[Exception] = []
    caller, silences = engine.runtime.caller(), 0
    with engine.runtime.mutex:  # no body begins behind it, since the client is closed
        held = list(engine.driver.held.values())
        bodies = [handle for handle in held if handle.body_of not in (None, caller)]
        sessions = [handle for handle in held if handle.keeps is not None]
        locks = [handle for handle in held if handle.body_of in (None, caller) and handle.keeps is None]
    # Where time is short, the end of a session is one request for all that it keeps: whoever comes may have them at once.
    left = [handle for handle in locks if handle.renewal is handle] + sessions if until < NEVER else sessions + locks
    try:
        for handle in locks:
            if handle.lease_of(caller) is None:
                engine.driver.tell_closing(handle)
        errors += await _end_bodies(engine, bodies, until)
        while left and engine.runtime.now() < until and silences < SILENCES_MAX:
            began, handle = engine.runtime.now(), left.pop()
            try:
                await engine.release(handle, None)
            except Exception as error:  # noqa: BLE001  # collected: one must not keep the others from being released
                errors.append(error)
                silences += engine.runtime.now() - began > handle.state.terms.timings.timeout_ns // 2
            else:
                silences = 0
    finally:
        for handle in left:
            engine.discard(handle)
    lapsing = [handle.name for handle in left if handle.state.terms.timings.lease_ms is not None]
    errors += [OutcomeUnknownError(f"no time was left to release lock {key!r}; it lapses", key=key) for key in lapsing]
    await _follow_up(engine, until)
    await drain(engine.driver)
    errors.extend(
        unresolved_error(handle.state)
        for handle in engine.driver.unresolved()
        if handle.state.terms.timings.lease_ms is None
    )
    return errors


async def _end_bodies(engine: Engine, bodies: list[Handle], until: int) -> list[Exception]:
    """Tell *bodies* to stop; return an error for each that still runs when its stop grace is over, or half of the time *until*."""
    began = engine.runtime.now()
    for handle in bodies:
        engine.driver.tell_closing(handle)
    for handle in bodies:
        end = min(began + handle.state.terms.timings.stop_grace_ns, (began + until) // 2)
        while type(handle.state) is not Ended and (left_ns := end - engine.runtime.now()) > 0:
            signal = engine.runtime.signal()
            with engine.runtime.mutex:
                handle.signals = (*handle.signals, signal)
                over = type(handle.state) is Ended
            if not over:
                await signal.wait(left_ns / NANOS)
    return [
        LeaseStateError(f"lock {handle.name!r} was not released, since its body still runs; it lapses")
        for handle in bodies
        if type(handle.state) in (Held, Lost)
    ]


async def _follow_up(engine: Engine, until: int) -> None:
    """See to what is unresolved, for one request time-out at most: a claim that was given up may be on its way still."""
    began = engine.runtime.now()
    until = min([until, *(began + handle.state.terms.timings.timeout_ns for handle in engine.driver.unresolved())])
    for _ in range(_LOOKS):
        for handle in engine.driver.unresolved():
            if not handle.busy:
                effect = engine.driver.advance_from((Releasing, Cleaning), handle, Retry(new_rvn()))
                await engine.renewals.run_one(handle, effect)
            if engine.runtime.now() >= until:
                return
        if not engine.driver.following:
            return
        await engine.runtime.pause((until - began) / _LOOKS / NANOS)
