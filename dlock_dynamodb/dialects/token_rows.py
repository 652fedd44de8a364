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
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.errors import RecordError, StoreSetupError
from dlock_core.kit import tokens_exhausted
from dlock_core.record import NO_TOKEN, TOKEN_MAX, State
from dlock_dynamodb._wire import ABSENT, Table, number, text

if TYPE_CHECKING:
    from dlock_core.record import LockRecord
    from dlock_core.store import Release, Replace
    from dlock_dynamodb._wire import Ask, Item, Value
    from dlock_dynamodb.dialects.awslabs import AwslabsRows

__all__ = ["PREFIX", "TOKEN", "Counts", "is_count", "lacks_token", "takes", "token_of", "token_value"]

PREFIX = "dlock-token:"
TOKEN = "dlockToken"  # noqa: S105  # the name of an attribute, no secret
_OWNER = "dlock fencing tokens"
_LEASE_MS = 100 * 365 * 24 * 60 * 60 * 1000
_RVN = "00000000-0000-0000-0000-000000000000"
_NUMBER = re.compile(r"[1-9][0-9]{0,15}")

_SOUND = f"attribute_type({TOKEN}, :N) AND ownerName = :owner"
_REST = "ownerName = :owner, leaseDuration = :lease, recordVersionNumber = :rvn"
_REST_VALUES: Item = {":owner": text(_OWNER), ":lease": text(str(_LEASE_MS)), ":rvn": text(_RVN)}


def token_value(token: int, rvn: str) -> Value:
    """Return the attribute of a lock's row: *token*, given to the grant under the version number *rvn*."""
    return text(f"{token} {rvn}")


def token_of(item: Item, rvn: str) -> int:
    """Return the token of the lock's row *item* under the version number *rvn*; NO_TOKEN where it was given to another, or to none."""
    token, _, given_to = item.get(TOKEN, {}).get("S", "").partition(" ")
    return int(token) if given_to == rvn and _NUMBER.fullmatch(token) else NO_TOKEN


def takes(change: Replace | Release) -> bool:
    """Whether *change* is a takeover: a grant, whose token is drawn after it. A break grants nothing."""
    record = change.record
    return (
        record.state is State.HELD and record.broken is None and record.fencing_token != change.expected.fencing_token
    )


def lacks_token(record: LockRecord) -> bool:
    """Whether *record*, which is ours, is a grant without its token."""
    return record.state is State.HELD and record.fencing_token is NO_TOKEN


def is_count(item: Item, partition_key: str) -> bool:
    """Whether *item* is a row of tokens, and so no lock."""
    return item[partition_key]["S"].startswith(PREFIX) and item.get("ownerName") == {"S": _OWNER}


class Counts(NamedTuple):
    """The rows that count the tokens of *rows*."""

    table: Table
    rows: AwslabsRows

    def check(self, key: str) -> None:
        """Refuse the key of a row that counts.

        Raises: StoreSetupError: *key* is one.
        """
        if key.startswith(PREFIX):
            raise StoreSetupError(
                f"lock {key!r}: keys that begin with {PREFIX!r} are those of the rows with the tokens"
            )

    def draw(self, key: str, least: int) -> Ask:
        """Return the request of the next token of *key*; it is refused where that would be less than *least*, or the last was given."""
        condition = f"{TOKEN} BETWEEN :low AND :high AND {_SOUND}"
        if least == 1:
            condition = f"{ABSENT} OR ({condition})"
        values = {":low": number(least - 1), ":high": number(TOKEN_MAX - 1)}
        return self._update(key, f"if_not_exists({TOKEN}, :zero) + :one", condition, values)

    def after(self, key: str, least: int, item: Item | None) -> Ask:
        """Return the request that follows when *item* refused one.

        Raises:
            RecordError: it is none of these rows.
            StoreUnavailableError: it has given the last token.
        """
        last = 0 if item is None else self.last(key, item)
        if last >= TOKEN_MAX:
            raise tokens_exhausted(key)
        if last >= least:
            return self.draw(key, least)
        condition = f"{ABSENT} OR ({TOKEN} < :least AND {_SOUND})"
        return self._update(key, ":least", condition, {":least": number(least)})

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

    def _update(self, key: str, count: str, condition: str, values: Item) -> Ask:
        row = self.table.key(key)
        row[self.table.partition_key] = text(PREFIX + row[self.table.partition_key]["S"])
        return self.table.update(row, f"SET {TOKEN} = {count}, {_REST}", condition, values | _REST_VALUES)
