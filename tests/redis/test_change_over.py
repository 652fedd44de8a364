"""A fleet moves from the lock of redis-py to ours, as the migration page says: processes of both kinds on one Redis, and none stops."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import redis

LIMIT_S = 60
ROUNDS = 20
# Counts up without an atomic step, as only one process at a time can; "old" takes the lock of redis-py, "new" ours, "both" both.
PROGRAM = """
import sys, time
from contextlib import ExitStack

import redis

from dlock_core import connect

url, key, kind, rounds = sys.argv[1:]
raw = redis.Redis.from_url(url)
with connect(url) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(rounds)):
        with ExitStack() as stack:
            if kind != "new":
                stack.enter_context(raw.lock(key, timeout=60, sleep=0.005))
            if kind != "old":
                stack.enter_context(client.lock(key, timeout=60))
            count = int(raw.get(f"{key}/count") or 0)
            raw.rpush(f"{key}/inside", raw.incr(f"{key}/now"))
            time.sleep(0.002)  # the work
            raw.decr(f"{key}/now")
            raw.set(f"{key}/count", count + 1)
"""


def work_together(url: str, key: str, *kinds: str) -> None:
    """Run a process of each of *kinds* at the same time, until all are done."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, url, key, kind, str(ROUNDS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for kind in kinds
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(LIMIT_S) for process in processes] == [0] * len(processes)


def most_inside(raw: redis.Redis, key: str) -> int:
    """Return how many processes were inside at once, at most."""
    seen = raw.lrange(f"{key}/inside", 0, -1)
    assert isinstance(seen, list)
    return max(map(int, seen))


def test_programs_of_both_kinds_never_are_inside_at_once(url: str, raw: redis.Redis, key: str) -> None:
    """Old programs beside those that hold both, and these beside programs that have dropped the old lock; the counter is exact."""
    steps = [("old", "old", "both", "both"), ("both", "both", "new", "new")]

    for kinds in steps:
        work_together(url, key, *kinds)

    assert most_inside(raw, key) == 1
    assert raw.get(f"{key}/count") == str(ROUNDS * sum(map(len, steps))).encode()


def test_a_fleet_that_leaves_the_step_out_excludes_nobody(url: str, raw: redis.Redis, key: str) -> None:
    """The two locks are strangers to each other, so the test above can fail."""
    with raw.lock(key, timeout=60):
        work_together(url, key, "new")

    assert raw.get(f"{key}/count") == str(ROUNDS).encode()
