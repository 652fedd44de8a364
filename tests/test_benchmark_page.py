"""The page of the benchmarks: a part that is run by itself changes its own sections alone, and says on what it was measured."""

from __future__ import annotations

from benchmarks._aims import AIMS, inserted, report
from benchmarks._figures import Part, Section, Shown
from tests.faults.test_processes import STORES

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


def test_aims_of_the_parts_that_ran_are_told_anew() -> None:
    """In the place of the old row, also where several are "the same" of something; an aim that the page has not yet comes last."""
    [one] = part("One")
    page = report(
        "here", [], [one._replace(shown=(Shown("redis-think-fair", (0.5,)), Shown("redis-busy-fair", (0.6,))))]
    )
    anew = inserted(page, "", [Part((), (Shown("redis-busy-fair", (0.96,)),))])

    changed = [pair for pair in zip(page.splitlines(), anew.splitlines(), strict=True) if pair[0] != pair[1]]
    assert changed == [
        (
            "| the same, worst ÷ best worker | ≥ 0.9 | 0.60 | **missed** |",
            "| the same, worst ÷ best worker | ≥ 0.9 | 0.96 | met |",
        )
    ]
    shorter = page.replace(f"| {AIMS['core-wake'].work} | ≤ 0.3 ms | | not run |\n", "")
    added = inserted(shorter, "", [Part((), (Shown("core-wake", (0.1,)),))])
    row = "| Memory, wake-up of a lone waiter, p50 | ≤ 0.3 ms | 0.10 ms | met |"
    assert added == shorter.replace("\n\n## One", f"\n{row}\n\n## One")


def test_there_is_an_aim_for_the_takeover_on_each_store() -> None:
    """The part is over after minutes, and what it found cannot be told without one."""
    assert {f"takeover-{store}" for store in STORES} <= AIMS.keys()
