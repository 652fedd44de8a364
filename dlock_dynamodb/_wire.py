"""Where the row of a lock lies, the requests on it, and our own rows. Pure.

A row of ours has the plain values of :mod:`dlock_core.kit`, each in an attribute of its own::

    {<partition key>: S, [<sort key>: S,] v: N 1, state: S, rvn: S, token: N, owner: S, lease_ms: N (0: none), context: S, payload: B}

A record that is ``gone`` has its payload as ``gone_payload``: so ``if_not_exists(payload, …)`` keeps the payload of a free record and
never that of a gone one. Attributes of other programs on our row stay as they are.

Each write is one request with a condition. The condition compares the version, and refuses every item that is not a sound record. The
key is absent if the item has no partition key: an item of another program has none of our attributes either.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from dlock_core.errors import RecordError, StoreSetupError
from dlock_core.kit import Plain, plain_of, record_of
from dlock_core.record import FORMAT_VERSION, TOKEN_MAX, LockRecord, State, newer_format
from dlock_core.store import Claim, Expect, Release, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dlock_core.record import Version

Value: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Value]
Request: TypeAlias = dict[str, Any]

_FIELDS = (
    ("v", "N"),
    ("state", "S"),
    ("rvn", "S"),
    ("token", "N"),
    ("owner", "S"),
    ("lease_ms", "N"),
    ("context", "S"),
)
ATTRIBUTES = frozenset({*dict(_FIELDS), "payload", "gone_payload"})
# The condition that no item stands under the key.
ABSENT = "attribute_not_exists(#k)"
# Values that an expression may use without defining them: the names of types, and two numbers.
_CONSTANTS: Item = {f":{kind}": {"S": kind} for kind in "SNB"} | {":zero": {"N": "0"}, ":one": {"N": "1"}}
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)


class Ask(NamedTuple):
    """One request: the operation of boto3 and its arguments. An *urgent* one keeps or frees a lock that is held.

    *written* is the record that a write leaves, where the answer does not show that.
    """

    operation: str
    request: Request
    urgent: bool = False
    written: LockRecord | None = None


class Rows(Protocol):
    """The row format of one client. It decides nothing: it says what the request says in that client's spelling."""

    def record(self, item: Item) -> LockRecord:
        """Return the record in *item*.

        Raises: RecordError: the row is of another format, or damaged.
        """

    def claim(self, claim: Claim) -> Ask | None:
        """Return the first request of *claim*; None where the row must be read first."""

    def take(self, claim: Claim, seen: Version, token: int) -> Ask | None:
        """Return the request that takes the free row of version *seen*, which refused the first; None where none can be applied."""

    def change(self, change: Replace | Release) -> Ask:
        """Return the request of a replace or a release."""

    def statement(self, replace: Replace) -> Request | None:
        """Return *replace* as one statement of a batch; None where it takes another request."""


def text(value: str) -> Value:
    """Return *value* as DynamoDB has it."""
    return {"S": value}


def number(value: int) -> Value:
    """Return *value* as DynamoDB has it."""
    return {"N": str(value)}


# An attribute by which the rows of each dialect are known; the first counts.
_MARKS = {
    "recordVersionNumber": "awslabs",
    "fencingToken": "node-fail-open",
    "guid": "node-fail-closed",
    "rvn": "dlock",
}


def field(item: Item, name: str, kind: str) -> Any:
    """Return the attribute *name* of *item*.

    Raises: ValueError: there is none of this *kind*.
    """
    try:
        return item[name][kind]
    except KeyError:
        # Each dialect asks for its own mark first: a row that has it is its own, however damaged.
        marks = _MARKS if name in _MARKS and name not in item else {}
        dialect = next((f"; it looks like a row of dialect={marks[mark]}" for mark in marks if mark in item), "")
        raise ValueError(f"no attribute {name!r} of type {kind}{dialect}") from None


