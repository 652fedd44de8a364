"""What the tests of the memory store share: records and steps."""

from __future__ import annotations

from typing import Any

from dlock_core import (
    Claim,
    Expect,
    LockRecord,
    Release,
    Reply,
    State,
)
from dlock_core.memory import MemoryStore
from tests.core.worlds import PATIENCE_S

T = PATIENCE_S


def held(rvn: str, token: int = 1, key: str = "k", **fields: Any) -> LockRecord:
    """Return a held record."""
    return LockRecord(key, State.HELD, rvn, token, "owner", 20_000, **fields)


def tomb(rvn: str, token: int = 1, state: State = State.FREE, key: str = "k") -> LockRecord:
    """Return a tombstone."""
    return LockRecord(key, state, rvn, token, "", None)


def claimed(store: MemoryStore, rvn: str = "a", key: str = "k") -> LockRecord:
    """Claim *key* and return the record as written."""
    reply = store.claim(Claim(held(rvn, key=key), Expect.ANY), timeout_s=T)
    assert reply.applied
    assert reply.record is not None
    return reply.record


def release(store: MemoryStore, record: LockRecord, rvn: str = "r") -> Reply:
    """Release *record*."""
    return store.release(Release(tomb(rvn, record.fencing_token, key=record.key), record.version), timeout_s=T)
