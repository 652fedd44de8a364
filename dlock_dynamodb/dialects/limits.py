"""What the rows of each dialect can carry, and what they can't; ``guarantees()`` says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_dynamodb.dialects.awslabs import ATTRIBUTES

if TYPE_CHECKING:
    from dlock_dynamodb.options import DynamoDBStoreOptions

__all__ = ["limited"]


class _Limits(NamedTuple):
    """*refuses*: lock options without a place in the row, each with the reason."""

    token: TokenOrder
    deletes: bool
    refuses: dict[str, str]
    notes: tuple[str, ...]


_DOUBTFUL_MARKS = (
    "Java clients up to 1.4.0 that set updateExistingLockRecord may leave a release mark in a row that is held: two owners; "
    "trust_release_mark=false waits such marks out"
)
# Of the rows of all other clients.
_NO_PLACE = {
    "clock_skew": "another client's row has no place for a time stamp of ours",
    "owner_probe": "another client's row has no place for the process that holds it; give a function that knows the owners",
    "mode": "a row of this dialect has no place for several holders",
    "permits": "a row of this dialect has no place for several holders",
}
_NO_TOKEN = {"token_floor": "the rows have no fencing token"}
_NO_DATA = "a row of the Node client has no place for it"
# Also of our own rows.
_NO_CLOCK = {"server_clock": "a write to DynamoDB cannot say when it was made: expressions know no time of the server"}
_SHARED = "the locks are shared with other clients: what is promised holds as far as they keep their own rules"
_LATE = (
    "a claim that got no answer and arrives after a release is taken back by the client that sent it, while that lives and asks for the "
    "lock; else it holds the lock for nobody: 'dlock break' ends that"
)
_TAKEN = "a Java client that takes a lock replaces the row, with all attributes that are not its own"
_NO_LEASELESS = {"fail_closed": "a row of the Java client always has a lease"}
_OF_THE_ROW = {f"attributes.{name}": "is an attribute of the row itself" for name in sorted(ATTRIBUTES)}
_ORDER = (
    "rows of the Java client, with fencing tokens in a row beside each: drawn after the grant, and handed out while the lock's row still "
    "shows that grant, so a lease of ours has a greater token than those of ours before it"
)
_TIMED = (
    "token = timed: a Java holder has no token, so only clocks whose rates are bounded keep an older lease of ours from acting after it; "
    "a fenced resource refuses that one once it has seen a later lease of ours"
)
_COUNTED = _Limits(
    TokenOrder.TIMED,
    deletes=True,
    refuses=_NO_LEASELESS | _OF_THE_ROW,
    notes=(
        _ORDER,
        _TIMED,
        "an acquire costs two requests more; whoever deletes a row of tokens makes them begin anew",
        _TAKEN,
        _DOUBTFUL_MARKS,
    ),
)
_LIMITS: dict[str, _Limits] = {
    "awslabs": _Limits(
        TokenOrder.NONE,
        deletes=True,
        refuses=_NO_LEASELESS | _NO_TOKEN | _OF_THE_ROW,
        notes=(
            "rows of the Java client: they have no fencing token, nothing can be fenced; token_row=true gives those of ours one",
            _TAKEN,
            _DOUBTFUL_MARKS,
        ),
    ),
    "node-fail-open": _Limits(
        TokenOrder.ORDERED,
        deletes=False,
        refuses={
            "fail_closed": "these are the rows of FailOpen, each has a lease; the other dialect is node-fail-closed",
            "data": _NO_DATA,
            "attributes": _NO_DATA,
            "delete_on_release": "a row that is deleted loses its fencing token",
        },
        notes=(
            "rows of the Node client's FailOpen; a client that trusts its local time goes by the wall clock of ours",
        ),
    ),
    "node-fail-closed": _Limits(
        TokenOrder.NONE,
        deletes=True,
        refuses={
            "lease_duration": "a row of FailClosed has no lease; set fail_closed=True",
            **_NO_TOKEN,
            "data": _NO_DATA,
            "attributes": _NO_DATA,
            "only_if_exists": "a released lock has no row",
        },
        notes=(
            "rows of the Node client's FailClosed: no fencing token, and a lock is held until its row is removed",
            _LATE,
        ),
    ),
}


def limited(promises: Guarantees, options: DynamoDBStoreOptions) -> Guarantees:
    """Return *promises*, which are those of the table under our own rows, as the dialect of *options* can keep them."""
    limits = _COUNTED if options.token_row else _LIMITS.get(options.dialect)
    if limits is None:
        return replace(promises, refuses=tuple(_NO_CLOCK.items()))
    refuses = _NO_PLACE | limits.refuses | _NO_CLOCK
    if not options.trust_release_mark:
        refuses["only_if_exists"] = "with trust_release_mark=false no row is known to be free"
    return replace(
        promises,
        version=f"{promises.version}, dialect {options.dialect}",
        # Grade A promises an order of grants too.
        grade=Grade.B if promises.grade is Grade.A and limits.token is not TokenOrder.ORDERED else promises.grade,
        token=limits.token,
        deletes=limits.deletes,
        notes=(*promises.notes, *limits.notes, _SHARED),
        refuses=tuple(refuses.items()),
    )
