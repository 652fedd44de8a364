"""What holders did, in the order in which it happened: a SQLite file of its own, and the check of that history.

The file also is the guarded resource. One effect is taken only where its fencing token is not older than any before, in the same
transaction (*fenced*); the others are the negative controls: *naive* looks at nothing, *checked* asks the lease before it computes,
*two-step* compares the token with the resource's, and writes in a later step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONTROLS", "Book", "Finding", "check"]

CONTROLS = ("naive", "checked", "two-step")
_TABLES = """
CREATE TABLE IF NOT EXISTS grants (at INTEGER, key TEXT, token INTEGER, who TEXT);
CREATE TABLE IF NOT EXISTS waits (who TEXT PRIMARY KEY, at INTEGER);
CREATE TABLE IF NOT EXISTS ends (at INTEGER, key TEXT, token INTEGER, why TEXT);
CREATE TABLE IF NOT EXISTS effects (number INTEGER PRIMARY KEY, kind TEXT, key TEXT, token INTEGER, at INTEGER, deadline INTEGER);
CREATE TABLE IF NOT EXISTS fences (key TEXT PRIMARY KEY, token INTEGER);
"""


class Book:
    """The file, opened by one process."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")  # processes are killed here, not machines

    def create(self) -> None:
        """Make the tables."""
        self._db.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _step(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; the write lock is had at the beginning."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def waiting(self, who: str, at: int) -> None:
        """A holder begins to wait for the lock."""
        self._db.execute("INSERT OR REPLACE INTO waits VALUES (?, ?)", (who, at))

    def waits(self, who: str) -> bool:
        """Whether *who* has begun to wait, and was not granted anything since."""
        row = self._db.execute(
            "SELECT 1 FROM waits WHERE who = ?1 AND at > (SELECT coalesce(max(at), 0) FROM grants WHERE who = ?1)",
            (who,),
        ).fetchone()
        return row is not None

    def granted(self, key: str, token: int, who: str, at: int) -> None:
        """A holder has got the lock; *at* is after that."""
        self._db.execute("INSERT INTO grants VALUES (?, ?, ?, ?)", (at, key, token, who))

    def ended(self, key: str, token: int, why: str, at: int) -> None:
        """A holder is about to release, or has learnt of a loss."""
        self._db.execute("INSERT INTO ends VALUES (?, ?, ?, ?)", (at, key, token, why))

    def fence(self, key: str) -> int:
        """Return the newest token that the resource has seen."""
        row = self._db.execute("SELECT token FROM fences WHERE key = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def use(self, key: str, token: int, at: int, deadline: int, seen: int) -> None:
        """Have an effect of each kind. At the instant *at* the lease was valid, until *deadline*; *seen* was the fence before computing."""
        with self._step() as db:
            taken = db.execute(
                "INSERT INTO fences VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE token <= excluded.token",
                (key, token),
            ).rowcount
            kinds = ["naive", "checked", *(["fenced"] if taken else []), *(["two-step"] if seen <= token else [])]
            db.executemany(
                "INSERT INTO effects (kind, key, token, at, deadline) VALUES (?, ?, ?, ?, ?)",
                [(kind, key, token, at, deadline) for kind in kinds],
            )

    def use_naively(self, key: str, token: int) -> None:
        """Have the effect of a holder that looks at nothing."""
        self._db.execute("INSERT INTO effects (kind, key, token) VALUES ('naive', ?, ?)", (key, token))

    def newest(self, key: str) -> tuple[int, str, int] | None:
        """Return token, holder and instant of the newest grant, if that is not known to have ended."""
        row = self._db.execute(
            "SELECT token, who, at FROM grants WHERE key = ?1 AND token NOT IN (SELECT token FROM ends WHERE key = ?1)"
            " ORDER BY token DESC LIMIT 1",
            (key,),
        ).fetchone()
        return None if row is None else (int(row[0]), str(row[1]), int(row[2]))

    def granted_after(self, key: str, token: int) -> tuple[int, int] | None:
        """Return token and instant of the first grant after *token*."""
        row = self._db.execute(
            "SELECT token, at FROM grants WHERE key = ? AND token > ? ORDER BY token LIMIT 1", (key, token)
        ).fetchone()
        return None if row is None else (int(row[0]), int(row[1]))

    def effects(self) -> int:
        """Return how many effects there were."""
        return int(self._db.execute("SELECT count(*) FROM effects").fetchone()[0])

    def rows(self, table: str) -> list[tuple[object, ...]]:
        """Return a table, in the order of writing."""
        return self._db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608  # our own names


class Finding(NamedTuple):
    """What a history shows. *early*: grants while the lease before was valid; *stale*: effects of an earlier grant after a later one."""

    grants: int
    repeated: int
    early: int
    effects: int
    stale: dict[str, int]


def check(book: Book) -> Finding:
    """Check a history: no token twice, no grant before the end of the lease before, and what came stale to which resource."""
    grants: dict[tuple[object, object], int] = {}
    repeated = 0
    for at, key, token, _ in book.rows("grants"):
        repeated += (key, token) in grants
        grants[key, token] = int(str(at))
    released = {(key, token): int(str(at)) for at, key, token, why in book.rows("ends") if why == "released"}
    stale = dict.fromkeys(("fenced", *CONTROLS), 0)
    newest: dict[tuple[object, object], int] = {}
    valid_until: dict[tuple[object, object], int] = {}
    effects = book.rows("effects")
    for _, kind, key, token, _, deadline in effects:
        number = int(str(token))
        stale[str(kind)] += number < newest.get((kind, key), 0)
        newest[kind, key] = max(number, newest.get((kind, key), 0))
        if deadline is not None:
            valid_until[key, token] = max(int(str(deadline)), valid_until.get((key, token), 0))
    early = 0
    order = sorted(grants, key=lambda each: (str(each[0]), int(str(each[1]))))
    for before, after in pairwise(order):
        if before[0] == after[0] and before in valid_until:
            end = min(valid_until[before], released.get(before, valid_until[before]))
            early += grants[after] < end
    return Finding(len(grants), repeated, early, len(effects), stale)
