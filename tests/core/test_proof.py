"""The proof as a program: its page is made of what has run, and its general changes are programs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from proof import __main__ as proof_main
from proof import report, tables
from proof.mutate import by_file, general, product
from proof.mutate.covering import TESTS, Covering, cover, judges_of
from proof.mutate.explained import EXPLAINED
from proof.mutate.mutant import ROOT, Mutant
from proof.mutate.product import SWEPT
from proof.mutate.runner import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    first = told_of({"wrong": ["a fault that it must find"], "found": {}}, "aa")
    codes = dict.fromkeys(proof_main.STAGES, "aa")
    before = report.page({"power": first}, codes)

    again = report.page({}, codes | {"power": "bb"}, before)

    assert "- What the simulation must find: a fault that it must find" in again
    assert again.replace("aa (now bb)", "aa") == before
    assert report.page({}, codes, again) == before


def test_fault_cell_that_was_not_run_keeps_its_row() -> None:
    """Whoever disturbs one store leaves the rows and the delays of the others; one that runs again takes the place of its own."""

    def told(*cells: tuple[str, str, int], code: str) -> dict[str, Any]:
        return told_of({"wrong": [], "cells": [cell_of(*cell, code) for cell in cells]}, code)

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


def told_of(result: dict[str, Any], code: str) -> dict[str, Any]:
    """Return what a stage leaves."""
    about = {"version": code, "quick": False, "at": "then", "seconds": 1, "machine": "m", "load": 0}
    return {**about, "result": result}


def cell_of(store: str, cell: str, trials: int, code: str) -> dict[str, Any]:
    """Return what a fault cell shows in which nothing is wrong."""
    counts = dict.fromkeys(("grants", "effects", "repeated", "disordered", "early", "lost", "unheard"), 0)
    stale = dict.fromkeys(("fenced", "naive", "checked", "two-step"), 0)
    about = {"store": store, "version": "1", "lease_s": 1.0, "cell": cell, "control": None, "notes": {}, "seconds": 1}
    return {**about, **counts, "stale": stale, "trials": trials, "delays": [0.5, 1.0], "code": code}


@pytest.mark.parametrize("stage", ["sweep", "slips"])
def test_file_whose_mutants_were_not_judged_keeps_its_rows(stage: str) -> None:
    """Also what was not noticed of it, with its explanation or as a problem; one that is judged again takes the place of its own."""
    survivors = {"a.py": ["f: x | y -> y"], "b.py": ["g: return -> pass"]}

    def told(*files: str, code: str) -> dict[str, Any]:
        return told_of(by_file.result_of([file_of(file, survivors[file], code) for file in files]), code)

    codes = dict.fromkeys(proof_main.STAGES, "aa")
    before = report.page({stage: told("a.py", "b.py", code="aa")}, codes)
    survivors["b.py"] = []

    after = report.page({stage: told("b.py", code="bb")}, codes, before)
    again = report.page({stage: told("b.py", code="bb")}, codes, after)

    assert after == again
    title = report._TITLES[stage]
    assert f"- {title}: a.py: f: x | y -> y" in after
    assert f"- {title}: b.py" not in after
    assert r"| a.py: f: x \| y -> y |  |" in after
    rows = [row for row in after.splitlines() if row.endswith((" | aa |", " | bb |"))]
    assert [(" a.py " in row, row[-5:-2]) for row in rows] == [(True, " aa")] * (len(rows) // 2) + [(False, " bb")] * (
        len(rows) // 2
    )
    assert len(rows) == (2 if stage == "sweep" else 4)


def file_of(file: str, survivors: list[str], code: str) -> dict[str, Any]:
    """Return what the two mutants of *file* showed, of which the first is one of *survivors*, if there is any."""
    verdicts = [{"name": f"{file}: {name}", "by": None} for name in survivors] + [
        {"name": f"{file}: 1 -> 2", "by": "a test"}
    ] * 2
    return {"file": file, "code": code, "at": "then", "seconds": 1.0, "verdicts": verdicts[:2]}


def test_explained_survivor_is_told_with_its_reason_and_is_no_problem() -> None:
    """The explanations are those of today, whenever the mutants were judged."""
    name, why = next((name, why) for name, why in EXPLAINED.items() if name.startswith("dlock_core/"))
    file, _, change = name.partition(": ")

    told = report.page(
        {"sweep": told_of(by_file.result_of([file_of(file, [change], "aa")]), "aa")},
        dict.fromkeys(proof_main.STAGES, "aa"),
    )

    assert f"| {name} | {why} |" in told
    assert f"| {file} | 2 | 1 | 1 | 0 | then | aa |" in told
    assert f"- {report._TITLES['sweep']}" not in told
    assert "Not swept yet: " in told


def test_mutants_are_judged_by_file_and_what_is_complete_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped goes on with the files that it had not done; one that is the same is not judged again."""
    files = ("proof/report.py", "proof/tables.py")
    mutants = [
        Mutant(name, file, "old", name, ("tests/core/test_proof.py::a",)) for file in files for name in ("one", "two")
    ]
    asked: list[str] = []

    def judge(chosen: Sequence[Mutant], *_: object) -> Iterator[Verdict]:
        for each in chosen:
            if len(asked) == 3:
                asked.clear()
                raise KeyboardInterrupt
            asked.append(f"{each.file} {each.name}")
            yield Verdict(each.name, each.file.removesuffix(".py"), None if each.name == "two" else "a", 1.5, 0)

    monkeypatch.setattr(by_file, "judge", judge)
    with pytest.raises(KeyboardInterrupt):
        by_file.judge_files(mutants, tmp_path, 1)

    done = by_file.judge_files(mutants, tmp_path, 1)
    assert asked == [f"{files[1]} one", f"{files[1]} two"]
    assert by_file.result_of(done)["wrong"] == [f"{file}: two" for file in files]
    assert by_file.result_of(done)["ran_s"] == 6.0

    asked.clear()
    assert by_file.judge_files(mutants, tmp_path, 1, only=("tables",), again=True)[0] == done[0]
    assert asked == [f"{files[1]} two"]

    changed = [*mutants[:2], *(each._replace(new="another") for each in mutants[2:])]
    asked.clear()
    assert by_file.judge_files(changed, tmp_path, 1, only=("report",)) == done
    assert asked == []
    assert by_file.judge_files(changed, tmp_path, 1, only=("tables", "report"))[1]["code"] != done[1]["code"]
    assert asked == [f"{files[1]} one", f"{files[1]} two"]


