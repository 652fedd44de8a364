"""The rows of the Node client (npm ``dynamodb-lock-client`` 0.7.3), fail-open and fail-closed, as records, and our requests on them. Pure.

A row of ``FailOpen``, and one of ``FailClosed``, which has the first three attributes only::

    {<partition key>: S, [<sort key>: S,] guid: B (64 bytes), owner: S,
     fencingToken: N, leaseDurationMs: N (1: free), [lockAcquiredTimeUnixMs: N]}

The guid is the version number. The Node client draws all of its 64 bytes and leaves it as it is at a release; ours are 16 drawn bytes and
48 zeros, fresh at each write. A client of theirs that trusts its local time takes a row without ``lockAcquiredTimeUnixMs`` at once, so each
write of ours has it. A fail-closed row is held as long as it exists.

The two must never share a table: any row is held for a fail-closed client, a row without a lease is nonsense to a fail-open one. Here the
other one's row is a foreign one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlock_core.errors import UnsupportedError
from dlock_core.record import LEASE_MAX_MS, NO_TOKEN, TOKEN_MAX, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb._rows import Write, spent

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Item, Request, Table, Value

__all__ = ["ATTRIBUTES", "NodeClosedRows", "NodeOpenRows"]

_GUID, _OWNER, _TOKEN, _LEASE, _AT = "guid", "owner", "fencingToken", "leaseDurationMs", "lockAcquiredTimeUnixMs"
ATTRIBUTES = frozenset({_GUID, _OWNER, _TOKEN, _LEASE, _AT})
_CLOSED_KINDS = {_GUID: "B", _OWNER: "S"}
_OPEN_KINDS = {**_CLOSED_KINDS, _TOKEN: "N", _LEASE: "N"}
_GUID_BYTES, _OUR_BYTES = 64, 16
_PADDING = bytes(_GUID_BYTES - _OUR_BYTES)
_OURS = re.compile(r"[0-9a-f]{32}")
_FREE_MS = 1

_CLOSED_SOUND = (
    "attribute_type(#o, :S) AND attribute_not_exists(fencingToken) AND attribute_not_exists(leaseDurationMs)"
)
_OPEN_SOUND = "attribute_type(#o, :S) AND (attribute_not_exists(#at) OR attribute_type(#at, :N))"
_SEEN = "guid = :seen AND fencingToken = :token"
_HELD = f"attribute_exists(#k) AND {_SEEN} AND leaseDurationMs BETWEEN :least AND :day AND {_OPEN_SOUND}"
_FREE = f"attribute_exists(#k) AND {_SEEN} AND leaseDurationMs = :free AND {_OPEN_SOUND}"
_LEASES: Item = {":least": {"N": str(_FREE_MS + 1)}, ":day": {"N": str(LEASE_MAX_MS)}}


def to_guid(rvn: str) -> bytes:
    """Return *rvn* as the row has it: 32 hexadecimal digits, which ours are, as 16 bytes and 48 zeros; else one character a byte."""
    if _OURS.fullmatch(rvn):
        return bytes.fromhex(rvn) + _PADDING
    return rvn.encode("latin-1")


def from_guid(guid: bytes) -> str:
    """Return the RVN that :func:`to_guid` makes *guid* of.

    Raises: ValueError: it is no guid of the Node client.
    """
    if len(guid) != _GUID_BYTES:
        raise ValueError(f"{_GUID} has {len(guid)} bytes, not {_GUID_BYTES}")
    if guid.endswith(_PADDING):
        return guid[:_OUR_BYTES].hex()
    return guid.decode("latin-1")


@dataclass(frozen=True, slots=True)
class NodeOpenRows:
    """The dialect of ``FailOpen``. *clock* gives the wall time in ms that its clients may go by; nothing here does."""

    table: Table
    clock: Callable[[], int]

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.read_by(_read_open, _OPEN_KINDS, item)

    def claim(self, claim: Claim) -> Write | None:
        """As :meth:`Rows.claim`: the row that is absent; or the free one of a version, which has to be seen first."""
        if isinstance(claim.expect, tuple):
            return self._take(claim, claim.expect)
        if not claim.must_exist:
            return self._put(claim.record, claim.record.fencing_token, _absent(self.table), {})
        return None

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """As :meth:`Rows.claim_after`: a free row is taken in the version that refused."""
        if claim.expect is Expect.ANY and refusing.state is State.FREE:
            if refusing.fencing_token >= TOKEN_MAX:
                raise spent(refusing.key)
            return self._take(claim, refusing.version)
        return None

    def change(self, change: Replace | Release) -> Write:
        """As :meth:`Rows.change`."""
        record, expected = change.record, change.expected
        values = _seen(expected) | _LEASES
        if record.state is State.HELD:
            return self._put(record, record.fencing_token, _HELD, values)
        if record.state is State.GONE:
            raise UnsupportedError(f"lock {record.key!r}: a row of the Node client that is deleted loses its token")
        # The row stays with its owner: a lease of 1 ms is what the Node client leaves.
        values |= {
            ":free": _number(_FREE_MS),
            ":g": {"B": to_guid(record.rvn)},
            ":t": _number(record.fencing_token),
            ":at": _number(self.clock()),
        }
        request = {
            "TableName": self.table.name,
            "Key": self.table.key(record.key),
            "UpdateExpression": "SET guid = :g, fencingToken = :t, leaseDurationMs = :free, #at = :at",
            "ConditionExpression": _HELD,
            "ExpressionAttributeNames": _names(self.table, _HELD),
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        return Write("update_item", request)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD:
            return None
        changes = _members(self._row(record, record.fencing_token), self.table)
        wanted = {_GUID: {"B": to_guid(expected.rvn)}, _TOKEN: _number(expected.fencing_token)}
        wanted |= self.table.key(record.key)
        sets = " ".join(f'SET "{name}"=?' for name in changes)
        conditions = " AND ".join(f'"{name}"=?' for name in wanted)
        return {
            "Statement": f'UPDATE "{self.table.name}" {sets} WHERE {conditions} AND "{_LEASE}" > {_FREE_MS} '
            f"AND attribute_type(\"{_OWNER}\", 'S') RETURNING ALL NEW *",
            "Parameters": [*changes.values(), *wanted.values()],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _take(self, claim: Claim, seen: Version) -> Write:
        token = max(seen.fencing_token + 1, claim.record.fencing_token)
        return self._put(claim.record, token, _FREE, _seen(seen) | {":free": _number(_FREE_MS)})

    def _row(self, record: LockRecord, token: int) -> Item:
        _bare(record)
        if record.lease_ms is None or record.lease_ms <= _FREE_MS:
            raise UnsupportedError(f"lock {record.key!r}: a held row of this dialect has a lease of 2 ms at least")
        row = self.table.key(record.key) | {_GUID: {"B": to_guid(record.rvn)}, _OWNER: {"S": record.owner}}
        return row | {_TOKEN: _number(token), _LEASE: _number(record.lease_ms), _AT: _number(self.clock())}

    def _put(self, record: LockRecord, token: int, condition: str, values: Item) -> Write:
        row = self._row(record, token)
        return Write("put_item", _put(self.table, row, condition, values), self.record(row))


@dataclass(frozen=True, slots=True)
class NodeClosedRows:
    """The dialect of ``FailClosed``: no lease, no token, and a release removes the row."""

    table: Table

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.read_by(_read_closed, _CLOSED_KINDS, item)

    def claim(self, claim: Claim) -> Write | None:
        """As :meth:`Rows.claim`: only a row that is absent can be claimed."""
        if claim.must_exist or isinstance(claim.expect, tuple):
            return None
        return self._put(claim.record, _absent(self.table), {})

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """As :meth:`Rows.claim_after`: a row that is there is held."""
        return None

    def change(self, change: Replace | Release) -> Write:
        """As :meth:`Rows.change`."""
        record = change.record
        condition = f"attribute_exists(#k) AND guid = :seen AND {_CLOSED_SOUND}"
        values: Item = {":seen": {"B": to_guid(change.expected.rvn)}, ":S": {"S": "S"}}
        if record.state is State.HELD:
            return self._put(record, condition, values)
        request = {
            "TableName": self.table.name,
            "Key": self.table.key(record.key),
            "ConditionExpression": condition,
            "ExpressionAttributeNames": _names(self.table, condition),
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        gone = LockRecord(record.key, record.state, record.rvn, NO_TOKEN, "", None)
        return Write("delete_item", request, gone)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: nothing is renewed here."""
        return None

    def _put(self, record: LockRecord, condition: str, values: Item) -> Write:
        _bare(record)
        if record.lease_ms is not None:
            raise UnsupportedError(f"lock {record.key!r}: a row of this dialect has no lease; set fail_closed=True")
        row = self.table.key(record.key) | {_GUID: {"B": to_guid(record.rvn)}, _OWNER: {"S": record.owner}}
        return Write("put_item", _put(self.table, row, condition, values), self.record(row))


