"""The named mutants: each one place of the product changed, a rule left out or the slip of a careful programmer, and what must notice.

``mutants.txt`` has those that :mod:`proof.mutate.runner` plants, each under the file that it is made in: ``name :: rule :: within :: before
:: after :: what must notice``, which is a test or one of :data:`WORLDS`. ``slips.txt`` has those that :mod:`proof.mutate.product` writes
to a disk: ``name :: before :: after :: the tests that must notice``. A line break is ⏎.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from proof.explore.world import Rules
from proof.mutate.explained import rows_of

__all__ = ["MUTANTS", "ROOT", "SLIPS", "WORLDS", "Mutant"]

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One place of *file* changed, and the tests that must notice, or the world whose exploration must violate an invariant.

    *within* names the function in whose text *old* is looked for; an empty one is the whole file.
    """

    name: str
    file: str
    old: str
    new: str
    by: tuple[str, ...]
    rule: str = ""
    within: str = ""

    def text_in(self, root: Path = ROOT) -> str:
        """Return the changed file of the copy of the project in *root*.

        Raises: ValueError: the text is not there exactly once any more; the mutant must follow the code.
        """
        source = (root / self.file).read_text()
        begin = source.index(f"\ndef {self.within}(") if self.within else 0
        end = source.find("\ndef ", begin + 1) if self.within else -1
        body = source[begin : end if end > 0 else len(source)]
        if (found := body.count(self.old)) != 1:
            where = f"{self.file} {self.within}".rstrip()
            raise ValueError(f"mutant {self.name!r}: {self.old!r} is {found} times in {where}, not once")
        return source[:begin] + body.replace(self.old, self.new) + source[begin + len(body) :]


WORLDS: dict[str, Rules] = {
    "plain": Rules(ticks=3, faults=0),
    "slow": Rules(ticks=5, faults=0),
    "slower": Rules(leases=(3, 3), ticks=5, faults=0),
    "faults": Rules(ticks=3, faults=1),
    "long": Rules(ticks=5, faults=1, copies=False),
    "shorter": Rules(leases=(3, 3), relet=1, copies=False),
    "longer": Rules(relet=3, copies=False, faults=1),
    "abandon": Rules(ticks=1, attempts=2, abandons=1, copies=False, faults=0),
    "abandon-fault": Rules(ticks=2, abandons=1, copies=False, faults=1),
    "break": Rules(breaks=1, faults=0, ticks=3),
    "closed": Rules(leases=(None, None), ticks=0, faults=1, abandons=1, heartbeat=False),
    "closed-twice": Rules(leases=(None,), ticks=1, faults=2, attempts=2, abandons=2, heartbeat=False),
    "closed-wait": Rules(leases=(None, 2), ticks=4, faults=0),
    "stale": Rules(ticks=3, stale=True, copies=False),
    "probed": Rules(ticks=2, faults=0, deaths=1, probes=True, solo=True),
    "aged": Rules(ticks=3, faults=0, aged=True),
    "prune": Rules(breaks=1, late=1, ticks=1, faults=2, heartbeat=False, copies=False),
    "prune-twice": Rules(leases=(2,), breaks=1, late=1, ticks=4, faults=0, heartbeat=False, attempts=2),
    "mixed": Rules(leases=(None, 2), abandons=1, copies=False, ticks=3),
    "waits": Rules(ticks=3, faults=0, notify=True, in_server=True, copies=False),
}

MUTANTS = tuple(
    Mutant(name, file, old, new, (by,), rule, within)
    for file, (name, rule, within, old, new, by) in rows_of("mutants.txt")
)
SLIPS = tuple(
    Mutant(name, file, old, new, tuple(tests.split())) for file, (name, old, new, tests) in rows_of("slips.txt")
)