def test_changes_of_one_name_are_asked_about_again_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nothing has noticed does not pass for its namesake."""
    twins = [Mutant("twin", "proof/report.py", old, "new", ("tests/core/test_proof.py::a",)) for old in ("one", "two")]
    answers: list[str | None] = ["a", None, "a", None]

    def judge(chosen: Sequence[Mutant], *_: object) -> Iterator[Verdict]:
        for each in chosen:
            yield Verdict(each.name, "proof/report", answers.pop(0), 1.5, 0)

    monkeypatch.setattr(by_file, "judge", judge)
    for again in (False, True):
        (told,) = by_file.judge_files(twins, tmp_path, 1, again=again)
        assert [each["by"] for each in told["verdicts"]] == ["a", None]
    assert answers == []


def test_version_of_a_files_mutants_is_that_of_the_file_and_of_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found with others says nothing any more."""
    paths = ("code.py", "tests.py", "proof/mutate/general.py")
    (tmp_path / "proof" / "mutate").mkdir(parents=True)
    for path in paths:
        (tmp_path / path).write_text("before")
    monkeypatch.setattr(by_file, "ROOT", tmp_path)
    mutant = Mutant("name", "code.py", "old", "new", ("tests.py::test",))
    found = [by_file.version_of([mutant])]

    for path in paths:
        (tmp_path / path).write_text("after")
        found.append(by_file.version_of([mutant]))

    assert by_file.version_of([mutant]) == found[-1]
    assert len(set(found)) == len(found) == 4