def _read_open(key: str, item: Item) -> LockRecord:
    rvn, token, lease_ms = from_guid(item[_GUID]["B"]), int(item[_TOKEN]["N"]), int(item[_LEASE]["N"])
    owner: str = item[_OWNER]["S"]
    if _AT in item:
        int(item[_AT]["N"])
    if lease_ms == _FREE_MS:
        return LockRecord(key, State.FREE, rvn, token, "", None)
    return LockRecord(key, State.HELD, rvn, token, owner, lease_ms)


def _read_closed(key: str, item: Item) -> LockRecord:
    for name in (_TOKEN, _LEASE):
        if name in item:
            raise ValueError(f"it has {name}, and so belongs to a fail-open client")
    return LockRecord(key, State.HELD, from_guid(item[_GUID]["B"]), NO_TOKEN, item[_OWNER]["S"], None)


def _number(value: int) -> Value:
    return {"N": str(value)}


def _seen(version: Version) -> Item:
    return {
        ":seen": {"B": to_guid(version.rvn)},
        ":token": _number(version.fencing_token),
        ":S": {"S": "S"},
        ":N": {"S": "N"},
    }


def _absent(table: Table) -> str:
    names = ["#k"] if table.sort_key is None else ["#k", "#sort"]
    return " AND ".join(f"attribute_not_exists({name})" for name in names)


def _names(table: Table, condition: str) -> dict[str, Any]:
    names = {"#k": table.partition_key, "#sort": table.sort_key, "#o": _OWNER, "#at": _AT}
    return {alias: name for alias, name in names.items() if alias in condition}


def _members(row: Item, table: Table) -> Item:
    return {name: value for name, value in row.items() if name not in (table.partition_key, table.sort_key)}


def _put(table: Table, row: Item, condition: str, values: Item) -> Request:
    request: Request = {
        "TableName": table.name,
        "Item": row,
        "ConditionExpression": condition,
        "ExpressionAttributeNames": _names(table, condition),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return request | ({"ExpressionAttributeValues": values} if values else {})


def _bare(record: LockRecord) -> None:
    if record.data is not None or record.attributes:
        raise UnsupportedError(f"lock {record.key!r}: a row of the Node client has no place for data or attributes")
