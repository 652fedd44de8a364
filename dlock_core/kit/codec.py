"""The record as plain values: the one place that knows the format of a stored record.

:func:`plain_of` turns a record into eight plain values (numbers, text, bytes), :func:`record_of` turns them back. An adapter says only
where each value lies in its rows. A store that keeps a whole record as one value uses :func:`packed` and :func:`unpacked`.

``context`` is JSON text of everything that no condition compares: stamp, process, broken, session, beat, members, delay, times; empty where
the record has none of them. ``payload`` is attributes (JSON), a newline, ``-`` or ``+``, and the data; empty where there is neither.
"""

from __future__ import annotations

import json
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.errors import RecordError
from dlock_core.record import (
    FORMAT_VERSION,
    Attributes,
    AttributeValue,
    Beat,
    BeatNote,
    Broken,
    LockRecord,
    Member,
    Members,
    ProcessIdentity,
    SessionRef,
    Stamp,
    State,
    Times,
    newer_format,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The parts of a record's context, in the order of its fields.
CONTEXT_OF = attrgetter("stamp", "process", "broken", "session", "beat", "members", "delay_ms", "times")
_STATES: dict[object, State] = {state.value: state for state in State}
# What reading a value that was not written here may raise.
UNREADABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Plain(NamedTuple):
    """A record without its key. ``format``, ``state``, ``rvn`` and ``token`` are what conditions compare."""

    format: int
    state: str
    rvn: str
    token: int
    owner: str
    lease_ms: int | None
    context: str
    payload: bytes


def plain_of(record: LockRecord) -> Plain:
    """Return the plain values that are stored for *record*."""
    return Plain(
        FORMAT_VERSION,
        record.state.value,
        record.rvn,
        record.fencing_token,
        record.owner,
        record.lease_ms,
        _context_of(*CONTEXT_OF(record)),
        payload_of(record.data, record.attributes),
    )


def record_of(key: str, plain: Plain, *, where: str = "the store") -> LockRecord:
    """Return the record that *plain* says; one of a higher format as :func:`~dlock_core.record.newer_format` shows it.

    Raises: RecordError: a value is missing, of another type or out of bounds; the message names *where* it is stored.
    """
    version, state, rvn, token, owner, lease_ms, context, payload = plain
    try:
        if type(version) is not int or version != FORMAT_VERSION:
            if type(version) is int and version > FORMAT_VERSION:
                return newer_format(key, version, rvn, token)
            raise ValueError(f"format {version!r}")
        if state not in _STATES:
            raise ValueError(f"state {state!r}")
        data, attributes = read_payload(payload)
        return LockRecord(key, _STATES[state], rvn, token, owner, lease_ms, data, attributes, *_read_context(context))
    except RecordError:
        raise
    except UNREADABLE as error:
        raise damaged(key, str(error), where=where) from error


def damaged(key: str, fault: str, *, where: str) -> RecordError:
    """Return the error for a value under *key* that is not a record, or a damaged one."""
    return RecordError(
        f"what {where} has under key {key!r} is not a record of dlock, or a damaged one ({fault}); "
        "look at it with the store's own tools, dlock never overwrites it",
        key=key,
    )


def packed(record: LockRecord) -> bytes:
    """Return *record* with its key as one value."""
    *fields, payload = plain_of(record)
    return json.dumps([record.key, *fields]).encode() + b"\n" + payload


def unpacked(value: bytes, key: str | None = None, *, where: str = "the store") -> LockRecord:
    """Return the record in *value*, which :func:`packed` made; with *key*, it must be the record of that key.

    Raises: RecordError: as :func:`record_of`; also where *value* holds another key.
    """
    head, _, payload = value.partition(b"\n")
    shown = "?" if key is None else key
    try:
        name, version, state, rvn, token, owner, lease_ms, context = json.loads(head)
        if type(name) is not str or (key is not None and name != key):
            raise ValueError(f"it names key {name!r}")
        plain = Plain(version, state, rvn, token, owner, lease_ms, context, payload)
    except UNREADABLE as error:
        raise damaged(shown, str(error), where=where) from error
    return record_of(name, plain, where=where)


# ---- payload


def payload_of(data: bytes | None, attributes: Attributes) -> bytes:
    """Return data and attributes as one value; the first line is JSON, so that people can read it."""
    if data is None and not attributes:
        return b""
    named = [(name, {"hex": value.hex()} if type(value) is bytes else value) for name, value in attributes]
    return json.dumps(named).encode() + b"\n" + (b"-" if data is None else b"+" + data)


def read_payload(payload: bytes) -> tuple[bytes | None, Attributes]:
    """Return the data and the attributes in *payload*.

    Raises: ValueError, TypeError and their kin where :func:`payload_of` cannot have made it.
    """
    if payload == b"":
        return None, ()
    head, _, body = payload.partition(b"\n")
    mark = body[:1]
    if mark not in (b"-", b"+") or (mark == b"-" and len(body) > 1):
        raise ValueError("the payload has no data mark")
    attributes = tuple(_read_attribute(*_list(pair)) for pair in _list(json.loads(head)))
    return (body[1:] if mark == b"+" else None), attributes


def _read_attribute(name: str, value: Any) -> tuple[str, AttributeValue]:
    if type(value) is not dict:
        return name, value
    [(tag, digits)] = value.items()
    if tag != "hex":
        raise ValueError(f"unknown tag {tag!r}")
    return name, bytes.fromhex(digits)


# ---- context: each part as the list of its fields


@lru_cache(maxsize=1024)
def _context_of(*parts: Any) -> str:
    named = {name: part for name, part in zip(_READERS, parts, strict=True) if part is not None}
    return _AS_JSON(named) if named else ""


@lru_cache(maxsize=1024)
def _read_context(text: str) -> tuple[Any, ...]:
    """Return the parts, in the order of the fields of :class:`~dlock_core.record.LockRecord`.

    A part that this version does not know is an error: it may change what the record means. The record itself checks the values of
    session, beat, members and delay.
    """
    if text == "":
        return _NO_CONTEXT
    parts = json.loads(text)
    if unknown := sorted(parts.keys() - _READERS.keys()):
        raise ValueError(f"unknown part {unknown[0]!r}")
    return tuple(read(parts[name]) if name in parts else None for name, read in _READERS.items())


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _typed(fields: Any, *kinds: type) -> list[Any]:
    if [type(field) for field in _list(fields)] != list(kinds):
        raise TypeError(f"{fields!r} are not {', '.join(kind.__name__ for kind in kinds)}")
    return _list(fields)


def _read_process(fields: Any) -> ProcessIdentity:
    group = _list(fields)[-1]
    return ProcessIdentity(*_typed(fields, str, int, int, int, type(None) if group is None else int))


def _read_session(fields: Any) -> SessionRef:
    return SessionRef(*_list(fields))


def _read_beat(fields: Any) -> Beat:
    own, notes = _list(fields)
    return Beat(own, tuple(BeatNote(*_list(note)) for note in _list(notes)))


def _read_members(fields: Any) -> Members:
    kind, sessions, members = _list(fields)
    return Members(
        kind, tuple(map(_read_session, _list(sessions))), tuple(Member(*_list(member)) for member in _list(members))
    )


# JSON writes a named tuple as a list of its fields by itself; a dataclass is made one.
_AS_JSON = json.JSONEncoder(default=lambda part: [getattr(part, name) for name in part.__slots__]).encode
# In the order of CONTEXT_OF.
_READERS: dict[str, Callable[[Any], object]] = {
    "stamp": lambda fields: Stamp(*_typed(fields, int, str)),
    "process": _read_process,
    "broken": lambda fields: Broken(*_typed(fields, str, int)),
    "session": _read_session,
    "beat": _read_beat,
    "members": _read_members,
    "delay": lambda value: _typed([value], int)[0],
    "times": lambda fields: Times(*_typed(fields, int, int)),
}
_NO_CONTEXT = (None,) * len(_READERS)
