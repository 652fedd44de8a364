"""Start parties quickly: one process imports everything once, and forks a party for each order.

``python -m proof.faults.nursery`` reads orders as lines of JSON on standard input, and answers each with a process id. It never has a
thread or a connection, so a fork of it is as good as a new process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.faults.party import Order

__all__ = ["Nursery", "Party"]

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.002
_NEEDED = (
    *("boto3", "psycopg", "pymongo", "redis", "redis.asyncio"),
    *(
        "dlock_core.command.app",
        "dlock_core.command.run",
        "dlock_sqlite.store",
        "dlock_dynamodb",
        "dlock_etcd",
        "dlock_mongodb",
        "dlock_mysql",
        "dlock_postgres",
        "dlock_redis",
        "dlock_zookeeper",
    ),
    *(
        "proof.faults.cancelled",
        "proof.faults.dlock_run",
        "proof.faults.job_runners",
        "proof.faults.leaders",
        "proof.faults.redis_py",
        "proof.faults.party",
    ),
)


class Party:
    """A holder: a session of processes that are stopped and killed together."""

    def __init__(self, kind: str, keys: tuple[str, ...], pid: int) -> None:
        self.kind, self.keys, self.pid = kind, keys, pid
        self._ends = os.pidfd_open(pid)

    @property
    def who(self) -> str:
        """How it is known in the book."""
        return str(self.pid)

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return bool(select.select([self._ends], [], [], 0)[0])

    def signal(self, number: int) -> None:
        """Send a signal to each process of it."""
        for pid in self._session():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it has just ended

    def stop(self) -> None:
        """Stop it; on return all of it stands still."""
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + _LIMIT_S
        while not all(_stands_still(thread) for pid in self._session() for thread in _threads(pid)):
            if time.monotonic() > until:
                raise RuntimeError(f"process {self.pid} does not stop")
            self.signal(signal.SIGSTOP)  # also what it has forked meanwhile
            time.sleep(_LOOK_EVERY_S)

    def go_on(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, with all that it has started."""
        until = time.monotonic() + _LIMIT_S
        while session := self._session():
            for pid in session:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it has just ended
            if time.monotonic() > until:
                raise RuntimeError(f"process {self.pid} cannot be killed")
            time.sleep(_LOOK_EVERY_S)
        if self._ends >= 0:
            os.close(self._ends)
            self._ends = -1

    def _session(self) -> list[int]:
        if self.kind != "run":
            return [self.pid] if self._ends >= 0 and not self.ended else []
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._has(entry)]

    def _has(self, entry: Path) -> bool:
        fields = _stat(entry)
        return len(fields) > 3 and self.pid in (int(entry.name), int(fields[3])) and fields[0] != "Z"


def _stat(entry: Path) -> list[str]:
    """Return the fields of a process or thread from its state on; none if it has ended."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def _stands_still(thread: Path) -> bool:
    return _stat(thread)[:1] in ([], ["T"], ["Z"])


class Nursery:
    """Where parties come from."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'conformance_tests'}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proof.faults.nursery"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def party(self, order: Order) -> Party:
        """Start a party."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts the parties has ended; its message is above")
        return Party(order.kind, order.keys, int(answer))

    def close(self) -> None:
        """End it, and with it every party that is left."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _warm() -> None:
    """Import what any party needs."""
    for name in _NEEDED:
        import_module(name)


def _child(order: Order, parent: int) -> None:
    from proof.faults.book_line import Line
    from proof.faults.party import work

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    line = Line(order.book, str(os.getpid()))  # now: later there may be no descriptor for it
    try:
        work(order, line)
    except BaseException:  # noqa: BLE001  # whatever it is, the run ends with it
        line.tell("broken", traceback.format_exc()[-2000:])


def main() -> None:
    """Fork until the input ends."""
    from proof.faults.party import Order

    _warm()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that have ended
    parent = os.getpid()
    for line in sys.stdin:
        kind, url, keys, *rest = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _child(Order(kind, url, tuple(keys), *rest), parent)
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
