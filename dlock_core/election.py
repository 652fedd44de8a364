"""What an election adds to a lock: who leads, as an observer sees it. Pure: instants are arguments, as in :mod:`dlock_core.lease`.

An election is a lock. Its ``data`` are the leader's value, and its fencing token is the term. An observer reads the record again and again.
It judges a leader by its own clock, as a waiter judges a holder, but it never claims the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from dlock_core.members import kind_error
from dlock_core.timings import NEVER

if TYPE_CHECKING:
    from dlock_core.record import LockRecord, Version

__all__ = ["Leader", "LeaderState", "Observed", "leader_of", "look", "observe"]

_MILLI = 1_000_000


class LeaderState(StrEnum):
    """``leading``; ``silent``: the leader has not renewed for a lease; ``vacant``: nobody leads."""

    LEADING = "leading"
    SILENT = "silent"
    VACANT = "vacant"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the record says. It is a report, and it may be old: only the leader's own ``term.is_valid`` proves anything.

    While the state is *vacant*, *term* is the last one that was seen, and *owner* and *value* are empty.
    """

    key: str
    term: int
    owner: str
    value: bytes | None
    state: LeaderState


class Observed(NamedTuple):
    """What an observer of *key* knows: *version* has stood since the instant *since*, and *told* is the last report."""

    key: str
    version: Version | None = None
    since: int = 0
    lease_ns: int = NEVER
    told: Leader | None = None

    @property
    def term(self) -> int:
        """The term of the last report."""
        return 0 if self.told is None else self.told.term


def observe(seen: Observed, record: LockRecord | None, now: int, *, terms_may_fall: bool = False) -> Observed:
    """Return what is known at *now*, after the answer to a read showed *record*.

    An answer with a lower term than the last report is an old one, and is dropped. *terms_may_fall*: the store can lose a grant in a
    failover. Then the report is *vacant* first, and only the next answer may bring a lower term.
    """
    if record is None:
        return Observed(seen.key, told=_vacant(seen.key, seen.term))
    if record.fencing_token < seen.term:
        if not terms_may_fall:
            return look(seen, now)
        if seen.told is not None and seen.told.state is not LeaderState.VACANT:
            return Observed(seen.key, told=_vacant(seen.key, seen.term))
    if record.version != seen.version:
        lease_ns = NEVER if record.lease_ms is None else record.lease_ms * _MILLI
        seen = Observed(seen.key, record.version, now, lease_ns)
    leader = leader_of(seen.key, record)
    return look(seen._replace(told=leader or _vacant(seen.key, record.fencing_token)), now)


def look(seen: Observed, now: int) -> Observed:
    """Return what is known at *now* without an answer: a leader whose version has stood for a lease is *silent*."""
    leader = seen.told
    if leader is None or leader.state is not LeaderState.LEADING or now - seen.since < seen.lease_ns:
        return seen
    return seen._replace(told=replace(leader, state=LeaderState.SILENT))


def leader_of(key: str, record: LockRecord | None) -> Leader | None:
    """Return the leader that *record* names; None if the lock is free, or broken.

    Raises: RecordError: a semaphore or a read/write lock is held under the key.
    """
    if (wrong := kind_error(record, "")) is not None:
        raise wrong
    if record is None or not record.held or record.broken is not None:
        return None
    return Leader(key, record.fencing_token, record.owner, record.data, LeaderState.LEADING)


def _vacant(key: str, term: int) -> Leader:
    return Leader(key, term, "", None, LeaderState.VACANT)
