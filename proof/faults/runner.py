"""Faults on real processes and real stores: ``python -m proof.faults``.

A cell is a store and a fault. In each round a process that holds many keys is disturbed, or the store is, while other processes wait for
the same keys: each key that is held then is a trial. All write what they do to one book (``book.py``), whose history is checked at
the end: no token twice or out of order, no grant while the lease before was valid, no stale effect and no lost update where the fence was.
Bodies of leaders and of jobs never run beside the next, and no slot of a job is begun after it was finished.
The same effects without the fence are the negative controls; a waiter that counts half a lease, a copy of a lease that was forked, bodies
that do not look at the end of their lease, a job that releases without its mark, and redis-py's Lock are more: where none of them fails,
the cell proves nothing.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import random
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlock_conformance.servers import ServerMissingError

from dlock_core import connect
from proof.faults.book import CONTROLS, Book, Finding, check
from proof.faults.book_server import Resource
from proof.faults.cells import CELLS, Cell, Stage
from proof.faults.nursery import Nursery
from proof.faults.stores import BODIES, STORES, Disturbed, Size, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CELLS", "Cell", "main", "possible", "run_cell", "run_cells", "wrong_with"]

# Processes are killed here, not machines: what is in memory outlives them as what is on a disk does, and no disk holds up the trials.
_MEMORY = Path("/dev/shm")  # noqa: S108  # the folders in it are made as any temporary ones are
_FOLDERS = _MEMORY if _MEMORY.is_dir() else None
# Where a control has not failed: times as many trials, and as many as are tried in any case.
_MORE, _MOST = 10, 500
# One lease and a poll are due. A machine that has more to do than it can may add to that; a lock that nobody takes over adds more.
_TAKEOVER_LEASES_MAX = 4.0
_ONE_BODY = ("leader-kill", "leader-cut-off")


def run_cell(
    store_name: str, cell: Cell, trials: int, store: Disturbed, nursery: Nursery, *, size: Size | None = None
) -> dict[str, Any]:
    """Run the trials of one cell, and more until its control has failed; return what it showed."""
    began, book, size = time.monotonic(), Book(), size or size_of(store_name, cell)
    rng = random.Random(f"{store_name} {cell.name}")
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dlock-proof-") as folder, ExitStack() as stack:
        source = stack.enter_context(closing(Resource(f"{folder}/book", book)))
        stage = Stage(cell, store, size, source=source, nursery=nursery, rng=rng)
        try:
            while stage.trials < trials or (
                missing(cell, check(book), book) and stage.trials < max(_MORE * trials, _MOST)
            ):
                cell.round(stage)
            stage.end()
        except RuntimeError as error:
            broken.append(f"broken off: {error}")
            stage.end(at_once=True)
        except BaseException:
            stage.end(at_once=True)
            raise
    finding = check(book)
    told: dict[str, Any] = {
        "store": store_name,
        "version": store.version,
        "lease_s": size.lease_s,
        "cell": cell.name,
        "control": cell.control,
        "trials": stage.trials,
        "delays": sorted(stage.delays or (after_cancels(book, size.lease_s) if "cancelled" in cell.kinds else ())),
        "seconds": time.monotonic() - began,
        "load": os.getloadavg()[0],
        "keys": size.keys,
        "notes": dict(sorted(book.notes.items())),
    }
    wrong = [*missing(cell, finding, book), *([] if cell.peer else wrong_with(cell, finding, book))]
    return told | finding._asdict() | {"wrong": broken + wrong + late(cell, told["delays"], book) + damage(store)}


def size_of(store_name: str, cell: Cell) -> Size:
    """Return the size of a cell on a store."""
    size = (BODIES if cell.of_bodies else STORES)[store_name]
    return size if cell.lease_s is None else size._replace(lease_s=cell.lease_s)


def late(cell: Cell, delays: Sequence[float], book: Book) -> list[str]:
    """Return which takeover of a chain of deaths came too late, though another waited and the store answered all the time."""
    if cell.name != "chain" or book.notes["errors of the store"] or max(delays, default=0) <= _TAKEOVER_LEASES_MAX:
        return []
    return [f"a takeover came {delays[-1]:.1f} leases after the death of a holder; one lease and a poll are due"]


def after_cancels(book: Book, lease_s: float) -> list[float]:
    """Return how many leases after each cancellation of a key that nobody else had it was granted again."""
    by_key: dict[str, list[tuple[int, int]]] = {}
    for grant in sorted(book.grants, key=lambda each: each.at):
        by_key.setdefault(grant.key, []).append((grant.at, grant.token))
    found = []
    for key, at in book.cancels:
        grants = by_key.get(key, [])
        place = bisect.bisect(grants, (at, 0))
        free = not place or book.ends.get((key, grants[place - 1][1]), ("", at))[1] < at
        if free and place < len(grants):
            found.append((grants[place][0] - at) / 1e9 / lease_s)
    return found


def damage(store: Disturbed) -> list[str]:
    """Return what is wrong with the data of a store in a file: SQLite's own check, and a record that cannot be read."""
    if store.file is None:
        return []
    with closing(sqlite3.connect(store.file)) as file:
        [(told,)] = file.execute("PRAGMA integrity_check(1)").fetchall()
    with connect(store.url) as client:
        list(client.scan())
    return [] if told == "ok" else [f"the file is damaged: {told}"]


