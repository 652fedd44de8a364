"""What is said to Redis and what its answers mean: pure, shared by both colours.

The record of a key is one hash under that very key::

    HGETALL billing/42
    v        1                                              format
    state    held                                           held, free or gone
    rvn      5f0c…                                          changes with every write
    token    1795000000123456                               at least the server's clock in microseconds when it was minted
    about    {"owner": "host-7:311:9f", "lease_ms": 20000}  also stamp, process, broken, where there are any
    payload                                                 attributes (JSON), newline, "-" or "+" and the data; empty without either
    written  1795000000123456 5f0c…                         server's clock in microseconds at the last write, and its rvn
    queue    …                                              who waits: place, and until when (server's clock), in order of arrival
    turn     …                                              for whom a free key is kept, and until when

Every verb is one script, hence atomic. A script decides on the first six fields as the port says; *queue* and *turn* only ever delay a
claim, by ``TURN_MS`` at most. A *place* is the list on which one waiter blocks; it lies in the key's Cluster slot. No record ever expires.
"""

from __future__ import annotations

import json
import re
from binascii import crc_hqx
from contextlib import contextmanager
from dataclasses import astuple
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError
from dlock_core.record import (
    FORMAT_VERSION,
    Attributes,
    Broken,
    LockRecord,
    ProcessIdentity,
    Stamp,
    State,
    newer_format,
)
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_redis._errors import check
from dlock_redis._resp import pack
from dlock_redis._scripts import ENTER, PUT_MANY, RENEW_MANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dlock_redis._scripts import Script

_SLOTS = 16384
_PAGE = b"500"
_FORGOTTEN_S = 1
_AWAY_S = 0.02
_KEPT_MS = 1000
_POLYNOMIAL = 0x1021

# ---- requests


def claim_words(request: Claim) -> list[bytes]:
    """Return the arguments of CLAIM."""
    record, expect, ticket = request.record, request.expect, request.ticket
    options = (b"m" if request.must_exist else b"") + (b"k" if request.keep_payload else b"")
    words = [record.rvn.encode(), b"%d" % record.fencing_token, about_of(record), payload_of(record), options]
    words.append(b"" if ticket is None else place_of(record.key, ticket))
    if expect is Expect.ABSENT:
        words[4] += b"a"
    elif expect is not Expect.ANY:
        words[4] += b"v"
        words += (expect.rvn.encode(), b"%d" % expect.fencing_token)
    return words


def put_words(request: Replace | Release) -> list[bytes]:
    """Return the arguments of PUT for one key."""
    record, expected = request.record, request.expected
    return [
        expected.rvn.encode(),
        b"%d" % expected.fencing_token,
        record.state.value.encode(),
        record.rvn.encode(),
        b"%d" % record.fencing_token,
        about_of(record),
        payload_of(record),
        b"k" if request.keep_payload else b"",
    ]


def about_of(record: LockRecord) -> bytes:
    """Return all of a record that no condition compares, the payload excepted."""
    return _about(record.owner, record.lease_ms, record.stamp, record.process, record.broken)


@lru_cache(maxsize=1024)
def _about(
    owner: str, lease_ms: int | None, stamp: Stamp | None, process: ProcessIdentity | None, broken: Broken | None
) -> bytes:
    about: dict[str, object] = {"owner": owner, "lease_ms": lease_ms}
    about |= {
        name: astuple(value)
        for name, value in (("stamp", stamp), ("process", process), ("broken", broken))
        if value is not None
    }
    return json.dumps(about).encode()


def payload_of(record: LockRecord) -> bytes:
    """Return data and attributes as one value."""
    if record.data is None and not record.attributes:
        return b""
    attributes = [(name, {"hex": value.hex()} if type(value) is bytes else value) for name, value in record.attributes]
    return json.dumps(attributes).encode() + b"\n" + (b"-" if record.data is None else b"+" + record.data)


def slot_of(key: bytes) -> int:
    """Return the Cluster slot of *key*: of what stands between its first ``{`` and the next ``}``, unless that is nothing."""
    return crc_hqx(_tag(key) or key, 0) % _SLOTS


def _tag(key: bytes) -> bytes:
    opened, closed = key.find(b"{"), key.find(b"}", key.find(b"{"))
    return key[opened + 1 : closed] if 0 <= opened < closed else b""


@lru_cache(maxsize=4096)
def place_of(key: str, ticket: str) -> bytes:
    """Return the name of the list that the waiter *ticket* blocks on, in the slot of *key*, whatever braces the key has.

    It starts with the key, so that a right to ``~prefix*`` covers it. No key holds the control character, so the two never meet.
    """
    lock, waiter = key.encode(), (ticket if ticket.isprintable() else ticket.encode().hex()).encode()
    if _tag(lock):
        return b"%b\x1d%b" % (lock, waiter)
    if b"{" not in lock and b"}" not in lock:
        return b"%b\x1d{%b}%b" % (lock, lock, waiter)
    # Braces, but no tag: two last bytes bring the checksum to where it must be; such that they are letters or digits, for whoever looks.
    tries = (_ending_at(b"%b\x1d%b%d" % (lock, waiter, n), crc_hqx(lock, 0)) for n in range(_SLOTS))
    return next(place for place in tries if place[-2:].isalnum())


