"""Records to write, and how to tell two of them apart exactly."""

from __future__ import annotations

import secrets
from dataclasses import fields
from typing import Any

from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Reply

__all__ = ["LAPSED_MS", "LEASE_MS", "describe", "differences", "fresh", "held", "next_version", "numeric", "tombstone"]

LEASE_MS = 60_000
LAPSED_MS = 2  # the shortest that a row of any client can have


def fresh() -> str:
    """Return an RVN that was never used."""
    return secrets.token_hex(16)


def numeric() -> str:
    """Return an RVN of 32 hex digits that was never used and is a number as well: as such it is the same with a zero before it."""
    return f"1{secrets.randbelow(10**29):029}e5"


def held(key: str, *, token: int = 1, **changes: Any) -> LockRecord:
    """Return a record to claim *key* with; *token* is the least that the claim may be given."""
    return LockRecord(
        **{
            "key": key,
            "state": State.HELD,
            "rvn": fresh(),
            "fencing_token": token,
            "owner": "conformance",
            "lease_ms": LEASE_MS,
            **changes,
        },
    )


def next_version(record: LockRecord, **changes: Any) -> LockRecord:
    """Return what renews *record*: the same under a fresh RVN, but for *changes*."""
    return LockRecord(**{**_values(record), "rvn": fresh(), **changes})


def tombstone(record: LockRecord, state: State = State.FREE, **changes: Any) -> LockRecord:
    """Return what a release of *record* writes: its token under a fresh RVN, and nobody who holds it."""
    return LockRecord(
        **{
            "key": record.key,
            "state": state,
            "rvn": fresh(),
            "fencing_token": record.fencing_token,
            "owner": "",
            "lease_ms": None,
            **changes,
        },
    )


def differences(written: LockRecord, came: LockRecord | None) -> str:
    """Return the fields in which *came* is not exactly *written*, types included (True is not 1); empty if it is."""
    if came is None:
        return "there is no record"
    return "; ".join(
        f"{name}: wrote {_short(wrote)}, came back {_short(got)}"
        for name, wrote, got in ((name, wrote, getattr(came, name)) for name, wrote in _values(written).items())
        if (_typed(wrote)) != _typed(got)
    )


def describe(value: object) -> str:
    """Return one line about a record, a reply, a version or an error, short enough for a transcript."""
    match value:
        case Reply(applied, record, age_ms, wanted):
            more = f"{'' if age_ms is None else f' age_ms={age_ms}'}{' wanted' if wanted else ''}"
            return f"{'granted' if applied else 'refused'} {describe(record)}{more}"
        case LockRecord():
            more = "".join(
                f" {name}={_short(getattr(value, name))}"
                for name in (
                    "data",
                    "attributes",
                    "stamp",
                    "process",
                    "broken",
                    "session",
                    "beat",
                    "members",
                    "delay_ms",
                    "times",
                )
                if getattr(value, name) not in (None, ())
            )
            lease = "" if value.lease_ms == LEASE_MS else f" lease_ms={value.lease_ms}"
            version = f"rvn={value.rvn[:6]} token={value.fencing_token}"
            return f"[{value.state} {version} owner={_short(value.owner)}{lease}{more}]"
        case Version(rvn, fencing_token):
            return f"({rvn[:6]}, {fencing_token})"
        case BaseException():
            cause = f" (cause: {value.__cause__!r})" if value.__cause__ is not None else ""
            return f"{type(value).__name__}: {value}{cause}"
        case list() | tuple():
            shown = ", ".join(describe(each) for each in value[:4])
            return f"{len(value)} results: {shown}{', …' if len(value) > 4 else ''}"
    return _short(value)


def _values(record: LockRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record) if field.compare}


def _typed(value: object) -> object:
    if isinstance(value, tuple):
        return type(value), tuple(_typed(each) for each in value)
    return type(value), value


def _short(value: object) -> str:
    if isinstance(value, (bytes, str)) and len(value) > 40:
        return f"{value[:16]!r}… ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:120]}…"
