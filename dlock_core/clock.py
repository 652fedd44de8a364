"""The clock that decides: counts while the machine sleeps, is never set, in integer nanoseconds.

:class:`Clock` is what the clients ask for time and for waiting; :class:`dlock_core.testing.FakeClock` is the other one.
"""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dlock_core.timings import NANOS

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Callable

__all__ = ["NANOS", "SYSTEM_CLOCK", "Cancellable", "Clock", "SystemClock", "boot", "find_clock", "now_ns", "wall_ms"]

_PROC = Path("/proc")
_log = logging.getLogger("dlock.engine")


# The clocks that count while the machine sleeps and that nobody sets, by system, the best first. On Linux CLOCK_MONOTONIC stands still in a
# suspend. On macOS it may step, and mach_absolute_time, behind time.monotonic, stops in sleep. On Windows time.monotonic counts sleep.
_CLOCKS = {"linux": ("CLOCK_BOOTTIME",), "darwin": ("CLOCK_MONOTONIC_RAW", "CLOCK_MONOTONIC")}


def find_clock(platform: str = sys.platform) -> Callable[[], int]:
    """Return the best clock that the kernel of *platform* lets this process read, in ns."""
    for name in _CLOCKS.get(platform, () if platform == "win32" else ("CLOCK_MONOTONIC",)):
        clock_id: int | None = getattr(time, name, None)
        if clock_id is None:
            continue
        try:
            time.clock_gettime_ns(clock_id)
        except OSError as error:  # some sandboxes and emulators know fewer clocks than Python does
            _log.warning(
                "the kernel refuses %s: %s; where a suspend stops the clock, leases are extended by it", name, error
            )
        else:
            return partial(time.clock_gettime_ns, clock_id)
    return time.monotonic_ns


now_ns: Callable[[], int] = find_clock()
"""Nanoseconds since an arbitrary instant of this boot; the only clock that a decision may read."""


def boot() -> str | None:
    """Name this boot and its time namespace, in which one clock counts; None where that cannot be told."""
    try:
        number = (_PROC / "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return None
    try:
        namespace = (_PROC / "self/ns/time").stat().st_ino
    except OSError:
        namespace = 0  # a kernel without time namespaces
    return f"{number}/{namespace}" if number else None


def wall_ms() -> int:
    """Return the wall clock in ms since 1970: for people, and for whoever has stated how far two of them are apart (``clock_skew``)."""
    return time.time_ns() // 1_000_000


class Cancellable(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Clock(Protocol):
    """Time, and waiting for it, in both colours."""

    now: Callable[[], int]
    wall_ms: Callable[[], int]

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait for a notification of *condition*, whose lock is held, or for *seconds*; may return early."""

    def call_later(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> Cancellable:
        """Have *loop* call *callback* after *seconds*."""


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