@lru_cache(maxsize=1024)
def _aliases(expressions: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and the values that *expressions* use."""
    used = sorted(set(re.findall(r"[#:]\w+", expressions)))
    return tuple(alias for alias in used if alias[0] == "#"), tuple(alias for alias in used if alias[0] == ":")


def in_statement(condition: str, values: Item, attributes: Iterable[str]) -> str:
    """Return *condition* as a statement has it: with its *values* in place, and its *attributes* quoted."""
    for alias, value in (_CONSTANTS | values).items():
        [(kind, inside)] = value.items()
        condition = re.sub(rf"{alias}\b", f"'{inside}'" if kind == "S" else inside, condition)
    for name in attributes:
        condition = re.sub(rf"(?<!\w)#?{name}\b", f'"{name}"', condition)
    return re.sub(r'attribute_not_exists\(("\w+")\)', r"\1 IS MISSING", condition)


class Table(NamedTuple):
    """Where the rows are: the name of the table and its key attributes. Also all forms of requests on it."""

    name: str
    partition_key: str
    sort_key: str | None
    sort_key_value: str
    sort_key_separator: str | None = None

    def key(self, key: str) -> Item:
        """Return the full primary key of the row of *key*.

        Raises: StoreSetupError: a key that has to name both parts lacks one.
        """
        if self.sort_key is None:
            return {self.partition_key: text(key)}
        if self.sort_key_separator is None:
            return {self.partition_key: text(key), self.sort_key: text(self.sort_key_value)}
        first, _, second = key.partition(self.sort_key_separator)
        if not first or not second:
            raise StoreSetupError(
                f"key {key!r} must name a partition key and a sort key, with {self.sort_key_separator!r} between them"
            )
        return {self.partition_key: text(first), self.sort_key: text(second)}

    def key_of(self, item: Item) -> str:
        """Return the key that leads to *item*.

        Raises: RecordError: no key does.
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

    def record(self, item: Item, read: Callable[[str, Item], LockRecord]) -> LockRecord:
        """Return the record that *read* finds in *item*.

        Raises: RecordError: the row is of another program, or damaged.
        """
        key = self.key_of(item)
        try:
            return read(key, item)
        except RecordError:
            raise
        except _UNREADABLE as error:
            raise RecordError(
                f"the item under key {key!r} in DynamoDB table {self.name!r} is another program's or damaged: it cannot be read ({error}); "
                "look at it with 'aws dynamodb get-item', dlock never overwrites it",
                key=key,
            ) from error

    # ---- requests

    def get(self, key: str) -> Request:
        """GetItem: linearizable."""
        return {"TableName": self.name, "Key": self.key(key), "ConsistentRead": True}

    def scan(self, prefix: str) -> Request:
        """Scan: the first page; ``begins_with`` compares bytes of UTF-8, and so code points."""
        conditions, values = [], {}
        split = self.sort_key_separator
        if split is not None and split in prefix:
            first, _, second = prefix.partition(split)
            conditions.append("#k = :prefix")
            values[":prefix"] = text(first)
            if second:
                conditions.append("begins_with(#sort, :sort)")
                values[":sort"] = text(second)
        elif prefix:
            conditions.append("begins_with(#k, :prefix)")
            values[":prefix"] = text(prefix)
        if self.sort_key is not None and split is None:
            conditions.append("#sort = :sort")
            values[":sort"] = text(self.sort_key_value)
        if not conditions:
            return {"TableName": self.name}
        expression = " AND ".join(conditions)
        return {"TableName": self.name, "FilterExpression": expression, **self._defined(expression, values)}

    def update(
        self, key: Item, update: str, condition: str, values: Item, names: Mapping[str, str] | None = None
    ) -> Ask:
        """UpdateItem, which shows the row either way."""
        request = self._write(condition, values, update, names)
        return Ask("update_item", {**request, "Key": key, "UpdateExpression": update, "ReturnValues": "ALL_NEW"})

    def put(self, row: Item, condition: str, values: Item, written: LockRecord) -> Ask:
        """PutItem: the whole row; other attributes that stood in it are gone."""
        return Ask("put_item", {**self._write(condition, values), "Item": row}, written=written)

    def delete(self, key: Item, condition: str, values: Item, written: LockRecord) -> Ask:
        """DeleteItem."""
        return Ask("delete_item", {**self._write(condition, values), "Key": key}, written=written)

    def statement(self, changes: Item, wanted: Item, sound: str, removed: Iterable[str] = ()) -> Request:
        """Return one statement of a batch: set *changes* and remove *removed* where all of *wanted* stand, and the row is *sound*."""
        sets = " ".join([*(f'SET "{name}"=?' for name in changes), *(f'REMOVE "{name}"' for name in removed)])
        conditions = " AND ".join([*(f'"{name}"=?' for name in wanted), sound])
        return {
            "Statement": f'UPDATE "{self.name}" {sets} WHERE {conditions} RETURNING ALL NEW *',
            "Parameters": [*changes.values(), *wanted.values()],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _write(self, condition: str, values: Item, update: str = "", names: Mapping[str, str] | None = None) -> Request:
        return {
            "TableName": self.name,
            "ConditionExpression": condition,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **self._defined(f"{update} {condition}", values, names),
        }

    def _defined(self, expressions: str, values: Item, names: Mapping[str, str] | None = None) -> Request:
        """Return the definitions of all names and values that *expressions* use; DynamoDB refuses one too many or too few."""
        used_names, used_values = _aliases(expressions)
        named = {"#k": self.partition_key, "#sort": self.sort_key, **(names or {})}
        request: Request = {}
        if used_names:
            request["ExpressionAttributeNames"] = {alias: named.get(alias, alias[1:]) for alias in used_names}
        if used_values:
            request["ExpressionAttributeValues"] = {
                alias: values[alias] if alias in values else _CONSTANTS[alias] for alias in used_values
            }
        return request


# ---- our own rows

# An item whose attributes have other types is not ours, or damaged: it refuses, and is then read and named.
_SOUND = "attribute_type(#owner, :S) AND attribute_type(context, :S) AND attribute_type(lease_ms, :N)"
_EXPECTED = f"v = :v AND #state = :held AND rvn = :seen AND #token = :was AND attribute_type(payload, :B) AND {_SOUND}"
_TAKEABLE = (
    "v = :v AND #state IN (:free, :gone) AND #token BETWEEN :low AND :high AND attribute_type(rvn, :S) "
    f"AND (attribute_type(payload, :B) OR attribute_type(gone_payload, :B)) AND {_SOUND}"
)
_SOUND_STATEMENT = in_statement(f"{_SOUND} AND attribute_type(payload, :B)", {}, ATTRIBUTES)
_STATES: Item = {f":{state.value}": text(state.value) for state in State}
_WRITTEN = "#state = :state, rvn = :rvn, #owner = :owner, lease_ms = :lease_ms, context = :context"


def _row(record: LockRecord) -> Item:
    plain = plain_of(record)
    row = {
        name: {kind: str(value or 0) if kind == "N" else value}
        for (name, kind), value in zip(_FIELDS, plain, strict=False)
    }
    return row | {"payload": {"B": plain.payload}}


def _between(low: int, high: int) -> Item:
    return {":low": number(low), ":high": number(high)}


def _read(key: str, item: Item) -> LockRecord:
    rvn, version, token = field(item, "rvn", "S"), int(field(item, "v", "N")), int(field(item, "token", "N"))
    if version > FORMAT_VERSION:
        return newer_format(key, version, rvn, token)
    state, lease_ms = field(item, "state", "S"), int(field(item, "lease_ms", "N"))
    payload = field(item, "gone_payload" if state == State.GONE else "payload", "B")
    owner, context = field(item, "owner", "S"), field(item, "context", "S")
    plain = Plain(version, state, rvn, token, owner, lease_ms or None, context, payload)
    return record_of(key, plain, where="the DynamoDB table")


class DlockRows(NamedTuple):
    """Our own rows."""

    table: Table

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.record(item, _read)

    def claim(self, claim: Claim) -> Ask | None:
        """As :meth:`Rows.claim`: the token is minted in the request itself.

        An expression knows no maximum: a token that is asked for is written over smaller ones only. Where it is refused by a free record,
        whose token is not smaller, :meth:`take` follows.
        """
        expect, asked = claim.expect, claim.record.fencing_token
        if isinstance(expect, tuple):
            return self._taking(claim, expect, max(expect.fencing_token + 1, asked))
        if expect is Expect.ABSENT:
            return None if claim.must_exist else self._claiming(claim, ABSENT, {})
        condition = _TAKEABLE if claim.must_exist else f"{ABSENT} OR ({_TAKEABLE})"
        if asked == 1:
            return self._claiming(
                claim, condition, _between(1, TOKEN_MAX - 1), minted="if_not_exists(#token, :zero) + :one"
            )
        return self._claiming(claim, condition, _between(1, asked - 1))

    def take(self, claim: Claim, seen: Version, token: int) -> Ask | None:
        """As :meth:`Rows.take`."""
        return None if claim.record.fencing_token == 1 else self._taking(claim, seen, token)

    def change(self, change: Replace | Release) -> Ask:
        """As :meth:`Rows.change`."""
        record, expected, keeps = change.record, change.expected, change.keep_payload
        update, removed = f"SET {_WRITTEN}, #token = :token", ""
        if record.state is State.GONE:
            update, removed = f"{update}, gone_payload = {'payload' if keeps else ':payload'}", " REMOVE payload"
        elif not keeps:
            update += ", payload = :payload"
        values = self._values(record) | {":seen": text(expected.rvn), ":was": number(expected.fencing_token)}
        return self.table.update(self.table.key(record.key), update + removed, _EXPECTED, values)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: a statement cannot move a payload, as a break with deletion has to."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD:
            return None
        row = _row(record)
        wanted = {"v": row["v"], "state": row.pop("state"), "rvn": text(expected.rvn)}
        wanted |= {"token": number(expected.fencing_token), **self.table.key(record.key)}
        del row["v"]
        if replace.keep_payload:
            del row["payload"]
        return self.table.statement(row, wanted, _SOUND_STATEMENT)

    def _taking(self, claim: Claim, seen: Version, token: int) -> Ask:
        expected = _between(seen.fencing_token, seen.fencing_token) | {":seen": text(seen.rvn), ":token": number(token)}
        return self._claiming(claim, f"{_TAKEABLE} AND rvn = :seen", expected)

    def _claiming(self, claim: Claim, condition: str, expected: Item, minted: str = ":token") -> Ask:
        """Return the claim under *condition*, whose values are *expected*; the token is *minted*."""
        values = self._values(claim.record) | expected
        if claim.must_exist:
            values[":gone"] = values[":free"]
        payload = "if_not_exists(payload, :payload)" if claim.keep_payload else ":payload"
        update = f"SET v = :v, {_WRITTEN}, #token = {minted}, payload = {payload} REMOVE gone_payload"
        return self.table.update(self.table.key(claim.record.key), update, condition, values)

    def _values(self, record: LockRecord) -> Item:
        return {f":{name}": value for name, value in _row(record).items()} | _STATES
