"""The rows of the Java client (``com.amazonaws:dynamodb-lock-client``, 1.0.0 to 1.4.0) as records, and our requests on them. Pure.

A row::

    {<partition key>: S, [<sort key>: S,] ownerName: S, leaseDuration: S (ms, decimal), recordVersionNumber: S (a UUID),
     [isReleased: S "1",] [data: B,] [<any other>: any type]}

It holds no token and no time. Where ``isReleased`` stands, the lock is free whatever the rest says; the Java client leaves the version
number as it is when it sets that. **Ours is fresh then too**: a Java waiter that still counts the lease of the old number would otherwise
take the marked row over, by an update that leaves the mark in place, and a third client would take it from that owner.

With tokens in rows of their own (:mod:`dlock_dynamodb.dialects.token_rows`) a row of ours has one attribute more, ``dlockToken`` (S): the
token, and the version number that it belongs to. Under another number it says nothing: a Java client that updates a row leaves the
attributes that it does not know.

Our conditions compare more than those of the Java client, never less: the version number always, ``isReleased`` as it was seen, and the
types of the protocol's attributes, so that nothing damaged is written over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.errors import UnsupportedError
from dlock_core.record import DATA_MAX_BYTES, LEASE_MAX_MS, NO_TOKEN, AttributeValue, LockRecord, State, Version
from dlock_core.store import Claim, Release, Replace
from dlock_dynamodb._wire import ABSENT, Table, field, in_statement, number, text
from dlock_dynamodb.dialects.token_rows import TOKEN, takes, token_of, token_value

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Ask, Item, Request, Value

__all__ = ["ATTRIBUTES", "AwslabsRows"]

_OWNER, _LEASE, _RVN, _RELEASED, _DATA = "ownerName", "leaseDuration", "recordVersionNumber", "isReleased", "data"
# Times that private builds of the client write: left in a row that we renew they would make it look dead.
_TIMES = ("lastTouchedAt", "lookupTime")
ATTRIBUTES = frozenset({_OWNER, _LEASE, _RVN, _RELEASED, _DATA, TOKEN, *_TIMES})
_MARK: Value = {"S": "1"}
_INTEGER_MAX = 2**63 - 1

_OURS = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_AS_IT_IS = "="

# An expression knows no pattern, so these are the faults of a lease's text that it can find. A lease that ends in "s" is the Go client's,
# whose rows are another format under the same names.
_SOUND = (
    "attribute_type(ownerName, :S) AND attribute_type(leaseDuration, :S) AND leaseDuration BETWEEN :least AND :most "
    "AND (size(leaseDuration) < :digits OR (size(leaseDuration) = :digits AND leaseDuration <= :day)) "
    "AND NOT contains(leaseDuration, :s) AND NOT contains(leaseDuration, :e) AND NOT contains(leaseDuration, :point) "
    "AND (attribute_not_exists(#data) OR (attribute_type(#data, :B) AND size(#data) <= :large))"
)
_SOUND_VALUES: Item = {
    ":least": text("1"),
    ":most": text("9" * len(str(LEASE_MAX_MS))),
    ":digits": number(len(str(LEASE_MAX_MS))),
    ":day": text(str(LEASE_MAX_MS)),
    ":s": text("s"),
    ":e": text("e"),
    ":point": text("."),
    ":large": number(DATA_MAX_BYTES),
}
_SEEN = "recordVersionNumber = :seen"
_UNMARKED = "attribute_not_exists(isReleased)"
_SOUND_STATEMENT = in_statement(f"{_UNMARKED} AND {_SOUND}", _SOUND_VALUES, ATTRIBUTES)


def to_text(rvn: str) -> str:
    """Return *rvn* as the row has it: 32 hexadecimal digits, which ours are, as a UUID; all else as it is."""
    if _OURS.fullmatch(rvn):
        return f"{rvn[:8]}-{rvn[8:12]}-{rvn[12:16]}-{rvn[16:20]}-{rvn[20:]}"
    return rvn.removeprefix(_AS_IT_IS)


def from_text(written: str) -> str:
    """Return the RVN that :func:`to_text` turns into *written*."""
    if _UUID.fullmatch(written):
        return written.replace("-", "")
    return _AS_IT_IS + written if written.startswith(_AS_IT_IS) or _OURS.fullmatch(written) else written


class AwslabsRows(NamedTuple):
    """The dialect. Without *trust_release_mark* a row that is marked released is held until its lease has passed unchanged.

    With *counted* rows carry the token that a row beside them gave; without it every record says that there is none.
    """

    table: Table
    trust_release_mark: bool = True
    counted: bool = False

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.record(item, self._read)

    def claim(self, claim: Claim) -> Ask | None:
        """As :meth:`Rows.claim`: the row that is absent; or the released one of a version, which has to be seen first."""
        if isinstance(claim.expect, tuple):
            return self.take(claim, claim.expect, 0)
        return None if claim.must_exist else self._put(claim.record, NO_TOKEN, ABSENT, {})

    def take(self, claim: Claim, seen: Version, token: int) -> Ask | None:
        """As :meth:`Rows.take`: the row gets its token later, if at all."""
        condition, values = self._seen(seen)
        # Where marks are not trusted no row is free, and a claim that expects one is refused.
        values[":mark"] = _MARK if self.trust_release_mark else text("untrusted")
        write = self._renew if claim.keep_payload else self._put
        return write(claim.record, NO_TOKEN, f"{condition} AND isReleased = :mark", values)

    def change(self, change: Replace | Release, token: int | None = None) -> Ask:
        """As :meth:`Rows.change`; *token* was drawn for this write."""
        record = change.record
        if token is None:
            # A takeover has its token when the row is its own.
            token = NO_TOKEN if takes(change) else record.fencing_token
        condition, values = self._seen(change.expected)
        # A takeover raises the token: only then may an untrusted mark stand in the row, and is removed.
        raises = record.fencing_token != change.expected.fencing_token
        if self.trust_release_mark or not raises:
            condition = f"{condition} AND {_UNMARKED}"
        if record.state is State.HELD:
            write = self._renew if change.keep_payload else self._put
            return write(record, token, condition, values)
        if record.state is State.GONE:
            kept = token if self.counted else NO_TOKEN
            deleted = LockRecord(record.key, record.state, record.rvn, kept, "", None)
            return self.table.delete(self.table.key(record.key), condition, values, deleted)
        return self._mark(change, token, condition, values)

    def number(self, record: LockRecord, token: int) -> Ask:
        """Return the request that writes *token* into the row of a grant, as long as that is its *record*."""
        rvn = to_text(record.rvn)
        values: Item = {":seen": text(rvn), ":token": token_value(token, rvn)}
        update = f"SET {TOKEN} = :token"
        return self.table.update(self.table.key(record.key), update, f"{_SEEN} AND {_UNMARKED}", values)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: renewals of rows that have their token; others take more than one request."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD or not replace.keep_payload or record.fencing_token != expected.fencing_token:
            return None
        if self.counted and expected.fencing_token is NO_TOKEN:
            return None
        wanted = {_RVN: text(to_text(expected.rvn)), **self._token(expected.rvn, expected.fencing_token)}
        changes = self._attributes(record, record.fencing_token)
        return self.table.statement(changes, wanted | self.table.key(record.key), _SOUND_STATEMENT, _TIMES)

    # ---- rows

    def _read(self, key: str, item: Item) -> LockRecord:
        number_, owner, lease = field(item, _RVN, "S"), field(item, _OWNER, "S"), field(item, _LEASE, "S")
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", lease):
            raise ValueError(f"{_LEASE} {lease!r} is not a number of milliseconds")
        if item.get(_RELEASED, _MARK) != _MARK:
            raise ValueError(f'{_RELEASED} is {item[_RELEASED]}, not the text "1"')
        data = field(item, _DATA, "B") if _DATA in item else None
        others = item.keys() - ATTRIBUTES - {self.table.partition_key, self.table.sort_key}
        attributes = tuple((name, read) for name in sorted(others) if (read := _attribute(item[name])) is not None)
        token = token_of(item, number_) if self.counted else NO_TOKEN
        held = LockRecord(key, State.HELD, from_text(number_), token, owner, int(lease), data, attributes)
        if _RELEASED not in item or not self.trust_release_mark:
            return held
        return LockRecord(key, State.FREE, held.rvn, token, "", None, data, attributes)

    def _attributes(self, record: LockRecord, token: int) -> Item:
        if record.lease_ms is None:
            raise UnsupportedError(f"lock {record.key!r}: a row of the Java client always has a lease")
        row = {_OWNER: text(record.owner), _LEASE: text(str(record.lease_ms)), _RVN: text(to_text(record.rvn))}
        return row | self._token(record.rvn, token)

    def _token(self, rvn: str, token: int) -> Item:
        """Return the attribute that says that the grant of *rvn* has this token; nothing where there is none."""
        if not self.counted or token is NO_TOKEN:
            return {}
        return {TOKEN: token_value(token, to_text(rvn))}

    def _payload(self, record: LockRecord) -> Item:
        reserved = ATTRIBUTES | {self.table.partition_key, self.table.sort_key}
        for name, _ in record.attributes:
            if name in reserved:
                raise UnsupportedError(f"attribute {name!r} of lock {record.key!r} is one of the row itself")
        data: Item = {} if record.data is None else {_DATA: {"B": record.data}}
        return data | {name: _value(value) for name, value in record.attributes}

    # ---- requests

    def _seen(self, version: Version) -> tuple[str, Item]:
        """Return the condition that the row is a sound one of *version*, and its values."""
        condition, values = f"{_SEEN} AND {_SOUND}", {":seen": text(to_text(version.rvn)), **_SOUND_VALUES}
        if token := self._token(version.rvn, version.fencing_token):
            return f"{condition} AND {TOKEN} = :mine", values | {":mine": token[TOKEN]}
        return condition, values

    def _put(self, record: LockRecord, token: int, condition: str, values: Item) -> Ask:
        """Write the whole row: what else stood in it is gone, as with the Java client."""
        row = self.table.key(record.key) | self._attributes(record, token) | self._payload(record)
        return self.table.put(row, condition, values, self.record(row))

    def _renew(self, record: LockRecord, token: int, condition: str, values: Item) -> Ask:
        """Write owner, lease, number and token; data and attributes of others stay. A token of the number before says nothing now."""
        return self._update(record, self._attributes(record, token), [_RELEASED, *_TIMES], condition, values)

    def _mark(self, change: Replace | Release, token: int, condition: str, values: Item) -> Ask:
        """Mark the row released, under a fresh number; owner and lease stay, as the Java client wants them to."""
        record, removed = change.record, list(_TIMES)
        attributes = {_RELEASED: _MARK, _RVN: text(to_text(record.rvn)), **self._token(record.rvn, token)}
        if not change.keep_payload:
            attributes |= self._payload(record)
            if record.data is None:
                removed.append(_DATA)
        return self._update(record, attributes, removed, condition, values)

    def _update(self, record: LockRecord, attributes: Item, removed: list[str], condition: str, values: Item) -> Ask:
        names = {f"#a{place}": name for place, name in enumerate(attributes)}
        gone = {f"#r{place}": name for place, name in enumerate(removed)}
        sets = ", ".join(f"{alias} = :{alias[1:]}" for alias in names)
        written = {f":{alias[1:]}": attributes[name] for alias, name in names.items()}
        update = f"SET {sets} REMOVE {', '.join(gone)}"
        return self.table.update(self.table.key(record.key), update, condition, values | written, names | gone)


def _value(value: AttributeValue) -> Value:
    """Return an additional attribute as DynamoDB has it."""
    kinds = {str: "S", bool: "BOOL", bytes: "B"}
    return number(value) if type(value) is int else {kinds[type(value)]: value}


def _attribute(value: Value) -> AttributeValue | None:
    """Return an additional attribute as ours, or None where ours cannot be of its type or size: it is not shown then."""
    [(kind, inside)] = value.items()
    if kind == "N":
        return int(inside) if re.fullmatch(r"-?[0-9]{1,19}", inside) and abs(int(inside)) <= _INTEGER_MAX else None
    read: AttributeValue | None = inside if kind in {"S", "BOOL", "B"} else None
    return read
