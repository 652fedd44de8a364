"""Sweep over all points: ``python -m proof.interrupts --store memory --every 5``."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_core.backend import backend_for
from proof.interrupts import blocking
from tests.backends import url_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.store import LockStore

__all__ = ["Swept", "main", "run", "sweep"]

STORES = ("memory", "sqlite", "redis")
# Signal handlers run in the main thread alone, and the renewals of threads do not.
_NO_SIGNALS = ("renewals",)
_FINALIZERS = ("thread releases", "finalizer")


class Swept(NamedTuple):
    """How many *points* one operation has, how many were *tried* with one act, how many *failed*, and how."""

    operation: str
    act: str
    points: int
    tried: int
    failed: int
    wrong: dict[str, str]


def sweep(store: LockStore, operation: str, act: str, every: int, first: int = 1) -> Swept:
    """Try each *every*-th point of *operation* from the *first* on."""
    points = blocking.try_point(store, f"{operation}-{act}-0-{first}", operation, act, 0).points
    counts: Counter[str] = Counter()
    places: dict[str, str] = {}
    tried = failed = 0
    for at in range(first, points + 1, every):
        verdict = blocking.try_point(store, f"{operation}-{act}-{at}", operation, act, at)
        tried += 1
        failed += bool(verdict.wrong)
        for each in verdict.wrong:
            counts[each] += 1
            places.setdefault(each, f"point {at}, {verdict.where}")
    wrong = {each: f"{count} times, first at {places[each]}" for each, count in counts.items()}
    return Swept(operation, act, points, tried, failed, wrong)


def run(store: LockStore, every: int, operations: Sequence[str] = (), acts: Sequence[str] = ()) -> list[Swept]:
    """Sweep over all operations and acts, or over those that are named."""
    return [
        sweep(store, operation, act, every)
        for operation in operations or blocking.OPERATIONS
        for act in acts or blocking.ACTS
        if operation not in _NO_SIGNALS or act in _FINALIZERS
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.interrupts", description=__doc__)
    parser.add_argument("--store", action="append", choices=STORES, help="repeatable; by default all")
    parser.add_argument("--every", type=int, default=1, help="only each so many of the points")
    parser.add_argument("--operation", action="append", choices=list(blocking.OPERATIONS))
    parser.add_argument("--act", action="append", choices=list(blocking.ACTS))
    options = parser.parse_args(argv)
    logging.getLogger("dlock").setLevel(logging.CRITICAL)
    failed = 0
    for name in options.store or STORES:
        with tempfile.TemporaryDirectory() as folder:
            store = _opened(name, Path(folder))
            for swept in run(store, options.every, options.operation or (), options.act or ()):
                failed += swept.failed
                _print(name, swept)
            store.close()
    return int(bool(failed))


def _opened(name: str, folder: Path) -> Any:
    url = url_for(name, folder)
    backend = backend_for(url)
    return backend.open(backend.options.from_url(url))


def _print(store: str, swept: Swept) -> None:
    counts = f"{swept.points:5} points, {swept.tried:5} tried, {swept.failed:5} failed"
    print(f"{store:7} {swept.operation:9} {swept.act:17} {counts}", flush=True)
    for each, what in swept.wrong.items():
        print("       ", each, what)


if __name__ == "__main__":
    sys.exit(main())
