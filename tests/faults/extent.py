"""How much the tests of real faults try: little in each run, ``DLOCK_FAULTS=long`` (``make faults-long``) for the reported counts."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["EXTENT", "LONG", "MEASURED"]

# Properties of a test whose name begins so are shown at the end of a run.
MEASURED = "measured: "


class Extent(NamedTuple):
    """Numbers of rounds, and seconds."""

    lost_replies: int
    counted_s: float
    trials: int
    trials_at_once: int
    races: int


LONG = os.environ.get("DLOCK_FAULTS") == "long"
EXTENT = (
    Extent(lost_replies=100, counted_s=20.0, trials=60, trials_at_once=3, races=2_000)
    if LONG
    else Extent(lost_replies=8, counted_s=5.0, trials=3, trials_at_once=3, races=2_000)
)
