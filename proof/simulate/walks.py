"""Random walks through worlds of two records, larger than an exploration can visit: ``python -m proof.simulate.walks --count N``.

The worlds are those of :mod:`proof.explore.sessions` and :mod:`proof.explore.members`, with more time, clients and trouble. Each seed draws
a world, and then one step after the other of those that are possible, until there is none, or a rule is broken. What a seed finds can be
seen again with ``--first SEED --count 1``.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dlock_core.members import PERMIT, READ, WRITE, Wish
from proof.explore import members, sessions

__all__ = ["WALKS", "Walk", "main", "walk_members", "walk_sessions"]

_STEPS_MAX = 400
_READ, _WRITE = Wish(members.KEY, READ, "", ""), Wish(members.KEY, WRITE, "", "")


class Walk(NamedTuple):
    """What one seed has shown: the names of its steps, and which rule the last of them broke, if any."""

    seed: int
    way: tuple[str, ...]
    violation: str | None


def walk_sessions(seed: int) -> Walk:
    """Walk through a world of a lock that a session keeps."""
    chance = random.Random(f"sessions {seed}")
    lease = chance.randint(2, 5)
    case = sessions.Case(
        lock_lease=chance.choice([lease, chance.randint(2, 6)]),
        session_lease=lease,
        waiter_lease=chance.randint(2, 5),
        ticks=chance.randint(6, 24),
        moved=chance.random() < 0.5,
        faults=chance.randint(0, 6),
        beats=chance.randint(2, 12),
        writes=chance.randint(0, 6),
        ends=chance.random() < 0.4,
        breaks=chance.random() < 0.4,
        other_note=chance.random() < 0.2,
        wipes=chance.random() < 0.2,
    )

    def steps(world: sessions.World) -> Iterator[tuple[str, sessions.World]]:
        return sessions.steps(sessions.canonical(world), case)  # the names of new versions rest on that

    return _walked(seed, chance, sessions.start(case), steps, sessions.broken)


def walk_members(seed: int) -> Walk:
    """Walk through a world of the members of a shared lock."""
    chance = random.Random(f"members {seed}")
    permits = chance.randint(1, 3) if chance.random() < 0.4 else None
    clients = tuple(tuple(_wishes(chance, permits)) for _ in range(chance.randint(2, 5)))
    rules = members.Rules(clients, ends=chance.randint(0, 3), troubles=chance.randint(0, 6))
    return _walked(
        seed,
        chance,
        members.start(rules),
        lambda world: members.steps(world, rules),
        lambda world: members.broken(world, rules),
    )


def _wishes(chance: random.Random, permits: int | None) -> Iterator[Wish]:
    for _ in range(chance.randint(1, 3)):
        if permits is not None:
            yield Wish(members.KEY, PERMIT, "", "", permits, chance.randint(1, permits))
            continue
        wish = chance.choice([_READ, _WRITE])
        yield wish
        while chance.random() < 0.4:
            wish = (_READ if wish.mode == WRITE else _WRITE)._replace(beside="its own")
            yield wish


def _walked(
    seed: int,
    chance: random.Random,
    world: Any,
    steps: Callable[[Any], Iterator[tuple[str, Any]]],
    broken: Callable[[Any], str | None],
) -> Walk:
    way: list[str] = []
    while len(way) < _STEPS_MAX and (possible := list(steps(world))):
        name, world = chance.choice(possible)
        way.append(name)
        if (problem := broken(world)) is not None:
            return Walk(seed, tuple(way), problem)
    return Walk(seed, tuple(way), None)


WALKS: dict[str, Callable[[int], Walk]] = {"sessions": walk_sessions, "members": walk_members}


def main(argv: Sequence[str] | None = None) -> int:
    """Walk, and print what each kind of world has shown; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m proof.simulate.walks", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *WALKS], help="default: all")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args(argv)
    broken = 0
    for kind in options.kinds or WALKS:
        found = [WALKS[kind](seed) for seed in range(options.first, options.first + options.count)]
        wrong = [walk for walk in found if walk.violation is not None]
        for walk in wrong:
            print(f"{kind}, seed {walk.seed}: {walk.violation}", *walk.way, sep="\n    ")
        steps = sum(len(walk.way) for walk in found)
        print(f"{kind}: {len(found):,} walks, {steps:,} steps, {len(wrong)} broken", flush=True)
        broken += len(wrong)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
