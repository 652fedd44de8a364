"""The rows of the Node client (npm ``dynamodb-lock-client`` 0.7.3), fail-open and fail-closed, as records, and our requests on them. Pure.

A row of ``FailOpen``, and one of ``FailClosed``, which has the first three attributes only::

    {<partition key>: S, [<sort key>: S,] guid: B (64 bytes), owner: S,
     fencingToken: N, leaseDurationMs: N (1: free), [lockAcquiredTimeUnixMs: N]}

The guid is the version number. The Node client draws all of its 64 bytes and leaves it as it is at a release; ours are 16 drawn bytes and
48 zeros, fresh at each write. A Node client that trusts its local time takes a row without ``lockAcquiredTimeUnixMs`` at once, so each
write of ours has it. A fail-closed row is held as long as it exists.

The two must never share a table: a fail-closed client takes any row for held, a fail-open one cannot read a row without a lease. Here the
row of the other mode is a foreign one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.errors import UnsupportedError
from dlock_core.record import LEASE_MAX_MS, NO_TOKEN, LockRecord, State, Version
from dlock_core.store import Claim, Release, Replace
from dlock_dynamodb._wire import ABSENT, Table, field, in_statement, number, text

if TYPE_CHECKING:
    from dlock_dynamodb._wire import Ask, Item, Request

__all__ = ["ATTRIBUTES", "NodeClosedRows", "NodeOpenRows"]

_GUID, _OWNER, _TOKEN, _LEASE, _AT = "guid", "owner", "fencingToken", "leaseDurationMs", "lockAcquiredTimeUnixMs"
ATTRIBUTES = frozenset({_GUID, _OWNER, _TOKEN, _LEASE, _AT})
_GUID_BYTES, _OUR_BYTES = 64, 16
_PADDING = bytes(_GUID_BYTES - _OUR_BYTES)
_OURS = re.compile(r"[0-9a-f]{32}")
_FREE_MS = 1

_CLOSED = (
    "guid = :seen AND attribute_type(#owner, :S) "
    "AND attribute_not_exists(fencingToken) AND attribute_not_exists(leaseDurationMs)"
)
_SOUND = "attribute_type(#owner, :S) AND (attribute_not_exists(lockAcquiredTimeUnixMs) OR attribute_type(lockAcquiredTimeUnixMs, :N))"
_OPEN = f"guid = :seen AND fencingToken = :token AND {_SOUND}"
_LEASED = "leaseDurationMs BETWEEN :least AND :day"
_HELD = f"{_OPEN} AND {_LEASED}"
_FREE = f"{_OPEN} AND leaseDurationMs = :free"
_BOUNDS: Item = {":least": number(_FREE_MS + 1), ":day": number(LEASE_MAX_MS)}
_SOUND_STATEMENT = in_statement(f"{_SOUND} AND {_LEASED}", _BOUNDS, ATTRIBUTES)
_RELEASE = "SET guid = :guid, fencingToken = :next, leaseDurationMs = :free, lockAcquiredTimeUnixMs = :at"


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


class NodeOpenRows(NamedTuple):
    """The dialect of ``FailOpen``. *clock* gives the wall time in ms, by which some of its clients go and ours never do."""

    table: Table
    clock: Callable[[], int]

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.record(item, _read_open)

    def claim(self, claim: Claim) -> Ask | None:
        """As :meth:`Rows.claim`: the row that is absent; or the free one of a version, which has to be seen first."""
        if isinstance(claim.expect, tuple):
            return self.take(claim, claim.expect, max(claim.expect.fencing_token + 1, claim.record.fencing_token))
        return None if claim.must_exist else self._put(claim.record, claim.record.fencing_token, ABSENT, {})

    def take(self, claim: Claim, seen: Version, token: int) -> Ask | None:
        """As :meth:`Rows.take`."""
        return self._put(claim.record, token, _FREE, _seen(seen))

    def change(self, change: Replace | Release) -> Ask:
        """As :meth:`Rows.change`: at a release the row stays with its owner, under a lease of 1 ms, as the Node client leaves it."""
        record, values = change.record, _seen(change.expected)
        if record.state is State.HELD:
            return self._put(record, record.fencing_token, _HELD, values)
        if record.state is State.GONE:
            raise UnsupportedError(f"lock {record.key!r}: a row of the Node client that is deleted loses its token")
        values |= {
            ":guid": {"B": to_guid(record.rvn)},
            ":next": number(record.fencing_token),
            ":at": number(self.clock()),
        }
        return self.table.update(self.table.key(record.key), _RELEASE, _HELD, values)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`."""
        record, expected = replace.record, replace.expected
        if record.state is not State.HELD:
            return None
        wanted = {_GUID: {"B": to_guid(expected.rvn)}, _TOKEN: number(expected.fencing_token)}
        changes = self._attributes(record, record.fencing_token)
        return self.table.statement(changes, wanted | self.table.key(record.key), _SOUND_STATEMENT)

    def _attributes(self, record: LockRecord, token: int) -> Item:
        if record.lease_ms is None or record.lease_ms <= _FREE_MS:
            raise UnsupportedError(f"lock {record.key!r}: a held row of this dialect has a lease of 2 ms at least")
        numbers = {_TOKEN: number(token), _LEASE: number(record.lease_ms), _AT: number(self.clock())}
        return _common(record) | numbers

    def _put(self, record: LockRecord, token: int, condition: str, values: Item) -> Ask:
        row = self.table.key(record.key) | self._attributes(record, token)
        return self.table.put(row, condition, values, self.record(row))


