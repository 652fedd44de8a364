"""The page of the benchmarks: a part that is run by itself changes its own sections alone, and says on what it was measured."""

from __future__ import annotations

from benchmarks._aims import inserted
from benchmarks._figures import Part, Section

PAGE = "# Benchmarks\n\n## One\n\nHow.\n\n| old |\n| --- |\n\n## Two\n\nSo.\n\n| kept |\n| --- |\n"


def part(title: str) -> list[Part]:
    """Return what a part of one table has found."""
    return [Part((Section(title, "How anew.", ("new",), (("1",),)),), ())]


def test_sections_of_the_parts_that_ran_are_replaced_or_added_at_the_end() -> None:
    """The others stay as they are."""
    anew = "## One\n\nHow anew. On X.\n\n| new |\n| --- |\n| 1 |\n"
    two = "## Two\n\nSo.\n\n| kept |\n| --- |\n"

    assert inserted(PAGE, "On X.", part("One")) == f"# Benchmarks\n\n{anew}\n{two}"
    last = "## Two\n\nHow anew. On X.\n\n| new |\n| --- |\n| 1 |\n"
    assert inserted(PAGE, "On X.", part("Two")) == PAGE.replace(two, last)
    added = inserted(PAGE, "On X.", part("Three"))
    assert added == f"{PAGE}\n{last.replace('Two', 'Three')}"
