"""What the driver of the wired store raises, and what it means to dlock."""

from __future__ import annotations

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError

__all__ = ["NoReplyError", "NoTableError", "NotARecordError", "NotSentError", "WireError", "translate"]


class WireError(Exception):
    """What the driver of this server raises."""


class NotSentError(WireError):
    """The server cannot be reached."""


class NoReplyError(WireError):
    """The request was sent, and no reply came."""


class NoTableError(WireError):
    """The server answers that there is no such table."""


class NotARecordError(WireError):
    """What the server holds is not in the form of a record."""


def translate(error: WireError, verb: str, key: str | None) -> StoreError:
    """Return the error of dlock for one of the driver's."""
    match error:
        case NotSentError():
            return StoreUnavailableError(f"{verb} was not sent: {error}", key=key)
        case NoTableError():
            return StoreSetupError("the table is missing; make it with: dlock init", key=key)
        case NotARecordError():
            return RecordError(f"the record under key {key!r} is not dlock's: {error}", key=key)
    return OutcomeUnknownError(f"no reply to {verb}: {error}", key=key)
