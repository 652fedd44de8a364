"""What a store author can let the suite do to the way between the store and its server."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

__all__ = ["SLOW_S", "Fault", "Faults"]

# After so long each new connection hears its first answer, where they are slow.
SLOW_S = 1.5


class Fault(StrEnum):
    """What may happen on the way.

    ``lose_reply``: the next request reaches the server, its reply never comes back. ``hang``: requests are held back and nothing
    answers, until healed: then they arrive late. ``refuse``: the server cannot be reached. ``busy``: somebody else is in the middle of a
    write, and no other write comes through. ``trickle``: answers come byte by byte, and take longer than any time-out, until healed.
    ``cut``: requests reach the server, and the connection ends in the middle of each answer. ``drop``: all connections end, and who tries
    to make one hears nothing. ``slow_connect``: all connections end, and each that is made hears its first answer late.
    """

    LOSE_REPLY = "lose_reply"
    HANG = "hang"
    REFUSE = "refuse"
    BUSY = "busy"
    TRICKLE = "trickle"
    CUT = "cut"
    DROP = "drop"
    SLOW_CONNECT = "slow_connect"


class Faults(Protocol):
    """A way that can be disturbed. All stores opened through it go through one server and see one set of records.

    It may also have ``reset_at_the_end()``: connections that lose a reply end by a reset then, until another fault begins; and ``used``,
    which is false until somebody has come this way.
    """

    kinds: frozenset[Fault]

    def begin(self, fault: Fault) -> None:
        """Disturb the way from now on."""
        ...

    def heal(self) -> None:
        """Let everything through again, and first what a ``hang`` held back."""
        ...
