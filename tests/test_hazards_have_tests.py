"""Each finding F1-F17 and each hazard 1-32 of the project's catalogue has a test that is named after it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"test_(?:f(?P<finding>\d+)[a-h]?|hazard_(?P<hazard>\d\d))_")


FINDINGS = [f"F{number}" for number in range(1, 18)]
HAZARDS = [f"hazard {number}" for number in range(1, 33)]


@cache
def named() -> frozenset[str]:
    """Return the findings and hazards that tests are named after."""
    found = set()
    for folder in ("tests", "conformance_tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match = NAMED.match(node.name) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
                if match is not None:
                    found.add(f"F{match['finding']}" if match["finding"] else f"hazard {int(match['hazard'])}")
    return frozenset(found)


@pytest.mark.parametrize("name", FINDINGS + HAZARDS)
def test_each_finding_and_hazard_has_a_test_named_after_it(name: str) -> None:
    """Whoever removes the last one learns it here."""
    assert name in named()


def test_no_test_is_named_after_what_does_not_exist() -> None:
    """A number that is not in the catalogue is a slip."""
    assert named() <= {*FINDINGS, *HAZARDS}
