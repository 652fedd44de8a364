"""The keywords of ``lock``, ``connect`` and their kin, as types: what an editor shows where one is written.

Editors read the text below each keyword, and ``help()`` that of its option; ``python -m tests.update_options_page`` writes the one from
the other.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from pydantic import SecretStr

from dlock_core.events import LockEvent
from dlock_core.record import AttributeValue, LockRecord

__all__ = ["AcquireKeywords", "ClientKeywords", "LockKeywords", "OwnerProbe", "Seconds"]

Seconds: TypeAlias = float | timedelta
"""A duration: seconds as a number, or a timedelta. Never a bool, NaN, infinite or negative."""

OwnerProbe: TypeAlias = Literal["same-host"] | Callable[[LockRecord], Any]
"""Tells whether the owner of a record lives, by an OwnerState or its value: a function (in asyncio also a coroutine one) or, built in, the
processes of this host."""


class LockKeywords(TypedDict, total=False):
    """The keywords of ``lock_all``, ``semaphore``, ``election``, ``once``: those of :class:`AcquireKeywords` but ``mode``, ``permits``.

    ``help(dlock_core.AcquireKeywords)`` says what each means, and its default.
    """

    lease_duration: Seconds
    """Seconds until the lock of a holder that died is free; 20 by default."""
    timeout: Seconds | None
    """Seconds to wait for the lock, 0 for a single try; by default the wait has no end."""
    timeout_after_lease: bool
    """Whether the timeout starts only after the lease of the holder that was met first; off by default."""
    retries: int | None
    """Number of tries after the first one; as many as the timeout allows by default."""
    poll_period: Seconds | None
    """Longest pause between two tries, in seconds; by default it follows from the lease."""
    server_wait: bool
    """Whether a claim may wait in the server, where the store can; on by default."""
    heartbeat_period: Seconds | None
    """Seconds between two renewals; a quarter of the lease by default."""
    auto_renew: bool
    """Whether the client renews the lease in the background; on by default."""
    renewal: Literal["lock", "session", "auto"]
    """Whether each lock is renewed by itself, or a session for many, 'auto' from 16 locks on; 'lock' by default."""
    data: bytes | None
    """Bytes to store in the record, at most 64 KiB; none by default."""
    replace_data: bool
    """Whether the holder's data replaces the data in the record; on by default."""
    attributes: Mapping[str, AttributeValue]
    """Named values to store in the record: text, whole numbers, booleans, bytes; none by default."""
    only_if_exists: bool
    """Whether to acquire the key only if the store has a record of it; off by default."""
    delete_on_release: bool
    """Whether the record disappears from get and scan on release; off by default."""
    reentrant: bool | Literal["client"]
    """Whether the thread or task that holds the key may acquire it again, with 'client' any of this client; off by default."""
    handover: bool
    """Whether another thread or task may release the lock, so that its own may wait for that; off by default."""
    fail_closed: bool
    """Whether the lock has no lease and stays held until it is released or broken; off by default."""
    max_hold: Seconds | None
    """Longest time to hold the lock, in seconds; without limit by default."""
    stop_grace: Seconds | None
    """Seconds before the lock ends at which its holder is told to stop; 0 by default."""
    stall_timeout: Seconds | None
    """Longest time between two calls of the lease's progress(), in seconds; without limit by default."""
    lock_delay: Seconds
    """Seconds, at most 60, for which nobody gets the lock of a holder that died, beyond its lease; 0 by default."""
    cancel_on_loss: bool
    """Whether the loss of the lock, or stop_grace before it, cancels the task, in asyncio only; off by default."""
    weight: int
    """How many of the permits this holder takes, all or none; 1 by default."""
    clock_skew: Seconds | None
    """Trust wall clocks that are at most this many seconds apart; off by default."""
    server_clock: bool | None
    """Trust the store's clock for the age of a record; by default only where the wait is shorter than a lease."""
    owner_probe: OwnerProbe | None
    """Trust 'same-host', or a function, to tell that an owner is dead; off by default."""


class AcquireKeywords(LockKeywords, total=False):
    """The keywords of ``lock``, ``acquire``, ``try_acquire`` and ``locked``: the fields of :class:`LockOptions`."""

    mode: Literal["exclusive", "read", "write"]
    """Whether many readers or one writer may hold the key together; one holder alone by default."""
    permits: int | None
    """How many holders the key may have at once, as a semaphore; an exclusive lock by default."""


class ClientKeywords(AcquireKeywords, total=False):
    """The keywords of ``connect`` and ``aconnect``: the fields of :class:`ClientOptions`."""

    url: SecretStr | str | None
    """URL of the store; its query may hold any other option."""
    prefix: str
    """Text before every key; dlock: by default on Redis, elsewhere empty."""
    owner: str | None
    """Label that tells people who holds a lock; host:process:random digits by default."""
    request_timeout: Seconds | None
    """Longest time for one request, in seconds; by default a share of the lease, at most 10."""
    drift_bound: float
    """Share by which the rates of two clocks may differ; 0.01, one per cent, by default."""
    max_lease_duration: Seconds
    """Longest lease, in seconds, of own locks and of other holders' records; 86400 by default."""
    allow_unsafe: Collection[str]
    """Names of the store's unsafe traits to accept; none by default."""
    provision: bool
    """Whether connect creates what the store lacks, a table for example; off by default."""
    audit_period: Seconds
    """Seconds in which each lock that a session keeps is read once; 900 by default."""
    session_locks_max: int
    """How many locks one session keeps at most, all lost if it is; 10000 by default."""
    token_floor: int
    """Lowest fencing token that is granted; 1 by default."""
    observations: str | Path | MutableMapping[str, Any] | None
    """File, or mapping, that keeps what was seen of other holders for the next run; off by default."""
    on_event: Callable[[LockEvent], object] | None
    """Function that is called with each event of a lock, on a thread of its own; none by default."""
