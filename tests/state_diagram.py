"""The machine's states in its docstring, derived from its table: ``python -m tests.state_diagram`` writes them there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from dlock_core.states import LeaseState
from docs.draw.diagrams import edges

__all__ = ["MACHINE", "as_text", "main"]

ROOT = Path(__file__).parents[1]
MACHINE = ROOT / "dlock_core" / "lease.py"


def as_text() -> str:
    """Return a line for each state that another may follow, as the docstring of ``lease.py`` has it."""
    states, ways = [state.__name__ for state in get_args(LeaseState)], edges()
    lines = []
    for before in states:
        follow = [after for after in states if (before, after) in ways]
        if follow:
            lines.append(f"    {before:10} -> {', '.join(follow)}")
    return "\n".join(lines)


def main() -> None:
    """Write the states."""
    old = MACHINE.read_text()
    MACHINE.write_text(re.sub(r"(?ms)(has the events\)::\n\n).*?(?=\n\n\*Confirming\*)", rf"\g<1>{as_text()}", old))


if __name__ == "__main__":
    main()
