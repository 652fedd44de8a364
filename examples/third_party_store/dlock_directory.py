"""A store of locks in a directory of files, ``directory:///var/lib/locks``: for the processes of one host.

The record of a key is one file. A step locks a second file (``flock``), loads the record, lets the kit decide, and saves the new record by
an atomic rename. No file is ever removed, so a token never goes back. File names are digests: keys may be longer than file names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from dlock_core import errors, store
from dlock_core.backend import StoreOptions
from dlock_core.kit import Backend, outcome, packed, unpacked
from dlock_core.record import LockRecord

__all__ = ["DirectoryOptions", "DirectoryStore", "backend"]


class DirectoryStore:
    """Locks in the directory *path*, which ``provision()`` makes."""

    capabilities: frozenset[store.Capability] = frozenset()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = True

    def step(self, request: store.Claim | store.Replace | store.Release, *, timeout_s: float) -> store.Reply:
        """Load, decide, save: all three verbs that write are this one step."""
        key = request.record.key
        with self._locked(key, timeout_s):
            reply = outcome(self._load(key), request)
            if reply.applied and reply.record is not None:
                self._save(reply.record)
            return reply

    claim = replace = release = step

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*: a rename is atomic, so no lock is needed."""
        self._check(key)
        return self._load(key)

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*."""
        self._check(None)
        for file in sorted(self._path.glob("*.record")):
            record = unpacked(file.read_bytes(), where=str(file))
            if record.key.startswith(prefix):
                yield record

    def guarantees(self) -> store.Guarantees:
        """Say what files can promise: a rename that was synced survives a power cut."""
        return store.Guarantees(
            store="directory",
            version="1",
            grade=store.Grade.A,
            token=store.TokenOrder.ORDERED,
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
        """Refuse every later call; nothing stays open between two calls."""
        self._open = False

    def _check(self, key: str | None) -> None:
        if not self._open:
            raise errors.StoreUnavailableError("the directory store was closed; open a new one", key=key)
        if not self._path.is_dir():
            raise errors.StoreSetupError(f"there is no directory {self._path}; make it: dlock init", key=key)

    @contextmanager
    def _locked(self, key: str, timeout_s: float) -> Iterator[None]:
        self._check(key)
        deadline = time.monotonic() + timeout_s
        with self._file(key, "lock").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        message = f"another process kept {key!r} locked for {timeout_s} s"
                        raise errors.StoreUnavailableError(message, key=key) from error
                time.sleep(0.001)  # flock has no time-out
            yield

    def _file(self, key: str, kind: str) -> Path:
        return self._path / f"{hashlib.sha256(key.encode()).hexdigest()}.{kind}"

    def _load(self, key: str) -> LockRecord | None:
        try:
            return unpacked(self._file(key, "record").read_bytes(), key, where=str(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.StoreUnavailableError(f"the record of {key!r} cannot be read: {error}", key=key) from error

    def _save(self, record: LockRecord) -> None:
        fresh = self._file(record.key, "new")
        failure: type[errors.StoreError] = errors.StoreUnavailableError
        try:
            with fresh.open("wb", buffering=0) as file:
                file.write(packed(record))
                os.fsync(file.fileno())
            failure = errors.OutcomeUnknownError  # from here on the record may be in place
            fresh.replace(self._file(record.key, "record"))
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise failure(
                f"the record of {record.key!r} was not written with certainty: {error}", key=record.key
            ) from error


class DirectoryOptions(StoreOptions):
    """``directory:///path``."""

    path: Path

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take the path of *url*."""
        parts = urlsplit(url)
        if settings or parts.netloc or parts.query or not parts.path.strip("/"):
            raise errors.ConfigurationError("write directory:///path/to/a/directory, without host and query")
        return cls(path=Path(unquote(parts.path)))


backend = Backend(DirectoryOptions, open_store=lambda options: DirectoryStore(options.path))
