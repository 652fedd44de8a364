"""Every rule, finding, hazard and invariant that the code cites by number is explained on the page of the protocol."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
FOLDERS = ("conformance_tests", "dlock_*", "examples", "proof", "tests")
# How a citation looks, and how the page introduces the number.
CITATIONS = {
    "rule": (r"\b[Rr]ule (1?\d)\b(?!:)", r"\*\*Rule (\d+)\."),
    "finding": (r"\bF(1?\d[a-h]?)\b", r"^\| F(\d+[a-h]?) \|"),
    "waiting claim": (r"\bK(\d)\b", r"^\| K(\d) \|"),
    "session": (r"\bQ(\d{1,2})\b", r"^\| Q(\d+) \|"),
    "hazard": (r"\bhazard[ _]0?(\d+)", r"^\| hazard (\d+) \|"),
    "old hazard": (r"\bH(\d{1,2})\b", r"^\| (?:hazard )(\d+) \|"),
    "invariant": (r"\bI(\d)\b", r"^\| I(\d) \|"),
}
CITATIONS_MIN = 3


def cited(pattern: str) -> dict[str, str]:
    """Return each number that is cited, with one place that cites it."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted(ROOT.glob(f"{folder}/**/*.py")):
            if path == Path(__file__):
                continue
            for number in re.findall(pattern, path.read_text(encoding="utf-8")):
                found.setdefault(number, path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("kind", CITATIONS)
def test_each_number_that_is_cited_is_on_the_page(kind: str) -> None:
    """A reader who meets F12 or rule 13 finds out what that is."""
    citation, entry = CITATIONS[kind]
    explained = set(re.findall(entry, PAGE, re.MULTILINE))
    # F8 stands for all of F8a to F8h.
    explained |= {number.rstrip("abcdefgh") for number in explained}

    missing = {number: where for number, where in cited(citation).items() if number not in explained}

    assert len(explained) >= CITATIONS_MIN
    assert missing == {}


CHECK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_each_check_that_the_page_names_is_there() -> None:
    """A test that is renamed or dropped takes its row with it."""
    named = CHECK.findall(PAGE)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]

    assert len(named) >= CITATIONS_MIN
    assert missing == []
