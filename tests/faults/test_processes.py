"""Real processes on every store that they can share: an exact counter, takeovers after SIGKILL neither early nor late, and tokens."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dlock_core import Lease, connect
from dlock_core.clock import now_ns
from dlock_core.errors import StoreError
from dlock_core.timings import NANOS
from tests.backends import SERVED, url_for
from tests.faults.extent import EXTENT, LONG, MEASURED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STORES = ("sqlite", *SERVED)
RACING = 8
# A file is cheap to hammer; a server of the tests has the other processor.
COUNTING = {"sqlite": 8}
# The time-out of a renewal is a part of the lease, and servers are slower than a file.
LEASE_S = {"sqlite": 0.8, "redis": 2.0, "dynamodb": 5.0, "mongodb": 2.0, "mysql": 2.0, "postgres": 2.0}
ATTEMPTS = 5
LATE_S = 0.1
# What a busy machine may add to a takeover before it counts as none.
NOISE_S = 10.0

pytestmark = pytest.mark.slow


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """Take each store in turn."""
    name: str = request.param
    return name


@pytest.fixture
def url(store: str, tmp_path: Path) -> str:
    """Return its URL, ready for use."""
    return url_for(store, tmp_path)


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
def workers(count: int, url: str, *arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Several of them, ready to start."""
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(url, *arguments)) for _ in range(count)]
        assert [line_of(process) for process in processes] == [["ready"]] * count
        yield processes


# The suite races processes on every store that it is told of; the file, which no server keeps in order, is raced more.
@pytest.mark.parametrize("store", ["sqlite"])
def test_each_race_of_processes_has_one_winner(url: str) -> None:
    """Of eight processes that try one new key at once, one gets it, each time."""
    with workers(RACING, url, "race", EXTENT.races) as processes:
        for number in range(EXTENT.races):
            for process in processes:
                start(process)
            told = [line_of(process) for process in processes]

            assert {words[1] for words in told} == {str(number)}
            assert [words[0] for words in told].count("won") == 1, told


def test_a_counter_under_the_lock_is_exact(
    store: str, url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Processes increment a number in a file for seconds, with nothing else to protect it, and no increment is lost."""
    counter, key = tmp_path / "counter", f"count/{tmp_path.name}/{random.randrange(1 << 62)}"
    counter.write_text("0")

    with workers(COUNTING.get(store, 2), url, "count", key, counter, EXTENT.counted_s) as processes:
        for process in processes:
            start(process)
        done = [int(line_of(process)[0]) for process in processes]

    assert int(counter.read_text()) == sum(done)
    assert min(done) > 0
    record_property(f"{MEASURED}increments in {EXTENT.counted_s:.0f} s", f"{sum(done)}, exact; by process {done}")


class Trial(NamedTuple):
    """One takeover: after the kill, and after the send of the last renewal that was acknowledged."""

    after_kill_s: float
    after_renewal_s: float
    token_before: int
    token_after: int


def take_over(url: str, key: str, lease_s: float, pause_s: float) -> Trial:
    """Wait for a lock whose holder is killed at a random point; again where the machine held up the holder."""
    for attempt in range(ATTEMPTS):
        if (found := tried_to_take_over(url, f"{key}/{attempt}", lease_s, pause_s)) is not None:
            return found
    pytest.fail(f"{ATTEMPTS} holders in a row lost their locks before they were killed")


def tried_to_take_over(url: str, key: str, lease_s: float, pause_s: float) -> Trial | None:
    """As :func:`take_over`, once; None where the holder lost the lock before its end."""
    with worker(url, "hold", key, lease_s) as holder, connect(url, lease_duration=lease_s) as client:
        if len(words := line_of(holder)) != 3:
            return None
        _, token, sent = words
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.acquire, key, timeout=60)
            end = now_ns() + int(pause_s * NANOS)
            while now_ns() < end:
                words = line_of(holder)
                if len(words) != 3:
                    given_back(waiting.result())
                    return None
                _, token, sent = words
            holder.kill()
            killed_at = now_ns()
            while words := line_of(holder):
                if len(words) == 3:
                    _, token, sent = words
            lease = waiting.result()
            taken_at = now_ns()
        found = Trial((taken_at - killed_at) / NANOS, (taken_at - int(sent)) / NANOS, int(token), lease.fencing_token)
        given_back(lease)
        return found


def given_back(lease: Lease) -> None:
    """Release *lease*; a server that is too busy to answer has nothing to do with what is measured."""
    with suppress(StoreError):
        lease.release()


def test_a_killed_holder_is_replaced_neither_early_nor_late(
    store: str, url: str, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """A takeover never comes before the last renewal's lease has run out, and, noise aside, soon after."""
    lease_s = LEASE_S[store]
    pauses = [rng.uniform(0.1, lease_s) for _ in range(EXTENT.trials)]
    run = f"kill/{random.randrange(1 << 62)}"

    with ThreadPoolExecutor(EXTENT.trials_at_once) as pool:
        trials = list(
            pool.map(
                lambda number: take_over(url, f"{run}/{number}", lease_s, pauses[number]),
                range(EXTENT.trials),
            )
        )

    # A waiter learns of the last renewal by a wake-up, or at its next look, a 25th of a lease later at most, and takes over a lease after.
    late = sorted(trial.after_renewal_s - lease_s for trial in trials)
    p99 = late[min(len(late) - 1, int(0.99 * len(late)))]
    record_property(
        f"{MEASURED}takeover after SIGKILL, past the lease's end",
        f"{len(late)} trials, lease {lease_s} s: median {statistics.median(late) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms",
    )
    assert late[0] >= 0
    assert all(trial.token_after > trial.token_before for trial in trials)
    assert p99 < NOISE_S
    if LONG:
        assert statistics.median(late) <= lease_s / 10 + LATE_S, late


def test_tokens_go_on_after_all_processes_have_ended(url: str, tmp_path: Path) -> None:
    """The store keeps the token of a key for whoever opens it next."""
    key, lease_s = f"kept/{random.randrange(1 << 62)}", 1.0
    tokens = []
    for _ in range(2):
        with worker(url, "hold", key, lease_s) as holder:
            tokens.append(int(line_of(holder)[1]))
            holder.kill()
        with connect(url) as client, client.lock(key, timeout=30) as lease:
            tokens.append(lease.fencing_token)

    assert tokens == sorted(set(tokens))