def test_changed_line_is_judged_by_the_tests_that_run_it() -> None:
    """A few of each file first. A line that nothing was seen to run is a part of the statement above it; what takes long is left out."""
    seconds = {f"quick::{number:02}": 0.01 for number in range(50)} | {"slow": 6.0, "other": 0.0, "late::1": 0.5}
    covering = Covering(seconds, {"a.py": {3: frozenset(seconds) - {"other"}, 7: frozenset({"other"}), 9: frozenset()}})

    first, rest = covering.rounds("a.py", 5)

    assert [*first, *rest] == ["quick::00", "late::1", *(f"quick::{number:02}" for number in range(1, 50))]
    assert len(first) == 40
    assert list(covering.rounds("a.py", 9)) == [["other"], []]
    assert list(Covering({"slow": 6.0}, {"a.py": {1: frozenset({"slow"})}}).rounds("a.py", 1)) == [[], []]
    assert list(covering.rounds("a.py", 2)) == list(covering.rounds("b.py", 7)) == [[], []]


def test_changed_line_is_judged_by_the_nearest_tests_before_all_others() -> None:
    """Those that run what few others run in the same file, for the time that they take; each function once, then with other parameters."""
    near, nearer = frozenset({"near::1"}), frozenset({"nearer::1[a]", "nearer::1[b]"})
    seconds = {f"of_{number:02}::1": 0.01 for number in range(60)} | dict.fromkeys(near | nearer, 0.05)
    everywhere = frozenset(seconds)
    covering = Covering(seconds, {"a.py": {3: everywhere, 4: near | nearer, 6: nearer | near, 7: nearer}})

    first, rest = covering.rounds("a.py", 3)

    assert (len(first), rest[:2]) == (40, ["nearer::1[a]", "near::1"])
    assert {*first, *rest} == everywhere


def test_change_of_an_adapter_is_judged_by_its_own_tests_and_the_suite_on_its_store() -> None:
    """One of the core by those of the core. What is named is there."""
    of_adapters = {file.partition("/")[0]: judges_of(file) for file in SWEPT}

    assert of_adapters.pop("dlock_core") == TESTS
    assert set(of_adapters) == {path.name for path in ROOT.glob("dlock_*")} - {"dlock_core", "dlock_contrib"}
    for adapter, (own, *suites) in of_adapters.items():
        assert own == f"tests/{adapter.removeprefix('dlock_')}"
        for path, _, name in [(own, "", ""), *(suite.partition("::") for suite in suites)]:
            assert not name or f"class {name}(" in (ROOT / path).read_text()
            assert (ROOT / path).exists()


def test_tests_that_fail_by_themselves_judge_nothing(tmp_path: Path) -> None:
    """Every change would be noticed."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False")

    with pytest.raises(RuntimeError, match="the tests fail without any change"):
        cover(tmp_path, [], ["test_it.py"], 1)


def test_test_that_fails_beside_others_may_pass_by_itself(tmp_path: Path) -> None:
    """The load of the others is none of the code's."""
    (tmp_path / "test_it.py").write_text(
        "import pathlib\ndef test_it():\n    been = pathlib.Path('been')\n    assert been.exists() or been.write_text('') or False"
    )

    assert cover(tmp_path, [], ["test_it.py"], 1).tests == {}


def test_run_of_tests_that_does_not_end_ends_the_servers_that_it_has_started(tmp_path: Path) -> None:
    """They would be in the way of every later run."""
    program = "import pathlib, time\ntry:\n    print('begun', flush=True)\n    time.sleep(300)\nfinally:\n    pathlib.Path('ended').touch()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"

        product._end(run)

    assert (tmp_path / "ended").exists()


def test_histogram_leaves_out_the_empty_ends() -> None:
    """The first and the last bar stand for something."""
    lines = tables.histogram([0, 1, 0, 2, 0], 0.1, "L")

    assert [line.split()[0] for line in lines[1:-2]] == ["0.10", "0.20", "0.30"]


def test_general_changes_are_programs() -> None:
    """Each changes one place, and compiles."""
    changes = general.changes("dlock_core/lease.py")

    assert len(changes) > 300
    for change in changes[::100]:
        compile(general.mutated(change.number, "dlock_core/lease.py")[0], "lease.py", "exec")


def test_explanations_are_of_changes_that_there_are() -> None:
    """One of code that is gone would explain whatever comes to stand there."""
    assert set(EXPLAINED) <= {f"{file}: {change.name}" for file in SWEPT for change in general.changes(file)}
