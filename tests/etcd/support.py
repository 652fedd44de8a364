"""Records and requests for the tests, and etcd's own administration."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any
from urllib.request import Request, urlopen

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace

__all__ = ["TIMEOUT_S", "administer", "any_claim", "coded", "held", "released", "renewed"]

TIMEOUT_S = 20.0


def held(key: str, token: int = 1, **changes: Any) -> LockRecord:
    """Return a held record with a fresh RVN."""
    return LockRecord(key, State.HELD, secrets.token_hex(16), token, "tests", 60_000, **changes)


def any_claim(key: str, token: int = 1, **changes: Any) -> Claim:
    """Return a claim whatever stands there."""
    return Claim(held(key, token, **changes), Expect.ANY)


def renewed(record: LockRecord, *, token: int | None = None) -> Replace:
    """Return the renewal of *record*, or with a *token* its takeover."""
    return Replace(held(record.key, token or record.fencing_token), record.version, keep_payload=True)


def released(record: LockRecord) -> Release:
    """Return the release of *record*."""
    tombstone = LockRecord(record.key, State.FREE, secrets.token_hex(16), record.fencing_token, "", None)
    return Release(tombstone, record.version)


def coded(text: str) -> str:
    """Return *text* as the gateway of etcd takes keys."""
    return base64.b64encode(text.encode()).decode()


def administer(address: str, path: str, **fields: Any) -> Any:
    """Ask the JSON gateway of the server at *address*, which is no way of dlock's."""
    body = json.dumps(fields).encode()
    asked = Request(f"http://{address}/v3/{path}", body, {"Content-Type": "application/json"})  # on this machine
    with urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310  # as above
        return json.load(answer)
