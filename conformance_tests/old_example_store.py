"""A store of locks in a directory of files, ``directory:///var/lib/locks``: for the processes of one host.

The record of a key is one JSON file, replaced by an atomic rename. A step locks a second file (``flock``), reads, compares and renames. No
file is ever removed, so a token never goes back. File names are digests: keys may be longer than names, and hold what names cannot.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from dlock_core import errors
from dlock_core.backend import StoreOptions
from dlock_core.record import TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, newer_format
from dlock_core.store import (
    AsyncLockStore,
    Capability,
    Claim,
    Expect,
    Grade,
    Guarantees,
    LockStore,
    Release,
    Replace,
    Reply,
    TokenOrder,
)

__all__ = ["DirectoryOptions", "DirectoryStore", "backend"]

FORMAT = 1
LOOK_EVERY_S = 0.001


class DirectoryStore:
    """Locks in the directory *path*, which ``provision()`` makes."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = True

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key."""
        new, expect = request.record, request.expect
        with self._step(new.key, timeout_s):
            old = self._load(new.key)
            if old is None:
                free = expect in (Expect.ANY, Expect.ABSENT) and not request.must_exist
                return self._save(new) if free else Reply(applied=False, record=None)
            gone = old.state is State.GONE
            if old.held or expect not in (Expect.ANY, old.version) or (gone and request.must_exist):
                return Reply(applied=False, record=old)
            token = max(old.fencing_token + 1, new.fencing_token)
            if token > TOKEN_MAX:
                raise errors.StoreUnavailableError(f"the fencing token of {new.key!r} has reached its end", key=new.key)
            keeps = request.keep_payload and not gone
            return self._save(_with_payload(replace(new, fencing_token=token), old if keeps else new))

    def replace(self, request: Replace | Release, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is the expected one."""
        new = request.record
        with self._step(new.key, timeout_s):
            old = self._load(new.key)
            if old is None or not old.held or old.version != request.expected or self._is_newer(new.key):
                return Reply(applied=False, record=old)
            return self._save(_with_payload(new, old if request.keep_payload else new))

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version: here the same step as a replace."""
        return self.replace(request, timeout_s=timeout_s)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:  # a file is read at once
        """Return the record under *key*: a rename is atomic, so no lock is needed."""
        self._check(key)
        return self._load(key)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*."""
        self._check(None)
        for file in sorted(self._path.glob("*.json")):
            record = _decode(file.read_bytes(), None)
            if record.key.startswith(prefix):
                yield record

    def guarantees(self) -> Guarantees:
        """Say what files can promise: a rename that was synced survives a power cut."""
        return Guarantees(
            store="directory",
            version="1",
            grade=Grade.A,
            token=TokenOrder.ORDERED,
            deletes=False,
            refusal_linearizable=True,
            durable=True,
            failover="none: one host",
            clock="none",
            notes=("one host only: flock does not hold over most network file systems",),
        )

    def provision(self) -> None:
        """Make the directory."""
        self._path.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Refuse what comes after; nothing stays open between two calls."""
        self._open = False

    def _check(self, key: str | None) -> None:
        if not self._open:
            raise errors.StoreUnavailableError("the directory store was closed; open a new one", key=key)
        if not self._path.is_dir():
            raise errors.StoreSetupError(f"there is no directory {self._path}; make it: dlock init", key=key)

    @contextmanager
    def _step(self, key: str, timeout_s: float) -> Iterator[None]:
        self._check(key)
        until = time.monotonic() + timeout_s
        with self._file(key, "lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        message = f"{key!r} was locked by another process for {timeout_s} s"
                        raise errors.StoreUnavailableError(message, key=key) from error
                time.sleep(LOOK_EVERY_S)
            yield

    def _is_newer(self, key: str) -> bool:
        """Whether a later dlock wrote the record: it is shown, and left alone."""
        return bool(json.loads(self._file(key, "json").read_bytes())["v"] > FORMAT)

    def _file(self, key: str, kind: str) -> Path:
        return self._path / f"{hashlib.sha256(key.encode()).hexdigest()}.{kind}"

    def _load(self, key: str) -> LockRecord | None:
        try:
            return _decode(self._file(key, "json").read_bytes(), key)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.StoreUnavailableError(f"the record of {key!r} cannot be read: {error}", key=key) from error

    def _save(self, record: LockRecord) -> Reply:
        target, fresh = self._file(record.key, "json"), self._file(record.key, "new")
        try:
            with fresh.open("wb") as file:
                file.write(_encode(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise errors.StoreUnavailableError(f"{record.key!r} was not written: {error}", key=record.key) from error
        try:
            fresh.replace(target)
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise errors.OutcomeUnknownError(
                f"{record.key!r} may have been written: {error}", key=record.key
            ) from error
        return Reply(applied=True, record=record)


def _with_payload(record: LockRecord, payload: LockRecord) -> LockRecord:
    return replace(record, data=payload.data, attributes=payload.attributes)


def _encode(record: LockRecord) -> bytes:
    fields = {
        "v": FORMAT,
        **asdict(record),
        "attributes": [[name, _packed(value)] for name, value in record.attributes],
    }
    return json.dumps({**fields, "data": _packed(record.data)}).encode()


def _decode(text: bytes, key: str | None) -> LockRecord:
    try:
        fields: dict[str, Any] = json.loads(text)
        version = fields.pop("v")
        if version > FORMAT:
            return newer_format(fields["key"], version, fields["rvn"], fields["fencing_token"])
        fields["attributes"] = tuple((name, _unpacked(value)) for name, value in fields["attributes"])
        fields |= {"state": State(fields["state"]), "data": _unpacked(fields["data"])}
        for name, kind in (("stamp", Stamp), ("process", ProcessIdentity), ("broken", Broken)):
            fields[name] = fields[name] and kind(**fields[name])
        return LockRecord(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.RecordError(f"the file of {key!r} is no record of dlock, or damaged: {error}", key=key) from error


def _packed(value: object) -> object:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _unpacked(value: Any) -> Any:
    return b64decode(value["base64"]) if isinstance(value, dict) else value


class DirectoryOptions(StoreOptions):
    """``directory:///path``."""

    path: Path

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the path."""
        parts = urlsplit(url)
        if settings or parts.netloc or parts.query or not parts.path.strip("/"):
            raise errors.ConfigurationError("write directory:///path/to/a/directory, without host and query")
        return cls(path=Path(unquote(parts.path)))


class _Backend:
    options = DirectoryOptions
    extra = ""

    def open(self, options: DirectoryOptions) -> LockStore:
        return DirectoryStore(options.path)

    def aopen(self, options: DirectoryOptions) -> Awaitable[AsyncLockStore] | None:
        return None  # tasks use the store through threads


backend = _Backend()
