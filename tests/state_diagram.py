"""The diagram of the machine's states, derived from its table: ``python -m tests.state_diagram`` writes it where it is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from dlock_core.lease import TRANSITIONS
from dlock_core.states import LeaseState

__all__ = ["DOCUMENT", "MACHINE", "as_mermaid", "as_text", "main"]

ROOT = Path(__file__).parents[1]
MACHINE = ROOT / "dlock_core" / "lease.py"
DOCUMENT = ROOT / "docs" / "architecture.md"
_STATES = get_args(LeaseState)


def _events(before: type, after: type) -> list[str]:
    """Return the names of the events that may lead from one state to the other."""
    return [event.__name__ for (state, event), to in TRANSITIONS.items() if state is before and after in to.leads_to]


def as_text() -> str:
    """Return a line for each state that another may follow, as the docstring of ``lease.py`` has it."""
    lines = []
    for before in _STATES:
        follow = [after.__name__ for after in _STATES if after is not before and _events(before, after)]
        if follow:
            lines.append(f"    {before.__name__:10} -> {', '.join(follow)}")
    return "\n".join(lines)


def as_mermaid() -> str:
    """Return the diagram with its events, as the documentation has it; events that leave the state as it is are left out."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_STATES[0].__name__}"]
    for before in _STATES:
        others = [after for after in _STATES if after is not before and _events(before, after)]
        lines += [
            f"    {before.__name__} --> {after.__name__}: {', '.join(_events(before, after))}" for after in others
        ]
    lines += [f"    {_STATES[-1].__name__} --> [*]", "```"]
    return "\n".join(lines)


def main() -> None:
    """Write both diagrams."""
    old = MACHINE.read_text()
    MACHINE.write_text(re.sub(r"(?ms)(has the events\)::\n\n).*?(?=\n\n\*Confirming\*)", rf"\g<1>{as_text()}", old))
    old = DOCUMENT.read_text()
    DOCUMENT.write_text(
        re.sub(r"(?s)(<!-- states -->\n).*?(<!-- /states -->)", rf"\g<1>\n{as_mermaid()}\n\n\g<2>", old)
    )


if __name__ == "__main__":
    main()
