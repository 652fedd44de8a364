"""What the tests of other languages share: their clients as processes that are told what to do, and tables to meet in."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from dlock_core import LockClient

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "interop.sh"
# Which languages must be there: `DLOCK_REQUIRE=java,node`. Without it a machine that lacks one skips its tests, and says so.
REQUIRE = "DLOCK_REQUIRE"
# For how long the clients count together; DLOCK_INTEROP_S=20 is thorough.
SECONDS = "DLOCK_INTEROP_S"
_PROGRAMS = {"java": ("java", "javac", "mvn"), "node": ("node", "npm")}
_FETCH_S = 280
ANSWER_S = 60.0


@cache
def fetched(language: str) -> str:
    """Return where the client of *language* was put: a class path, or the folder node_modules.

    A language that this machine lacks skips the test, or fails it by name where it is required.
    """
    missing = [program for program in _PROGRAMS[language] if shutil.which(program) is None]
    if missing and language not in os.environ.get(REQUIRE, "").split(","):
        pytest.skip(f"{language} is not on this machine ({', '.join(missing)}); {REQUIRE} does not require it")
    done = subprocess.run([SCRIPT, language], capture_output=True, text=True, timeout=_FETCH_S, check=False)
    if done.returncode:
        pytest.fail(
            f"{language} is required, and its lock client could not be had: {done.stderr.strip()[-600:]}", pytrace=False
        )
    return done.stdout.strip()


class Speaker:
    """A lock client of another language, in a process of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.answer() == "ready"

    def tell(self, *words: object) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self, within_s: float = ANSWER_S) -> str:
        """Return the next answer."""
        return self._answers.get(timeout=within_s)

    def ask(self, *words: object) -> str:
        """Send a command and return its answer."""
        self.tell(*words)
        answer = self.answer()
        assert not answer.startswith("error"), f"{words}: {answer}"
        return answer

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, whatever it does."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line.strip())
        self._answers.put("error: it ended")


@contextmanager
def java(endpoint: str, table: str, *, lease_s: float, owner: str | None = None) -> Iterator[Speaker]:
    """Run a Java client."""
    path = fetched("java")
    words = [endpoint, table, str(int(lease_s * 1000)), str(int(lease_s * 250)), *([owner] if owner else [])]
    # A client is short-lived here: the first compiler is enough, and starts at once.
    speaker = Speaker(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", path, "Locks", *words], {}
    )
    try:
        yield speaker
    finally:
        speaker.close()


@contextmanager
def node(
    endpoint: str, table: str, mode: str, *, lease_s: float = 2, heartbeat_s: float = 0, trust: bool = False
) -> Iterator[Speaker]:
    """Run a Node client."""
    program = str(ROOT / "tests" / "interop" / "node" / "locks.js")
    words = [
        endpoint,
        table,
        mode,
        str(int(lease_s * 1000)),
        str(int(heartbeat_s * 1000)),
        *(["trust"] if trust else []),
    ]
    speaker = Speaker(["node", program, *words], {"NODE_PATH": fetched("node")})
    try:
        yield speaker
    finally:
        speaker.close()


def hammer_s() -> float:
    """Return for how many seconds clients contend for a counter."""
    return float(os.environ.get(SECONDS, "1.5"))


def hammer(client: LockClient, key: str, counter: Path, *, seconds: float, least: int, rest_s: float = 0.005) -> int:
    """Count up under the lock for so long, in two steps that nothing else protects; return how often."""
    return len(hammered(client, key, counter, seconds=seconds, least=least, rest_s=rest_s))


def hammered(
    client: LockClient, key: str, counter: Path, *, seconds: float, least: int, rest_s: float = 0.005
) -> list[int]:
    """As :func:`hammer`; return the fencing token of each turn."""
    until, tokens = time.monotonic() + seconds, list[int]()
    while time.monotonic() < until or len(tokens) < least:
        with client.lock(key) as lease:
            count_up(counter)
            tokens.append(lease.fencing_token)
        time.sleep(rest_s)  # so that who polls gets a turn
    return tokens


def count_up(counter: Path) -> None:
    """Add one to the number in the file, in two steps."""
    seen = int(counter.read_text())
    time.sleep(0.001)  # here another holder would come between
    # In place and in one piece: a reader without the lock sees an old number, never half of one.
    with counter.open("r+") as file:
        file.write(f"{seen + 1:08}")
