"""Sweep over all points: ``python -m proof.interrupts --store memory --every 5``."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from dlock_core.backend import backend_for
from dlock_core.engine.store_in_threads import ThreadedStore
from proof.interrupts import blocking, tasks
from proof.interrupts.blocking import Interrupt, Verdict
from tests.backends import EMBEDDED, SERVED, url_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dlock_core.store import AsyncLockStore, LockStore

__all__ = ["Swept", "blocking_cells", "in_tasks", "main", "on_threads", "run", "sweep", "task_cells"]

STORES = ("memory", "sqlite", "redis")
_FINALIZERS = ("thread releases", "finalizer")


class Swept(NamedTuple):
    """How many *points* one operation has, how many were *tried* with one act, how many *failed*, and how."""

    operation: str
    act: str
    points: int
    tried: int
    failed: int
    wrong: dict[str, str]


Trial = Callable[[str, str, int], Verdict]


def sweep(trial: Trial, operation: str, act: str, every: int) -> Swept:
    """Try each *every*-th point of *operation*."""
    counts: Counter[str] = Counter()
    places: dict[str, str] = {}
    tried = failed = 0
    with _without_expected_warnings():
        points = trial(operation, act, 0).points
        for at in range(1, points + 1, every):
            verdict = trial(operation, act, at)
            tried += 1
            failed += bool(verdict.wrong)
            for each in verdict.wrong:
                counts[each] += 1
                places.setdefault(each, f"point {at}, {verdict.where}")
    wrong = {each: f"{count} times, first at {places[each]}" for each, count in counts.items()}
    return Swept(operation, act, points, tried, failed, wrong)


@contextmanager
def _without_expected_warnings() -> Iterator[None]:
    """Ignore the warnings that the trials provoke, and collect all that the trials leave behind, so that nothing else meets these warnings.

    Trials drop leases, and interrupt calls before their coroutines are awaited. Python ignores an interrupt inside of a finalizer, and
    reports it to ``sys.unraisablehook``.
    """
    report = sys.unraisablehook

    def report_unexpected(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupt):
            unraisable.exc_value.args[0].append("reported")
        elif unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)

    sys.unraisablehook = report_unexpected
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            warnings.filterwarnings("ignore", ".* was never entered", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = report


def on_threads(store: LockStore) -> Trial:
    """Return trials of the blocking colour on *store*, each on a key of its own."""
    numbers = itertools.count()

    def trial(operation: str, act: str, at: int) -> Verdict:
        return blocking.try_point(store, f"{operation}, {act}, {next(numbers)}", operation, act, at)

    return trial


def in_tasks(open_store: Callable[[], tasks.OpenStore]) -> Trial:
    """Return trials of the asyncio colour, each on a key of its own; *open_store* gives what opens the stores of one trial."""
    numbers = itertools.count()

    def trial(operation: str, act: str, at: int) -> Verdict:
        return tasks.try_point(open_store(), f"{operation}, {act}, task {next(numbers)}", operation, act, at)

    return trial


def blocking_cells(operations: Sequence[str] = tuple(blocking.OPERATIONS)) -> list[tuple[str, str]]:
    """Return the operations and acts to combine; no signal handler runs in the thread that renews."""
    acts = {operation: _FINALIZERS if operation.endswith("renewals") else blocking.ACTS for operation in operations}
    return [(operation, act) for operation, chosen in acts.items() for act in chosen]


def task_cells() -> list[tuple[str, str]]:
    """Return the operations and acts to combine in the asyncio colour."""
    return list(itertools.product(tasks.OPERATIONS, tasks.ACTS))


def run(stores: Sequence[str], every: int, operations: Sequence[str] | None = None) -> Iterator[tuple[str, Swept]]:
    """Sweep over *stores* in both colours. Only the *operations*, where some are named."""
    for name in stores:
        with tempfile.TemporaryDirectory() as folder:
            store, async_store = _opened(name, Path(folder))
            for operation, act in task_cells():
                if operation in (operations or tasks.OPERATIONS):
                    yield f"tasks, {name}", sweep(in_tasks(lambda: async_store), operation, act, every)  # noqa: B023  # used before the next store
            for operation, act in blocking_cells(operations or tuple(blocking.OPERATIONS)):
                yield f"threads, {name}", sweep(on_threads(store), operation, act, every)
            store.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.interrupts", description=__doc__)
    parser.add_argument(
        "--store", action="append", choices=(*EMBEDDED, *SERVED), help=f"repeatable; by default {', '.join(STORES)}"
    )
    parser.add_argument(
        "--operation", action="append", choices=list(blocking.OPERATIONS), help="repeatable; by default all"
    )
    parser.add_argument("--every", type=int, default=1, help="only each so many of the points")
    options = parser.parse_args(argv)
    logging.getLogger("dlock").setLevel(logging.CRITICAL)
    failed = 0
    for where, swept in run(options.store or STORES, options.every, options.operation):
        failed += swept.failed
        counts = f"{swept.points:5} points, {swept.tried:5} tried, {swept.failed:5} failed"
        print(f"{where:15} {swept.operation:16} {swept.act:17} {counts}", flush=True)
        for each, what in swept.wrong.items():
            print("       ", each, what)
    return int(bool(failed))


def _opened(name: str, folder: Path) -> tuple[LockStore, tasks.OpenStore]:
    """Return a store for threads, and what opens one for tasks; where there is none, tasks use the other in threads."""
    url = url_for(name, folder)
    backend = backend_for(url)
    options = backend.options.from_url(url)

    async def open_for_tasks() -> AsyncLockStore:
        opening = backend.aopen(options)
        return cast("AsyncLockStore", ThreadedStore(backend.open(options))) if opening is None else await opening

    return backend.open(options), open_for_tasks


if __name__ == "__main__":
    sys.exit(main())
