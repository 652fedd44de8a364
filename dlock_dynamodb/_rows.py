"""What the store needs to know of a dialect: how its rows are read, and the requests of the verbs. Pure.

A dialect is the row format of one client: our own (:mod:`dlock_dynamodb._wire`), or that of a client of another language whose locks we
share. It decides nothing: it compares what the request says, and writes what it says, in the other client's spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dlock_core.errors import StoreUnavailableError
from dlock_core.record import TOKEN_MAX, State
from dlock_dynamodb._wire import outgrown, takeable

if TYPE_CHECKING:
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Release, Replace
    from dlock_dynamodb._wire import Item, Request, Table

__all__ = ["DlockRows", "Rows", "Write", "spent"]


class Write(NamedTuple):
    """One conditional write: the operation of the driver, its request, and what stands after it where the answer does not show that."""

    operation: str
    request: Request
    written: LockRecord | None = None


class Rows(Protocol):
    """A dialect over one table."""

    def record(self, item: Item) -> LockRecord:
        """Return the record that *item* is; RecordError: it is none of this dialect, or damaged."""
        ...

    def claim(self, claim: Claim) -> Write | None:
        """Return the first request of *claim*; None where the row has to be read first."""
        ...

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """Return the request that follows the refusal of the first by *refusing*; None where it is the answer."""
        ...

    def change(self, change: Replace | Release) -> Write:
        """Return the request of a replace or a release."""
        ...

    def statement(self, replace: Replace) -> Request | None:
        """Return *replace* as a statement of a batch; None where it can't be one."""
        ...


@dataclass(frozen=True, slots=True)
class DlockRows:
    """Our own rows."""

    table: Table

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.record(item)

    def claim(self, claim: Claim) -> Write:
        """As :meth:`Rows.claim`."""
        return Write("update_item", self.table.claim(claim))

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """As :meth:`Rows.claim_after`: where the token asked for was not above the one that stands, count on from that."""
        if takeable(claim, refusing) and refusing.fencing_token >= TOKEN_MAX:
            raise spent(refusing.key)
        return Write("update_item", self.table.claim(claim, above=True)) if outgrown(claim, refusing) else None

    def change(self, change: Replace | Release) -> Write:
        """As :meth:`Rows.change`."""
        return Write("update_item", self.table.replace(change))

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`."""
        return self.table.statement(replace) if replace.record.state is State.HELD else None


def spent(key: str) -> StoreUnavailableError:
    """Return the error of a key whose tokens have come to their end."""
    return StoreUnavailableError(f"the fencing token of key {key!r} has reached its end, {TOKEN_MAX}", key=key)
