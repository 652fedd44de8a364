"""Whether the connection that all requests of a client share is dead, or its server is slow."""

from __future__ import annotations

import time

_LATELY_S = 10.0
# How much longer than the slowest answer a silence is that says something, and how long one that always does.
_LONGER = 1.5
_LONG_S = 2.0


class Hearing:
    """When a server was heard last, and how long its answers took lately; any thread may use it at any time.

    A silence of less than *least_s* says nothing.
    """

    def __init__(self, least_s: float = 0.1) -> None:
        self._least_s = least_s
        self._heard_at = self._until = 0.0
        self._slowest_s = 0.0

    def heard(self) -> None:
        """Note a sign of life."""
        self._heard_at = time.monotonic()

    def answered(self, asked_at: float) -> None:
        """Note that what was asked at *asked_at*, on the monotonic clock, has its answer."""
        self.heard()
        self._took(self._heard_at - asked_at)

    def is_silent(self, asked_at: float) -> bool:
        """Whether there has been no sign of life, though asked at *asked_at*, for longer than answers take.

        If so, only a longer silence counts for some seconds: where each made a new connection, a server that is slow would never come to
        answer, since what is under way for others may end with the old one.
        """
        now = time.monotonic()
        silent_s = now - max(asked_at, self._heard_at)
        slowest_s = self._slowest_s if now < self._until else 0.0
        found = silent_s >= max(self._least_s, min(slowest_s * _LONGER, _LONG_S))
        if found:
            self._took(silent_s)
        return found

    def _took(self, took_s: float) -> None:
        now = time.monotonic()
        if took_s >= self._slowest_s or now >= self._until:
            self._slowest_s, self._until = took_s, now + _LATELY_S
