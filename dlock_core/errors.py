"""Every error that dlock raises, and nothing else.

The facts of an error are its attributes, the driver's error is its ``__cause__``, and all of them survive pickle and copy. Where only
``args`` are kept, as Celery's results in JSON do, the message survives and the facts are unknown.
A key in an error, in a loss and in the log is the one of the store, with the client's prefix: it is for whoever looks there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlock_core.record import LockRecord, Loss

__all__ = [
    "AcquireTimeoutError",
    "ConfigurationError",
    "DLockError",
    "LeaseStateError",
    "LockLostError",
    "MissingDriverError",
    "OutcomeUnknownError",
    "RecordError",
    "StoreError",
    "StoreSetupError",
    "StoreUnavailableError",
    "UnsafeStoreError",
    "UnsupportedError",
]


def _rebuild(cls: type[DLockError], args: tuple[object, ...], facts: dict[str, object]) -> DLockError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class DLockError(Exception):
    """The root of all errors of dlock."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the message and the facts, so that keyword-only constructors survive pickle."""
        return _rebuild, (type(self), self.args, self.__dict__)


class AcquireTimeoutError(DLockError, TimeoutError):
    """The lock was not obtained within the time allowed.

    *timeout* is in seconds. *holder* is the record last seen under the key. *outcome_unknown* is true when a write of this attempt got
    no answer: it may still be applied, and is then freed by the client's clean-up, or lapses after one lease.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        timeout: float = 0.0,
        holder: LockRecord | None = None,
        outcome_unknown: bool = True,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.timeout = timeout
        self.holder = holder
        self.outcome_unknown = outcome_unknown


class LockLostError(DLockError):
    """The lock was held but is lost; *loss* says why, and what stands under the key now, if that is known."""

    loss: Loss

    def __init__(self, message: str, *, loss: Loss | None = None) -> None:
        super().__init__(message)
        if loss is not None:
            self.loss = loss


class LeaseStateError(DLockError, RuntimeError):
    """A lease or a client was used where it cannot be: after its release, in a forked child, in another event loop, closed."""


class ConfigurationError(DLockError, ValueError):
    """An option, a URL or a key is wrong, or the options do not fit together."""


class MissingDriverError(ConfigurationError, ImportError):
    """The driver of a store is not installed; the message names the exact ``pip install``."""


class UnsupportedError(ConfigurationError):
    """The store lacks a capability that was asked for."""


class UnsafeStoreError(ConfigurationError):
    """The topology of the store can grant a lock twice; *name* in ``allow_unsafe`` accepts it."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class StoreError(DLockError):
    """Trouble with the store. *key* is the full key that the request was about, or None."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class StoreUnavailableError(StoreError, ConnectionError):
    """The request was certainly not applied: nothing was written, and it is safe to repeat."""


class OutcomeUnknownError(StoreError):
    """The request may have been applied, now or later. The core resolves it by the record version number."""


class StoreSetupError(StoreError):
    """A table, index, right or server version is missing; the message names the command that mends it."""


class RecordError(StoreError, ValueError):
    """What is stored under the key is not a record of dlock, or a damaged one. It is never free and never overwritten."""
