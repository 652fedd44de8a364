"""What was measured: bars and curves of the tables that ``make bench`` writes into ``docs/benchmarks.md``."""

from __future__ import annotations

import math
import re
from pathlib import Path

from docs.draw._svg import Picture

__all__ = ["fairness", "growth", "renewals", "table", "wake_up"]

PAGE = Path(__file__).parents[1] / "benchmarks.md"
_WIDTH, _LABEL, _BAR, _ROW = 760, 350, 320, 30


def table(title: str) -> list[dict[str, str]]:
    """Return the table of a section of the page, a row after the other, by the names of its columns."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """Return the first number in *cell*, or the median of those that it lists."""
    found = [
        float(each.replace(",", ""))
        for each in re.findall(r"\d[\d,]*(?:\.\d+)?", cell.partition("(")[0].replace(", ", " "))
    ]
    return sorted(found)[len(found) // 2]


def bars(title: str, sides: dict[str, float], unit: str, *, said: str, logarithmic: bool = False) -> Picture:
    """Return a bar for each of the *sides*; their values are written beside them."""
    told = "; ".join(f"{name} {value:g}{unit}" for name, value in sides.items())
    picture = Picture(_WIDTH, 56 + _ROW * len(sides), title=title, description=f"{said} {told}.")
    picture.text(4, 20, title)
    picture.text(_LABEL, 40, said, "small")
    least, most = min(sides.values()), max(sides.values())

    def length(value: float) -> float:
        if logarithmic:
            return (math.log10(value / least) + 0.5) / (math.log10(most / least) + 0.5) * _BAR
        return value / most * _BAR

    for row, (name, value) in enumerate(sides.items()):
        y = 52 + _ROW * row
        picture.text(_LABEL - 10, y + 14, name, "end")
        picture.box(_LABEL, y, round(length(value), 1), 20, "ours" if name.startswith("dlock") else "other")
        picture.text(round(_LABEL + length(value), 1) + 8, y + 14, f"{value:g}{unit}", "small")
    return picture


def wake_up() -> Picture:
    """How long a waiter sleeps after the release."""
    rows = table("Redis, wake-up of a lone waiter")
    return bars(
        "Redis: from the release to the next grant, median",
        {row[""]: number(row["p50, ms"]) for row in rows},
        " ms",
        said="milliseconds, on a logarithmic scale; less is better",
        logarithmic=True,
    )


def fairness() -> Picture:
    """Whether each of sixteen workers gets its turn."""
    rows = table("Redis, 16 workers, think 0 ms")
    return bars(
        "Redis: 16 workers want one lock, the worst worker's share of the best one's",
        {row[""]: number(row["worst ÷ best worker"]) for row in rows},
        "",
        said="grants of the worst worker ÷ of the best; 1 is fair",
    )


def renewals() -> Picture:
    """What it costs to keep many locks alive."""
    rows = table("Redis, renewals beside other libraries")
    return bars(
        "Redis: 500 locks are held and renewed, CPU of the client",
        {
            f"{row['']} ({row['threads']} thread{'s' * (row['threads'] != '1')})": number(row["CPU of the client"])
            for row in rows
        },
        " %",
        said="per cent of one processor; less is better",
    )


def growth() -> Picture:
    """How the cost of the renewals grows with the number of locks."""
    rows = table("Memory, as the number of held locks grows")
    points = sorted((number(row["locks"]), number(row["CPU"])) for row in rows)
    told = "; ".join(f"{locks:,.0f} locks {share:g} %" for locks, share in points)
    picture = Picture(
        _WIDTH, 330, title="CPU of the renewals, as the number of locks grows", description=f"Lease of 20 s: {told}."
    )
    picture.text(4, 20, "Memory store, lease of 20 s: CPU of one client that holds and renews so many locks")
    left, right, top, bottom = 90, 700, 44, 280
    lowest, highest = math.floor(math.log10(points[0][1])), math.ceil(math.log10(points[-1][1]))

    def place(locks: float, share: float) -> tuple[float, float]:
        x = left + (math.log10(locks) - 2) / 3 * (right - left)
        y = bottom - (math.log10(share) - lowest) / (highest - lowest) * (bottom - top)
        return round(x, 1), round(y, 1)

    for power in range(lowest, highest + 1):
        y = place(100, 10**power)[1]
        picture.line(left, y, right, y)
        picture.text(left - 8, y + 4, f"{10**power:g} %", "small end")
    for power in range(2, 6):
        x = place(10**power, points[0][1])[0]
        picture.line(x, top, x, bottom, dashed=True)
        picture.text(x, bottom + 18, f"{10**power:,}", "small middle")
    picture.text((left + right) / 2, bottom + 38, "locks held; both scales are logarithmic", "small middle")
    picture.path("M" + "L".join(f"{x:g} {y:g}" for x, y in (place(*point) for point in points)), "curve")
    for locks, share in points:
        x, y = place(locks, share)
        picture.dot(x, y)
        picture.text(
            *((x - 8, y - 8) if x > left else (x + 10, y + 4)), f"{share:g} %", "label end" if x > left else "label"
        )
    return picture
