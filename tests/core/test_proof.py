"""The proof as a program: its page is made of what has run, and its general changes are programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proof import __main__ as proof_main
from proof import report, tables
from proof.mutate import general
from proof.mutate.explained import EXPLAINED

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
    assert set(EXPLAINED) <= {change.name for change in general.changes()}
