"""Semaphores and read/write locks from the shell."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dlock_core import LockLostError, State, connect
from dlock_core.store import Release
from tests.cli.support import finish, finish_with_line, line

if TYPE_CHECKING:
    from dlock_core import LockClient
    from tests.cli.operator_support import Command
    from tests.cli.support import Shell


def test_so_many_commands_run_at_once_and_each_knows_its_slot(shell: Shell) -> None:
    """The next one is told how many there are, or skipped."""
    holding, told = [], []
    for _ in range(2):
        holding.append(shell.holding("--permits", "2", script="echo $DLOCK_SLOT $DLOCK_FENCING_TOKEN; read line"))
        told.append(line(holding[-1].stdout))

    refused = shell.run("run", "k", "--permits", "2", "--no-wait", "--", "true")
    skipped = shell.run("run", "k", "--permits", "2", "--skip-if-held", "--", "true")
    codes = [finish_with_line(each) for each in holding]

    assert told == ["0 1", "1 2"]
    busy = "could not acquire lock 'k' in one try: held by 2 holders with 2 permits; asked for 1 of 2; nothing was run"
    assert (refused.returncode, refused.stderr) == (75, f"dlock: {busy}\n")
    assert (skipped.returncode, skipped.stderr) == (
        0,
        "dlock: skipped: lock 'k' is held by 2 holders with 2 permits (token 2)\n",
    )
    assert codes == [0, 0]
    assert not shell.held()


def test_readers_run_together_and_a_writer_alone(shell: Shell) -> None:
    """``--read`` and ``--write``."""
    reader = shell.holding("--read")

    beside = shell.run("run", "k", "--read", "--no-wait", "--", "true")
    writer = shell.run("run", "k", "--write", "--no-wait", "--", "true")
    finish_with_line(reader)

    assert beside.returncode == 0
    assert (writer.returncode, "held by 1 reader" in writer.stderr) == (75, True)
    assert shell.run("run", "k", "--write", "--no-wait", "--", "true").returncode == 0


def test_place_of_a_run_that_was_killed_is_had_by_a_later_one(shell: Shell) -> None:
    """Also where each run tries once, and the host keeps what it has seen."""
    dead = shell.holding("--permits", "1", "--lease", "3")
    dead.send_signal(signal.SIGKILL)
    finish(dead)

    codes = []
    for _ in range(60):
        codes.append(shell.run("run", "k", "--permits", "1", "--lease", "3", "--no-wait", "--", "true").returncode)
        if codes[-1] == 0:
            break

    assert codes[0] == 75
    assert codes[-1] == 0


def test_shared_lock_is_one_key_in_one_way(shell: Shell) -> None:
    """Told before anything is sent."""
    several = shell.run("run", "a", "b", "--read", "--", "true")
    both = shell.run("run", "a", "--read", "--permits", "2", "--", "true")
    neither = shell.run("run", "a", "--write", "--read", "--", "true")

    assert (several.returncode, both.returncode, neither.returncode) == (64, 64, 64)
    assert several.stderr == "dlock: --permits, --read and --write hold one KEY, not 2; see 'dlock run --help'\n"
    assert "permits=2 makes a semaphore, and mode='read' a read/write lock" in both.stderr
    assert (
        neither.stderr == "dlock: --read and --write exclude each other; give one of the two; see 'dlock run --help'\n"
    )


def test_ls_and_show_tell_the_members(dlock: Command, client: LockClient) -> None:
    """How many there are, and who each is, as the record of its session says."""
    with connect(client.options, owner="other") as other, client.semaphore("k", 4), other.semaphore("k", 4, weight=2):
        listed, shown, facts = dlock("ls")[1], dlock("show", "k")[1], dlock.json("show", "k")
        inside = json.loads(dlock("ls", "-o", "json")[1])
    with client.read_lock("rw"):
        reading = dlock("ls")[1]

    assert len(listed.splitlines()) == 2
    assert "2 holders with 3 permits" in listed
    assert "permit, slot 1, weight 2, token 2: 'other', renewed 0 s ago, lease 20 s" in shown
    assert [member["owner"] for member in facts["members"]] == [client._context.owner, "other"]
    assert [(member["mode"], member["slot"], member["weight"]) for member in inside[0]["members"]] == [
        ("permit", 0, 1),
        ("permit", 1, 2),
    ]
    assert "1 reader" in reading


def test_member_whose_session_is_over_is_shown_as_nobody(dlock: Command, client: LockClient) -> None:
    """It stands there until somebody joins, and is in nobody's way."""
    lease = client.acquire("k", permits=2)
    session = client._store.read(f"{client._context.full_key('k')}~dlock/session/0", timeout_s=5)
    assert session is not None
    ended = replace(session, state=State.GONE, rvn="another", lease_ms=None, times=None)
    assert client._store.release(Release(ended, session.version), timeout_s=5).applied

    assert "token 1: nobody, its session is over" in dlock("show", "k")[1]
    with pytest.raises(LockLostError):
        lease.renew()


def test_break_of_a_shared_lock_says_how_long_it_is_closed(dlock: Command, client: LockClient) -> None:
    """For the longest lease of its holders."""
    lease, permit = client.acquire("k", mode="read", lease_duration=7), client.acquire("permit", permits=2)

    broken, of_permits = dlock("break", "k", "--token", "1")[1], dlock("break", "permit", "--token", "1")[1]

    assert "nobody gets it for one lease (7 s), within which each holder learns of it" in broken
    assert "SET fence = 2" in broken
    assert "permits have no order: a resource can refuse the old holder only where each slot has one" in of_permits
    assert "SET fence" not in of_permits
    with pytest.raises(LockLostError):
        permit.renew()
    with pytest.raises(LockLostError):
        lease.renew()
