"""What is stored under a key: the record, its version, and the values it is made of.

A record checks itself when it is made, which is both before it is written and after it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dlock_core.errors import ConfigurationError, RecordError

if TYPE_CHECKING:
    from types import UnionType

__all__ = [
    "DATA_MAX_BYTES",
    "FORMAT_VERSION",
    "KEY_MAX_BYTES",
    "LEASE_MAX_MS",
    "MEMBERS_MAX",
    "NOTES_MAX",
    "NO_TOKEN",
    "RESERVED",
    "TOKEN_MAX",
    "AttributeValue",
    "Attributes",
    "Beat",
    "BeatNote",
    "Broken",
    "LockRecord",
    "Loss",
    "LossReason",
    "Member",
    "Members",
    "NewerRecord",
    "OwnerState",
    "ProcessIdentity",
    "SessionRef",
    "Stamp",
    "State",
    "Times",
    "Version",
    "check_key",
    "newer_format",
]

AttributeValue: TypeAlias = str | int | bool | bytes
Attributes: TypeAlias = tuple[tuple[str, AttributeValue], ...]

FORMAT_VERSION = 1
KEY_MAX_BYTES = 1024
RESERVED = "~dlock/"
"""May stand in no key of a user: what follows it in a key is ours."""
DATA_MAX_BYTES = 64 * 1024
# Numbers of the format: a double holds every token exactly, and no lease outlives a day.
TOKEN_MAX = 2**53 - 1
LEASE_MAX_MS = 24 * 60 * 60 * 1000
# A record with as many members as this is about 8 KiB; each write carries all of it.
MEMBERS_MAX = 128
NOTES_MAX = 64
_RVN_MAX_CHARS = 64
_INTEGER_MAX = 2**63 - 1
_ATTRIBUTES_MAX_BYTES = 64 * 1024
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MEMBER_ID = re.compile(r"[0-9a-f]{16}")
_NOTE_KINDS = ("break", "yield")
_MEMBERS_KINDS = ("rw", "permits")


class _NoToken(int):
    """The type of :data:`NO_TOKEN`: a zero that says so on purpose, where one that was read from a store is damage."""

    __slots__ = ()

    def __reduce__(self) -> str:
        """Stay the one object through pickle and copy."""
        return "NO_TOKEN"


NO_TOKEN = _NoToken()
"""The fencing token (0) of every record of a store whose ``guarantees()`` say ``token = none``: it fences nothing."""


class State(StrEnum):
    """Of a record: ``held``; ``free`` after a release; ``gone``, free and also hidden from reads, with its token kept."""

    HELD = "held"
    FREE = "free"
    GONE = "gone"


class Version(NamedTuple):
    """What a condition compares, together with the state ``held`` or not.

    The RVN alone is not enough: a claim applied twice puts the same RVN under a second token.
    """

    rvn: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """A wall-clock instant in ms since 1970 (UTC), and the RVN of the write that set it. Another writer's stamp proves nothing."""

    at_ms: int
    rvn: str


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Which process holds the record: enough to tell on the same host that it is dead, and nothing elsewhere."""

    boot_id: str
    pid_namespace: int
    pid: int
    started_at: int
    child_group: int | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """An operator broke the lock: who, and when (wall clock, ms since 1970, for people only)."""

    by: str
    at_ms: int


class Times(NamedTuple):
    """When the lock was granted, and the record written, by the writer's wall clock (s since 1970). For people: no decision reads them."""

    granted_at_s: int
    written_at_s: int


class SessionRef(NamedTuple):
    """The session that keeps a lock: a grant of the key of the session's own record, and the lease of that record in ms.

    The grant is known by its token, so the key can be used again: the locks of an earlier session are not those of the next one.
    """

    key: str
    lease_ms: int
    fencing_token: int


class BeatNote(NamedTuple):
    """A message to the owner of a session about one of its locks: ``break`` or ``yield``, and who asks."""

    key: str
    fencing_token: int
    kind: str
    by: str


class Beat(NamedTuple):
    """In the record of a session: the RVN of its owner's last write, and up to 64 messages that others have left."""

    own: str
    notes: tuple[BeatNote, ...] = ()


class Member(NamedTuple):
    """One holder of a shared lock: *member_id* is 16 hex digits, *session* an index into :attr:`Members.sessions`.

    A member whose *fencing_token* is None has the token of the record.
    """

    member_id: str
    mode: str
    slot: int | None
    fencing_token: int | None
    weight: int
    session: int