def missing(cell: Cell, finding: Finding, book: Book) -> list[str]:
    """Return which control has not failed."""
    if cell.control is None:
        return []
    seen = {**finding._asdict(), **finding.stale, **book.notes}.get(cell.control, 0)
    what = f"{cell.control} effect came stale" if cell.control in CONTROLS else f"{cell.control!r} was seen"
    return [] if seen else [f"no {what}, so this run proves nothing"]


def wrong_with(cell: Cell, finding: Finding, book: Book) -> list[str]:
    """Return what must not be in the history."""
    counts = {
        "tokens were granted twice": finding.repeated,
        "tokens were granted out of order": finding.disordered,
        "stale effects where the fence was": finding.stale["fenced"],
        "fenced effects are lost": finding.lost,
        "grants while the lease before was valid": 0 if cell.control == "early" else finding.early,
        "bodies ran on beside the next": 0 if cell.control == "beside" else finding.beside,
        "slots were begun after they were finished": 0 if cell.control == "again" else finding.again,
        # Of bodies that were neither stopped nor deaf: each has ended before the next one has begun.
        "effects of a body beside the next": finding.stale["naive"] if cell.name in _ONE_BODY else 0,
        "copies of forked children were in use": book.notes["copies in use"],
        "errors were told that no fault explains": book.notes["errors that no fault explains"],
    }
    return [f"{count} {what}" for what, count in counts.items() if count]


def possible(store_name: str, cell: Cell) -> bool:
    """Whether the store can be disturbed so: a file has no server, and a server's disk is its own."""
    return (cell.only is None or store_name in cell.only.split()) and not (cell.server and store_name == "sqlite")


def run_store(name: str, trials: int, cells: Sequence[Cell], kept: Path, code: str = "") -> list[str]:
    """Run *cells* on one store and keep what each showed in *kept*; return what is wrong with the store: its server is missing.

    Each cell has a server of its own: a small one grows slow by what the cells before have left in it.
    """
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="dlock-proof-", dir=_FOLDERS) as folder, ExitStack() as stack:
            try:
                store = stack.enter_context(open_store(name, Path(folder)))
            except ServerMissingError as error:
                return [f"{name}: {error}"]
            told = run_cell(name, cell, trials, store, stack.enter_context(closing(Nursery())))
        print(line_of(told), flush=True)
        (kept / f"{name}-{cell.name}.json").write_text(json.dumps(told | {"code": code}))
    return []


def found_in(kept: Path, name: str, cell: Cell) -> dict[str, Any] | None:
    """Return what the *cell* showed when it was last run on the store *name*."""
    path = kept / f"{name}-{cell.name}.json"
    told: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return told


def run_cells(
    stores: Sequence[str],
    trials: int,
    only: Sequence[str] | None = None,
    *,
    jobs: int = 2,
    kept: Path | None = None,
    code: str = "",
) -> dict[str, Any]:
    """Run all cells, or *only* those named, on *stores*, so many stores at once; *code* names the version that is disturbed.

    What each cell shows is left in the folder *kept*, in the place of what it showed before; one that was run with this code, with as many
    trials and nothing wrong, is not run again. With no trials at all, nothing is run.
    """
    if unknown := [name for name in stores if name not in STORES]:
        raise SystemExit(f"unknown store {unknown[0]!r} for the fault cells; these are there: {', '.join(STORES)}")
    asked = [cell for cell in CELLS.values() if only is None or cell.name in only]
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        left = {
            name: [
                cell
                for cell in asked
                if possible(name, cell) and not _is_done(found_in(folder, name, cell), trials, code)
            ]
            for name in stores
        }
        with ThreadPoolExecutor(jobs) as pool:
            # Those with long leases take longest, and begin.
            begun = [
                pool.submit(run_store, name, trials, left[name], folder, code)
                for name in sorted(stores, key=lambda name: -STORES[name].lease_s)
                if left[name]
            ]
            wrong = [problem for store in begun for problem in store.result()]
        found = [told for name in stores for cell in asked if (told := found_in(folder, name, cell))]
    wrong += [f"{told['store']} {told['cell']}: {problem}" for told in found for problem in told["wrong"]]
    return {"cells": found, "wrong": wrong}


def _is_done(told: dict[str, Any] | None, trials: int, code: str) -> bool:
    if not trials or told is None:
        return not trials
    return told["trials"] >= trials and not told["wrong"] and told.get("code", "") == code


def line_of(told: dict[str, Any]) -> str:
    """Return what a cell showed, on one line."""
    stale = ", ".join(f"{kind} {count}" for kind, count in told["stale"].items())
    counts = f"{told['trials']} trials, {told['grants']} grants, {told['effects']} effects; stale: {stale}"
    counts += "".join(f"; {what}: {told[what]}" for what in ("early", "beside", "paused", "again"))
    pace = f"{told['seconds']:.0f} s, {told['trials'] / told['seconds']:.1f} trials/s"
    notes = "".join(f"; {what}: {count}" for what, count in told["notes"].items())
    return f"{told['store']:8} {told['cell']:16} {counts}; {pace}{notes}{''.join('; WRONG: ' + each for each in told['wrong'])}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.faults", description=__doc__)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--cell", action="append", choices=list(CELLS), help="default: all")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2, help="so many stores at once")
    parser.add_argument("--keep", type=Path, help="the folder of what each cell showed; goes on from what is there")
    options = parser.parse_args(argv)
    result = run_cells(options.stores.split(","), options.trials, options.cell, jobs=options.jobs, kept=options.keep)
    print("\n".join(result["wrong"]) or "nothing wrong")
    return int(bool(result["wrong"]))