def _ending_at(start: bytes, checksum: int) -> bytes:
    """Return *start* and two more bytes that give it this CRC-16: its last sixteen steps, undone."""
    for _ in range(16):
        checksum = (checksum ^ _POLYNOMIAL) >> 1 | 0x8000 if checksum & 1 else checksum >> 1
    return start + (checksum ^ crc_hqx(start, 0)).to_bytes(2)


def wait_commands(key: str, place: bytes, timeout_s: float) -> bytes:
    """Return what enters the queue and then blocks. The waiter's own clock ends the wait; the server's, later, a forgotten one.

    It stands in the queue for a little less, lest it is woken when it has just left. The script goes with its text, since the answer
    that it is unknown would only be read when the wait is over.
    """
    queued_us = int((timeout_s - min(_AWAY_S, timeout_s / 4)) * 1_000_000)
    enter = ENTER.command((key.encode(), place), (b"%d" % queued_us,), whole=True)
    return enter + pack(b"BLPOP", place, b"%.3f" % (timeout_s + _FORGOTTEN_S))


# ---- answers


def reply_of(request: Claim | Replace | Release, answer: Any) -> Reply:
    """Return what a script answered: nothing, a token, a token and the payload that was kept, or the row that refused."""
    if answer is None:
        return Reply(applied=False, record=None)
    record = request.record
    if type(answer) is int:
        return Reply(applied=True, record=_written(record, answer, record.data, record.attributes))
    if len(answer) == 2 and type(answer[0]) is int:  # noqa: PLR2004  # token and payload
        try:
            data, attributes = _parsed(record.key, _read_payload, answer[1])
        except RecordError as error:
            # It was applied: an error that says the opposite would leave a held record behind.
            raise OutcomeUnknownError(f"lock {record.key!r} was written, but {error}", key=record.key) from error
        return Reply(applied=True, record=_written(record, answer[0], data, attributes))
    return Reply(applied=False, record=record_of(record.key, answer))


def _written(record: LockRecord, token: int, data: bytes | None, attributes: Attributes) -> LockRecord:
    if token == record.fencing_token and data is record.data and attributes is record.attributes:
        return record
    key, state, rvn, owner, lease_ms = record.key, record.state, record.rvn, record.owner, record.lease_ms
    return LockRecord(
        key, state, rvn, token, owner, lease_ms, data, attributes, record.stamp, record.process, record.broken
    )


def aged_of(key: str, answer: Sequence[Any] | None) -> tuple[LockRecord, int] | None:
    """Return the record in *answer* and its age in ms, or None where there was nothing."""
    return None if answer is None else (_parsed(key, _read_row, (key, *answer[0])), answer[1])


def record_of(key: str, row: Sequence[Any] | None) -> LockRecord | None:
    """Return the record in *row*, or None where there was nothing.

    A free key that is kept for the first waiter is shown as held by it, so that it is waited for and not asked for again and again. As
    lease it is given a time that its turn never lasts.
    """
    if row is None:
        return None
    record: LockRecord = _parsed(key, _read_row, (key, *row[:6]))
    if len(row) > 6:  # noqa: PLR2004  # a seventh: kept
        return LockRecord(
            key, State.HELD, record.rvn, record.fencing_token, "(free, kept for the first who waits)", _KEPT_MS
        )
    return record


class Part(NamedTuple):
    """What one request of a batch has: which of the batch's, the script, their keys, the arguments."""

    numbers: Sequence[int]
    script: Script
    keys: Sequence[str]
    words: Sequence[bytes]


class Batch:
    """Replaces that go together: all of them, or, *by_slot*, those whose keys share a Cluster slot. Each has a result of its own."""

    def __init__(self, requests: Sequence[Replace], *, by_slot: bool) -> None:
        self._requests = requests
        self.results: list[Reply | StoreError] = [OutcomeUnknownError("not answered")] * len(requests)
        together: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            together.setdefault(slot_of(request.record.key.encode()) if by_slot else 0, []).append(number)
        self.parts = [self._part(numbers) for numbers in together.values()]

    def _part(self, numbers: Sequence[int]) -> Part:
        requests = [self._requests[number] for number in numbers]
        keys = [request.record.key for request in requests]
        about = about_of(requests[0].record)
        if all(_is_plain(request) and about_of(request.record) == about for request in requests):
            return Part(
                numbers, RENEW_MANY, keys, [about, *(word for each in requests for word in _renewal_words(each))]
            )
        return Part(numbers, PUT_MANY, keys, [word for request in requests for word in put_words(request)])

    def answer(self, part: Part, answers: Any) -> None:
        """Note what the script answered; a record that cannot be read is the result of its own request only."""
        told: Iterable[tuple[int, Any]]
        if part.script is RENEW_MANY:
            for number in part.numbers:
                self.results[number] = _renewed(self._requests[number].record)
            told = [
                (part.numbers[place - 1], answer) for place, answer in zip(answers[::2], answers[1::2], strict=True)
            ]
        else:
            told = zip(part.numbers, answers, strict=True)
        for number, answer in told:
            try:
                self.results[number] = reply_of(self._requests[number], answer)
            except StoreError as error:
                self.results[number] = error

    @contextmanager
    def failing(self, part: Part) -> Iterator[None]:
        """Make trouble with one of several parts the result of its requests; that of the only part stands for all."""
        try:
            yield
        except StoreError as error:
            if len(self.parts) == 1:
                raise
            for number in part.numbers:
                self.results[number] = error