class NodeClosedRows(NamedTuple):
    """The dialect of ``FailClosed``: no lease, no token, and a release removes the row."""

    table: Table

    def record(self, item: Item) -> LockRecord:
        """As :meth:`Rows.record`."""
        return self.table.record(item, _read_closed)

    def claim(self, claim: Claim) -> Ask | None:
        """As :meth:`Rows.claim`: only a row that is absent can be claimed."""
        if claim.must_exist or isinstance(claim.expect, tuple):
            return None
        return self._put(claim.record, ABSENT, {})

    def take(self, claim: Claim, seen: Version, token: int) -> Ask | None:
        """As :meth:`Rows.take`: no row is ever free."""
        return None

    def change(self, change: Replace | Release) -> Ask:
        """As :meth:`Rows.change`."""
        record, values = change.record, {":seen": {"B": to_guid(change.expected.rvn)}}
        if record.state is State.HELD:
            return self._put(record, _CLOSED, values)
        gone = LockRecord(record.key, record.state, record.rvn, NO_TOKEN, "", None)
        return self.table.delete(self.table.key(record.key), _CLOSED, values, gone)

    def statement(self, replace: Replace) -> Request | None:
        """As :meth:`Rows.statement`: nothing is renewed here."""
        return None

    def _put(self, record: LockRecord, condition: str, values: Item) -> Ask:
        if record.lease_ms is not None:
            raise UnsupportedError(f"lock {record.key!r}: a row of this dialect has no lease; set fail_closed=True")
        row = self.table.key(record.key) | _common(record)
        return self.table.put(row, condition, values, self.record(row))


def _common(record: LockRecord) -> Item:
    if record.data is not None or record.attributes:
        raise UnsupportedError(f"lock {record.key!r}: a row of the Node client has no place for data or attributes")
    guid = to_guid(record.rvn)
    if len(guid) != _GUID_BYTES:  # nobody could read the row
        raise UnsupportedError(
            f"lock {record.key!r}: a version number here is 32 hexadecimal digits or {_GUID_BYTES} bytes, not {record.rvn!r}"
        )
    return {_GUID: {"B": guid}, _OWNER: text(record.owner)}


def _read_open(key: str, item: Item) -> LockRecord:
    rvn, owner = from_guid(field(item, _GUID, "B")), field(item, _OWNER, "S")
    token, lease_ms = int(field(item, _TOKEN, "N")), int(field(item, _LEASE, "N"))
    if _AT in item:
        int(field(item, _AT, "N"))
    if lease_ms == _FREE_MS:
        return LockRecord(key, State.FREE, rvn, token, "", None)
    return LockRecord(key, State.HELD, rvn, token, owner, lease_ms)


def _read_closed(key: str, item: Item) -> LockRecord:
    for name in (_TOKEN, _LEASE):
        if name in item:
            raise ValueError(f"it has {name}, and so belongs to a fail-open client")
    rvn, owner = from_guid(field(item, _GUID, "B")), field(item, _OWNER, "S")
    return LockRecord(key, State.HELD, rvn, NO_TOKEN, owner, None)


def _seen(version: Version) -> Item:
    return {
        ":seen": {"B": to_guid(version.rvn)},
        ":token": number(version.fencing_token),
        ":free": number(_FREE_MS),
        **_BOUNDS,
    }
