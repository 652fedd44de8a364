"""Several keys at once: all of them are held in the end, or none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dlock_core.engine.joining import obtain
from dlock_core.errors import AcquireTimeoutError, LockLostError, StoreError
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import View
    from dlock_core.options import LockOptions
    from dlock_core.timings import Timings

__all__ = ["acquire_all"]

_log = logging.getLogger("dlock.engine")


async def acquire_all(
    engine: Engine, keys: Sequence[str], views: Sequence[View], options: LockOptions, timings: Timings
) -> None:
    """Obtain all of *keys* for *views*, in this order, or none; those already won are renewed while the others are waited for."""
    started = engine.runtime.now()
    give_up_at = started + timings.wait_ns
    while True:
        won: list[View] = []
        try:
            for position, (key, view) in enumerate(zip(keys, views, strict=True), start=1):
                await obtain(engine, view, key, options, timings, give_up_at, keys[position:])
                won.append(view)
            for view in won:
                await engine.renew_if_older(view._handle, timings.handout_min_ns)
        except LockLostError as error:
            await _release_all(engine, won)
            if error.loss.key not in [view._handle.key for view in won]:
                raise  # lost by an earlier block of this client that still is open: waiting would be for itself
            if engine.runtime.now() >= give_up_at:
                raise _timed_out(keys, engine.runtime.now() - started, error) from error
            # One was lost while another was waited for: start again, within the same time.
        except Exception:
            await _release_all(engine, won)
            raise
        else:
            return


def _timed_out(keys: Sequence[str], waited_ns: int, error: LockLostError) -> AcquireTimeoutError:
    waited, loss = waited_ns / NANOS, error.loss
    message = f"could not hold {len(keys)} locks together within {waited:.1f} s: {error}"
    return AcquireTimeoutError(message, key=loss.key, timeout=waited, holder=loss.record, outcome_unknown=False)


async def _release_all(engine: Engine, views: Sequence[View]) -> None:
    for view in reversed(views):
        handle = view._handle
        if not engine.part(handle, view):
            continue  # others have joined it
        try:
            await engine.release(handle, None)
        except StoreError as error:
            _log.warning("the release of lock %r was not confirmed; it is followed up: %s", handle.key, error)