class Members(NamedTuple):
    """The holders of a shared lock, at most 128; *kind* is ``rw`` (read/write lock) or ``permits`` (semaphore)."""

    kind: str
    sessions: tuple[SessionRef, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The record of one key. *lease_ms* is None for a lock that never lapses (fail-closed) and for a record that is not held.

    It is also None for a record with *session* or *members*: sessions, which are records of their own, keep such a lock. *delay_ms* is the
    part of the lease in which the holder no longer uses the lock. *owner* and *times* are for people; one that is not held keeps them.
    *waiters*, never stored or compared, is how many wait for the key, in a read or a refused claim of Redis or SQLite; None: nobody, or
    the store cannot know.

    Raises: RecordError: a field is out of the format's bounds.
    """

    key: str
    state: State
    rvn: str
    fencing_token: int
    owner: str
    lease_ms: int | None
    data: bytes | None = None
    attributes: Attributes = ()
    stamp: Stamp | None = None
    process: ProcessIdentity | None = None
    broken: Broken | None = None
    session: SessionRef | None = None
    beat: Beat | None = None
    members: Members | None = None
    delay_ms: int | None = None
    times: Times | None = None
    waiters: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Check the bounds of the format; adapters rely on it for what they read, and the core for what it writes."""
        lease_ms, token = self.lease_ms, self.fencing_token
        if token is not NO_TOKEN and (type(token) is not int or not 0 < token <= TOKEN_MAX):
            raise self._unsound(f"fencing token {token!r} is not an integer from 1 to {TOKEN_MAX}")
        if lease_ms is not None and (type(lease_ms) is not int or not 0 < lease_ms <= LEASE_MAX_MS):
            raise self._unsound(f"lease {lease_ms!r} ms is not an integer from 1 to {LEASE_MAX_MS}")
        if self.delay_ms is not None and (
            type(self.delay_ms) is not int or lease_ms is None or not 0 < self.delay_ms < lease_ms
        ):
            raise self._unsound(f"delay {self.delay_ms!r} ms is not a part of its lease")
        if type(self.rvn) is not str or not 0 < len(self.rvn) <= _RVN_MAX_CHARS:
            raise self._unsound(f"record version number {self.rvn!r} is not 1 to {_RVN_MAX_CHARS} characters")
        if type(self.state) is not State:
            raise self._unsound(f"unknown state {self.state!r}")
        if type(self.owner) is not str:
            raise self._unsound(f"owner {self.owner!r} is not text")
        if self.data is not None:
            self._check_data(self.data)
        if self.attributes:
            self._check_attributes()
        if self.session is not None or self.beat is not None or self.members is not None:
            self._check_sessions()

    @property
    def version(self) -> Version:
        """The RVN and the token, which every condition compares."""
        return Version(self.rvn, self.fencing_token)

    @property
    def held(self) -> bool:
        """Whether somebody holds the key, as far as the record says; a dead holder's record says so too."""
        return self.state is State.HELD

    def _check_data(self, data: bytes) -> None:
        if type(data) is not bytes:
            raise self._unsound(f"data is {type(data).__name__}, not bytes")
        if len(data) > DATA_MAX_BYTES:
            raise self._unsound(f"data of {len(data)} bytes exceeds {DATA_MAX_BYTES}")

    def _check_attributes(self) -> None:
        size, last = 0, ""
        for name, value in self.attributes:
            if type(name) is not str or not name or name <= last:
                raise self._unsound(f"attribute name {name!r} is empty, doubled or out of order")
            if type(value) not in (str, int, bool, bytes):
                raise self._unsound(f"attribute {name!r} is {type(value).__name__}, not str, int, bool or bytes")
            if type(value) is int and not -_INTEGER_MAX <= value <= _INTEGER_MAX:
                raise self._unsound(f"attribute {name!r} exceeds 64 bits")
            size += len(name) + (len(value) if isinstance(value, (str, bytes)) else 8)
            last = name
        if size > _ATTRIBUTES_MAX_BYTES:
            raise self._unsound(f"attributes of {size} bytes exceed {_ATTRIBUTES_MAX_BYTES}")

    def _check_sessions(self) -> None:
        try:
            if self.session is not None:
                _check_session(self.session)
            if self.beat is not None:
                _check_beat(self.beat)
            if self.members is not None:
                _check_members(self.members)
            if self.lease_ms is not None and (self.session is not None or self.members is not None):
                raise ValueError(f"it has a lease of {self.lease_ms} ms beside a session or members")
        except ValueError as error:
            raise self._unsound(str(error)) from None

    def _unsound(self, what: str) -> RecordError:
        problem = (
            f"record under key {self.key!r}: {what}; inspect it with the store's own tools, dlock never overwrites it"
        )
        return RecordError(problem, key=self.key)


def _check_session(session: SessionRef) -> None:
    _check_types(session, SessionRef, str, int, int)
    key, lease_ms, token = session
    if not (0 < len(key) <= KEY_MAX_BYTES and 0 < lease_ms <= LEASE_MAX_MS and 0 < token <= TOKEN_MAX):
        raise ValueError(f"{session!r} has no key, no token, or no lease from 1 to {LEASE_MAX_MS} ms")


def _check_beat(beat: Beat) -> None:
    _check_types(beat, Beat, str, tuple)
    if not 0 < len(beat.own) <= _RVN_MAX_CHARS or len(beat.notes) > NOTES_MAX:
        raise ValueError(f"its beat has no version number, or more than {NOTES_MAX} notes")
    for note in beat.notes:
        _check_types(note, BeatNote, str, int, str, str)
        if not note.key or not 0 < note.fencing_token <= TOKEN_MAX or note.kind not in _NOTE_KINDS:
            raise ValueError(f"{note!r} has no key, no token, or a kind that is not one of {', '.join(_NOTE_KINDS)}")


def _check_members(members: Members) -> None:
    _check_types(members, Members, str, tuple, tuple)
    if members.kind not in _MEMBERS_KINDS or len(members.members) > MEMBERS_MAX:
        raise ValueError(f"its members are of kind {members.kind!r}, or are more than {MEMBERS_MAX}")
    for session in members.sessions:
        _check_session(session)
    for member in members.members:
        _check_types(member, Member, str, str, int | None, int | None, int, int)
        if (
            not _MEMBER_ID.fullmatch(member.member_id)
            or not 0 <= member.session < len(members.sessions)
            or not 0 < member.weight <= _INTEGER_MAX
            or (member.slot is not None and not 0 <= member.slot <= _INTEGER_MAX)
            or (member.fencing_token is not None and not 0 < member.fencing_token <= TOKEN_MAX)
        ):
            raise ValueError(f"{member!r} has a value out of bounds")


def _check_types(value: tuple[object, ...], kind: type, *types: type | UnionType) -> None:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    for part, expected in zip(value, types, strict=True):
        if not isinstance(part, expected) or type(part) is bool:
            raise ValueError(f"{part!r} in its {kind.__name__} is of a wrong type")


class NewerRecord(LockRecord):
    """A record of a higher format version: held, without a lease, and never written over by this version (clause S16)."""

    __slots__ = ()


class LossReason(StrEnum):
    """Why a lock was lost. ``OVERRUN``: the body outlived ``max_hold``. ``STALLED``: it made no progress for ``stall_timeout``."""

    EXPIRED = "expired"
    STOLEN = "stolen"
    BROKEN = "broken"
    UNREACHABLE = "unreachable"
    OVERRUN = "overrun"
    STALLED = "stalled"


class OwnerState(StrEnum):
    """What an owner probe knows of whoever wrote a record. Only ``dead`` changes anything."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of a lock that was lost. *record* is what stands under the key now, if that is known."""

    key: str
    fencing_token: int
    reason: LossReason
    record: LockRecord | None


@lru_cache(maxsize=4096)
def check_key(key: str) -> str:
    """Return *key* if every store can hold it exactly: 1 to 1024 bytes of UTF-8, no control characters.

    Raises: ConfigurationError: it cannot be stored; the message says why. Keys are never cut, folded or hashed silently.
    """
    if type(key) is not str:
        raise ConfigurationError(f"key {key!r} is {type(key).__name__}, not str")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"key {key!r} holds a lone surrogate at position {error.start}; it has no UTF-8 form"
        ) from None
    if not 0 < size <= KEY_MAX_BYTES:
        raise ConfigurationError(f"key {key[:40]!r} has {size} bytes with its prefix; 1 to {KEY_MAX_BYTES} are allowed")
    if RESERVED in key:
        raise ConfigurationError(
            f"key {key!r} holds {RESERVED!r}, which is reserved for records of dlock's own; take another key"
        )
    if found := CONTROL.search(key):
        raise ConfigurationError(
            f"key {key!r} holds the control character {found.group()!r} at position {found.start()}"
        )
    return key


def newer_format(key: str, format_version: int, rvn: str, fencing_token: int) -> NewerRecord:
    """Return how a record of a higher *format_version* is shown to this version: held, and never to be taken over.

    Its other fields may change what the record means, so an older program only waits until the key is free.
    """
    owner = f"(record of format {format_version}; update dlock to read it)"
    return NewerRecord(key, State.HELD, rvn, fencing_token, owner, None)
