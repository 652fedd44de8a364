"""The command under ``dlock run``: has effects, and asks no lease, since it is ended before that is over. It starts with little."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

__all__ = ["main"]

_COMPUTES = 6
_HOLDS = (0.5, 3.0)


def main() -> None:
    """Hold for a while."""
    sys.path.insert(0, str(Path(__file__).parent))
    from book_line import Line  # type: ignore[import-not-found]  # without its package, which is not on the path here

    path, who, key, lease = sys.argv[1:]
    lease_s, token = float(lease), int(os.environ["DLOCK_FENCING_TOKEN"])
    line = Line(path, who)
    line.ask("grant", key, token, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    until = time.monotonic() + random.uniform(*_HOLDS) * lease_s
    while time.monotonic() < until:
        seen = line.ask("fence", key, token)
        time.sleep(random.random() * 2 * lease_s / _COMPUTES)  # the work of the command
        line.tell("use", key, token, 0, 0, seen)
    line.tell("end", key, token, "released", time.clock_gettime_ns(time.CLOCK_BOOTTIME))


if __name__ == "__main__":
    main()
