"""Each finding F1-F17 and each hazard 1-32 of the project's catalogue has a test that is named after it, and that checks something."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"test_(?:f(?P<finding>\d+)[a-h]?|hazard_(?P<hazard>\d\d))_")
FINDINGS = [f"F{number}" for number in range(1, 18)]
HAZARDS = [f"hazard {number}" for number in range(1, 33)]
# Calls that fail where a fact does not hold: of pytest, and of the conformance suite's trial.
CHECKS = {"raises", "exactly", "fail", "granted", "refused", "require"}
NEVER_RUN = ("pytest.mark.skip(", "pytest.mark.xfail")

Test = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def named() -> dict[str, list[tuple[str, Test, dict[str, Test]]]]:
    """Return for each finding and hazard the tests named after it: each with its place and the functions of its module."""
    found = defaultdict(list)
    for folder in ("tests", "conformance_tests"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if not NAMED.search(source):
                continue
            functions = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, Test)}
            for name, node in functions.items():
                if match := NAMED.match(name):
                    number = f"F{match['finding']}" if match["finding"] else f"hazard {int(match['hazard'])}"
                    found[number].append((f"{path.name}::{name}", node, functions))
    return found


def checks(test: Test, functions: dict[str, Test], depth: int = 2) -> bool:
    """Whether *test* asserts something, itself or in a helper of its module."""
    nodes = list(ast.walk(test))
    calls = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes if isinstance(node, ast.Call)}
    if any(isinstance(node, ast.Assert) for node in nodes) or calls & CHECKS:
        return True
    helpers = [functions[name] for name in calls if name in functions and functions[name] is not test]
    return depth > 0 and any(checks(helper, functions, depth - 1) for helper in helpers)


@pytest.mark.parametrize("name", FINDINGS + HAZARDS)
def test_each_finding_and_hazard_has_a_test_that_checks_something(name: str) -> None:
    """Whoever removes the last one, empties it or lets it be skipped learns it here."""
    assert named()[name], f"no test is named after {name}"
    for place, test, functions in named()[name]:
        assert checks(test, functions), f"{place} asserts nothing"
        left_out = [mark for mark in map(ast.unparse, test.decorator_list) if mark.startswith(NEVER_RUN)]
        assert not left_out, f"{place} does not run: {left_out}"


def test_a_test_that_asserts_nothing_is_found() -> None:
    """A name with an empty body, or with a call of what cannot fail, keeps nobody safe."""
    source = "def test_f1_x():\n    run()\ndef run():\n    pass\ndef test_f2_x():\n    look()\ndef look():\n    assert False\n"
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, Test)}

    assert not checks(functions["test_f1_x"], functions)
    assert checks(functions["test_f2_x"], functions)


def test_no_test_is_named_after_what_does_not_exist() -> None:
    """A number that is not in the catalogue is a slip."""
    assert set(named()) <= {*FINDINGS, *HAZARDS}
