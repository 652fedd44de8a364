"""Faults on real processes and real stores: ``python -m proof.faults``.

A cell is a store and a fault. In each trial a holder (``dlock run``, a blocking or an asyncio client in a process of its own) is disturbed
while it holds, or the store is; others wait for the same key. All write what they do to one book (``fault_book.py``), whose history is
checked at the end: no token twice, no grant while the lease before was valid, no stale effect where the fence was. The same effects without
the fence are the negative controls, and a waiter that counts half a lease is one more: where none of them fails, the cell proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlock_conformance.faults import Fault as Cut

from proof.fault_book import Book, Finding, check
from proof.fault_stores import Disturbed, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CELLS", "Cell", "main", "run_cell", "run_cells"]

ROOT = Path(__file__).parents[1]
LEASE_S = 0.6
KINDS = ("sync", "async", "run")
_KEYS = 2  # at the same time
_LIMIT_S = 240.0  # a busy machine may take long to start a process
_ROUNDS_MAX = 10  # of as many trials each, where a control has not failed
_GLANCE_S = 0.01


class Cell(NamedTuple):
    """A fault. *control*: which effects must come stale for the run to count."""

    name: str
    leases: float = 0.0
    server: bool = False
    control: str | None = None


CELLS = {
    cell.name: cell
    for cell in (
        Cell("kill"),
        Cell("stop-0.5", 0.5),
        Cell("stop-1.1", 1.1, control="naive"),
        Cell("stop-2", 2, control="naive"),
        Cell("stop-5", 5, control="naive"),
        Cell("hasty", 0.8),
        Cell("server-stop", 1.5, server=True),
        Cell("server-kill", server=True),
        Cell("cut-replies", 0.05, server=True),
        Cell("black-hole", 2, server=True),
    )
}


class Party:
    """A holder: a session of processes that are stopped and killed together."""

    def __init__(self, kind: str, url: str, key: str, book: Path) -> None:
        command = [sys.executable, "-m", "proof.fault_workers", kind, url, key, str(book), str(LEASE_S)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'conformance_tests'}"}
        self.kind = kind
        with tempfile.NamedTemporaryFile(dir=book.parent, suffix=".err", delete=False) as said:
            self.said = Path(said.name)
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stderr=said
            )

    @property
    def who(self) -> str:
        """How it is known in the book."""
        return str(self.process.pid)

    def signal(self, number: int) -> None:
        """Send a signal to each process of it."""
        for pid in self._session():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it has just ended

    def _session(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it has just ended
                if int(fields[3]) == self.process.pid:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """End it, with all that it has started."""
        self.signal(signal.SIGKILL)
        self.process.wait()


class Table:
    """One key and the parties that contend for it."""

    def __init__(self, cell: Cell, store: Disturbed, book: Path, key: str, rng: random.Random) -> None:
        self.cell, self.store, self.path, self.key, self.rng = cell, store, book, key, rng
        self.delays: list[float] = []
        self.trials = 0
        second = "hasty" if cell.name == "hasty" else rng.choice(KINDS)
        self.parties = [Party("sync", store.url, key, book), Party(second, store.url, key, book)]

    def run(self, trials: int) -> None:
        """Disturb so often."""
        book = Book(self.path)
        try:
            for _ in range(trials):
                self._trial(book)
        finally:
            book.close()

    def end(self) -> None:
        """End the parties."""
        for party in self.parties:
            party.kill()

    def _trial(self, book: Book) -> None:
        token, party = self.holder(book)
        # Of `dlock run` nobody knows from when on it waits.
        waited = any(book.waits(other.who) for other in self.parties if other is not party)
        time.sleep(self.rng.random() * LEASE_S)  # at a random point
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if self.cell.name == "kill":
            party.kill()
            self.parties[self.parties.index(party)] = Party(self.rng.choice(KINDS), self.store.url, self.key, self.path)
        else:
            party.signal(signal.SIGSTOP)
            time.sleep(self.cell.leases * LEASE_S)  # the fault's own length
            party.signal(signal.SIGCONT)
            time.sleep(LEASE_S / 4)  # the holder goes on, and has its stale effects
        self.trials += 1
        after = book.newest(self.key)
        if self.cell.name == "kill" and waited and after is not None and after[0] == token:
            found = self.next_grant(book, token)
            self.delays.append((found - at) / 1e9 / LEASE_S)

    def holder(self, book: Book) -> tuple[int, Party]:
        """Wait until one of the parties holds, and another waits, as far as that can be known."""
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            newest = book.newest(self.key)
            waited = any(party.kind == "run" or book.waits(party.who) for party in self.parties)
            for party in self.parties:
                if newest is not None and newest[1] == party.who and waited:
                    return newest[0], party
                if party.process.poll() is not None:
                    said = party.said.read_text()[-500:]
                    raise RuntimeError(
                        f"a {party.kind} holder of {self.key} ended with {party.process.returncode}: {said}"
                    )
            time.sleep(_GLANCE_S)
        raise RuntimeError(f"nobody has held {self.key} for {_LIMIT_S:g} s")

    def next_grant(self, book: Book, token: int) -> int:
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            found = book.granted_after(self.key, token)
            if found is not None:
                return found[1]
            time.sleep(_GLANCE_S)
        raise RuntimeError(f"{self.key} was not taken over within {_LIMIT_S:g} s")


def _disturb(cell: Cell, store: Disturbed, tables: list[Table], rng: random.Random) -> None:
    """Disturb the store once, while each key is held by somebody, and see each granted again."""
    book = Book(tables[0].path)
    try:
        for table in tables:
            table.holder(book)
        time.sleep(rng.random() * LEASE_S)  # at a random point
        before = [book.newest(table.key) for table in tables]
        if cell.name == "server-stop":
            store.stop()
            time.sleep(cell.leases * LEASE_S)  # the fault's own length
            store.go_on()
        elif cell.name == "server-kill":
            store.restart()
        else:
            store.proxy.begin(Cut.LOSE_REPLY if cell.name == "cut-replies" else Cut.HANG)
            time.sleep(cell.leases * LEASE_S)  # the fault's own length
            store.proxy.heal()
        for table, newest in zip(tables, before, strict=True):
            table.next_grant(book, 0 if newest is None else newest[0])
            table.trials += 1
    finally:
        book.close()


def run_cell(store_name: str, cell: Cell, trials: int, seed: int = 0) -> dict[str, Any]:
    """Run the trials of one cell, and more until its control has failed; return what it showed."""
    began, rng = time.monotonic(), random.Random(f"{store_name} {cell.name} {seed}")
    with tempfile.TemporaryDirectory(prefix="dlock-proof-") as folder, ExitStack() as stack:
        store = stack.enter_context(open_store(store_name, Path(folder)))
        path = Path(folder) / "book.db"
        book = stack.enter_context(closing(Book(path)))
        book.create()
        tables = []
        for number in range(_KEYS):
            tables.append(Table(cell, store, path, f"{cell.name}/{number}", random.Random(rng.random())))
            stack.callback(tables[-1].end)
        each = -(-trials // _KEYS)
        _round(cell, store, tables, each, rng)
        for _ in range(_ROUNDS_MAX - 1):
            if not missing(cell, check(book)):
                break
            _round(cell, store, tables, each, rng)
        finding = check(book)
        delays = sorted(delay for table in tables for delay in table.delays)
        told: dict[str, Any] = {
            "store": store_name,
            "version": store.version,
            "cell": cell.name,
            "control": cell.control,
            "delays": delays,
        }
        told["trials"] = sum(table.trials for table in tables)
        told["seconds"] = time.monotonic() - began
    return told | finding._asdict() | {"wrong": wrong_with(cell, finding)}


def _round(cell: Cell, store: Disturbed, tables: list[Table], each: int, rng: random.Random) -> None:
    if cell.server:
        for _ in range(each):
            _disturb(cell, store, tables, rng)
        return
    with ThreadPoolExecutor(_KEYS) as pool:
        list(pool.map(lambda table: table.run(each), tables))


def missing(cell: Cell, finding: Finding) -> list[str]:
    """Return which control has not failed."""
    if cell.name == "hasty" and not finding.early:
        return ["the hasty waiter was not noticed, so this run proves nothing"]
    if cell.control and not finding.stale[cell.control]:
        return [f"no {cell.control} effect came stale, so this run proves nothing"]
    return []


def wrong_with(cell: Cell, finding: Finding) -> list[str]:
    """Return what must not be in the history, and what is missing: a control that has not failed."""
    found = missing(cell, finding)
    if finding.repeated:
        found.append(f"{finding.repeated} tokens were granted twice")
    if finding.stale["fenced"]:
        found.append(f"{finding.stale['fenced']} stale effects where the fence was")
    if finding.early and cell.name != "hasty":
        found.append(f"{finding.early} grants while the lease before was valid")
    return found


def possible(store_name: str, cell: Cell) -> bool:
    """Whether the store can be disturbed so: a file has no server."""
    return not cell.server or store_name != "sqlite"


def run_cells(stores: Sequence[str], trials: int, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all cells, or *only* those named, on *stores*."""
    done: list[dict[str, Any]] = []
    for store in stores:
        for cell in CELLS.values():
            if (only is None or cell.name in only) and possible(store, cell):
                done.append(run_cell(store, cell, trials))
                print(line_of(done[-1]), flush=True)
    wrong = [f"{each['store']} {each['cell']}: {problem}" for each in done for problem in each["wrong"]]
    return {"lease_s": LEASE_S, "cells": done, "wrong": wrong}


def line_of(told: dict[str, Any]) -> str:
    """Return what a cell showed, on one line."""
    stale = ", ".join(f"{kind} {count}" for kind, count in told["stale"].items())
    counts = f"{told['trials']} trials, {told['grants']} grants, {told['effects']} effects; stale: {stale}; early: {told['early']}"
    return f"{told['store']:8} {told['cell']:12} {counts}; {told['seconds']:.0f} s{''.join('; ' + each for each in told['wrong'])}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.faults", description=__doc__)
    parser.add_argument("--stores", default="sqlite,redis")
    parser.add_argument("--cell", action="append", choices=list(CELLS), help="default: all")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--json", type=Path, help="also write what was found there")
    options = parser.parse_args(argv)
    result = run_cells(options.stores.split(","), options.trials, options.cell)
    if options.json is not None:
        options.json.write_text(json.dumps(result))
    print("\n".join(result["wrong"]) or "nothing wrong")
    return int(bool(result["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
