"""A tiny bank in a SQLite file, written the way that needs a lock: balances are read, thought about, and written back.

``write`` is fenced: each account remembers the highest fencing token that has written it, and the same statement that writes
refuses a lower one.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNTS = ("anna", "boris", "chen", "dora")
START = 1_000


class Transfer(NamedTuple):
    """What is to be written: the two new balances, and how they came about."""

    giver: str
    taker: str
    amount: int
    giver_balance: int
    taker_balance: int


class Ledger:
    """The accounts, and a journal of what was done to them."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)

    def create(self) -> None:
        """Make the tables, with the same balance in each account."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER, token INTEGER)")
        self._db.execute("CREATE TABLE journal (giver TEXT, taker TEXT, amount INTEGER)")
        self._db.executemany("INSERT INTO account VALUES (?, ?, 0)", [(name, START) for name in ACCOUNTS])

    def read(self, giver: str, taker: str, amount: int) -> Transfer:
        """Read both balances and work out what they will be."""
        balances = dict(self._db.execute("SELECT name, balance FROM account"))
        return Transfer(giver, taker, amount, balances[giver] - amount, balances[taker] + amount)

    def write(self, transfer: Transfer, tokens: dict[str, int]) -> bool:
        """Write both balances and the journal, or, if an account has seen a higher token, nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        written = 0
        for name, balance in ((transfer.giver, transfer.giver_balance), (transfer.taker, transfer.taker_balance)):
            token = tokens.get(name, 0)
            fenced = "UPDATE account SET balance = ?, token = ? WHERE name = ? AND token <= ?"
            written += self._db.execute(fenced, (balance, token, name, token)).rowcount
        if written < len(tokens or ACCOUNTS[:2]):
            self._db.execute("ROLLBACK")
            return False
        self._db.execute("INSERT INTO journal VALUES (?, ?, ?)", transfer[:3])
        self._db.execute("COMMIT")
        return True

    def audit(self) -> dict[str, tuple[int, int]]:
        """Return of each account the balance that it has, and the one that its journal adds up to."""
        booked = dict.fromkeys(ACCOUNTS, START)
        for giver, taker, amount in self._db.execute("SELECT giver, taker, amount FROM journal"):
            booked[giver] -= amount
            booked[taker] += amount
        balances = dict(self._db.execute("SELECT name, balance FROM account ORDER BY name"))
        return {name: (balances[name], booked[name]) for name in ACCOUNTS}

    def transfers(self) -> int:
        """Return how many transfers were booked."""
        count: int = self._db.execute("SELECT count(*) FROM journal").fetchone()[0]
        return count

    def close(self) -> None:
        """Close the file."""
        self._db.close()
