"""What ``dlock ls`` and ``dlock show`` find: columns, order, prefixes, and the sessions that keep the locks."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockRecord, State, connect
from dlock_core.command.listing import Look, look_up, print_sessions, rows_of
from dlock_core.record import Broken, SessionRef
from dlock_core.store import Claim, Expect, Release
from dlock_core.testing import FakeClock, FaultyStore

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core import LockClient
    from tests.cli.operator_support import Command


def test_all_has_the_state_and_the_token_of_each(dlock: Command, client: LockClient) -> None:
    """A lock that is free is told from one that is held; both are in the order of their keys."""
    with client.lock("free"):
        pass
    with client.lock("held"):
        headings, *rows = [row.split() for row in dlock("ls", "--all")[1].splitlines()]

    assert headings == ["KEY", "STATE", "TOKEN", "OWNER", "HELD", "RENEWED", "LEASE"]
    assert [row[:3] for row in rows] == [["free", "free", "1"], ["held", "held", "1"]]


def test_a_key_that_the_encoding_of_stdout_lacks_keeps_its_row_in_line(dlock: Command, client: LockClient) -> None:
    """Where it is written out it is longer, and so is its column."""
    with client.lock("plain"), client.lock("ключ"):
        sys.stdout.reconfigure(encoding="ascii")  # type: ignore[union-attr]  # a text stream of pytest
        headings, *rows = dlock("ls")[1].splitlines()

    assert sorted(row.split()[0] for row in rows) == [r"\u043a\u043b\u044e\u0447", "plain"]
    assert {row.index(row.split()[1]) for row in rows} == {headings.index("OWNER")}


def test_column_of_waiters_is_there_where_somebody_waits() -> None:
    """A store that counts none, and one that does not count, leave nothing to show."""
    records = [
        LockRecord(key, State.HELD, "r", 1, "o", 1000, waiters=waiters)
        for key, waiters in zip("abc", (0, None, 2), strict=True)
    ]

    def waits(shown: list[LockRecord]) -> list[object]:
        headings, rows = rows_of(Look([(record, None) for record in shown], {}), everything=False)
        return [row[headings.index("WAIT")] for row in rows] if "WAIT" in headings else []

    assert (waits(records), waits(records[:2])) == (["-", "-", 2], [])


@pytest.mark.parametrize(
    ("state", "broken", "owner", "shown"),
    [
        (State.HELD, None, "o", ["held", "o"]),
        (State.HELD, None, "", ["held", "-"]),
        (State.HELD, Broken("op", 0), "o", ["quarantined", "nobody"]),
        (State.FREE, Broken("op", 0), "o", ["free", "o"]),
    ],
)
def test_lock_that_was_broken_is_nobodys_until_it_is_free(
    state: State, broken: Broken | None, owner: str, shown: list[str]
) -> None:
    """From then on the last owner is shown, as of any free lock."""
    record = LockRecord("k", state, "r", 1, owner, 1000 if state is State.HELD else None, broken=broken)

    _, [[_, told, _, holder, *_]] = rows_of(Look([(record, None)], {}), everything=True)

    assert [told, holder] == shown


def test_a_store_without_a_clock_is_not_asked_again_for_each_lock() -> None:
    """The list has what there is to know, and each request may cost something."""
    store = FaultyStore()
    with FakeClock() as clock, clock.client(store) as client, client.lock("b"), client.lock("a"):
        look = look_up(client, "", everything=False)

        assert [(record.key, age_ms) for record, age_ms in look.records] == [("a", None), ("b", None)]
        assert store.requests["read"] == 0


def test_show_takes_the_key_without_the_clients_prefix(dlock: Command, client: LockClient) -> None:
    """And shows it so."""
    with client.lock("app/k"):
        assert dlock.json("show", "--prefix", "app/", "k")["key"] == "k"
        assert [each["key"] for each in dlock.json("ls", "--prefix", "app/")] == ["k"]


def test_record_that_is_hidden_is_not_shown(dlock: Command, client: LockClient) -> None:
    """It stays for its token alone."""
    with client.lock("k", delete_on_release=True):
        pass

    assert dlock("show", "k")[0] == 1
    assert dlock.json("ls", "--all") == []


def written(client: LockClient, *records: LockRecord) -> None:
    """Write records as their holders do."""
    for record in records:
        assert client._store.claim(Claim(record, Expect.ANY), timeout_s=5).applied


def kept(client: LockClient, key: str, session: str) -> LockRecord:
    """Return the record of a lock that a session keeps."""
    return LockRecord(
        client._context.full_key(key), State.HELD, "r", 1, "o", None, session=SessionRef(session, 2000, 1)
    )


def test_sessions_come_in_the_order_of_their_keys_with_those_that_keep_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a prefix all are listed that go on; with one, those that keep a lock of it, whatever stands before all keys."""
    names = ["app/~dlock/session/2", "app/~dlock/session/1"]

    class Unsorted(FaultyStore):
        def scan(self, prefix: str, *, timeout_s: float) -> Any:
            return iter([*super().scan(prefix, timeout_s=timeout_s)][::-1])

    with FakeClock() as clock, clock.client(Unsorted(), prefix="app/") as client:
        written(
            client, *(LockRecord(name, State.HELD, "r", 1, "o", 2000) for name in names), kept(client, "k", names[0])
        )
        over = LockRecord("app/~dlock/session/0", State.HELD, "r", 1, "o", 2000)
        written(client, over)
        ended = replace(over, state=State.FREE, rvn="s", lease_ms=None)
        client._store.release(Release(ended, over.version), timeout_s=5)
        shown = []
        for prefix in ("", "k", "app/"):
            print_sessions(client, prefix, "table")
            shown.append([(row.split()[0], row.split()[-1]) for row in capsys.readouterr().out.splitlines()[1:]])

    assert shown == [[(names[1], "0"), (names[0], "1")], [(names[0], "1")], []]


@pytest.mark.parametrize("output", ["table", "json"])
def test_sessions_are_listed_beside_a_foreign_record(
    dlock: Command, client: LockClient, tmp_path: Path, output: str
) -> None:
    """And it is told that this is not all."""
    with connect(client.options, owner="reader") as other:
        lease = other.acquire("a", mode="read")
        with client.lock("x"):
            pass
        with closing(sqlite3.connect(tmp_path / "locks.db")) as file, file:
            file.execute("UPDATE lock SET state = 'odd' WHERE key = 'x'")
        code, out, err = dlock("ls", "--sessions", "-o", output)
        lease.release()

    assert (code, "reader" in out, "NOT complete" in err) == (69, True, True)
