"""What each error of kazoo means for the request that it answers: one table."""

from __future__ import annotations

from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError

from dlock_core.errors import RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import named, unanswered

TROUBLE = (exceptions.KazooException, KazooTimeoutError, OSError)

# What says that a request was certainly not applied, now or later. What is not here is unknown: kazoo raises ConnectionLoss and
# SessionExpiredError for what was sent as for what was not.
_REFUSED: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (exceptions.NoAuthError, StoreSetupError, "the user lacks a right; see `dlock doctor --policy --url URL`"),
    (exceptions.InvalidACLError, StoreSetupError, "the server knows no such user; check user and password"),
    (exceptions.AuthFailedError, StoreSetupError, "check user and password"),
    (
        exceptions.SessionClosedRequireSaslError,
        StoreSetupError,
        "the server asks each client for a user: zookeeper://USER:PASSWORD@HOST, where it takes digests",
    ),
    (exceptions.UnimplementedError, StoreSetupError, "update the server to ZooKeeper 3.5 or newer"),
    (exceptions.NotReadOnlyCallError, StoreUnavailableError, "the server is read-only: it has lost its majority"),
    (
        exceptions.QuotaExceededError,
        StoreUnavailableError,
        "raise the quota of the nodes: renewals need room for one each, too",
    ),
    (exceptions.ThrottledOpError, StoreUnavailableError, "the server is overloaded"),
    (exceptions.NoNodeError, StoreSetupError, "make the chroot of the client that was given"),
    (exceptions.NotEmptyError, RecordError, "the record has nodes of another recipe; give dlock a root of its own"),
)


def error_of(error: Exception, key: str | None, *, writes: bool) -> StoreError | None:
    """Return dlock's error for one of the driver, or None if it is not the driver's. A read that got no answer wrote nothing."""
    shown = named(key)
    # Of the call, before a request: one that was sent ends with an error of kazoo's.
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(f"the time-out of the call is too short, nothing was written to {shown}", key=key)
    if not isinstance(error, TROUBLE):
        return None
    said = "no answer in time" if isinstance(error, KazooTimeoutError) else f"{type(error).__name__} {error}".strip()
    for kind, ours, hint in _REFUSED:
        if isinstance(error, kind):
            return ours(f"ZooKeeper refused, nothing was written to {shown}: {said}; {hint}", key=key)
    return unanswered("ZooKeeper", said, key, writes=writes)


def no_root(root: str, chroot: str) -> StoreSetupError:
    """Return the error of a root that is not there, below the *chroot* of a client of the user's or the servers' own root."""
    return StoreSetupError(
        f"ZooKeeper has no node '{chroot}/{root}', nothing was written; 'dlock init --url URL' creates it"
    )
