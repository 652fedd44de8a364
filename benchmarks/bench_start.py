"""What starting costs: importing the package, and running the command, beside pydantic by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._figures import Part, compared, in_turn, timed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["starts"]

_TEN_FIELDS = "\n    ".join(f"field_{number}: int = {number}" for number in range(10))
_FLOOR = f"from pydantic import BaseModel\nclass Model(BaseModel):\n    {_TEN_FIELDS}"


def starts(rounds: int) -> Part:
    """Start a new process for each side."""
    with tempfile.TemporaryDirectory() as folder:
        # Compiled modules are kept, as they are after an installation, also where this machine keeps none.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DLOCK_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        environment = {**inherited, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}

        def process(*arguments: str) -> Callable[[], object]:
            return lambda: subprocess.run([sys.executable, *arguments], check=True, env=environment)

        url = f"sqlite:///{Path(folder) / 'locks.db'}"
        sides = {
            "import pydantic, build a model of ten fields": timed(process("-c", _FLOOR)),
            "`import dlock_core`": timed(process("-c", "import dlock_core")),
            "`from dlock_core import connect`": timed(process("-c", "from dlock_core import connect")),
            "`dlock run --url sqlite:///… k -- true`": timed(
                process("-m", "dlock_core", "run", "--url", url, "k", "--", "true")
            ),
        }
        taken = in_turn(sides, rounds=rounds, cycles=1)
    names = list(sides)
    return compared(
        "Start",
        "A new process each time; starting the interpreter is in it.",
        taken,
        aims={names[1]: "start-import", names[2]: "start-connect", names[3]: "start-run"},
    )
