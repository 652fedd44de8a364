"""The proof as a program: its page is made of what has run, and its general changes are programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from proof import __main__ as proof_main
from proof import report, tables
from proof.mutate import general
from proof.mutate.explained import EXPLAINED
from proof.mutate.product import SWEPT

if TYPE_CHECKING:
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


def test_stage_that_was_not_run_keeps_its_section_and_the_version_that_it_ran_on() -> None:
    """Whoever has run one stage leaves the others as they stand."""
    first = {"version": "aa", "quick": False, "at": "then", "seconds": 1, "machine": "m", "load": 0, "result": {}}
    first["result"] = {"wrong": ["a fault that it must find"], "found": {}}
    codes = dict.fromkeys(proof_main.STAGES, "aa")
    before = report.page({"power": first}, codes)

    again = report.page({}, codes | {"power": "bb"}, before)

    assert "- What the simulation must find: a fault that it must find" in again
    assert again.replace("aa (now bb)", "aa") == before
    assert report.page({}, codes, again) == before


def test_fault_cell_that_was_not_run_keeps_its_row() -> None:
    """Whoever disturbs one store leaves the rows and the delays of the others; one that runs again takes the place of its own."""

    def told(*cells: tuple[str, str, int], code: str) -> dict[str, Any]:
        result = {"wrong": [], "cells": [cell_of(*cell, code) for cell in cells]}
        return {
            "version": code,
            "quick": False,
            "at": "then",
            "seconds": 1,
            "machine": "m",
            "load": 0,
            "result": result,
        }

    codes = dict.fromkeys(proof_main.STAGES, "bb")
    before = report.page({"faults": told(("redis", "kill", 301), ("sqlite", "kill", 302), code="aa")}, codes)

    both = report.page({"faults": told(("redis", "kill", 303), ("redis", "fork", 304), code="bb")}, codes, before)

    rows = [row.split(" | ") for row in both.splitlines() if ", lease " in row]
    assert [(row[0].split()[1], row[1], row[2], row[-1]) for row in rows] == [
        ("sqlite", "kill", "302", "aa |"),
        ("redis", "kill", "303", "bb |"),
        ("redis", "fork", "304", "bb |"),
    ]
    assert [line.split(" in leases:")[1] for line in both.splitlines() if line.startswith("From a kill")] == [
        " 2 takeovers, median 1.00, p99 1.00, longest 1.00",
        " 4 takeovers, median 1.00, p99 1.00, longest 1.00",
    ]


def cell_of(store: str, cell: str, trials: int, code: str) -> dict[str, Any]:
    """Return what a fault cell shows in which nothing is wrong."""
    counts = dict.fromkeys(("grants", "effects", "repeated", "disordered", "early", "lost", "unheard"), 0)
    stale = dict.fromkeys(("fenced", "naive", "checked", "two-step"), 0)
    about = {"store": store, "version": "1", "lease_s": 1.0, "cell": cell, "control": None, "notes": {}, "seconds": 1}
    return {**about, **counts, "stale": stale, "trials": trials, "delays": [0.5, 1.0], "code": code}


def test_histogram_leaves_out_the_empty_ends() -> None:
    """The first and the last bar stand for something."""
    lines = tables.histogram([0, 1, 0, 2, 0], 0.1, "L")

    assert [line.split()[0] for line in lines[1:-2]] == ["0.10", "0.20", "0.30"]


def test_general_changes_are_programs() -> None:
    """Each changes one place, and compiles."""
    changes = general.changes()

    assert len(changes) > 300
    for change in changes[::100]:
        compile(general.mutated(change.number)[0], "lease.py", "exec")


def test_explanations_are_of_changes_that_there_are() -> None:
    """One of code that is gone would explain whatever comes to stand there."""
    of_the_machine = {change.name for change in general.changes()}
    of_the_shell = {f"{file}: {change.name}" for file in SWEPT for change in general.changes(file)}

    assert set(EXPLAINED) <= of_the_machine | of_the_shell
