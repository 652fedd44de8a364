"""The clock that tells how old a row of the SQLite store is: the host's own, which all processes that use the file share.

It is the clock that the leases are measured by, counted from boot: nobody can set it. Two of its instants can be compared only within one
boot and one time namespace, so a row names both. What another boot has written has no known age, and is watched. Where the boot cannot be
told, the wall clock takes its place, and ages are as good as that: whoever sets it forward makes every row older.
"""

from __future__ import annotations

from dlock_core.clock import boot, now_ns, wall_ms

_WALL = "wall"
# Of nanoseconds in a microsecond, and of microseconds in a millisecond.
_MICRO = _MILLI = 1000


class HostClock:
    """The clock of this host as it is just now: made anew when a file is opened, since a forked child may have another one."""

    def __init__(self) -> None:
        self._name = boot() or _WALL

    def mark(self) -> str:
        """Return the time stamp that a row written now is given: microseconds, and the name of the clock."""
        return f"{self._now_us()} {self._name}"

    def age_ms(self, mark: object) -> int:
        """Return the whole ms since *mark*; 0 where it is missing or another clock's."""
        at, _, name = mark.partition(" ") if isinstance(mark, str) else ("", "", "")
        if name != self._name or not at.isdecimal():
            return 0
        return max(0, (self._now_us() - int(at)) // _MILLI)

    def _now_us(self) -> int:
        return wall_ms() * _MILLI if self._name == _WALL else now_ns() // _MICRO
