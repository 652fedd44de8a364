"""Tables and histograms in Markdown, and how a fault cell is named in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proof.faults.stores import STORES
from proof.standing import rows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["cell_table", "histogram", "is_of", "shown", "table", "where"]

_BAR = 50


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [f"{each:,}" if isinstance(each, int) else str(each).replace("|", "\\|") for each in row]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def cell_table(
    head: Sequence[str], stands: Sequence[str], done: Collection[tuple[str, str]], rows: Iterable[Sequence[object]]
) -> list[str]:
    """Return a table of fault cells: the *rows*, and those of the page as it *stands* whose cells are not *done*, by store."""
    every = [*rows_of(stands, head, lambda row: is_of(row, done)), *rows]
    return table(head, sorted(every, key=lambda row: list(STORES).index(str(row[0]).split()[0])))


def is_of(row: Sequence[str], cells: Collection[tuple[str, str]]) -> bool:
    """Whether *row* is of one of the fault *cells*, each a store and a fault."""
    return (row[0].split()[0], row[1]) in cells


def histogram(counts: Sequence[int], width: float, unit: str) -> list[str]:
    """Return bars of *counts*, each of a step of *width*, without the empty ends."""
    full = [place for place, count in enumerate(counts) if count]
    if not full:
        return ["(none)", ""]
    most = max(counts)
    lines = [
        f"{place * width:5.2f} {unit} {'#' * -(-counts[place] * _BAR // most):{_BAR}} {counts[place]:,}"
        for place in range(full[0], full[-1] + 1)
    ]
    return ["```text", *(line.rstrip() for line in lines), "```", ""]


def where(cell: dict[str, Any]) -> str:
    """Return the store of the cell, its version and the lease."""
    return f"{cell['store']} {cell['version']}, lease {cell['lease_s']:g} s"


def shown(cell: dict[str, Any]) -> str:
    """Return which control must fail, and how often it did."""
    control = cell["control"]
    if control is None:
        return "-"
    return f"{control}: {({**cell, **cell['stale']} | cell['notes']).get(control, 0):,}"
