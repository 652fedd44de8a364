"""Draw all pictures into ``docs/pictures``: ``python -m docs.draw``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docs.draw import charts, diagrams, timelines

if TYPE_CHECKING:
    from collections.abc import Callable

    from docs.draw._svg import Picture

__all__ = ["PICTURES", "drawn"]

PICTURES = Path(__file__).parents[1] / "pictures"
_DRAWN: dict[str, Callable[[], Picture]] = {
    "architecture": diagrams.architecture,
    "fairness": charts.fairness,
    "growth": charts.growth,
    "leader": timelines.leader,
    "lease": timelines.lease,
    "lock-delay": timelines.lock_delay,
    "once": timelines.once,
    "renewals": charts.renewals,
    "stall": timelines.stall,
    "states": diagrams.states,
    "wake-up": charts.wake_up,
}


def drawn() -> dict[str, str]:
    """Return each picture by the name of its file."""
    return {f"{name}.svg": draw().svg() for name, draw in _DRAWN.items()}


if __name__ == "__main__":
    for file, svg in drawn().items():
        (PICTURES / file).write_text(svg, encoding="utf-8")
