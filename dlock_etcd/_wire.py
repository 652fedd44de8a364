"""The transactions that etcd is sent, and how their answers are read: pure, without a connection.

A lock is one or two keys of etcd: ``ROOT/lock/KEY`` holds the record, and ``ROOT/data/KEY`` its payload, where there is one, so that a
renewal that keeps the payload doesn't send it. The value of the record begins with the line that conditions compare::

    FORMAT MARK "RVN" TOKEN

etcd compares whole values only, but by order: the values that begin with a text are those between it and its successor. So each step is
one transaction that needs to know nothing but the version that it expects.

The MARK is the state. A claim can't know the revision that its own transaction will get: its TOKEN is ``?``, which says that the token is
the key's ``mod_revision``. As that rises with each write of the whole cluster, the token is above all earlier ones of the key, also where
the key was deleted. A renewal writes the token as a number. Only where somebody asked for a token above the revision, the tombstone's
MARK has a ``+``, and the next claim reads it first.

Who waits has two keys more, which a lease of etcd's removes where its client has died: a place,
``ROOT/wait/LENGTH:KEY/SINCE-CLIENT-TICKET``, in the order of these keys, and a bell, ``ROOT/bell/CLIENT/TICKET``. The length makes the
places of one key the only ones that begin as they do. A claim that names a ticket is refused while there is a place before its own, and
takes its own away where it is applied. Who frees the key removes the bell of the first place, which wakes its client, and no other.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.kit import Plain, damaged, kept, kept_for_first, payload_of, plain_of, record_of, written
from dlock_core.record import FORMAT_VERSION, State
from dlock_core.store import Claim, Expect, Reply
from dlock_etcd._schema import (
    CREATED,
    EQUAL,
    GREATER,
    LEASE,
    LESS,
    MODIFIED,
    VALUE,
    Compare,
    DeleteRange,
    Op,
    Put,
    Range,
    Txn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Release, Replace

# A transaction may have 128 operations in each of its lists; those inside of it may have less by the length of the list around them.
BATCH_LIMIT = 128
_GROUP = 32
_PAGE_SIZE = 500
_WHERE = "etcd"
_IMPLIED = b"?"
_KEPT_MS = 10_000


class Keys(NamedTuple):
    """Where the records are: all keys begin with *root*."""

    root: str

    def head(self, key: str) -> bytes:
        """Return the key of the record of *key*."""
        return f"{self.root}/lock/{key}".encode()

    def data(self, key: str) -> bytes:
        """Return the key of its payload."""
        return f"{self.root}/data/{key}".encode()

    def places(self, key: str) -> bytes:
        """Return how the places of those who wait for *key* begin."""
        return f"{self.root}/wait/{len(key.encode())}:{key}/".encode()

    def place(self, key: str, name: str) -> Place:
        """Return the keys of a waiter for *key* by the *name* of its place: ``SINCE-CLIENT-TICKET``."""
        _, client, ticket = name.split("-", 2)
        return Place(key, self.places(key) + name.encode(), f"{self.root}/bell/{client}/{ticket}")

    def bells(self, client: str) -> bytes:
        """Return how the bells of *client* begin."""
        return f"{self.root}/bell/{client}/".encode()


class Place(NamedTuple):
    """The keys of one who waits for *key*."""

    key: str
    place: bytes
    bell: str


class Shown(NamedTuple):
    """The keys of a lock as an answer shows them: the record, or None, its payload, and whether it is kept for somebody who waits."""

    head: Any
    payload: bytes
    is_kept: bool = False

    @property
    def revision(self) -> int:
        """The revision in which the record was written; 0 where there is none."""
        return 0 if self.head is None else int(self.head.mod_revision)

    def record(self, key: str) -> LockRecord | None:
        """Return the record.

        Raises: RecordError: it is not dlock's, or damaged.
        """
        return None if self.head is None else _record(key, self.head, self.payload)

    def kept(self, key: str) -> LockRecord | None:
        """Return the record of a key that is free, but kept for somebody else: as held; else None."""
        record = self.record(key) if self.is_kept else None
        return None if record is None or record.held else kept_for_first(record, _KEPT_MS)


def _record(key: str, head: Any, payload: bytes) -> LockRecord:
    try:
        line, _, rest = head.value.partition(b"\n")
        number, mark, version = line.split(b" ", 2)
        rvn, _, token = version.rpartition(b" ")
        known = int(number) == FORMAT_VERSION
        owner, lease_ms, context = json.loads(rest) if known else ("", None, "")
        plain = Plain(
            int(number),
            mark.decode().removesuffix("+"),
            json.loads(rvn),
            head.mod_revision if token == _IMPLIED else int(token),
            owner,
            lease_ms,
            context,
            payload,
        )
    except (ValueError, RecursionError) as error:
        raise damaged(key, str(error), where=_WHERE) from error
    return record_of(key, plain, where=_WHERE)


# ---- values


def _line(mark: str, rvn: str, token: int | None) -> bytes:
    return f"{FORMAT_VERSION} {mark} {json.dumps(rvn)} {'?' if token is None else token}\n".encode()


def _value(record: LockRecord, token: int | None, revision: int) -> bytes:
    """Return the value of *record*; the cluster has reached *revision*."""
    above = record.state is not State.HELD and token is not None and token > revision
    plain = plain_of(record)
    line = _line(plain.state + "+" * above, plain.rvn, token)
    return line + json.dumps([plain.owner, plain.lease_ms, plain.context]).encode()


# ---- transactions


class _Branch(NamedTuple):
    """What is done where all of *compare* hold."""

    compare: list[Any]
    done: list[Any]


def _tree(branches: Sequence[_Branch], shown: list[Any]) -> Any:
    """Return the transaction that does the first of *branches* that fits, and else has the keys *shown*."""
    if not branches:
        return Txn(success=shown)
    txn = None
    for branch in reversed(branches):
        txn = Txn(compare=branch.compare, success=branch.done, failure=shown if txn is None else [Op(txn=txn)])
    return txn


def _begins(key: bytes, start: bytes) -> list[Any]:
    """Return what holds where the value of *key* begins with *start*, and is longer."""
    return [
        Compare(result=GREATER, target=VALUE, key=key, value=start),
        Compare(result=LESS, target=VALUE, key=key, value=behind(start)),
    ]


def behind(start: bytes) -> bytes:
    """Return the first text behind all that begin with *start*, whose last byte is not 255."""
    return start[:-1] + bytes([start[-1] + 1])


def shows(keys: Keys, key: str) -> list[Any]:
    return [Op(range=Range(key=keys.head(key))), Op(range=Range(key=keys.data(key)))]


def _done(keys: Keys, record: LockRecord, value: bytes, *, keep: bool) -> list[Any]:
    """Return the operations that write *record*; with *keep* its payload is left, and shown."""
    payload, data = payload_of(record.data, record.attributes), keys.data(record.key)
    put = Op(put=Put(key=keys.head(record.key), value=value))
    if keep:
        return [put, Op(range=Range(key=data))]
    return [put, Op(put=Put(key=data, value=payload)) if payload else Op(delete=DeleteRange(key=data))]


def read(keys: Keys, key: str) -> Any:
    """Return the transaction that reads *key*."""
    return _tree([], shows(keys, key))


def claim(keys: Keys, request: Claim, revision: int, own: Place | None) -> Any:
    """Return the transaction of a claim (clauses S2 to S4); a mere read where its token can't be the revision of the transaction.

    A claim with a ticket comes after all places, or after those before its *own*.
    """
    record, expect, key = request.record, request.expect, request.record.key
    shown = shows(keys, key)
    turn: list[Any] = []
    if request.ticket is not None:
        start = keys.places(key)
        end = own.place if own else behind(start)
        turn = [Compare(result=EQUAL, target=CREATED, key=start, range_end=end, create_revision=0)]
        shown.append(first_place(start, end))
    if record.fencing_token > max(revision, 1):
        return _tree([], shown)
    head, value = keys.head(key), _value(record, None, revision)
    served = _served(keys, key, own)
    whole = [*_done(keys, record, value, keep=False), *served]
    branches = []
    if expect is not Expect.ABSENT:
        kept = [*_done(keys, record, value, keep=request.keep_payload), *served]
        for state, done in (("free", kept), ("gone", whole)):
            start = f"{FORMAT_VERSION} {state} ".encode() if isinstance(expect, Expect) else _line(state, *expect)
            branches.append(_Branch([*_begins(head, start), *turn], done))
    if request.must_exist:
        branches = branches[:1]
    elif isinstance(expect, Expect):
        absent = Compare(result=EQUAL, target=CREATED, key=head, create_revision=0)
        branches.append(_Branch([absent], whole))
    return _tree(branches, shown)


def exact(keys: Keys, record: LockRecord, revision: int, standing: int, own: Place | None) -> Any:
    """Return the transaction that writes *record*, with its token, if the key still is as it was written in the revision *standing*."""
    unchanged = Compare(result=EQUAL, target=MODIFIED, key=keys.head(record.key), mod_revision=standing)
    done = _done(keys, record, _value(record, record.fencing_token, revision), keep=False)
    return _tree([_Branch([unchanged], [*done, *_served(keys, record.key, own)])], shows(keys, record.key))


def _served(keys: Keys, key: str, own: Place | None) -> list[Any]:
    """Return the operations that show the next place, and take that of a waiter away."""
    return [first_place(own.place + b"\0", behind(keys.places(key))), *removed(own.bell, own.place)] if own else []


def first_place(start: bytes, end: bytes) -> Any:
    """Return the operation that shows the first place from *start* to before *end*."""
    return Op(range=Range(key=start, range_end=end, limit=1, keys_only=True))


def removed(*keys: bytes | str) -> list[Any]:
    return [Op(delete=DeleteRange(key=key.encode() if isinstance(key, str) else key)) for key in keys]


def step(keys: Keys, request: Replace | Release, revision: int, following: Place | None = None) -> Any:
    """Return the transaction of a replace or a release (clauses S4 to S6). It wakes the waiter at *following*."""
    record, expected = request.record, request.expected
    head = keys.head(record.key)
    done = _done(keys, record, _value(record, record.fencing_token, revision), keep=request.keep_payload)
    start = keys.places(record.key)
    done += [first_place(start, behind(start)), *(removed(following.bell) if following else ())]
    minted = Compare(result=EQUAL, target=MODIFIED, key=head, mod_revision=expected.fencing_token)
    said = _Branch(_begins(head, _line("held", *expected)), done)
    implied = _Branch([minted, *_begins(head, _line("held", expected.rvn, None))], done)
    return _tree([said, implied], shows(keys, record.key))


def batch(steps: Sequence[Any]) -> Any:
    """Return one transaction of all *steps*, of which each is done or not by itself."""
    each = [Op(txn=txn) for txn in steps]
    groups = [Txn(success=each[start : start + _GROUP]) for start in range(0, len(each), _GROUP)]
    return Txn(success=[Op(txn=group) for group in groups])


def page(keys: Keys, prefix: str, after: str | None) -> Any:
    """Return the transaction that reads a page of records whose keys begin with *prefix*, past *after*.

    Payloads belong to records, so a page of them that begins at the same key reaches as far at least.
    """
    ops = []
    for place in (keys.head, keys.data):
        start, end = place(prefix), behind(place(prefix))
        ops.append(
            Op(range=Range(key=start if after is None else place(after) + b"\0", range_end=end, limit=_PAGE_SIZE))
        )
    return Txn(success=ops)


# ---- waiters


def enter(keys: Keys, own: Place, lease: int) -> Any:
    """Return the transaction that gives a waiter its keys, for as long as *lease* lives, and shows whether a place is before its own.

    It writes nothing where the waiter has them already: etcd keeps whatever is written until it is told to compact.
    """
    shown, both = [*shows(keys, own.key), first_place(keys.places(own.key), own.place)], (own.place, own.bell.encode())
    stand = [Compare(result=EQUAL, target=LEASE, key=each, lease=lease) for each in both]
    taken = [Op(put=Put(key=each, lease=lease)) for each in both]
    return Txn(compare=stand, success=shown, failure=[*shown, *taken])


def leave(keys: Keys, own: Place) -> Any:
    """Return the transaction that takes the keys of a waiter away, and shows whom its turn passes to."""
    start = keys.places(own.key)
    return Txn(success=[*removed(own.bell, own.place), first_place(start, behind(start))])


def ring(place: Place) -> Any:
    """Return the transaction that wakes the waiter at *place*."""
    return Txn(success=removed(place.bell))


# ---- answers


def batch_answers(answer: Any) -> Iterator[Any]:
    """Yield the answer to each step of a batch."""
    for group in answer.responses:
        for each in group.txn.responses:
            yield each.txn


def outcome_of(answer: Any) -> tuple[bool, list[Any]]:
    """Return whether a step was applied, and the answers to the operations of the branch that was done."""
    while answer.responses[0].WhichOneof("choice") == "txn":
        answer = answer.responses[0].txn
    return answer.responses[0].WhichOneof("choice") == "put", list(answer.responses)


def judged(request: Claim | Replace | Release, answer: Any, token: int) -> Reply | Shown:
    """Return the reply to a step that was applied with *token*, or what is shown of the record that refused it.

    Raises: OutcomeUnknownError: it was written, with a damaged payload that it keeps.
    """
    applied, responses = outcome_of(answer)
    if not applied:
        return shown(responses)
    record, was = request.record, responses[1]
    if was.WhichOneof("choice") != "range":
        return Reply(applied=True, record=written(record, token, None))
    payload = was.range.kvs[0].value if was.range.kvs else b""
    return Reply(applied=True, record=kept(record, token, payload))


def shown(responses: Sequence[Any]) -> Shown:
    """Return what the answers to a read say."""
    heads, payloads, *places = (response.range.kvs for response in responses[:3])
    return Shown(heads[0] if heads else None, payloads[0].value if payloads else b"", any(places))


def readings(keys: Keys, answer: Any) -> tuple[list[Callable[[], LockRecord]], str | None]:
    """Return what reads each record of a page, and the key after which there are more, or None."""
    heads, payloads = (response.range for response in answer.responses)
    cut_head, cut_data = len(keys.head("")), len(keys.data(""))
    data = {kv.key[cut_data:]: kv.value for kv in payloads.kvs}
    names = [kv.key[cut_head:] for kv in heads.kvs]
    found: list[Callable[[], LockRecord]] = [
        partial(_record, name.decode(errors="replace"), kv, data.get(name, b""))
        for name, kv in zip(names, heads.kvs, strict=True)
    ]
    return found, names[-1].decode(errors="replace") if heads.more else None


def following(keys: Keys, key: str, answer: Any, told: Place | None = None) -> Place | None:
    """Return the place that the answer to an applied step shows: of who comes next, unless it is *told* and was woken by the step."""
    _, responses = outcome_of(answer)
    first = _place(keys, key, responses[2:3])
    return None if told is not None and first == told and responses[-1].delete.deleted else first


def passed_to(keys: Keys, key: str, answer: Any) -> Place | None:
    """Return the place of who is to be woken since another left, who had been."""
    bell, _, first = answer.responses
    return None if bell.delete.deleted else _place(keys, key, [first])


def rung(answer: Any) -> list[str]:
    """Return the bells that a watch tells of."""
    return [event.kv.key.decode() for event in answer.events]


def _place(keys: Keys, key: str, shows: Sequence[Any]) -> Place | None:
    cut = len(keys.places(key))
    names = [kv.key[cut:].decode() for response in shows for kv in response.range.kvs]
    return keys.place(key, names[0]) if names else None
