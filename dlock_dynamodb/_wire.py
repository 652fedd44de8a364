"""What goes over the wire: a record as an item, the requests of the verbs, the reading of answers. Pure.

The item of a record::

    {<partition key>: S, [<sort key>: S,] v: N 1, state: S, rvn: S, token: N, owner: S, lease_ms: N or NULL,
     payload: M {data: B, attributes: M}, context: M {stamp: M, process: M, broken: M}}

The members of *payload* and *context* may be missing. A record that is ``gone`` has its payload as ``gone_payload``: so
``if_not_exists(payload, …)`` keeps what a free record had and never what a gone one had. Attributes that are not ours stay as they are.

Each write is one UpdateItem whose condition compares what it must and refuses any item that is not a sound record. Absent means that the
partition key is absent: an item of another program has none of our attributes either.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dlock_core.errors import RecordError, StoreSetupError
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, newer_format
from dlock_core.store import Claim, Expect, Release, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dlock_core.record import AttributeValue

Value: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Value]
Request: TypeAlias = dict[str, Any]


class DynamoDBClient(Protocol):
    """The slice of boto3's low-level client that the store uses."""

    meta: Any

    def put_item(self, **request: Any) -> dict[str, Any]: ...
    def delete_item(self, **request: Any) -> dict[str, Any]: ...
    def update_item(self, **request: Any) -> dict[str, Any]: ...
    def batch_execute_statement(self, **request: Any) -> dict[str, Any]: ...
    def get_item(self, **request: Any) -> dict[str, Any]: ...
    def scan(self, **request: Any) -> dict[str, Any]: ...
    def describe_table(self, **request: Any) -> dict[str, Any]: ...
    def describe_time_to_live(self, **request: Any) -> dict[str, Any]: ...
    def create_table(self, **request: Any) -> dict[str, Any]: ...
    def close(self) -> None: ...


# ---- records


_EMPTY: Value = {"M": {}}
_NULL: Value = {"NULL": True}
_CONTEXT: dict[str, Callable[..., Any]] = {"stamp": Stamp, "process": ProcessIdentity, "broken": Broken}
_MEMBERS = dict.fromkeys(("rvn", "boot_id", "by"), "S") | dict.fromkeys(
    ("at_ms", "pid_namespace", "pid", "started_at", "child_group"), "N"
)
_KINDS = {"v": "N", "state": "S", "rvn": "S", "token": "N", "owner": "S", "context": "M"}


def _text(value: str) -> Value:
    return {"S": value}


def _number(value: int) -> Value:
    return {"N": str(value)}


_V, _ZERO, _ONE = _number(FORMAT_VERSION), _number(0), _number(1)
_HELD, _FREE, _GONE = _text(State.HELD.value), _text(State.FREE.value), _text(State.GONE.value)
_STATES = {State.HELD: _HELD, State.FREE: _FREE, State.GONE: _GONE}
_BY_TYPE: dict[type, Callable[[Any], Value]] = {
    str: _text,
    int: _number,
    bool: lambda value: {"BOOL": value},
    bytes: lambda value: {"B": value},
}


def _payload(record: LockRecord) -> Value:
    if record.data is None and not record.attributes:
        return _EMPTY
    members: Item = {} if record.data is None else {"data": {"B": record.data}}
    if record.attributes:
        members["attributes"] = {"M": _members(dict(record.attributes))}
    return {"M": members}


def _context(record: LockRecord) -> Value:
    parts = {name: part for name in _CONTEXT if (part := getattr(record, name)) is not None}
    return {"M": {name: {"M": _members(asdict(part))} for name, part in parts.items()}} if parts else _EMPTY


def _members(fields: Mapping[str, AttributeValue | None]) -> Item:
    return {name: _BY_TYPE[type(value)](value) for name, value in fields.items() if value is not None}


def plain(value: AttributeValue) -> Value:
    """Return *value* as DynamoDB has it."""
    return _BY_TYPE[type(value)](value)


