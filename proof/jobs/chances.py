"""Who decides what happens in a world: dice, for a simulation, or a script, for an exploration.

An exploration plays a world again and again. The first schedule takes the usual option at each choice. Every other schedule deviates
from it at a few choices, and all schedules with so many deviations are played.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Chances", "Dice", "Outcome", "Played", "Script", "branches", "explored"]


class Outcome(NamedTuple):
    """What a schedule came to: the first rule that was broken, if any, and what happened how often."""

    violation: str | None
    counts: Counter[str]


class Chances(Protocol):
    """Makes the choices of one schedule."""

    def pick(self, weights: Sequence[float]) -> int:
        """Return the place of one of the options, the first of which is the usual one."""
        ...

    def between(self, low: float, high: float) -> float:
        """Return how long something takes."""
        ...


class Dice:
    """Choices at random, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, weights: Sequence[float]) -> int:
        """Return a place, by the weights."""
        return self._random.choices(range(len(weights)), weights)[0]

    def between(self, low: float, high: float) -> float:
        """Return any number of these."""
        return self._random.uniform(low, high)


class Script:
    """Choices as *planned*, and the usual ones after those. It notes how many options each choice had."""

    def __init__(self, planned: Sequence[int] = ()) -> None:
        self._planned = planned
        self.offered: list[int] = []

    def pick(self, weights: Sequence[float]) -> int:
        """Return what is planned.

        Raises: RuntimeError: there is no such option, so the world is not the one for which this was planned.
        """
        place = len(self.offered)
        chosen = self._planned[place] if place < len(self._planned) else 0
        if chosen >= len(weights):
            raise RuntimeError(
                f"choice {place} has {len(weights)} options, not {chosen + 1}: the world differs from before"
            )
        self.offered.append(len(weights))
        return chosen

    def between(self, low: float, high: float) -> float:
        """Return the longest time, which is the usual one here, or the shortest."""
        return low if self.pick((1, 1)) else high


class Played(NamedTuple):
    """A schedule of an exploration, and what it came to."""

    planned: tuple[int, ...]
    outcome: Outcome


def explored(play: Callable[[Chances], Outcome], deviations: int, planned: tuple[int, ...] = ()) -> Iterator[Played]:
    """Play the schedule *planned* and every one that deviates from it later, by at most so many choices."""
    waiting = [(planned, deviations)]
    while waiting:
        planned, left = waiting.pop()
        outcome, following = branches(play, planned)
        yield Played(planned, outcome)
        if left:
            waiting += [(each, left - 1) for each in following]


def branches(play: Callable[[Chances], Outcome], planned: tuple[int, ...]) -> tuple[Outcome, list[tuple[int, ...]]]:
    """Play the schedule *planned*; return what it came to, and all schedules with one deviation more."""
    script = Script(planned)
    outcome = play(script)
    following = [
        (*planned, *(0,) * (place - len(planned)), chosen)
        for place in range(len(planned), len(script.offered))
        for chosen in range(1, script.offered[place])
    ]
    return outcome, following
