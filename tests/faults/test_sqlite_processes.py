"""``sqlite://`` between real processes: one winner a race, an exact counter, takeovers after SIGKILL neither early nor late."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dlock_core import connect
from dlock_core.clock import now_ns
from dlock_core.plan import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROCESSES = 8
RACES = 2_000
COUNTED_S = 20.0
TRIALS = 60
LEASE_S = 0.8
# How late a takeover may be: the waiter learns of the last renewal by its next poll, and takes over a lease after that.
POLL_S = LEASE_S / 4
LATE_S = 0.1

pytestmark = pytest.mark.slow


@contextmanager
def worker(url: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """One process of ``tests.faults.workers``, ended whatever happens."""
    command = [sys.executable, "-m", "tests.faults.workers", url, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the words of the next line; none at the end."""
    assert process.stdout is not None
    return process.stdout.readline().split()


def start(process: subprocess.Popen[str]) -> None:
    """Send the line that a worker waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def workers(url: str, *arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Several of them, ready to start."""
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(url, *arguments)) for _ in range(PROCESSES)]
        assert [line_of(process) for process in processes] == [["ready"]] * PROCESSES
        yield processes


def test_each_race_of_processes_has_one_winner(tmp_path: Path) -> None:
    """Of eight processes that try one new key at once, one gets it, two thousand times."""
    with workers(f"sqlite:///{tmp_path}/locks.db", "race", RACES) as processes:
        for number in range(RACES):
            for process in processes:
                start(process)
            told = [line_of(process) for process in processes]

            assert {words[1] for words in told} == {str(number)}
            assert [words[0] for words in told].count("won") == 1, told


def test_a_counter_under_the_lock_is_exact(tmp_path: Path) -> None:
    """Eight processes increment a number in a file for twenty seconds, and none is lost."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    with workers(f"sqlite:///{tmp_path}/locks.db", "count", "counter", counter, COUNTED_S) as processes:
        for process in processes:
            start(process)
        done = [int(line_of(process)[0]) for process in processes]

    assert int(counter.read_text()) == sum(done)
    assert min(done) > 0, done


class Trial(NamedTuple):
    """One takeover: after the kill, and after the send of the last renewal that was acknowledged."""

    after_kill_s: float
    after_renewal_s: float
    token_before: int
    token_after: int


def take_over(url: str, key: str, pause_s: float) -> Trial:
    """Wait for a lock whose holder is killed at a random point."""
    with worker(url, "hold", key, LEASE_S) as holder, connect(url, lease_duration=LEASE_S) as client:
        _, token, sent = line_of(holder)
        killed_at = 0
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.acquire, key, timeout=30)
            end = now_ns() + int(pause_s * NANOS)
            while now_ns() < end:
                _, token, sent = line_of(holder)
            holder.kill()
            killed_at = now_ns()
            while words := line_of(holder):
                if len(words) == 3:
                    _, token, sent = words
            lease = waiting.result()
            taken_at = now_ns()
        found = Trial((taken_at - killed_at) / NANOS, (taken_at - int(sent)) / NANOS, int(token), lease.fencing_token)
        lease.release()
        return found


def test_a_killed_holder_is_replaced_neither_early_nor_late(
    tmp_path: Path, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """A takeover never comes before the last renewal's lease has run out, and, noise aside, within a lease, a poll and 100 ms."""
    url = f"sqlite:///{tmp_path}/locks.db"
    pauses = [rng.uniform(0.1, 2 * LEASE_S) for _ in range(TRIALS)]

    with ThreadPoolExecutor(3) as pool:
        trials = list(pool.map(lambda number: take_over(url, f"kill/{number}", pauses[number]), range(TRIALS)))

    delays = sorted(trial.after_kill_s for trial in trials)
    figures = f"median {statistics.median(delays):.3f}, worst {delays[-1]:.3f}, lease {LEASE_S}"
    record_property("takeover after SIGKILL, s", figures)
    assert min(trial.after_renewal_s for trial in trials) >= LEASE_S
    assert all(trial.token_after > trial.token_before for trial in trials)
    late = [delay for delay in delays if delay > LEASE_S + POLL_S + LATE_S]
    assert len(late) <= TRIALS // 10, late


def test_tokens_go_on_after_all_processes_have_ended(tmp_path: Path) -> None:
    """The file keeps the token of a key for whoever opens it next."""
    url = f"sqlite:///{tmp_path}/locks.db"
    tokens = []
    for _ in range(3):
        with worker(url, "hold", "kept", LEASE_S) as holder:
            tokens.append(int(line_of(holder)[1]))
            holder.kill()
        with connect(url) as client, client.lock("kept", timeout=30) as lease:
            tokens.append(lease.fencing_token)

    assert tokens == sorted(set(tokens))