def attribute(value: Value) -> AttributeValue:
    """Return what :func:`plain` makes *value* of.

    Raises: ValueError: it is of a type that no attribute of ours has.
    """
    [(kind, inside)] = value.items()
    if kind == "N":
        return int(inside)
    if kind not in ("S", "BOOL", "B"):
        raise ValueError(f"an attribute of type {kind}")
    read: AttributeValue = inside
    return read


def _fields(value: Value) -> dict[str, Any]:
    return {name: attribute(inside) for name, inside in value["M"].items()}


def _part(members: Item) -> dict[str, Any]:
    return {name: attribute({kind: members[name][kind]}) for name, kind in _MEMBERS.items() if name in members}


def _read(key: str, item: Item) -> LockRecord:
    version, rvn, token = int(item["v"]["N"]), item["rvn"]["S"], int(item["token"]["N"])
    if version > FORMAT_VERSION:
        return newer_format(key, version, rvn, token)
    if version != FORMAT_VERSION:
        raise ValueError(f"format {version}")
    state, lease, context = State(item["state"]["S"]), item["lease_ms"], item["context"]["M"]
    payload = item["gone_payload" if state is State.GONE else "payload"]["M"]
    return LockRecord(
        key,
        state,
        rvn,
        token,
        item["owner"]["S"],
        None if "NULL" in lease else int(lease["N"]),
        payload["data"]["B"] if "data" in payload else None,
        tuple(sorted(_fields(payload["attributes"]).items())) if "attributes" in payload else (),
        **{name: kind(**_part(context[name]["M"])) for name, kind in _CONTEXT.items() if name in context},
    )


