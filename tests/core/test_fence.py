"""Fenced effects: what the README tells to write, against the pause that no lock can prevent."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import LockLostError
from dlock_core.testing import FakeClock, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[2] / "README.md"


class Resource:
    """An account in a database, written by the statement that the README gives."""

    def __init__(self) -> None:
        statement = re.search(r"```sql\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
        assert statement is not None
        self._statement = statement[1]
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER, token INTEGER)")
        self._db.execute("INSERT INTO account VALUES ('anna', 0, 0)")

    def write(self, balance: int, token: int) -> bool:
        """Write in the one step that checks; whether it was written."""
        done = self._db.execute(self._statement, {"name": "anna", "balance": balance, "token": token})
        return done.rowcount == 1

    def check(self, token: int) -> bool:
        """Check in a step of its own."""
        newest: int = self._db.execute("SELECT token FROM account").fetchone()[0]
        return token >= newest

    def write_unchecked(self, balance: int, token: int) -> None:
        """Write, whatever the token."""
        self._db.execute("UPDATE account SET balance = ?, token = ?", (balance, token))

    def balance(self) -> int:
        """Return the balance."""
        found: int = self._db.execute("SELECT balance FROM account").fetchone()[0]
        return found

    def close(self) -> None:
        """Close the database."""
        self._db.close()


@pytest.fixture
def resource() -> Iterator[Resource]:
    """An account with nothing on it."""
    made = Resource()
    yield made
    made.close()


def test_hazard_09_one_statement_refuses_an_earlier_holder(resource: Resource) -> None:
    """The statement of the README has its effect for the newest token and for no older one."""
    assert resource.write(10, token=1)
    assert resource.write(11, token=1)
    assert resource.write(20, token=2)

    assert not resource.write(12, token=1)
    assert resource.balance() == 20


def test_hazard_09_check_in_a_step_of_its_own_is_no_fence(resource: Resource) -> None:
    """The control: what comes between the check and the write is overwritten."""
    assert resource.check(1)
    assert resource.write(20, token=2)
    resource.write_unchecked(12, token=1)

    assert resource.balance() == 12


def test_hazard_10_pause_after_a_check_is_met_by_the_fence_only(resource: Resource) -> None:
    """A holder that looked, slept past its lease and goes on: its next look tells the loss, and until then the fence refuses its write."""
    store = FaultyStore()
    with FakeClock() as clock, clock.client(store) as client, clock.client(store) as other:
        lease = client.acquire("anna", auto_renew=False)
        assert lease.is_valid  # the look
        assert other.try_acquire("anna") is None
        clock.advance(21)  # the sleep
        successor = other.acquire("anna", timeout=0)
        assert resource.write(20, successor.fencing_token)

        assert not resource.write(12, lease.fencing_token)
        assert resource.balance() == 20
        with pytest.raises(LockLostError):
            lease.ensure()
        successor.release()


def test_hazard_10_readme_says_that_a_look_is_not_enough() -> None:
    """On its first screen, in the section on what no lock can promise."""
    text = README.read_text(encoding="utf-8")
    section = text.index("**What no lock can promise.**")

    assert "stopped between its check and its effect" in text[section : section + 600]
    assert text[:section].count("\n") < 45
