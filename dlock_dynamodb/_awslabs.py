"""The rows of the Java client (``com.amazonaws:dynamodb-lock-client``, 1.0.0 to 1.4.0) as records, and our requests on them. Pure.

A row::

    {<partition key>: S, [<sort key>: S,] ownerName: S, leaseDuration: S (ms, decimal), recordVersionNumber: S (a UUID),
     [isReleased: S "1",] [data: B,] [<any other>: any type]}

It holds no token and no time. Present, ``isReleased`` means free whatever the rest says; the Java client leaves the version number as it is
when it sets that. **Ours is fresh then too**: a Java waiter that still counts the lease of the old number would otherwise take the marked
row over, by an update that leaves the mark in place, and a third client would take it from that owner.

With tokens in rows of their own (:mod:`dlock_dynamodb._tokens`) a row of ours has one attribute more, ``dlockToken`` (S): the token, and
the version number that it belongs to. Under another number it says nothing: a Java client that updates a row leaves what it does not know.

What we write is conditional on more than what the Java client asks for, never on less: the version number always, on ``isReleased`` as it
was seen, and on the types of the protocol's attributes, so that nothing damaged is written over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlock_core.errors import UnsupportedError
from dlock_core.record import (
    DATA_MAX_BYTES,
    LEASE_MAX_MS,
    NO_TOKEN,
    TOKEN_MAX,
    AttributeValue,
    LockRecord,
    State,
    Version,
)
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb._rows import Write, spent
from dlock_dynamodb._tokens import TOKEN, takes, token_of, token_value
from dlock_dynamodb._wire import attribute, plain

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Item, Request, Table, Value

__all__ = ["ATTRIBUTES", "AwslabsRows"]

_OWNER, _LEASE, _RVN, _RELEASED, _DATA = "ownerName", "leaseDuration", "recordVersionNumber", "isReleased", "data"
# Times that private builds of the client write: left in a row that we renew they would make it look dead.
_TIMES = ("lastTouchedAt", "lookupTime")
ATTRIBUTES = frozenset({_OWNER, _LEASE, _RVN, _RELEASED, _DATA, TOKEN, *_TIMES})
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
    """The dialect. Without *trust_release_mark* a row that is marked released is held until its lease has passed unchanged.

    With *counted* rows carry the token that a row beside them gave; without it every record says that there is none.
    """

    table: Table
    trust_release_mark: bool = True
    counted: bool = False

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.read_by(self._read, _KINDS, item)

    def claim(self, claim: Claim) -> Write | None:
        """As :meth:`Rows.claim`: the row that is absent; or the released one of a version, which has to be seen first."""
        if isinstance(claim.expect, tuple):
            return self._take(claim, claim.expect)
        if not claim.must_exist:
            absent = " AND ".join(f"attribute_not_exists({name})" for name in self._names())
            return self._put(claim.record, NO_TOKEN, absent, {})
        return None

    def claim_after(self, claim: Claim, refusing: LockRecord) -> Write | None:
        """As :meth:`Rows.claim_after`: a released row is taken in the version that refused."""
        if claim.expect is Expect.ANY and refusing.state is State.FREE:
            if refusing.fencing_token >= TOKEN_MAX:
                raise spent(refusing.key)
            return self._take(claim, refusing.version)
        return None

    def change(self, change: Replace | Release) -> Write:
        """As :meth:`Rows.change`."""
        record = change.record
        # Whoever takes over raises the token: only then may an untrusted mark stand in the row, and is removed.
        raises = isinstance(change, Replace) and record.fencing_token != change.expected.fencing_token
        marked = "" if raises and not self.trust_release_mark else f" AND attribute_not_exists({_RELEASED})"
        seen, values = self._seen(change.expected)
        condition = f"attribute_exists(#k) AND {seen}{marked} AND {_SOUND}"
        # A takeover has its token when the row is its own.
        token = NO_TOKEN if isinstance(change, Replace) and takes(change) else record.fencing_token
        if record.state is State.HELD:
            if change.keep_payload:
                return self._renew(record, token, condition, values)
            return self._put(record, token, condition, values)
        if record.state is State.GONE:
            request = self._request(record.key, condition, values) | {
                "ExpressionAttributeNames": {"#k": self.table.partition_key, "#d": _DATA}
            }
            return Write("delete_item", request, self._deleted(record))
        return self._mark(change, condition, values)

    def number(self, record: LockRecord, token: int) -> Write:
        """Return the request that writes *token* into the row of a grant, as long as that is its *record*."""
        condition = f"attribute_exists(#k) AND {_SEEN} AND attribute_not_exists({_RELEASED})"
        values: Item = {":seen": {"S": to_text(record.rvn)}, ":token": token_value(token, to_text(record.rvn))}
        return self._update(record.key, f"SET {TOKEN} = :token", condition, values, {})

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: renewals only."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD or not replace.keep_payload or record.fencing_token != expected.fencing_token:
            return None
        if self.counted and expected.fencing_token is NO_TOKEN:
            return None  # it takes more than one request
        changes = {_OWNER: {"S": record.owner}, _LEASE: _lease(record), _RVN: {"S": to_text(record.rvn)}}
        changes |= self._token(record.rvn, record.fencing_token)
        wanted = {_RVN: {"S": to_text(expected.rvn)}} | self.table.key(record.key)
        wanted |= self._token(expected.rvn, expected.fencing_token)
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
        token = token_of(item, item[_RVN]["S"]) if self.counted else NO_TOKEN
        held = LockRecord(key, State.HELD, rvn, token, owner, int(lease), data, attributes)
        if _RELEASED not in item or not self.trust_release_mark:
            return held
        return LockRecord(key, State.FREE, rvn, token, "", None, data, attributes)

    def _row(self, record: LockRecord, token: int) -> Item:
        row = self.table.key(record.key)
        row |= {_OWNER: {"S": record.owner}, _LEASE: _lease(record), _RVN: {"S": to_text(record.rvn)}}
        return row | self._token(record.rvn, token) | self._payload(record)

    def _token(self, rvn: str, token: int) -> Item:
        """Return the attribute that says that the grant of *rvn* has this token; nothing where there is none."""
        if not self.counted or token is NO_TOKEN:
            return {}
        return {TOKEN: token_value(token, to_text(rvn))}

    def _seen(self, version: Version) -> tuple[str, Item]:
        """Return the condition that the row is of *version*, and its values."""
        values: Item = {":seen": {"S": to_text(version.rvn)}, **_SOUND_VALUES}
        if token := self._token(version.rvn, version.fencing_token):
            return f"{_SEEN} AND {TOKEN} = :mine", values | {":mine": token[TOKEN]}
        return _SEEN, values

    def _deleted(self, record: LockRecord) -> LockRecord:
        """Return what a deletion leaves to be told: the record as it was asked for."""
        token = record.fencing_token if self.counted else NO_TOKEN
        return LockRecord(record.key, record.state, record.rvn, token, "", None)

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

    def _take(self, claim: Claim, version: Version) -> Write:
        seen, values = self._seen(version)
        condition = f"attribute_exists(#k) AND {_RELEASED} = :mark AND {seen} AND {_SOUND}"
        # Where marks are not trusted no row is free, and a claim that expects one is refused.
        mark: Value = _MARK if self.trust_release_mark else {"S": "untrusted"}
        values |= {":mark": mark}
        if claim.keep_payload:
            return self._renew(claim.record, NO_TOKEN, condition, values)
        return self._put(claim.record, NO_TOKEN, condition, values)

    def _put(self, record: LockRecord, token: int, condition: str, values: Item) -> Write:
        """Write the whole row: what else stood in it is gone, as with the Java client."""
        row = self._row(record, token)
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

    def _renew(self, record: LockRecord, token: int, condition: str, values: Item) -> Write:
        """Write owner, lease, number and token; data and attributes of others stay."""
        sets, removed = "ownerName = :o, leaseDuration = :l, recordVersionNumber = :r", [_RELEASED, *_TIMES]
        values = values | {":o": {"S": record.owner}, ":l": _lease(record), ":r": {"S": to_text(record.rvn)}}
        if written := self._token(record.rvn, token):
            sets, values = f"{sets}, {TOKEN} = :token", values | {":token": written[TOKEN]}
        elif self.counted:
            removed.append(TOKEN)
        return self._update(record.key, f"SET {sets} REMOVE {', '.join(removed)}", condition, values, {})

    def _mark(self, change: Replace | Release, condition: str, values: Item) -> Write:
        """Mark the row released, under a fresh number; owner and lease stay, as the Java client wants them to."""
        record, names = change.record, {}
        update, removed = f"SET {_RELEASED} = :mark, recordVersionNumber = :r", f" REMOVE {', '.join(_TIMES)}"
        values = values | {":mark": _MARK, ":r": {"S": to_text(record.rvn)}}
        if token := self._token(record.rvn, record.fencing_token):
            update, values = f"{update}, {TOKEN} = :token", values | {":token": token[TOKEN]}
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
