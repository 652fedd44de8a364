"""What the errors of stores say, in the same words whatever the server is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping


def meanings(told: Mapping[type[StoreError], Mapping[str, str]]) -> dict[str, tuple[type[StoreError], str]]:
    """Return for each code of a server its error and its hint, as *told*: hints by kind of error, for codes with blanks between them."""
    return {
        code: (kind, hint) for kind, hints in told.items() for codes, hint in hints.items() for code in codes.split()
    }


def named(key: str | None) -> str:
    """Return how a message names the lock that a request is about; without a *key* it is about all of them."""
    return "the locks" if key is None else f"lock {key!r}"


def unanswered(server: str, said: str, key: str | None, *, writes: bool) -> StoreError:
    """Return the error of a request that got no answer, with what is *said* of the reason. A read wrote nothing, in any case."""
    if writes:
        return OutcomeUnknownError(
            f"{server} did not confirm a write to {named(key)}, it may be applied: {said}", key=key
        )
    return StoreUnavailableError(
        f"{server} could not be asked about {named(key)}, nothing was written: {said}", key=key
    )


def unfit(server: str, what: str, mend: str, *, key: str | None = None) -> StoreSetupError:
    """Return the error of a server, or of what it holds, that does not fit, with what mends it."""
    return StoreSetupError(f"{server} cannot keep locks here: {what}; {mend}", key=key)