def _is_plain(request: Replace) -> bool:
    """Whether it changes nothing but the RVN and what is told about the holder."""
    record = request.record
    return (
        request.keep_payload and record.state is State.HELD and record.fencing_token == request.expected.fencing_token
    )


def _renewal_words(request: Replace) -> tuple[bytes, bytes, bytes]:
    rvn, token = request.expected
    return rvn.encode(), b"%d" % token, request.record.rvn.encode()


def _renewed(record: LockRecord) -> Reply:
    return Reply(applied=True, record=_written(record, record.fencing_token, None, ()))


class Pages:
    """The progress of a scan: *command* asks for the next page while there is *more*."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._seen: set[bytes] = set()
        self._cursor = b"0"
        self._foreign: list[str] = []
        self.more = True

    @property
    def command(self) -> bytes:
        """The request for the names of the next page."""
        pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", self._prefix) + b"*"
        return pack(b"SCAN", self._cursor, b"MATCH", pattern, b"COUNT", _PAGE)

    def names(self, answer: Sequence[Any]) -> list[bytes]:
        """Return the keys of a page that no earlier one had (SCAN may repeat itself), without the places of waiters."""
        self._cursor = answer[0]
        self.more = self._cursor != b"0"
        names = [name for name in dict.fromkeys(answer[1]) if name not in self._seen and b"\x1d" not in name]
        self._seen.update(names)
        return names

    @staticmethod
    def fields(names: Sequence[bytes]) -> list[bytes]:
        """Return the requests for the records of these names."""
        return [pack(b"HMGET", name, b"v", b"state", b"rvn", b"token", b"about", b"payload") for name in names]

    def records(self, names: Sequence[bytes], rows: Sequence[Any]) -> Iterator[LockRecord]:
        """Yield the records of a page; what is none is noted."""
        for name, row in zip(names, rows, strict=True):
            key = name.decode(errors="backslashreplace")
            try:
                yield _parsed(key, _read_row, (key, *check([row], key)[0]))
            except RecordError:
                self._foreign.append(key)

    def end(self) -> None:
        """Raise RecordError if something else than records was met under the prefix; a list of the whole database passes it over."""
        if self._foreign and self._prefix:
            some, more = ", ".join(map(repr, self._foreign[:3])), ", …" if len(self._foreign) > 3 else ""  # noqa: PLR2004
            problem = (
                f"under prefix {self._prefix.decode()!r} stands something else than records of dlock: {some}{more}"
            )
            raise RecordError(f"{problem}; give the locks a prefix of their own", key=self._foreign[0])


def _parsed(key: str, read: Any, found: Any) -> Any:
    try:
        return read(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        problem = f"what Redis has under key {key!r} is not a record of dlock ({error}); "
        problem += "see it with TYPE and HGETALL, dlock never overwrites it"
        raise RecordError(problem, key=key) from error


def _read_row(row: Sequence[Any]) -> LockRecord:
    if len(row) == 1:
        raise ValueError("it is of another type than a hash")
    key, version, state, rvn, token, about, payload = row
    if version is None:
        raise ValueError("it has no field 'v'")
    if version != b"1" and int(version) > FORMAT_VERSION:
        return newer_format(key, int(version), rvn.decode(), int(token))
    if version != b"1":
        raise ValueError(f"format {version!r}")
    owner, lease_ms, stamp, process, broken = _read_about(about)
    data, attributes = _read_payload(payload)
    return LockRecord(
        key, State(state.decode()), rvn.decode(), int(token), owner, lease_ms, data, attributes, stamp, process, broken
    )


@lru_cache(maxsize=1024)
def _read_about(value: bytes) -> tuple[str, int | None, Stamp | None, ProcessIdentity | None, Broken | None]:
    about = json.loads(value)
    stamp, process, broken = about.get("stamp"), about.get("process"), about.get("broken")
    return (
        about["owner"],
        about["lease_ms"],
        Stamp(*stamp) if stamp else None,
        ProcessIdentity(*process) if process else None,
        Broken(*broken) if broken else None,
    )


def _read_payload(value: bytes) -> tuple[bytes | None, Attributes]:
    if value == b"":
        return None, ()
    head, _, body = value.partition(b"\n")
    if body[:1] not in (b"-", b"+"):
        raise ValueError("the payload has no data mark")
    attributes = tuple(
        (name, bytes.fromhex(item["hex"]) if isinstance(item, dict) else item) for name, item in json.loads(head)
    )
    return (body[1:] if body[:1] == b"+" else None), attributes
