"""The main job, live: worker processes move money under locks in one SQLite file, while one of them is killed and another one stopped.

    python -m examples.demo

Shows who holds which key, the fencing token rising, the takeover after a holder's death, and a zombie's write refused by the
fence; at the end the books, which are exact, beside those of a run without the locks, which are not. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from examples.demo_worker import LEASE_S
from examples.ledger import ACCOUNTS, Ledger

WORKERS = 6
RUN_S = 3.0
UNLOCKED_S = 2.0
PATIENCE_S = 15.0
# What a busy machine may add to a takeover before this demo calls it broken.
NOISE_S = 1.0


class Worker:
    """One process, and the thread that reads what it tells."""

    def __init__(self, number: int, url: str, path: Path, events: queue.Queue[dict[str, Any]], seed: int) -> None:
        self.name = f"worker-{number}"
        command = [sys.executable, "-m", "examples.demo_worker", url, str(path), str(seed + number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()

    def _read(self, events: queue.Queue[dict[str, Any]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put({"worker": self.name, **json.loads(line)})

    def command(self, text: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """End the input, and wait for the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it may have been killed
            self.process.stdin.close()
        status = self.process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class View:
    """What a person sees: a live table on a terminal, plain lines on a pipe."""

    def __init__(self) -> None:
        self.holders: dict[str, tuple[str, int]] = dict.fromkeys(ACCOUNTS, ("", 0))
        self.counts: dict[str, int] = {"acquired": 0, "wrote": 0, "refused": 0, "lost": 0}
        self._told: deque[str] = deque(maxlen=12)
        self._started = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Self:
        """Begin to draw, if anybody looks."""
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(get_renderable=self._table, refresh_per_second=12)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop drawing."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Tell one thing that happened."""
        line = f"{time.monotonic() - self._started:6.2f} s  {text}"
        self._told.append(line)
        if self._live is None:
            print(line, flush=True)

    def take(self, event: dict[str, Any]) -> None:
        """Take note of an event of a worker."""
        kind = event["kind"]
        if kind in self.counts:
            self.counts[kind] += 1
        for key, token in event.get("tokens", {}).items():
            if kind == "acquired":
                self.holders[key] = (event["worker"], token)
            elif kind == "released" and self.holders[key] == (event["worker"], token):
                self.holders[key] = ("", token)

    def status(self) -> str:
        """Return who holds what, in one line."""
        return "   ".join(f"{key} #{token} {who or 'free'}" for key, (who, token) in self.holders.items())

    def _table(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        table = Table(title="locks in one SQLite file")
        for column in ("key", "held by", "fencing token"):
            table.add_column(column)
        for key, (who, token) in self.holders.items():
            table.add_row(key, who or "-", str(token))
        return Group(table, f"{self.counts}", *self._told)


class Demo:
    """The run under locks, and the promises that it must keep."""

    def __init__(self, folder: Path, view: View, seed: int) -> None:
        self.broken: list[str] = []
        self.grants: list[tuple[float, str, int]] = []
        self._view = view
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._path = folder / "bank.db"
        create(self._path)
        url = f"sqlite:///{folder / 'locks.db'}"
        self._workers = [Worker(number, url, self._path, self._events, seed) for number in range(1, WORKERS + 1)]

    def run(self) -> None:
        """Let them work; kill one in its section; stop another past its lease, and wake it up."""
        self._watch_for(RUN_S)
        self._kill_one(self._workers[0])
        self._watch_for(RUN_S)
        self._stop_one(self._workers[1])
        self._watch_for(RUN_S)
        for worker in self._workers:
            status = worker.end()
            if status not in (0, -signal.SIGKILL):
                self.broken.append(f"{worker.name} ended with status {status}")
        while not self._events.empty():
            self._take(self._events.get())
        self._check()

    def _kill_one(self, victim: Worker) -> None:
        tokens = self._linger(victim)
        victim.process.kill()
        killed_at = time.monotonic()
        self._view.say(f"{victim.name} KILLED inside its section, holding {keys_of(tokens)}")
        self._see_takeover(tokens, killed_at, "its death")

    def _stop_one(self, victim: Worker) -> None:
        tokens = self._linger(victim)
        os.kill(victim.process.pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        self._view.say(f"{victim.name} STOPPED inside its section, holding {keys_of(tokens)}")
        self._see_takeover(tokens, stopped_at, "it stopped")
        self._await(lambda event: event["kind"] == "wrote" and bool(set(tokens) & set(event["tokens"])))
        victim.command("go on")
        os.kill(victim.process.pid, signal.SIGCONT)
        self._view.say(f"{victim.name} WOKEN: a zombie that believes in its locks, and writes")
        woken = self._await(lambda event: event["worker"] == victim.name and event["kind"] in ("wrote", "refused"))
        if woken["kind"] == "refused":
            self._view.say(f"the zombie's write with {keys_of(tokens)} was REFUSED by the fence")
        else:
            self.broken.append(f"the zombie {victim.name} wrote with {keys_of(tokens)}")
        told = self._await(lambda event: event["worker"] == victim.name and event["kind"] == "lost")
        self._view.say(f"{victim.name} was told: {told['error']}")

    def _linger(self, victim: Worker) -> dict[str, int]:
        victim.command("linger")
        tokens: dict[str, int] = self._await(lambda event: event["kind"] == "lingering")["tokens"]
        return tokens

    def _see_takeover(self, tokens: dict[str, int], since: float, what: str) -> None:
        def taken(event: dict[str, Any]) -> list[str]:
            return [key for key, token in tokens.items() if event["tokens"].get(key, 0) > token]

        # Of whichever key somebody waits for: the other one may be of no interest to anybody for a while.
        event = self._await(lambda event: event["kind"] == "acquired" and bool(taken(event)))
        key = taken(event)[0]
        delay = event["at"] - since
        self._view.say(
            f"{event['worker']} took {key} over, token {tokens[key]} -> {event['tokens'][key]}, "
            f"{delay:.2f} s after {what} (lease {LEASE_S} s)"
        )
        # The last renewal was at most a heartbeat before; the lease runs from it. Who wants just the locks that the dead holder had may
        # have to watch one after the other.
        leases = 2 if event["tokens"].keys() == tokens.keys() else 1
        if not 0.6 * LEASE_S <= delay <= leases * LEASE_S + NOISE_S:
            self.broken.append(f"the takeover of {key} came {delay:.2f} s after {what}; the lease is {LEASE_S} s")

    def _await(self, wanted: Any) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while (left := until - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                break
            self._take(event)
            if wanted(event):
                return event
        raise TimeoutError(f"nothing of what was waited for came within {PATIENCE_S:.0f} s")

    def _watch_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        told_at = time.monotonic()
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):  # then look at the clock again
                self._take(self._events.get(timeout=min(left, 0.1)))
            if time.monotonic() - told_at >= 1:
                told_at = time.monotonic()
                self._view.say(self._view.status())

    def _take(self, event: dict[str, Any]) -> None:
        self._view.take(event)
        if event["kind"] == "acquired":
            self.grants.extend((event["at"], key, token) for key, token in event["tokens"].items())

    def _check(self) -> None:
        for key in ACCOUNTS:
            tokens = [token for _, found, token in sorted(self.grants) if found == key]
            if any(later <= earlier for earlier, later in itertools.pairwise(tokens)):
                self.broken.append(f"the tokens of {key} did not rise with each grant")
        if not report(self._path, "with locks   "):
            self.broken.append("the books are not exact under locks")


def create(path: Path) -> None:
    """Make an empty bank."""
    ledger = Ledger(path)
    ledger.create()
    ledger.close()


def keys_of(tokens: dict[str, int]) -> str:
    """Name keys with their tokens."""
    return " and ".join(f"{key} #{token}" for key, token in tokens.items())


def report(path: Path, label: str) -> bool:
    """Print the books; whether they are exact."""
    ledger = Ledger(path)
    audit, transfers = ledger.audit(), ledger.transfers()
    ledger.close()
    exact = all(balance == booked for balance, booked in audit.values())
    books = "  ".join(f"{name} {balance} (booked {booked})" for name, (balance, booked) in audit.items())
    total = sum(balance for balance, _ in audit.values())
    should = sum(booked for _, booked in audit.values())
    print(
        f"{label} {transfers:5} transfers: {books}; total {total} of {should}: {'EXACT' if exact else 'WRONG'}",
        flush=True,
    )
    return exact


def run_without_locks(folder: Path, seed: int) -> bool:
    """Run the same work with no lock; whether its books went wrong, as they should."""
    path = folder / "unlocked.db"
    create(path)
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    workers = [Worker(number, "none", path, events, seed) for number in range(1, WORKERS + 1)]
    time.sleep(UNLOCKED_S)  # the time that it is given
    for worker in workers:
        worker.end()
    return not report(path, "without locks")


def main() -> int:
    """Run all; 0 if every promise was kept."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}; {WORKERS} worker processes, lease {LEASE_S} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="dlock-demo-") as name:
        folder = Path(name)
        with View() as view:
            demo = Demo(folder, view, seed)
            demo.run()
        if not run_without_locks(folder, seed):
            demo.broken.append("the run without locks was exact by chance: it shows nothing; run the demo again")
    for promise in demo.broken:
        print(f"BROKEN: {promise}", file=sys.stderr)
    print("all promises were kept" if not demo.broken else f"{len(demo.broken)} promises were broken", flush=True)
    return 1 if demo.broken else 0


if __name__ == "__main__":
    sys.exit(main())
