"""Obtaining a key that this client may hold already: its lock is joined, waited for, or would be waited for by its own holder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.engine.raised import lost_error, waits_for_itself_error
from dlock_core.engine.sharing import share
from dlock_core.errors import StoreError
from dlock_core.states import Lost
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from dlock_core.engine.engine import Engine
    from dlock_core.engine.handle import Handle, View
    from dlock_core.options import LockOptions
    from dlock_core.timings import Timings


def obtain(
    engine: Engine,
    view: View,
    key: str,
    options: LockOptions,
    timings: Timings,
    *waiting: Any,
) -> Coroutine[Any, Any, object]:
    """Obtain *key* for *view*: join the lock that this client holds already, where that was asked for, or acquire it."""
    if options.is_shared:
        return share(engine, view, key, options, timings)
    if key in engine.driver.held:
        return _join_or_acquire(engine, view, key, options, timings, *waiting)
    return engine.acquire(key, options, timings, *waiting, view=view)


async def _join_or_acquire(
    engine: Engine, view: View, key: str, options: LockOptions, timings: Timings, *waiting: Any
) -> None:
    if not await _join(engine, key, options, timings, view=view):
        await engine.acquire(key, options, timings, *waiting, view=view)


async def _join(engine: Engine, key: str, options: LockOptions, timings: Timings, *, view: View) -> bool:
    """Attach *view* to the lock that this client holds under *key*; False where that is not reentrant for *view*.

    Raises:
        LockLostError: it is reentrant, but was lost, and waiting would be for itself.
        LeaseStateError: the thread or task of *view* holds it and would wait for itself.
    """
    with engine.runtime.mutex:
        handle = engine.driver.held.get(key)
        # What nobody has in hand is being released by another thread, or was dropped unreleased.
        if handle is None or not handle.is_in_hand():
            return False
        joins = _joins(handle, options, view)
        engine.keepers.notice_end(handle)
        is_lost = type(handle.state) is Lost
        if joins and not is_lost:
            handle.attach(view)
    engine.driver.tell()
    if joins and is_lost:
        raise lost_error(handle)
    if not joins and not is_lost and timings.wait_ns:
        await _check_other_holder(engine, handle, timings, view)
    return joins


def _joins(handle: Handle, options: LockOptions, view: View) -> bool:
    """Whether *view* shares the lock of *handle*: reentrant for the same thread or task, or, if both say so, for the whole client."""
    if not (handle.options.reentrant and options.reentrant):
        return False
    whole_client = handle.options.reentrant == options.reentrant == "client"
    return whole_client or handle.lease_of(view._caller) is not None


async def _check_other_holder(engine: Engine, handle: Handle, timings: Timings, view: View) -> None:
    """Raise LeaseStateError if the thread or task of *view* holds the lock, so that nobody else ends the wait.

    A lease that is not renewed ends by itself, and the store is asked first: the lock may have been broken.
    """
    holder = handle.lease_of(view._caller)
    if holder is None or handle.options.handover or not handle.options.auto_renew:
        return
    try:
        record = await engine.store.read(handle.key, timeout_s=timings.acquire_timeout_ns / NANOS)
    except StoreError:  # the acquire that follows meets the same trouble, and tells it
        return
    if record is not None and record.held and handle.wrote(record):
        raise waits_for_itself_error(handle.key, holder, view, engine.runtime.caller_kind)
