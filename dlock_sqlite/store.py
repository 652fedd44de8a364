"""The store ``sqlite:///path``: one file, for all processes of one host.

``sqlite:///locks.db`` is relative to the working directory, ``sqlite:////var/lib/locks.db`` absolute; bytes that a URL cannot hold are
percent-encoded. The file is made when the store is first used, with mode 0600. A row is deleted by ``prune`` alone, which keeps a token
above all that went: new rows begin there, so a token never goes back.

A step is one transaction, ``BEGIN IMMEDIATE``: read the row, decide, write the row, commit, with ``synchronous = FULL`` in a write-ahead
log. A refusal writes nothing and syncs nothing. Until the commit an error means that nothing was written; an error of the commit itself is
an unknown outcome. Waiters are woken through named pipes beside the file (``<path>-wake``); where those cannot be made they look at the
row now and then.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dlock_core.clock import NANOS, now_ns, wall_ms
from dlock_core.errors import ConfigurationError, RecordError, StoreError
from dlock_core.kit import may_be_removed, outcome, pages, perform
from dlock_core.record import LockRecord, State
from dlock_core.store import Capability, Claim, Guarantees, Release, Replace, Reply
from dlock_sqlite import _wire as wire
from dlock_sqlite._file import SqliteFile
from dlock_sqlite.options import SYNCHRONOUS, Synchronous, checked_path
from dlock_sqlite.provision import guarantees_of, mount_of, unsafe_traits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dlock_core.kit import Exchange

__all__ = ["SqliteStore"]

_HELD = State.HELD
# The record under a key, if there is one, and the ms since it was written.
_Standing: TypeAlias = tuple[LockRecord | None, int]
# Calls that are given no time of their own.
_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.05


class SqliteStore:
    """The store for threads, in the file at *path*. *synchronous* is SQLite's setting: ``full``, ``extra``, or ``normal``.

    ``normal`` spares the sync at each commit: a power cut may then take back the last grants, and their tokens are given again.
    Without *creates* a file that is not there stays so: :meth:`guarantees` tells what the file would promise, and each verb is refused.

    Raises: ConfigurationError: *path* or *synchronous* is wrong. Nothing is opened before the first call.
    """

    capabilities = frozenset(set(Capability) - {Capability.CLAIM_WAIT})
    batch_limit = 500

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: Synchronous = "full", creates: bool = True
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise ConfigurationError(f"synchronous {synchronous!r} is not one of {', '.join(SYNCHRONOUS)}")
        self.synchronous = synchronous
        try:
            name = str(Path(checked_path(os.fspath(path))).absolute())
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"SQLite path {path!r} is relative, and the working directory was removed; write it from the root on, sqlite:////var/lib/locks.db"
            ) from error
        self._creates = creates
        self._file = SqliteFile(name, synchronous, creates=creates)
        self.path = self._file.path

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key."""
        key = request.record.key
        reply = self._file.run(partial(self._step, request), key, timeout_s)
        if reply.applied:
            self._file.wake_ups.forget(request.ticket)
        return reply

    def replace(self, request: Replace | Release, *, timeout_s: float) -> Reply:
        """Write the record if the one that stands is held in the expected version; the one that has waited longest looks at it anew."""
        key = request.record.key
        reply = self._file.run(partial(self._step, request), key, timeout_s)
        return self._woken(request, reply)

    release = replace

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*."""
        row: wire.Row | None
        row = self._file.run(lambda connection: connection.execute(wire.READ, (key,)).fetchone(), key, timeout_s)
        return None if row is None else self._counted(wire.decode(row[:-1]))

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*, in the order of their bytes; each page is a transaction of its own."""

        def page(after: str | None) -> Exchange[Any]:
            sql, start = (wire.PAGE_FIRST, prefix) if after is None else (wire.PAGE_NEXT, after)
            rows: list[wire.Row]
            rows = yield self._file.run(
                lambda connection: connection.execute(sql, (start,)).fetchall(), None, timeout_s
            )
            # Bytes sort after all text: such a key is nobody's, and the end.
            ours = [row for row in rows if type(row[0]) is str and row[0].startswith(prefix)]
            return [partial(wire.decode, row) for row in ours], ours[-1][0] if len(ours) == wire.PAGE_ROWS else None

        for each in pages(page):
            yield from perform(each)

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each replace, all in one transaction: what is applied is written together, what is not touches no other."""
        replies = self._file.run(partial(self._steps, requests), None, timeout_s)
        return [
            self._woken(request, reply) if isinstance(reply, Reply) else reply
            for request, reply in zip(requests, replies, strict=True)
        ]

    def claim_many(self, requests: Sequence[Claim], *, timeout_s: float) -> Sequence[Reply]:
        """Apply all claims or none, in one transaction."""
        return self._file.run(partial(self._claim_all, requests), None, timeout_s)

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when *record*'s key was released after it, or after *timeout_s*; first come, first woken."""
        deadline = now_ns() + int(min(timeout_s, 1e9) * NANOS)

        def moved_on() -> bool:
            left_s = (deadline - now_ns()) / NANOS
            now = self.read(record.key, timeout_s=max(_LOOK_EVERY_S, min(left_s, _PATIENCE_S)))
            return now is None or now.state is not _HELD or now.version != record.version

        if self._file.wake_ups.wait(record.key, ticket, timeout_s, moved_on):
            return
        while not moved_on():
            left_s = (deadline - now_ns()) / NANOS
            if left_s <= 0:
                return
            time.sleep(min(left_s, random.uniform(_LOOK_EVERY_S / 2, _LOOK_EVERY_S)))  # noqa: S311  # no secret

    def read_age(self, key: str, *, timeout_s: float) -> tuple[LockRecord, int] | None:
        """Return the record under *key*, and the ms since it was written by the clock of this host; 0 after a restart of it."""
        record, age_ms = self._file.run(partial(self._standing, key), key, timeout_s)
        return None if record is None else (self._counted(record), age_ms)

    def prune(self, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> int:
        """Remove those of *records* that are free, unchanged and old enough; return how many they are.

        What was written before this host has started is as old as the wall clocks say: nothing that was sent then is on its way still.
        """
        return self._file.run(partial(self._prune, records, older_than_ms, dry_run), None, timeout_s)

    def guarantees(self) -> Guarantees:
        """Say what this file promises where it is; makes it, unless it would be refused there."""
        mount = mount_of(self.path)
        unsafe, kind = unsafe_traits(self.path, mount), mount and mount.kind
        if not unsafe and not self.is_unmade:
            self.provision()
        return guarantees_of(self.synchronous, kind, unsafe, is_unmade=self.is_unmade)

    @property
    def is_unmade(self) -> bool:
        """Whether the file is not there yet, and this store does not make it.

        Raises: StoreSetupError: it cannot be made there.
        """
        return not self._creates and self._file.is_unmade()

    def provision(self) -> None:
        """Make the file, as every verb does."""
        self._file.run(lambda _: None, None, _PATIENCE_S)

    def close(self) -> None:
        """Close the connection; what comes after is refused."""
        self._file.close()

    def _step(self, request: Claim | Replace | Release, connection: sqlite3.Connection) -> Reply:
        connection.execute("BEGIN IMMEDIATE")
        reply, is_new = self._apply(connection, request)
        if reply.applied:
            self._commit(connection, request.record.key, is_new=is_new)
        return reply

    def _steps(self, requests: Sequence[Replace], connection: sqlite3.Connection) -> list[Reply | StoreError]:
        connection.execute("BEGIN IMMEDIATE")
        replies: list[Reply | StoreError] = []
        for request in requests:
            try:
                replies.append(self._apply(connection, request)[0])
            except StoreError as error:
                replies.append(error)
            except sqlite3.Error as error:
                # A text that cannot be read is the driver's error, and still that of its own row alone.
                found = wire.trouble(error, self.path, request.record.key, at_commit=False)
                if not isinstance(found, RecordError):
                    raise
                replies.append(found)
        self._commit(connection, None)
        return replies

    def _claim_all(self, requests: Sequence[Claim], connection: sqlite3.Connection) -> list[Reply]:
        connection.execute("BEGIN IMMEDIATE")
        standing = [self._standing(request.record.key, connection) for request in requests]
        decided = [self._decided(connection, found, request) for found, request in zip(standing, requests, strict=True)]
        if False in [reply.applied for reply in decided]:
            return [self._refusal(found) for found in standing]
        for reply in decided:
            self._write(connection, reply)
        self._commit(connection, None, is_new=any(record is None for record, _ in standing))
        return decided

    def _apply(self, connection: sqlite3.Connection, request: Claim | Replace | Release) -> tuple[Reply, bool]:
        """Return the reply, and whether the key is new."""
        standing = self._standing(request.record.key, connection)
        reply = self._decided(connection, standing, request)
        if reply.applied:
            self._write(connection, reply)
        return reply, standing[0] is None

    def _decided(
        self, connection: sqlite3.Connection, standing: _Standing, request: Claim | Replace | Release
    ) -> Reply:
        is_claim = type(request) is Claim
        reply = outcome(standing[0], request, floor=_floor(connection) if is_claim and standing[0] is None else 1)
        return self._refusal(standing) if is_claim and not reply.applied else reply

    def _refusal(self, standing: _Standing) -> Reply:
        record, age_ms = standing
        if record is None:
            return Reply(applied=False, record=None)
        return Reply(applied=False, record=self._counted(record), age_ms=age_ms)

    def _write(self, connection: sqlite3.Connection, reply: Reply) -> None:
        assert reply.record is not None  # a grant has one
        connection.execute(wire.WRITE, wire.encode(reply.record, self._file.clock.mark()))

    def _prune(
        self,
        records: Sequence[LockRecord],
        older_than_ms: int,
        dry_run: bool,  # noqa: FBT001  # partial hands it over
        connection: sqlite3.Connection,
    ) -> int:
        connection.execute("BEGIN IMMEDIATE")
        going: list[LockRecord] = []
        for listed in records:
            record, age_ms = self._standing(listed.key, connection)
            if may_be_removed(record, listed, age_ms or _age_by_wall_clock(record), older_than_ms):
                going.append(listed)
        if going and not dry_run:
            least_token = max(record.fencing_token for record in going) + 1
            connection.execute(wire.WRITE_FLOOR, (max(least_token, _floor(connection)),))
            connection.executemany(wire.DELETE, [(record.key,) for record in going])
            self._commit(connection, None)
        return len(going)

    def _woken(self, request: Replace | Release, reply: Reply) -> Reply:
        """Wake the one that has waited longest, if *request* was applied; whether there is one is a part of the reply to a replace."""
        woken = reply.applied and self._file.wake_ups.wake(request.record.key)
        return reply._replace(wanted=True) if woken and type(request) is Replace else reply

    def _counted(self, record: LockRecord) -> LockRecord:
        waiters = self._file.wake_ups.count(record.key)
        return replace(record, waiters=waiters) if waiters else record

    def _standing(self, key: str, connection: sqlite3.Connection) -> _Standing:
        row: wire.Row | None = connection.execute(wire.READ, (key,)).fetchone()
        return (None, 0) if row is None else (wire.decode(row[:-1]), self._file.clock.age_ms(row[-1]))

    def _commit(self, connection: sqlite3.Connection, key: str | None, *, is_new: bool = False) -> None:
        """Commit; where the file has to grow for a key that *is_new*, bring the log into it at once.

        Once the disk is full the file cannot grow, so the log could not begin anew, and every lock in the file would be lost.
        """
        growth = wire.bytes_to_grow(connection, self.path) if is_new else 0
        if growth:
            wire.check_room(self.path, growth)
        try:
            connection.execute("COMMIT")
        except sqlite3.ProgrammingError:
            raise  # the connection was closed before the commit
        except sqlite3.Error as error:
            raise wire.trouble(error, self.path, key, at_commit=True) from error
        if growth:
            with suppress(sqlite3.Error):  # the next commit tries again
                connection.execute("PRAGMA wal_checkpoint").fetchone()


def _floor(connection: sqlite3.Connection) -> int:
    """Return the least token of a new row."""
    row: tuple[int] | None = connection.execute(wire.READ_FLOOR).fetchone()
    return 1 if row is None else row[0]


def _age_by_wall_clock(record: LockRecord | None) -> int:
    return 0 if record is None or record.times is None else wall_ms() - record.times.written_at_s * 1000
