"""The page of the proof as it stands: a stage or a fault cell whose results are not here keeps what the page says of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["paragraphs_of", "problems_of", "row_of", "rows_of", "section_of"]


def section_of(page: str, title: str) -> list[str] | None:
    """Return the lines under the heading *title*, with an empty one at the end; None if there is no such heading."""
    found = re.search(rf"^## {re.escape(title)}\n\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return None if found is None else [*found[1].rstrip().split("\n"), ""]


def row_of(page: str, title: str, code: str) -> tuple[str, ...] | None:
    """Return the cells of the summary about the stage *title*, in which the version is told to be another than *code*, if it is."""
    found = re.search(rf"^\| {re.escape(title)} \| (.*) \|$", page, re.MULTILINE)
    if found is None or found[1].startswith("not run"):
        return None
    *cells, version, machine = found[1].split(" | ")
    version = version.partition(" (now ")[0]
    return (title, *cells, version + ("" if version == code else f" (now {code})"), machine)


def problems_of(page: str, title: str) -> list[str]:
    """Return what the page says was wrong in the stage *title*."""
    return re.findall(rf"^- {re.escape(title)}: (.*)$", page, re.MULTILINE)


def rows_of(section: Sequence[str], head: Sequence[str], is_done: Callable[[list[str]], bool]) -> list[list[str]]:
    """Return the rows of the table under *head* in *section*, but for those that are done anew."""
    line = f"| {' | '.join(head)} |"
    if line not in section:
        return []
    found = []
    for row in section[section.index(line) + 2 :]:
        if not row.startswith("|"):
            break
        cells = [cell.replace("\\|", "|") for cell in row.removeprefix("| ").removesuffix(" |").split(" | ")]
        if not is_done(cells):
            found.append(cells)
    return found


def paragraphs_of(section: Sequence[str], begins: str, besides: Collection[str]) -> list[str]:
    """Return the paragraphs of *section* whose first line *begins* so, up to the next of them, but for those that begin as *besides*."""
    found: list[str] = []
    keeps = False
    for line in section:
        if line.startswith(begins):
            keeps = not line.startswith(tuple(besides))
        if keeps:
            found.append(line)
    return found