@dataclass(frozen=True, slots=True)
class Table:
    """Where the records are: the name of the table and its key attributes."""

    name: str
    partition_key: str
    sort_key: str | None
    sort_key_value: str
    sort_key_separator: str | None = None

    def key(self, key: str) -> Item:
        """Return the full primary key of *key*'s item.

        Raises: StoreSetupError: a key that has to name both parts lacks one.
        """
        if self.sort_key is None:
            return {self.partition_key: {"S": key}}
        if self.sort_key_separator is None:
            return {self.partition_key: {"S": key}, self.sort_key: {"S": self.sort_key_value}}
        first, _, second = key.partition(self.sort_key_separator)
        if not first or not second:
            raise StoreSetupError(
                f"key {key!r} must name a partition key and a sort key, with {self.sort_key_separator!r} between them"
            )
        return {self.partition_key: {"S": first}, self.sort_key: {"S": second}}

    def key_of(self, item: Item) -> str:
        """Return the key that leads to *item*.

        Raises: RecordError: none does.
        """
        first: str = item[self.partition_key]["S"]
        if self.sort_key is None or self.sort_key_separator is None:
            return first
        key = f"{first}{self.sort_key_separator}{item[self.sort_key]['S']}"
        if self.sort_key_separator in first:
            raise RecordError(
                f"the item under partition key {first!r} in DynamoDB table {self.name!r} has the separator of sort keys "
                f"{self.sort_key_separator!r} in it; choose another sort_key_separator",
                key=key,
            )
        return key

    def record(self, item: Item) -> LockRecord:
        """Return the record that *item* is.

        Raises: RecordError: it is another program's, or damaged.
        """
        return self.read_by(_read, _KINDS, item)

    def read_by(self, read: Callable[[str, Item], LockRecord], kinds: Mapping[str, str], item: Item) -> LockRecord:
        """Return what *read* makes of *item*, whose attributes should be of these *kinds*.

        Raises: RecordError: it is another program's, or damaged.
        """
        key = self.key_of(item)
        try:
            return read(key, item)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(
                f"the item under key {key!r} in DynamoDB table {self.name!r} is another program's or damaged: "
                f"{_flaw(kinds, item, error)}; look at it with 'aws dynamodb get-item', dlock never overwrites it",
                key=key,
            ) from error

    # ---- requests

    def read(self, key: str) -> Request:
        """GetItem: linearizable."""
        return {"TableName": self.name, "Key": self.key(key), "ConsistentRead": True}

    def scan(self, prefix: str) -> Request:
        """Scan: the first page; ``begins_with`` compares bytes of UTF-8, and so code points."""
        conditions, names, values = [], {}, {}
        split = self.sort_key_separator
        if split is not None and self.sort_key is not None and split in prefix:
            first, _, second = prefix.partition(split)
            conditions.append("#k = :prefix")
            names["#k"], values[":prefix"] = self.partition_key, _text(first)
            if second:
                conditions.append("begins_with(#sort, :sort)")
                names["#sort"], values[":sort"] = self.sort_key, _text(second)
        elif prefix:
            conditions.append("begins_with(#k, :prefix)")
            names["#k"], values[":prefix"] = self.partition_key, _text(prefix)
        if self.sort_key is not None and split is None:
            conditions.append("#sort = :sort")
            names["#sort"], values[":sort"] = self.sort_key, _text(self.sort_key_value)
        if not conditions:
            return {"TableName": self.name}
        return {
            "TableName": self.name,
            "FilterExpression": " AND ".join(conditions),
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }

    def claim(self, claim: Claim, *, above: bool = False) -> Request:
        """UpdateItem that creates the record or takes a free one, and mints the token.

        There is no maximum in an expression. A token asked for is written as it is over smaller ones; where it refused a record whose
        token is not smaller (:func:`outgrown`), the request *above* counts on from that.
        """
        record, expect = claim.record, claim.expect
        asked, names = record.fencing_token, {"#s": "state", "#t": "token", "#o": "owner"}
        values = self._values(record) | {":v": _V, ":s": _HELD, ":p": _payload(record)}
        counts = expect is Expect.ANY and (asked == 1 or above)
        if counts:
            values |= {":zero": _ZERO, ":one": _ONE}
        if expect is Expect.ABSENT:
            condition, values[":t"] = _ABSENT, _number(asked)
            if claim.must_exist:
                condition += " AND attribute_exists(#k)"
        else:
            condition = _TAKEABLE
            values |= _SOUND_VALUES | {":free": _FREE, ":gone": _FREE if claim.must_exist else _GONE}
            if expect is Expect.ANY:
                low, high = (asked if above else 1), (TOKEN_MAX if counts else asked) - 1
                if not counts:
                    values[":t"] = _number(asked)
                if not claim.must_exist and not above:
                    condition = f"{_ABSENT} OR ({condition})"
            else:
                # A spent token can't be taken further: bounds that no record meets refuse it.
                low = high = expect.fencing_token if expect.fencing_token < TOKEN_MAX else 0
                values |= {":t": _number(max(expect.fencing_token + 1, asked)), ":seen": _text(expect.rvn)}
                condition += " AND rvn = :seen"
            values |= {":low": _number(low), ":high": _number(high)}
        if _ABSENT in condition:
            names["#k"] = self.partition_key
        update = (
            f"SET v = :v, #s = :s, rvn = :r, #t = {'if_not_exists(#t, :zero) + :one' if counts else ':t'}, #o = :o, lease_ms = :l, "
            f"context = :c, payload = {'if_not_exists(payload, :p)' if claim.keep_payload else ':p'} REMOVE gone_payload"
        )
        return self._update(record.key, update, condition, names, values)

    def replace(self, replace: Replace | Release) -> Request:
        """UpdateItem that changes the held record of the expected version: renewal, takeover, break, release."""
        record, expected = replace.record, replace.expected
        values = self._values(record) | _SOUND_VALUES
        values |= {":v": _V, ":held": _HELD, ":seen": _text(expected.rvn), ":t": _number(expected.fencing_token)}
        update, removed = "SET rvn = :r, #o = :o, lease_ms = :l, context = :c", ""
        if record.fencing_token != expected.fencing_token:
            update, values[":new"] = f"{update}, #t = :new", _number(record.fencing_token)
        if record.state is not State.HELD:
            update, values[":s"] = f"{update}, #s = :s", _STATES[record.state]
        if not replace.keep_payload:
            values[":p"] = _payload(record)
        if record.state is State.GONE:
            update, removed = (
                f"{update}, gone_payload = {'payload' if replace.keep_payload else ':p'}",
                " REMOVE payload",
            )
        elif not replace.keep_payload:
            update = f"{update}, payload = :p"
        return self._update(
            record.key, update + removed, _EXPECTED, {"#s": "state", "#t": "token", "#o": "owner"}, values
        )

    def statement(self, replace: Replace) -> Request:
        """One replace of a held record by a held one, as a statement of a batch."""
        record, expected = replace.record, replace.expected
        changes = {
            "rvn": _text(record.rvn),
            "owner": _text(record.owner),
            "lease_ms": _lease(record),
            "context": _context(record),
        }
        if record.fencing_token != expected.fencing_token:
            changes["token"] = _number(record.fencing_token)
        if not replace.keep_payload:
            changes["payload"] = _payload(record)
        wanted = {
            "v": _V,
            "state": _HELD,
            "rvn": _text(expected.rvn),
            "token": _number(expected.fencing_token),
        } | self.key(record.key)
        sets = " ".join(f'SET "{name}"=?' for name in changes)
        conditions = " AND ".join(f'"{name}"=?' for name in wanted)
        return {
            "Statement": f'UPDATE "{self.name}" {sets} WHERE {conditions} AND {_SOUND_STATEMENT} RETURNING ALL NEW *',
            "Parameters": [*changes.values(), *wanted.values()],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _values(self, record: LockRecord) -> Item:
        return {":r": _text(record.rvn), ":o": _text(record.owner), ":l": _lease(record), ":c": _context(record)}

    def _update(self, key: str, update: str, condition: str, names: Mapping[str, str], values: Item) -> Request:
        return {
            "TableName": self.name,
            "Key": self.key(key),
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


def _lease(record: LockRecord) -> Value:
    return _NULL if record.lease_ms is None else _number(record.lease_ms)


_ABSENT = "attribute_not_exists(#k)"
# An item whose attributes have other types is not ours, or damaged: it refuses, and is then read and named.
_SOUND = (
    "attribute_type(#o, :string) AND attribute_type(context, :map) "
    "AND (attribute_type(lease_ms, :number) OR attribute_type(lease_ms, :null))"
)
_SOUND_VALUES: Item = {":string": _text("S"), ":map": _text("M"), ":number": _text("N"), ":null": _text("NULL")}
_EXPECTED = f"v = :v AND #s = :held AND rvn = :seen AND #t = :t AND attribute_type(payload, :map) AND {_SOUND}"
_TAKEABLE = (
    f"v = :v AND #s IN (:free, :gone) AND #t BETWEEN :low AND :high AND attribute_type(rvn, :string) AND {_SOUND} "
    "AND (attribute_type(payload, :map) OR attribute_type(gone_payload, :map))"
)
_SOUND_STATEMENT = (
    "attribute_type(\"owner\", 'S') AND attribute_type(context, 'M') AND attribute_type(payload, 'M') "
    "AND (attribute_type(lease_ms, 'N') OR attribute_type(lease_ms, 'NULL'))"
)


def takeable(claim: Claim, record: LockRecord) -> bool:
    """Whether *record* lets *claim* through, but for the number of its token."""
    if record.state is State.HELD or claim.expect is Expect.ABSENT or (claim.must_exist and record.state is State.GONE):
        return False
    return claim.expect is Expect.ANY or claim.expect == record.version


def outgrown(claim: Claim, record: LockRecord) -> bool:
    """Whether *claim* was refused because the token that it asks for is not above the one of the free *record*."""
    return (
        takeable(claim, record)
        and claim.expect is Expect.ANY
        and 1 < claim.record.fencing_token <= record.fencing_token
    )


def _flaw(kinds: Mapping[str, str], item: Item, error: Exception) -> str:
    for name, kind in kinds.items():
        if kind not in item.get(name, {}):
            return f"it has no attribute {name!r} of type {kind}"
    return f"it cannot be read ({type(error).__name__}: {error})"
