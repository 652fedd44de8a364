"""Several keys at once: all of them are held in the end, or none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dlock_core.errors import AcquireTimeoutError, LockLostError, StoreError
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle
    from dlock_core.options import LockOptions
    from dlock_core.timings import Timings

__all__ = ["acquire_all"]

_log = logging.getLogger("dlock.engine")


async def acquire_all(engine: Engine, keys: Sequence[str], options: LockOptions, timings: Timings) -> list[Handle]:
    """Obtain all of *keys*, in this order, or none; those already won are renewed while the others are waited for."""
    started = engine.runtime.now()
    give_up_at = started + timings.wait_ns
    while True:
        won: list[Handle] = []
        try:
            for position, key in enumerate(keys, start=1):
                joined = engine.join(key) if options.reentrant else None
                handle = joined or await engine.acquire(key, options, timings, give_up_at, keys[position:])
                won.append(handle)
            for handle in won:
                await engine.renew_if_older(handle, timings.handout_min_ns)
        except LockLostError as error:
            await _release_all(engine, won)
            if error.loss.key not in [handle.key for handle in won]:
                raise  # lost by an earlier block of this client that still is open: waiting would be for itself
            if engine.runtime.now() >= give_up_at:
                raise _timed_out(keys, engine.runtime.now() - started, error) from error
            # One was lost while another was waited for: start again, within the same time.
        except Exception:
            await _release_all(engine, won)
            raise
        except BaseException:
            _discard_all(engine, won)
            raise
        else:
            return won


def _timed_out(keys: Sequence[str], waited_ns: int, error: LockLostError) -> AcquireTimeoutError:
    waited, loss = waited_ns / NANOS, error.loss
    message = f"could not hold {len(keys)} locks together within {waited:.1f} s: {error}"
    return AcquireTimeoutError(message, key=loss.key, timeout=waited, holder=loss.record, outcome_unknown=False)


async def _release_all(engine: Engine, handles: Sequence[Handle]) -> None:
    left = list(handles)
    try:
        while left:
            handle = left.pop()
            if not engine.part(handle):
                continue  # others have joined it
            try:
                await engine.release(handle, None)
            except StoreError as error:
                _log.warning("the release of lock %r was not confirmed; it is followed up: %s", handle.key, error)
    except BaseException:
        _discard_all(engine, left)
        raise


def _discard_all(engine: Engine, handles: Sequence[Handle]) -> None:
    for handle in handles:
        if engine.part(handle):
            engine.discard(handle)
