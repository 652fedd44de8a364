"""The pictures of the documentation are those that the code draws, and each can be read in the dark and without eyes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlock_core.lease import TRANSITIONS
from dlock_core.states import LeaseState
from docs.draw import charts, diagrams
from docs.draw.__main__ import PICTURES, drawn

ROOT = Path(__file__).parents[1]


def test_pictures_are_drawn_anew() -> None:
    """``make docs``, or ``python -m docs.draw``, draws them; the recording of the demonstration is drawn by what it records."""
    kept = {file.name: file.read_text(encoding="utf-8") for file in PICTURES.glob("*.svg")}

    assert kept.keys() - drawn().keys() == {"demo.svg"}
    assert [name for name, svg in drawn().items() if kept.get(name) != svg] == []


@pytest.mark.parametrize("file", sorted(PICTURES.glob("*.svg")), ids=lambda file: file.stem)
def test_picture_is_shown_with_words_in_light_and_dark(file: Path) -> None:
    """Its file has a title and a description, the page that shows it an alternative text."""
    svg = file.read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [
        alternative
        for page in pages
        for alternative, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if (page.parent / path).resolve() == file
    ]

    assert re.search(r"<title[^>]*>.+</title>\n<desc[^>]*>.+</desc>", svg)
    assert "prefers-color-scheme: dark" in svg
    assert 'class="back"' in svg
    assert shown
    assert min(map(len, shown)) > 40


def test_picture_of_the_states_has_each_state_and_each_way() -> None:
    """As the machine's table has them."""
    svg = diagrams.states().svg()

    assert all(f">{state.__name__}</text>" in svg for state in LeaseState.__args__)
    assert svg.count('class="edge"') == len(diagrams.edges()) >= 15
    ways = {(before, after) for (before, _), to in TRANSITIONS.items() for after in to.leads_to if after is not before}
    assert len(ways) == len(diagrams.edges())


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1.15", 1.15), ("0.99, 1.00, 0.98", 0.99), ("57.7%", 57.7), ("10,000", 10000.0), ("42.7 (39.5 to 44)", 42.7)],
)
def test_figures_are_read_from_the_cells_of_the_page(cell: str, value: float) -> None:
    """A median stands before its bounds; of a list of rounds it is the middle one."""
    assert charts.number(cell) == value
