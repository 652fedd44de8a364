"""Visits every world that follows from a first one, breadth first: of records that others than one machine write."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

__all__ = ["Explored", "explore_all", "uncollected", "visit"]

World = TypeVar("World")
Case = TypeVar("Case")


class Explored(NamedTuple):
    """How many worlds there are, and the way to one that breaks a rule, if there is any; *seen*: what happened in some world."""

    worlds: int
    violation: str | None
    way: tuple[str, ...]
    seen: frozenset[str]


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector off: worlds have no cycles, and going over all of them again and again costs a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@uncollected()
def visit(
    first: World,
    steps: Callable[[World], Iterable[tuple[str, World]]],
    *,
    canonical: Callable[[World], Hashable],
    broken: Callable[[World], str | None],
    at_end: Callable[[World], str | None],
    seen_in: Callable[[str, World], Iterable[str]],
    worlds_max: int,
) -> Explored:
    """Visit *first* and all that *steps* lead to; worlds of one *canonical* form are one. What follows no more is asked for *at_end*.

    A form has all that *broken* reads of a world, which is asked about the first of each form.

    Raises: RuntimeError: there are more than *worlds_max*.
    """
    form = canonical(first)
    ways: dict[Hashable, tuple[Hashable, str] | None] = {form: None}
    queue, seen = [(form, first)], set[str]()
    while queue:
        following: list[tuple[Hashable, World]] = []
        for before, world in queue:
            possible = list(steps(world))
            if not possible and (problem := at_end(world)) is not None:
                return Explored(len(ways), problem, _way(ways, before), frozenset(seen))
            for name, after in possible:
                seen.update(seen_in(name, after))
                form = canonical(after)
                if form not in ways:
                    if (problem := broken(after)) is not None:
                        return Explored(len(ways), problem, (*_way(ways, before), name), frozenset(seen))
                    ways[form] = (before, name)
                    following.append((form, after))
        if len(ways) > worlds_max:
            raise RuntimeError(f"more than {worlds_max} worlds")
        queue = following
    return Explored(len(ways), None, (), frozenset(seen))


def _way(ways: Mapping[Hashable, tuple[Hashable, str] | None], form: Hashable) -> tuple[str, ...]:
    names: list[str] = []
    while (before := ways[form]) is not None:
        form, name = before
        names.append(name)
    return tuple(reversed(names))


def explore_all(cases: Mapping[str, Case], explore: Callable[[Case], Explored]) -> dict[str, tuple[Explored, float]]:
    """Explore all *cases*, and print what each has found; return that, with the seconds of the processor that it took."""
    found = {}
    for name, case in cases.items():
        began = time.process_time()
        shown = explore(case)
        found[name] = shown, time.process_time() - began
        told = shown.violation or "no violation"
        print(
            f"{name}: {shown.worlds:,} worlds, complete, {found[name][1]:.1f} CPU s: {told}", *shown.way, sep="\n    "
        )
    return found
