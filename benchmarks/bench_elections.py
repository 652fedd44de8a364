"""How long nobody leads after the leader's ``dlock elect`` was killed: counted from the end of the lease of its last renewal."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks._figures import Part, Section, percentile
from dlock_core import LockClient, connect
from tests.backends import url_for

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STORES", "failovers"]

STORES = ("sqlite", "redis")
LEASE_S, AT_ONCE = 2.0, 2
TRIALS_A_ROUND, TRIALS_MAX = 4, 40
_LOOK_S = 0.005


def failovers(rounds: int) -> Part:
    """Kill leaders at random points, and see when the next command has begun."""
    count = min(TRIALS_MAX, TRIALS_A_ROUND * rounds)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for store in STORES:
            run = f"bench/{random.randrange(1 << 62)}"
            with ThreadPoolExecutor(AT_ONCE) as pool:
                keys = [f"{run}/{number}" for number in range(count)]
                late = sorted(pool.map(partial(past_lease_s, url_for(store, Path(folder))), keys))
            figures = (statistics.median(late), percentile(late, 0.99), late[0], late[-1])
            lines.append((store, *(f"{each * 1e3:.0f}" for each in figures)))
    how = (
        f"{count} leaders under `dlock elect` with a lease of {LEASE_S:g} s, {AT_ONCE} at once, killed with SIGKILL while another "
        f"candidate waits. Counted from the end of the lease of the last renewal, as seen by a reader that looks every "
        f"{_LOOK_S * 1e3:g} ms, until the next leader's command has said its first word, which includes its start."
    )
    head = ("", "p50, ms", "p99, ms", "least", "most")
    return Part((Section("Failover of dlock elect after kill -9", how, head, tuple(lines)),), ())


def past_lease_s(url: str, key: str) -> float:
    """Return the seconds from the end of the killed leader's lease to the first word of the next one's command."""
    with ExitStack() as stack:
        leader = stack.enter_context(_Candidate(url, key))
        leader.wait_for("leading", leader.process.stdout)
        follower = stack.enter_context(_Candidate(url, key))
        follower.wait_for("asking for", follower.process.stderr)
        client = stack.enter_context(connect(url))
        renewals = _Renewals(client, key)
        time.sleep(random.uniform(LEASE_S / 2, LEASE_S))
        leader.process.kill()
        time.sleep(4 * _LOOK_S)
        last_renewal = renewals.end()
        follower.wait_for("leading", follower.process.stdout)
        return time.monotonic() - last_renewal - LEASE_S


class _Candidate:
    """A ``dlock elect`` whose command says that it leads."""

    def __init__(self, url: str, key: str) -> None:
        options = ["--verbose", "--lease", str(LEASE_S), key, "--", "sh", "-c", "echo leading; exec sleep 60"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dlock_core", "elect", *options],
            env={**os.environ, "DLOCK_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, word: str, stream: Iterator[str] | None) -> None:
        assert stream is not None
        for line in stream:
            if word in line:
                return
        raise RuntimeError(f"dlock elect has ended and did not say {word!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        self.process.communicate()


class _Renewals:
    """Notes when the record of *key* was last seen to change."""

    def __init__(self, client: LockClient, key: str) -> None:
        self._client, self._key = client, key
        self._over = threading.Event()
        self._last = 0.0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        seen = None
        while not self._over.wait(_LOOK_S):
            began, record = time.monotonic(), self._client.get(self._key)
            if record is not None and record.rvn != seen:
                seen, self._last = record.rvn, began

    def end(self) -> float:
        """Return the instant of the last change."""
        self._over.set()
        self._thread.join()
        return self._last
