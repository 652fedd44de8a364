"""Records and requests for the tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from tests.postgres.conftest import TABLE

__all__ = ["TIMEOUT_S", "any_claim", "held", "refused_by_a_trigger", "released", "renewed", "with_parts"]

TIMEOUT_S = 20.0


def held(key: str, token: int = 1, **changes: Any) -> LockRecord:
    """Return a held record with a fresh RVN."""
    return LockRecord(key, State.HELD, secrets.token_hex(16), token, "tests", 60_000, **changes)


def any_claim(key: str) -> Claim:
    """Return a claim whatever stands there."""
    return Claim(held(key), Expect.ANY)


def renewed(record: LockRecord, *, token: int | None = None) -> Replace:
    """Return the renewal of *record*, or with a *token* its takeover."""
    return Replace(held(record.key, token or record.fencing_token), record.version, keep_payload=True)


def released(record: LockRecord) -> Release:
    """Return the release of *record*."""
    tombstone = LockRecord(record.key, State.FREE, secrets.token_hex(16), record.fencing_token, "", None)
    return Release(tombstone, record.version)


@contextmanager
def refused_by_a_trigger(admin: psycopg.Connection[Any], table: str, event: str, key: str) -> Iterator[None]:
    """Have a trigger of *table* raise at each *event* on the row of *key*."""
    guard = f"guard_{secrets.token_hex(4)}"
    admin.execute(f"CREATE FUNCTION {guard}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not so''; END'")
    admin.execute(
        f"CREATE TRIGGER {guard} BEFORE {event} ON {table} FOR EACH ROW WHEN (NEW.key = '{key}') EXECUTE FUNCTION {guard}()"
    )
    try:
        yield
    finally:
        admin.execute(f"DROP FUNCTION {guard} CASCADE")


def with_parts(url: str, *, user: str = "postgres", database: str = "/postgres", query: str = f"table={TABLE}") -> str:
    """Return *url* for another user, database or query."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}", path=database, query=query).geturl()
