"""What the tests of the MongoDB adapter share: records, a blocking face for both colours, commands that are counted."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from typing import Any

from dlock_conformance.subject import Loop
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore
from tests.scripted import ScriptedServer

DATABASE, COLLECTION = "dlock_tests", "locks"
TIMEOUT_S = 10.0


def fresh() -> str:
    """Return an RVN that was never used."""
    return secrets.token_hex(16)


def held(key: str, **changes: Any) -> LockRecord:
    """Return a record that holds *key*."""
    fields = {"state": State.HELD, "rvn": fresh(), "fencing_token": 1, "owner": "tests", "lease_ms": 20_000}
    return LockRecord(key, **{**fields, **changes})


def freed(record: LockRecord, **changes: Any) -> LockRecord:
    """Return the tombstone of *record*."""
    fields = {"state": State.FREE, "fencing_token": record.fencing_token, "owner": "", "lease_ms": None}
    return held(record.key, **{**fields, **changes})


def any_claim(key: str, **changes: Any) -> Claim:
    """Return a claim that expects nothing."""
    return Claim(held(key, **changes), Expect.ANY)


def url_of(server: ScriptedServer) -> str:
    """Return the URL of *server*. Tests find it where the proxy is, so its own idea of its address must not be asked for."""
    return f"mongodb://127.0.0.1:{server.port}/?directConnection=true"


class Counted(CommandListener):
    """The commands that a client sends, but those that it sends by itself."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Note the command."""
        self.commands.append(dict(event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Do nothing."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Do nothing."""

    @property
    def names(self) -> list[str]:
        """The names of the commands, in order."""
        return [next(iter(command)) for command in self.commands if "endSessions" not in command]


class Face:
    """A store of either colour; its verbs block."""

    def __init__(self, raw: MongoDBStore | AsyncMongoDBStore, loop: Loop | None) -> None:
        self.raw, self.loop = raw, loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, timeout_s: float | None = TIMEOUT_S, **keywords: Any) -> Any:
            if name not in ("guarantees", "provision", "close"):
                keywords["timeout_s"] = timeout_s
            came = getattr(self.raw, name)(*arguments, **keywords)
            if name == "scan":
                return list(came) if self.loop is None else self.loop.run(_collected(came))
            return self.loop.run(came) if self.loop is not None and inspect.iscoroutine(came) else came

        return call


async def _collected(records: Any) -> list[LockRecord]:
    return [record async for record in records]


class Opener:
    """Makes clients and stores of one colour, and closes them at the end."""

    def __init__(self, url: str, *, asynchronous: bool) -> None:
        self.url = url
        self.loop = Loop() if asynchronous else None
        self._ends: list[Callable[[], Any]] = []

    def client(self, url: str | None = None, **settings: Any) -> Any:
        """Return a client."""
        if self.loop is None:
            client: Any = MongoClient(url or self.url, **settings)
            self._ends.append(client.close)
            return client
        loop, kind = self.loop, AsyncMongoClient

        async def made() -> Any:
            return kind(url or self.url, **settings)

        client = loop.run(made())
        self._ends.append(lambda: loop.run(client.close()))
        return client

    def store(self, url: str | None = None, *, collection: str = COLLECTION, **settings: Any) -> Face:
        """Return a store on a client of its own."""
        kind = MongoDBStore if self.loop is None else AsyncMongoDBStore
        face = Face(kind(self.client(url, **settings), database=DATABASE, collection=collection), self.loop)
        self._ends.append(face.close)
        return face

    def close(self) -> None:
        """Close all."""
        for end in reversed(self._ends):
            end()
        if self.loop is not None:
            self.loop.close()
