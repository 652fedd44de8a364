"""What the command shows of locks that a session keeps, and how it breaks them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dlock_core import LossReason, connect
from dlock_core.command.listing import Look, rows_of
from dlock_core.record import Broken, LockRecord, SessionRef, State
from tests.core.worlds import eventually

if TYPE_CHECKING:
    from tests.cli.operator_support import Command
    from tests.cli.support import Shell

SESSION = LockRecord("~dlock/session/1", State.HELD, "01", 7, "a", 2_000)


def test_session_is_shown_and_broken_with_all_that_it_keeps(dlock: Command, url: str) -> None:
    """By the name that ``show`` gives; the holder learns of it, and a second break finds nothing."""
    with connect(url, lease_duration=1.5, renewal="session") as client:
        lease, other = client.acquire("k"), client.acquire("n")

        def record() -> LockRecord:
            found = client.get("k")
            assert found is not None
            return found

        eventually(lambda: record().session is not None)
        session = record().session
        assert session is not None
        facts, listed = dlock.json("show", "k"), dlock("ls")
        lines = dlock("show", "k")
        waiting = dlock("run", "k", "--no-wait", "--", "true")

        assert facts["session"] == session.key
        assert "of its session" in listed[1]
        assert f"session {session.key}" in " ".join(lines[1].split())
        assert f"kept by session {session.key!r}" in waiting[2]

        broken = dlock("break", session.key, "--session")

        assert (broken[0], broken[2]) == (0, "")
        assert "all locks that it keeps are lost" in broken[1]
        eventually(lambda: lease.loss is not None and other.loss is not None)
        assert lease.loss is not None
        assert lease.loss.reason is LossReason.BROKEN
        again = dlock("break", session.key, "--session")
        assert (again[0], again[1]) == (1, "")
        assert again[2].endswith(f"dlock: session {session.key!r} is over, or was broken, already; nothing was done\n")


def test_break_of_a_session_takes_no_token(dlock: Command, url: str) -> None:
    """And no key of a lock; each is told in one line."""
    with_token = dlock("break", "k", "--session", "--token", "1", "--url", url)
    of_a_lock = dlock("break", "k", "--session", "--url", url)

    assert with_token[0] == 64
    assert "--session goes with none of --token, --rvn and --now" in with_token[2]
    assert of_a_lock[0] == 64
    assert "'k' is not the key of a session" in of_a_lock[2]


def test_ls_lists_the_sessions_and_how_many_locks_each_keeps(dlock: Command, url: str) -> None:
    """Those of shared locks, too; a prefix is that of the locks, and of locks that nobody keeps there is nothing."""
    with connect(url, lease_duration=1.5, renewal="session", owner="a") as client, connect(url, owner="b") as other:
        assert dlock("ls", "--sessions") == (0, "SESSION  OWNER  HELD  RENEWED  LEASE  KEEPS\n", "")
        leases = [client.acquire(key) for key in ("app/k", "app/n", "other")]
        reader = other.acquire("ledger", mode="read")

        def kept() -> dict[str, int]:
            return {each["owner"]: each["keeps"] for each in dlock.json("ls", "--sessions")}

        eventually(lambda: kept().get("a") == 3)
        assert kept() == {"a": 3, "b": 1}
        listed = dlock.json("ls", "--sessions", "app/")
        table = dlock("ls", "--sessions", "app/")[1].splitlines()
        assert all(lease.is_valid for lease in (*leases, reader))

    assert [(each["owner"], each["keeps"], "~dlock/session/" in each["key"]) for each in listed] == [("a", 2, True)]
    assert table[0].split() == ["SESSION", "OWNER", "HELD", "RENEWED", "LEASE", "KEEPS"]
    assert table[1].split()[:2] == [listed[0]["key"], "a"]
    assert table[1].split()[-1] == "2"
    assert dlock.json("ls", "--sessions") == []
    code, out, err = dlock("ls", "--sessions", "--all")
    assert (code, out) == (64, "")
    assert "--sessions does not go with --all: of sessions that are over nothing is shown" in err


def test_a_lock_whose_session_is_over_is_shown_as_that(shell: Shell) -> None:
    """Its record, which nobody has taken yet, still says that it is held. As long as the session lasts, its lease is shown."""
    shell.environment["DLOCK_RENEWAL"] = "session"
    process = shell.start("run", "--lease", "2", "a", "b", "--", "sleep", "60")
    eventually(lambda: (record := shell.record("b")) is not None and record.session is not None)
    before = shell.run("show", "b").stdout, shell.run("ls").stdout

    process.kill()
    shell.run("run", "a", "--", "true")

    assert ["left, of its session" in told for told in before] == [True, True]
    after = shell.run("show", "b").stdout, shell.run("ls", "b").stdout
    assert ["over, with its session" in told for told in after] == [True, True]


@pytest.mark.parametrize(
    ("session", "told"),
    [
        ((SESSION, 500), ["0 s ago", "2 s left, of its session"]),
        ((SESSION, None), ["-", "2 s, of its session"]),
        ((replace(SESSION, fencing_token=8), 500), ["9 s ago", "over, with its session"]),
        ((replace(SESSION, state=State.FREE), 500), ["9 s ago", "over, with its session"]),
        (
            (replace(SESSION, fencing_token=8, broken=Broken("op", 0)), 500),
            ["0 s ago", "quarantined, 2 s left, of its session"],
        ),
        (None, ["9 s ago", "over, with its session"]),
    ],
    ids=["held", "no clock", "another grant", "free", "broken", "absent"],
)
def test_a_kept_lock_is_listed_as_renewed_with_its_session(
    session: tuple[LockRecord, int | None] | None, told: list[str]
) -> None:
    """By the session's age and lease: the record of the lock stands as it was moved."""
    kept = LockRecord("k", State.HELD, "00", 1, "a", None, session=SessionRef(SESSION.key, 2_000, 7))

    _, [row] = rows_of(Look([(kept, 9_000)], {SESSION.key: session}), everything=False)

    assert row == ["k", "a", "-", *told]
