"""``dlock top``: the held locks, looked at again and again."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich import get_console

from dlock_core import LockClient, LockRecord, State
from dlock_core.command import show, top
from dlock_core.command.listing import Look
from dlock_core.command.top import Board
from dlock_core.errors import StoreUnavailableError
from dlock_core.memory import MemoryStore
from dlock_core.record import NO_TOKEN, SessionRef
from dlock_core.testing import FakeClock, FaultyStore
from tests.cli.operator_support import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table


def test_a_pipe_has_one_look_as_of_ls(dlock: Command, client: LockClient) -> None:
    """In both forms; what is free is not shown."""
    with client.lock("app/free"):
        pass
    with client.lock("app/held"), client.lock("other"):
        table, listed = dlock("top", "app/"), dlock("ls", "app/")
        code, out, err = dlock("top", "--once", "-o", "json", "app/")

    assert table[0] == 0
    assert table[1].split()[:7] == listed[1].split()[:7]
    assert (code, err, [each["key"] for each in json.loads(out)]) == (0, "", ["app/held"])


@pytest.mark.parametrize(
    ("terminal", "options", "followed"),
    [
        ("xterm", (), [("app/", 2.0)]),
        ("xterm", ("--every", "300ms"), [("app/", 0.3)]),
        ("xterm", ("--once",), []),
        ("xterm", ("-o", "json"), []),
        ("dumb", (), []),
        ("unknown", (), []),
    ],
)
@pytest.mark.usefixtures("client")
def test_only_a_terminal_that_can_be_written_over_is(
    dlock: Command,
    monkeypatch: pytest.MonkeyPatch,
    terminal: str,
    options: tuple[str, ...],
    followed: list[tuple[str, float]],
) -> None:
    """And only if nothing says that one look is meant; a dumb one would show nothing."""
    begun: list[tuple[str, float]] = []
    monkeypatch.setattr(top, "_follow", lambda board, every_s: begun.append((board._prefix, every_s)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", terminal)

    assert dlock("top", "app/", *options)[0] == 0
    assert begun == followed


def test_no_more_rows_are_laid_out_than_the_screen_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of 20,000 took seconds, so that a screen of them was never as it had just been read."""
    laid_out: list[Sequence[Sequence[object]]] = []
    table_of = show.table_of

    def lay_out(headings: Sequence[str], rows: Sequence[Sequence[object]], *, on_terminal: bool) -> Table:
        laid_out.append(rows)
        return table_of(headings, rows, on_terminal=on_terminal)

    def end(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "table_of", lay_out)
    monkeypatch.setattr(top, "ENDING", ())
    monkeypatch.setattr(top, "_give_back_while_stopped", lambda live: None)
    monkeypatch.setattr(time, "sleep", end)
    height = get_console().height
    with LockClient(MemoryStore()) as client:
        leases = [client.acquire(f"k{number:03}") for number in range(2 * height)]
        with pytest.raises(KeyboardInterrupt):
            top._follow(Board(client, ""), 2.0)
        shown = [[row[0] for row in rows] for rows in laid_out]

    assert shown == [[lease.key for lease in leases[:height]]]


def test_renewals_are_counted_under_one_grant() -> None:
    """The next grant begins anew."""
    with FakeClock() as clock, clock.client(FaultyStore()) as client:
        board = Board(client, "")
        counts = []
        for looks in (3, 2):
            lease = client.acquire("k", auto_renew=False)
            for _ in range(looks):
                board.look()
                counts += board.renewals
                lease.renew()
            if looks == 3:
                lease.release()
        headings, [row] = board.rows()

    assert counts == [0, 1, 2, 0, 1]
    assert (headings[0], headings[-1], row[0], row[-1]) == ("KEY", "RENEWALS", "k", 1)


KEPT = LockRecord("k", State.HELD, "0", 1, "o", None, session=SessionRef("s", 2000, 1))
SESSION = LockRecord("s", State.HELD, "1", 1, "o", 2000)
ANYBODYS = LockRecord("k", State.HELD, "0", NO_TOKEN, "a", 2000)


@pytest.mark.parametrize(
    ("looks", "renewals"),
    [
        ([Look([(KEPT, 1)], {"s": (session, 1)}) for session in (SESSION, replace(SESSION, rvn="2"))], [0, 1]),
        ([Look([(record, 1)], {}) for record in (ANYBODYS, replace(ANYBODYS, rvn="1"))], [0, 1]),
        ([Look([(record, 1)], {}) for record in (ANYBODYS, replace(ANYBODYS, rvn="1", owner="b"))], [0, 0]),
    ],
    ids=["of its session", "without tokens", "of another owner"],
)
def test_renewals_are_those_of_the_holder(
    client: LockClient, monkeypatch: pytest.MonkeyPatch, looks: list[Look], renewals: list[int]
) -> None:
    """Which a session makes for it, and which another begins anew, where no token tells the two."""
    seen = iter(looks)
    monkeypatch.setattr(top, "look_up", lambda *_, **__: next(seen))
    board = Board(client, "")
    counts = []
    for _ in looks:
        board.look()
        counts += board.renewals

    assert counts == renewals


@pytest.mark.parametrize("hidden", [False, True])
def test_a_lock_that_is_released_while_the_store_is_looked_at_is_not_held(
    client: LockClient, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """Its age is asked for after the list was."""
    lease, scan = client.acquire("k", delete_on_release=hidden), client.scan

    def scan_then_release(prefix: str) -> Iterator[LockRecord]:
        yield from scan(prefix)
        lease.release()

    monkeypatch.setattr(client, "scan", lambda prefix: [*scan_then_release(prefix)])
    board = Board(client, "")
    board.look()

    assert board.seen.records == []


def test_a_shared_lock_has_the_renewals_and_leases_of_its_members() -> None:
    """Its own record is written where somebody joins or leaves, which is no renewal."""
    with FakeClock() as clock, clock.client(FaultyStore()) as client:
        board = Board(client, "")
        with client.semaphore("k", permits=3):
            board.look()
            with client.semaphore("k", permits=3):
                board.look()
                headings, [row] = board.rows()

    shown = dict(zip(headings, row, strict=True))
    assert [shown[name] for name in ("RENEWED", "LEASE", "RENEWALS")] == ["of each"] * 3


def test_a_store_that_is_away_leaves_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says why, until a look succeeds."""

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the store is away")

    store = FaultyStore()
    with FakeClock() as clock, clock.client(store) as client, client.lock("k"):
        board = Board(client, "")
        board.look()
        with monkeypatch.context() as patched:
            patched.setattr(store, "scan", away)
            board.look()
            seen, trouble = [record.key for record, _ in board.seen.records], str(board.trouble)
        board.look()

    assert (seen, trouble, board.trouble) == (["k"], "the store is away", None)


@pytest.mark.parametrize("every", ["0", "10ms", "2d", "soon"])
def test_pause_that_is_none_is_told_in_one_line(dlock: Command, url: str, every: str) -> None:
    """A store is not to be asked without a pause."""
    code, out, err = dlock("top", "--every", every)

    assert (code, out, err.count("\n")) == (64, "", 1)
    assert re.search("'--every': .*(from 100ms to 1d|is not a duration)", err)
