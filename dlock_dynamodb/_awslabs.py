"""The rows of the Java client (``com.amazonaws:dynamodb-lock-client``, 1.0.0 to 1.4.0) as records, and our requests on them. Pure.

A row::

    {<partition key>: S, [<sort key>: S,] ownerName: S, leaseDuration: S (ms, decimal), recordVersionNumber: S (a UUID),
     [isReleased: S "1",] [data: B,] [<any other>: any type]}

It holds no token and no time. Present, ``isReleased`` means free whatever the rest says; the Java client leaves the version number as it is
when it sets that. **Ours is fresh then too**: a Java waiter that still counts the lease of the old number would otherwise take the marked
row over, by an update that leaves the mark in place, and a third client would take it from that owner.

What we write is conditional on more than what the Java client asks for, never on less: the version number always, on ``isReleased`` as it
was seen, and on the types of the protocol's attributes, so that nothing damaged is written over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlock_core.errors import UnsupportedError
from dlock_core.record import DATA_MAX_BYTES, LEASE_MAX_MS, NO_TOKEN, AttributeValue, LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb._rows import Write
from dlock_dynamodb._wire import attribute, plain

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Item, Request, Table, Value

__all__ = ["ATTRIBUTES", "AwslabsRows"]

_OWNER, _LEASE, _RVN, _RELEASED, _DATA = "ownerName", "leaseDuration", "recordVersionNumber", "isReleased", "data"
# Times that private builds of the client write: left in a row that we renew they would make it look dead.
_TIMES = ("lastTouchedAt", "lookupTime")
ATTRIBUTES = frozenset({_OWNER, _LEASE, _RVN, _RELEASED, _DATA, *_TIMES})
_KINDS = {_OWNER: "S", _LEASE: "S", _RVN: "S"}
_MARK: Value = {"S": "1"}
_INTEGER_MAX = 2**63 - 1

_OURS = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AS_IT_IS = "="

# An expression knows no pattern. What can be told from a lease's text is; one that ends in "s" is the Go client's, whose rows are another
# format under the same names.
_SOUND = (
    "attribute_type(ownerName, :S) AND attribute_type(leaseDuration, :S) AND leaseDuration BETWEEN :least AND :most "
    "AND (size(leaseDuration) < :digits OR (size(leaseDuration) = :digits AND leaseDuration <= :day)) "
    "AND NOT contains(leaseDuration, :s) AND NOT contains(leaseDuration, :e) AND NOT contains(leaseDuration, :point) "
    "AND (attribute_not_exists(#d) OR (attribute_type(#d, :B) AND size(#d) <= :large))"
)
_SOUND_VALUES: Item = {
    ":S": {"S": "S"},
    ":B": {"S": "B"},
    ":least": {"S": "1"},
    ":most": {"S": "9" * len(str(LEASE_MAX_MS))},
    ":digits": {"N": str(len(str(LEASE_MAX_MS)))},
    ":day": {"S": str(LEASE_MAX_MS)},
    ":s": {"S": "s"},
    ":e": {"S": "e"},
    ":point": {"S": "."},
    ":large": {"N": str(DATA_MAX_BYTES)},
}
_SOUND_STATEMENT = (
    "attribute_type(\"ownerName\", 'S') AND attribute_type(\"leaseDuration\", 'S') "
    'AND ("data" IS MISSING OR attribute_type("data", \'B\'))'
)
_SEEN = "recordVersionNumber = :seen"


def to_text(rvn: str) -> str:
    """Return *rvn* as the row has it: 32 hexadecimal digits, which ours are, as a UUID; all else as it is."""
    if _OURS.fullmatch(rvn):
        return f"{rvn[:8]}-{rvn[8:12]}-{rvn[12:16]}-{rvn[16:20]}-{rvn[20:]}"
    return rvn.removeprefix(_AS_IT_IS)


def from_text(text: str) -> str:
    """Return the RVN that :func:`to_text` makes *text* of."""
    if _UUID.fullmatch(text):
        return text.replace("-", "")
    return _AS_IT_IS + text if text.startswith(_AS_IT_IS) or _OURS.fullmatch(text) else text


@dataclass(frozen=True, slots=True)
class AwslabsRows:
    """The dialect. Without *trust_release_mark* a row that is marked released is held until its lease has passed unchanged."""

    table: Table
    trust_release_mark: bool = True

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.read_by(self._read, _KINDS, item)

    def claim(self, claim: Claim) -> Write | None:
        """As :meth:`Rows.claim`: the row that is absent; or the released one of a version, which has to be seen first."""
        if isinstance(claim.expect, tuple):
            return self._take(claim, claim.expect.rvn)
        if not claim.must_exist:
            return self._put(claim.record, " AND ".join(f"attribute_not_exists({name})" for name in self._names()), {})
        return None

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """As :meth:`Rows.claim_after`: a released row is taken in the version that refused."""
        if claim.expect is Expect.ANY and refusing.state is State.FREE:
            return self._take(claim, refusing.rvn)
        return None

    def change(self, change: Replace | Release) -> Write:
        """As :meth:`Rows.change`."""
        record, seen = change.record, change.expected.rvn
        # Whoever takes over raises the token: only then may an untrusted mark stand in the row, and is removed.
        takes = isinstance(change, Replace) and record.fencing_token != change.expected.fencing_token
        marked = "" if takes and not self.trust_release_mark else f" AND attribute_not_exists({_RELEASED})"
        condition = f"attribute_exists(#k) AND {_SEEN}{marked} AND {_SOUND}"
        values = {":seen": {"S": to_text(seen)}, **_SOUND_VALUES}
        if record.state is State.HELD:
            if change.keep_payload:
                return self._renew(record, condition, values)
            return self._put(record, condition, values)
        if record.state is State.GONE:
            request = self._request(record.key, condition, values) | {
                "ExpressionAttributeNames": {"#k": self.table.partition_key, "#d": _DATA}
            }
            return Write("delete_item", request, _written(record))
        return self._mark(change, condition, values)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: renewals only."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD or not replace.keep_payload or record.fencing_token != expected.fencing_token:
            return None
        changes = {_OWNER: {"S": record.owner}, _LEASE: _lease(record), _RVN: {"S": to_text(record.rvn)}}
        wanted = {_RVN: {"S": to_text(expected.rvn)}} | self.table.key(record.key)
        sets = " ".join(f'SET "{name}"=?' for name in changes)
        removes = " ".join(f'REMOVE "{name}"' for name in _TIMES)
        conditions = " AND ".join(f'"{name}"=?' for name in wanted)
        return {
            "Statement": f'UPDATE "{self.table.name}" {sets} {removes} WHERE {conditions} AND "{_RELEASED}" IS MISSING '
            f"AND {_SOUND_STATEMENT} RETURNING ALL NEW *",
            "Parameters": [*changes.values(), *wanted.values()],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    # ---- rows

    def _read(self, key: str, item: Item) -> LockRecord:
        owner, rvn, lease = item[_OWNER]["S"], from_text(item[_RVN]["S"]), item[_LEASE]["S"]
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", lease):
            raise ValueError(f"{_LEASE} {lease!r} is not a number of milliseconds")
        if item.get(_RELEASED, _MARK) != _MARK:
            raise ValueError(f'{_RELEASED} is {item[_RELEASED]}, not the text "1"')
        data = item[_DATA]["B"] if _DATA in item else None
        ours = ATTRIBUTES | {self.table.partition_key, self.table.sort_key}
        attributes = tuple(
            sorted(
                (name, read) for name, value in item.items() if name not in ours if (read := _known(value)) is not None
            )
        )
        held = LockRecord(key, State.HELD, rvn, NO_TOKEN, owner, int(lease), data, attributes)
        if _RELEASED not in item or not self.trust_release_mark:
            return held
        return LockRecord(key, State.FREE, rvn, NO_TOKEN, "", None, data, attributes)

    def _row(self, record: LockRecord) -> Item:
        row = self.table.key(record.key)
        row |= {_OWNER: {"S": record.owner}, _LEASE: _lease(record), _RVN: {"S": to_text(record.rvn)}}
        return row | self._payload(record)

    def _payload(self, record: LockRecord) -> Item:
        reserved = ATTRIBUTES | {self.table.partition_key, self.table.sort_key}
        for name, _ in record.attributes:
            if name in reserved:
                raise UnsupportedError(f"attribute {name!r} of lock {record.key!r} is one of the row itself")
        data: Item = {} if record.data is None else {_DATA: {"B": record.data}}
        return data | {name: plain(value) for name, value in record.attributes}

    def _names(self) -> list[str]:
        return ["#k"] if self.table.sort_key is None else ["#k", "#sort"]

    # ---- requests

    def _take(self, claim: Claim, seen: str) -> Write:
        condition = f"attribute_exists(#k) AND {_RELEASED} = :mark AND {_SEEN} AND {_SOUND}"
        # Where marks are not trusted no row is free, and a claim that expects one is refused.
        mark: Value = _MARK if self.trust_release_mark else {"S": "untrusted"}
        values: Item = {":mark": mark, ":seen": {"S": to_text(seen)}, **_SOUND_VALUES}
        if claim.keep_payload:
            return self._renew(claim.record, condition, values)
        return self._put(claim.record, condition, values)

    def _put(self, record: LockRecord, condition: str, values: Item) -> Write:
        """Write the whole row: what else stood in it is gone, as with the Java client."""
        row = self._row(record)
        request: Request = {
            "TableName": self.table.name,
            "Item": row,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": self._used_names(condition),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if values:
            request["ExpressionAttributeValues"] = values
        return Write("put_item", request, self.record(row))

    def _renew(self, record: LockRecord, condition: str, values: Item) -> Write:
        """Write owner, lease and number; data and attributes of others stay."""
        update = (
            f"SET ownerName = :o, leaseDuration = :l, recordVersionNumber = :r REMOVE {_RELEASED}, {', '.join(_TIMES)}"
        )
        values = values | {":o": {"S": record.owner}, ":l": _lease(record), ":r": {"S": to_text(record.rvn)}}
        return self._update(record.key, update, condition, values, {})

    def _mark(self, change: Replace | Release, condition: str, values: Item) -> Write:
        """Mark the row released, under a fresh number; owner and lease stay, as the Java client wants them to."""
        record, names = change.record, {}
        update, removed = f"SET {_RELEASED} = :mark, recordVersionNumber = :r", f" REMOVE {', '.join(_TIMES)}"
        values = values | {":mark": _MARK, ":r": {"S": to_text(record.rvn)}}
        if not change.keep_payload:
            for number, (name, value) in enumerate(sorted(self._payload(record).items())):
                alias = "#d" if name == _DATA else f"#a{number}"
                names[alias], values[f":a{number}"] = name, value
                update += f", {alias} = :a{number}"
            if record.data is None:
                removed += ", #d"
        return self._update(record.key, update + removed, condition, values, names)

    def _update(self, key: str, update: str, condition: str, values: Item, names: dict[str, str]) -> Write:
        request = self._request(key, condition, values) | {
            "UpdateExpression": update,
            "ExpressionAttributeNames": self._used_names(condition) | names,
            "ReturnValues": "ALL_NEW",
        }
        return Write("update_item", request)

    def _request(self, key: str, condition: str, values: Item) -> Request:
        return {
            "TableName": self.table.name,
            "Key": self.table.key(key),
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _used_names(self, condition: str) -> dict[str, str]:
        names: dict[str, Any] = {"#k": self.table.partition_key, "#sort": self.table.sort_key, "#d": _DATA}
        return {alias: name for alias, name in names.items() if alias in condition}


def _lease(record: LockRecord) -> Value:
    if record.lease_ms is None:
        raise UnsupportedError(f"lock {record.key!r}: a row of the Java client always has a lease")
    return {"S": str(record.lease_ms)}


def _known(value: Value) -> AttributeValue | None:
    """Return an additional attribute as ours, or None where it is of a type or size that ours can't be: it is not shown then."""
    try:
        known = attribute(value)
    except ValueError:
        return None
    return None if type(known) is int and abs(known) > _INTEGER_MAX else known


def _written(record: LockRecord) -> LockRecord:
    """Return what a deletion leaves to be told: the record as it was asked for, and no token."""
    return LockRecord(record.key, record.state, record.rvn, NO_TOKEN, "", None)
