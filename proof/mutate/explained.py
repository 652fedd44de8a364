"""Changes of the machine and the shell that nothing notices, and why each makes no difference that matters: ``explained.txt``.

A line is ``change :: why``, under the file of the shell that it is made in; those of the machine come first.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EXPLAINED"]


def _read() -> dict[str, str]:
    found, file = {}, ""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("# "):
            file = f"{line.removeprefix('# ')}: "
        elif line:
            change, why = line.split(" :: ")
            found[file + change] = why
    return found


EXPLAINED = _read()
