"""The page of the proof as it stands: a stage whose results are not here keeps what the page says of it."""

from __future__ import annotations

import re

__all__ = ["problems_of", "row_of", "section_of"]


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
