"""A write to a SQLite table that refuses whoever has lost the lock in the meantime, by the fencing token."""

from __future__ import annotations

import sqlite3

from dlock_core import connect

with connect() as client, sqlite3.connect(":memory:") as database:
    database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, amount INTEGER, fence INTEGER)")
    database.execute("INSERT INTO stock VALUES ('bolt', 10, 0)")

    def write(amount: int, token: int) -> bool:
        """Write, unless a later holder has written already."""
        statement = "UPDATE stock SET amount = ?, fence = ? WHERE item = 'bolt' AND fence <= ?"
        return database.execute(statement, (amount, token, token)).rowcount == 1

    with client.lock("stock/bolt") as old:
        pass  # this holder stood still, and lost the lock
    with client.lock("stock/bolt") as new:
        print("the new holder writes:", write(9, new.fencing_token))
    print("the old holder writes:", write(5, old.fencing_token))
