"""Records and requests for the tests, and etcd's own administration."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import grpc

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace

__all__ = ["TIMEOUT_S", "Refusal", "Waiter", "administer", "any_claim", "coded", "held", "released", "renewed", "until"]

TIMEOUT_S = 20.0


class Refusal(grpc.RpcError):  # type: ignore[misc]  # published without types
    """An error of gRPC, as etcd answers with it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self.code, self.details = lambda: code, lambda: details


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


class Waiter:
    """A client of its own *store*, which waits in a thread."""

    def __init__(self, store: Any, key: str) -> None:
        self.store, self.key, self.ticket = store, key, f"ticket/{id(self)}"
        # So it knows where the server is, as each client that waits.
        shown = self.store.claim(self.request, timeout_s=TIMEOUT_S).record
        assert shown is not None
        self.record = shown
        self.woken = threading.Event()
        threading.Thread(target=self.wait, daemon=True).start()

    @property
    def request(self) -> Claim:
        """Its claim."""
        return Claim(held(self.key), Expect.ANY, ticket=self.ticket)

    def wait(self) -> None:
        """Wait, once; for longer than a test waits to see that it was woken."""
        self.store.wait(self.record, ticket=self.ticket, timeout_s=2 * TIMEOUT_S)
        self.woken.set()

    def claims(self) -> LockRecord:
        """Return what its claim is granted."""
        reply = self.store.claim(self.request, timeout_s=TIMEOUT_S)
        assert reply.applied
        assert isinstance(reply.record, LockRecord)
        return reply.record


def until(fact: Callable[[], bool]) -> None:
    """Wait for what comes by itself."""
    end = time.monotonic() + TIMEOUT_S
    while not fact():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)  # the server tells nobody
