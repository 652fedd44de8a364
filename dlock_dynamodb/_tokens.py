"""Fencing tokens for rows that have none: a count for each lock, in a row of its own in the same table. Pure.

The row of the lock ``KEY``, as a client that lists the table can read it::

    {<partition key>: S "dlock-token:KEY", [<sort key>: S, as the lock's,] dlockToken: N (the last one given),
     ownerName: S "dlock fencing tokens", leaseDuration: S (a hundred years, in ms), recordVersionNumber: S (always the same)}

It outlives the lock's row, which a Java client replaces when it takes the lock and deletes when it releases it. Nobody takes it over: its
lease does not end, and it is longer than any that we accept. It is never written over where anything else stands under its key.

A token is drawn **after** the grant, and belongs to it once it stands in the lock's row beside the version number of the grant. Drawn
before, a slow client would bring a smaller token to a later grant; drawn after and handed out at once, a paused client would bring a
greater one to an earlier grant. What is drawn and never handed out leaves a gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlock_core.errors import RecordError, StoreSetupError
from dlock_core.record import NO_TOKEN, TOKEN_MAX, State
from dlock_dynamodb._rows import spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Replace
    from dlock_dynamodb._rows import Write
    from dlock_dynamodb._wire import Item, Request, Table, Value

__all__ = ["PREFIX", "TOKEN", "Counts", "is_count", "lacks_token", "least_after", "takes", "token_of", "token_value"]

PREFIX = "dlock-token:"
TOKEN = "dlockToken"  # noqa: S105  # the name of an attribute, no secret
_OWNER = "dlock fencing tokens"
_LEASE_MS = 100 * 365 * 24 * 60 * 60 * 1000
_RVN = "00000000-0000-0000-0000-000000000000"
_NUMBER = re.compile(r"[1-9][0-9]{0,15}")

_SOUND = f"attribute_type({TOKEN}, :N) AND ownerName = :owner"
_REST = "ownerName = :owner, leaseDuration = :lease, recordVersionNumber = :rvn"
_REST_VALUES: Item = {
    ":owner": {"S": _OWNER},
    ":lease": {"S": str(_LEASE_MS)},
    ":rvn": {"S": _RVN},
    ":N": {"S": "N"},
}


def token_value(token: int, number: str) -> Value:
    """Return what stands in a lock's row: *token*, given to the grant under the version *number*."""
    return {"S": f"{token} {number}"}


def token_of(item: Item, number: str) -> int:
    """Return the token of the lock's row *item* under the version *number*; NO_TOKEN where it was given to another, or to none."""
    token, _, given_to = item.get(TOKEN, {}).get("S", "").partition(" ")
    return int(token) if given_to == number and _NUMBER.fullmatch(token) else NO_TOKEN


def takes(replace: Replace) -> bool:
    """Whether *replace* is a takeover: a grant, whose token is drawn after it. A break grants nothing."""
    record = replace.record
    return (
        record.state is State.HELD and record.broken is None and record.fencing_token != replace.expected.fencing_token
    )


def least_after(claim: Claim, shown: LockRecord | None) -> int:
    """Return the least token that *claim* may give: above that of the free row that it takes, which *shown* may be."""
    seen = (
        claim.expect.fencing_token if isinstance(claim.expect, tuple) else 0 if shown is None else shown.fencing_token
    )
    return max(claim.record.fencing_token, seen + 1)


def lacks_token(record: LockRecord | None) -> bool:
    """Whether *record*, which we have just written, is a grant without its token."""
    return record is not None and record.state is State.HELD and record.fencing_token is NO_TOKEN


def is_count(item: Item, partition_key: str) -> bool:
    """Whether *item* is a row of tokens, and so no lock."""
    return item[partition_key]["S"].startswith(PREFIX) and item.get("ownerName") == {"S": _OWNER}


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows that count, over one table; *number* makes the request that writes a token into the row of its grant."""

    table: Table
    number: Callable[[LockRecord, int], Write]

    def check(self, claim: Claim) -> None:
        """Refuse what can't be counted.

        Raises:
            StoreSetupError: the key is that of a row which counts.
            StoreUnavailableError: the last token of the key was given.
        """
        if claim.record.key.startswith(PREFIX):
            raise StoreSetupError(
                f"lock {claim.record.key!r}: keys that begin with {PREFIX!r} are those of the rows with the tokens"
            )
        if isinstance(claim.expect, tuple) and claim.expect.fencing_token >= TOKEN_MAX:
            raise spent(claim.record.key)

    def draw(self, key: str, least: int) -> Request:
        """Return the request of the next token of *key*; it is refused where that would be less than *least*, or the last was given."""
        names = {"#k": self.table.partition_key} if least == 1 else {}
        condition = f"{TOKEN} BETWEEN :low AND :high AND {_SOUND}"
        values = {":zero": _number(0), ":one": _number(1), ":low": _number(least - 1), ":high": _number(TOKEN_MAX - 1)}
        if least == 1:
            condition = f"attribute_not_exists(#k) OR ({condition})"
        return self._update(key, f"if_not_exists({TOKEN}, :zero) + :one", condition, names, values)

    def jump(self, key: str, least: int) -> Request:
        """Return the request that gives *least* out; it is refused where that is not more than the last."""
        condition = f"attribute_not_exists(#k) OR ({TOKEN} < :least AND {_SOUND})"
        return self._update(key, ":least", condition, {"#k": self.table.partition_key}, {":least": _number(least)})

    def other(self, key: str, least: int, item: Item | None) -> Request:
        """Return the request that follows when *item* refused one.

        Raises:
            RecordError: it is none of these rows.
            StoreUnavailableError: it has given the last token.
        """
        last = 0 if item is None else self.last(key, item)
        if last >= TOKEN_MAX:
            raise spent(key)
        return self.jump(key, least) if last < least else self.draw(key, least)

    def last(self, key: str, item: Item) -> int:
        """Return the last token that the row *item* of *key* gave.

        Raises: RecordError: it is none of these rows.
        """
        count = item.get(TOKEN, {}).get("N", "")
        if not is_count(item, self.table.partition_key) or not _NUMBER.fullmatch(count):
            raise RecordError(
                f"the item under {PREFIX + key!r} in DynamoDB table {self.table.name!r}, where the fencing tokens of lock {key!r} should "
                "be, is another program's or damaged; look at it with 'aws dynamodb get-item', dlock never overwrites it",
                key=key,
            )
        return int(count)

    def _update(self, key: str, count: str, condition: str, names: dict[str, str], values: Item) -> Request:
        row = self.table.key(key)
        row[self.table.partition_key] = {"S": PREFIX + row[self.table.partition_key]["S"]}
        request: Request = {
            "TableName": self.table.name,
            "Key": row,
            "UpdateExpression": f"SET {TOKEN} = {count}, {_REST}",
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values | _REST_VALUES,
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        return request | ({"ExpressionAttributeNames": names} if names else {})


def _number(value: int) -> Value:
    return {"N": str(value)}
