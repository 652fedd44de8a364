"""The proof as a program: its page is made of what has run, its fault cells see what is planted, and its general changes are programs."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from proof import __main__ as proof_main
from proof import faults, general, report
from proof.fault_book import Book, check
from proof.general_explained import EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_proof_writes_the_page_from_what_it_ran(tmp_path: Path) -> None:
    """Each stage leaves its results, and the page says of each what it showed."""
    page, results = tmp_path / "proof.md", tmp_path / "results"
    options = ["--quick", "--results", str(results), "--output", str(page)]

    assert proof_main.main([*options, "--stores", "sqlite"]) == 0

    told = page.read_text()
    assert "A quick run" in told
    assert "not run" not in told.lower()
    totals = json.loads((results / "simulate.json").read_text())["result"]["totals"]
    assert totals["schedules"] == 500
    assert f"| grants | {totals['grants']:,} |" in told
    assert proof_main.main([*options, "--report"]) == 0
    assert page.read_text() == told


def test_page_says_what_was_not_run() -> None:
    """An absent stage is told, not left out."""
    told = report.page({}, {})

    assert told.count("Not run.") == len(proof_main.STAGES)


def test_histogram_leaves_out_the_empty_ends() -> None:
    """The first and the last bar stand for something."""
    lines = report.histogram([0, 1, 0, 2, 0], 0.1, "L")

    assert [line.split()[0] for line in lines[1:-2]] == ["0.10", "0.20", "0.30"]


def test_general_changes_are_programs() -> None:
    """Each changes one place, and compiles."""
    changes = general.changes()

    assert len(changes) > 300
    for change in changes[::100]:
        compile(general.mutated(change.number)[0], "lease.py", "exec")


# ---- faults ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    """An empty history."""
    with closing(Book(tmp_path / "book.db")) as book:
        book.create()
        yield book


def test_history_of_two_good_grants_is_good(book: Book) -> None:
    """One after the other, the second with a higher token."""
    book.granted("k", 1, "a", 100)
    book.use("k", 1, at=110, deadline=150, seen=0)
    book.granted("k", 2, "b", 160)
    book.use("k", 2, at=170, deadline=200, seen=1)

    found = check(book)

    assert (found.grants, found.repeated, found.early) == (2, 0, 0)
    assert set(found.stale.values()) == {0}


def test_history_shows_a_stale_effect_to_each_resource_but_the_fenced(book: Book) -> None:
    """The first holder, which looked before the second came, writes after it."""
    book.use("k", 1, at=110, deadline=150, seen=0)
    book.use("k", 2, at=170, deadline=200, seen=1)
    book.use("k", 1, at=120, deadline=150, seen=1)

    assert check(book).stale == {"fenced": 0, "naive": 1, "checked": 1, "two-step": 1}


def test_history_shows_a_token_twice_and_a_grant_too_early(book: Book) -> None:
    """What must never be."""
    book.granted("k", 1, "a", 100)
    book.use("k", 1, at=110, deadline=150, seen=0)
    book.granted("k", 2, "b", 140)
    book.granted("k", 2, "c", 141)

    found = check(book)

    assert (found.repeated, found.early) == (1, 1)


def test_history_of_a_grant_after_a_release_is_not_early(book: Book) -> None:
    """A lease that was given back binds nobody."""
    book.granted("k", 1, "a", 100)
    book.use("k", 1, at=110, deadline=150, seen=0)
    book.ended("k", 1, "released", 120)
    book.granted("k", 2, "b", 125)

    assert check(book).early == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("store", "cell"), [("sqlite", "kill"), ("redis", "stop-2"), ("sqlite", "hasty")])
def test_faults_of_holders_break_only_the_controls(store: str, cell: str) -> None:
    """A few trials on real processes, and more until the control has failed; ``make proof`` runs hundreds."""
    told = faults.run_cell(store, faults.CELLS[cell], trials=4)

    assert told["wrong"] == []
    assert told["trials"] >= 4
    assert told["grants"] > 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", ["server-kill", "black-hole"])
def test_faults_of_a_server_break_nothing(cell: str) -> None:
    """Redis, killed and restarted, or not answering for two leases, while two keys are held."""
    told = faults.run_cell("redis", faults.CELLS[cell], trials=2)

    assert told["wrong"] == []
    assert told["grants"] > 2


def test_faults_name_the_stores_that_can_be_disturbed() -> None:
    """Bad input says what to do."""
    with pytest.raises(SystemExit, match="these are there: sqlite, redis"):
        faults.run_cells(["etcd"], 1)


def test_explanations_are_of_changes_that_there_are() -> None:
    """One of code that is gone would explain whatever comes to stand there."""
    assert set(EXPLAINED) <= {change.name for change in general.changes()}
