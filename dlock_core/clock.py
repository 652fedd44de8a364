"""The clock that decides: counts while the machine sleeps, is never set, in integer nanoseconds.

:class:`Clock` is what the clients ask for time and for waiting; :class:`dlock_core.testing.FakeClock` is the other one.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dlock_core.timings import NANOS

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Callable

__all__ = ["NANOS", "SYSTEM_CLOCK", "Cancellable", "Clock", "SystemClock", "now_ns", "wall_ms"]


def _clock() -> Callable[[], int]:
    # Linux: CLOCK_MONOTONIC stands still while the machine is suspended, and a lease does not.
    # macOS: mach_absolute_time, behind time.monotonic, stops in sleep; CLOCK_MONOTONIC does not. Windows: time.monotonic counts sleep.
    name = "CLOCK_BOOTTIME" if sys.platform == "linux" else "CLOCK_MONOTONIC"
    clock_id: int | None = getattr(time, name, None)
    if clock_id is None or sys.platform == "win32":
        return time.monotonic_ns
    return partial(time.clock_gettime_ns, clock_id)


now_ns: Callable[[], int] = _clock()
"""Nanoseconds since an arbitrary instant of this boot; the only clock that a decision may read."""


def wall_ms() -> int:
    """Return the wall clock in ms since 1970: for people, and for whoever has stated how far two of them are apart (``clock_skew``)."""
    return time.time_ns() // 1_000_000


class Cancellable(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None:
        """Call it off."""
        ...


class Clock(Protocol):
    """Time, and waiting for it, in both colours."""

    now: Callable[[], int]
    wall_ms: Callable[[], int]

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait for a notification of *condition*, whose lock is held, or for *seconds*; may return early."""
        ...

    def call_later(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> Cancellable:
        """Have *loop* call *callback* after *seconds*."""
        ...


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(now_ns)
    wall_ms = staticmethod(wall_ms)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """As :meth:`Clock.wait`."""
        condition.wait(max(0.0, min(seconds, _WAIT_MAX_S)))

    def call_later(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> Cancellable:
        """As :meth:`Clock.call_later`."""
        return loop.call_later(max(0.0, seconds), callback)


# A condition takes no more than some 290 years; the callers look again.
_WAIT_MAX_S = 1_000_000.0

SYSTEM_CLOCK = SystemClock()
