"""What a job that tries once and ends says of a lock that is held, and what it keeps on this host for the next run."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlock_core.clock import NANOS, boot, now_ns
from dlock_core.command.show import in_words
from dlock_core.engine.client_context import describe
from dlock_core.errors import DLockError
from dlock_core.store import Capability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.aio import AsyncLockClient
    from dlock_core.errors import AcquireTimeoutError
    from dlock_core.options import ClientOptions


def keep_observations(options: ClientOptions) -> ClientOptions:
    """Return *options* with a file of the user's for observations, if the wait may end and *options* name no place for them.

    Without such a file a job that tries once sees a dead holder's lock for the first time in every run, and never takes it over.
    The *options* are returned as they are where the file can't be had: the user has no home, or the system has no boot id.
    """
    if options.observations is not None or (options.timeout is None and options.retries is None) or boot() is None:
        return options
    store = hashlib.sha256(f"{describe(options)} {options.prefix}".encode()).hexdigest()[:16]
    with suppress(OSError, RuntimeError):
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not state.is_absolute():  # the standard has it ignored: runs in other directories would not find the file
            state = Path.home() / ".local/state"
        if not (state.is_dir() or Path.home().is_dir()):
            return options  # the missing home of an account without one is not ours to make
        folder = state / "dlock"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return options.with_(observations=folder / f"observations-{store}.json")
    return options


class EarlierLooks:
    """What earlier runs on this host have seen of some locks; made before they are asked for."""

    def __init__(self, client: AsyncLockClient, keys: Sequence[str]) -> None:
        context: Any = client._context  # of the same package
        self._engine, self._timeout_s = client._engine, context.store_timeout_s()
        observations = self._engine._observations
        self._early = context.default.timings.early
        self._seen = {context.full_key(key) for key in keys if observations.get(context.full_key(key)) is not None}

    async def last_renewal(self, key: str) -> str:
        """Say when the record under the full *key* was last renewed, as far as the store, or an earlier run on this host, can tell."""
        store: Any = self._engine.store
        with suppress(DLockError):
            if Capability.SERVER_CLOCK in store.capabilities:
                found = await store.read_age(key, timeout_s=self._timeout_s)
                # A shared record is written where somebody joins or leaves, and one that a session keeps by no renewal.
                if found is not None and found[0].members is None and found[0].session is None:
                    verb = "last renewed" if found[0].broken is None else "broken"
                    return f", {verb} {in_words(found[1] / 1000)} ago by the store's clock"
        seen = self._engine._observations.get(key)
        seconds = 0.0 if seen is None else (now_ns() - seen.seen_at) / NANOS
        return f", seen unchanged for {in_words(seconds)}" if key in self._seen and seconds >= 1 else ""

    def advice(self, error: AcquireTimeoutError) -> str | None:
        """Return what to do if the holder that *error* names has died; None if this run or a later one on this host finds out."""
        holder = error.holder
        if holder is None or holder.lease_ms is None or self._early.server_clock or self._early.skew_ns is not None:
            return None
        if error.key in self._seen:
            return None
        return (
            f"a first look cannot tell whether the holder of {error.key!r} has died; a run on this host that comes later than "
            f"{holder.lease_ms / 1000:g} s from now can. Where each run has a new host, give all runs one --clock-skew SECONDS, "
            "more than any two of their wall clocks differ: 5, for example, with NTP"
        )
