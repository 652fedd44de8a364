"""Changes of the machine and the shell that nothing notices, and why each makes no difference that matters: ``explained.txt``.

A line is ``change :: why``, under the file that it is made in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXPLAINED", "rows_of"]


def rows_of(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each row of the list *name* beside this file, in its parts (⏎ is a line break), with the file that it stands under, or ""."""
    file = ""
    for line in Path(__file__).with_name(name).read_text().splitlines():
        if line.startswith("# "):
            file = line.removeprefix("# ")
        elif line:
            yield file, line.replace("⏎", "\n").split(" :: ")


EXPLAINED = {f"{file}: {change}": why for file, (change, why) in rows_of("explained.txt")}
