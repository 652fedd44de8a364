"""What the worker processes of these tests do; each tells in lines on standard output."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dlock_core import LockClient, connect
from dlock_core.clock import now_ns
from dlock_core.errors import LockLostError, StoreError

COUNTED_MIN = 3


def say(*words: object) -> None:
    """Tell one line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hold(client: LockClient, key: str, lease_s: float) -> None:
    """Hold *key* and renew it by hand, telling the instant before each renewal once it is acknowledged, until killed.

    Where the machine does not let this process run for a whole lease, the lock is lost; then it ends.
    """
    sent = now_ns()
    lease = client.acquire(key, lease_duration=lease_s, auto_renew=False)
    say("held", lease.fencing_token, sent)
    while True:
        time.sleep(lease_s / 8)  # the work between two renewals
        sent = now_ns()
        try:
            lease.renew()
        except LockLostError:
            return
        except StoreError:
            continue  # not acknowledged in time; the next one says which record stands
        say("renewed", lease.fencing_token, sent)


def keep(client: LockClient, run: str, number: int, lease_s: float) -> None:
    """Hold so many locks, kept by a session, and tell their tokens once they are; then, how many were lost and are valid all the same."""
    leases = [client.acquire(f"{run}/{each}", lease_duration=lease_s, renewal="session") for each in range(number)]
    while not all(is_kept(client, lease.key) for lease in leases):
        time.sleep(lease_s / 8)  # a heartbeat opens the session, the next one moves the locks
    say(*(lease.fencing_token for lease in leases))
    for lease in leases:
        lease.lost.wait()
    say("lost", sum(lease.loss is not None for lease in leases), "valid", sum(lease.is_valid for lease in leases))


def is_kept(client: LockClient, key: str) -> bool:
    """Whether the record of *key* names a session."""
    record = client.get(key)
    return record is not None and record.session is not None


def count(client: LockClient, key: str, path: Path, seconds: float) -> None:
    """Increment the number in the file *path* under the lock, without any other protection; some times, however slow it is."""
    until = time.monotonic() + seconds
    done = 0
    say("ready")
    sys.stdin.readline()
    while time.monotonic() < until or done < COUNTED_MIN:
        with client.lock(key, lease_duration=30):
            path.write_text(str(int(path.read_text()) + 1))
            done += 1
    say(done)


def race(client: LockClient, rounds: int) -> None:
    """Try each of *rounds* keys once, all contenders at the same time; tell which were won."""
    say("ready")
    won = []
    for number in range(rounds):
        sys.stdin.readline()
        lease = client.try_acquire(f"race/{number}", lease_duration=60)
        won.append(lease)
        say("won" if lease is not None else "lost", number)
    sys.stdin.readline()  # all have told: what was won may be released now


if __name__ == "__main__":
    url, work, *arguments = sys.argv[1:]
    # What a failover may do to locks that a session keeps is no part of these tests.
    with connect(url, allow_unsafe={"session-rollback"}) as opened:
        if work == "hold":
            hold(opened, arguments[0], float(arguments[1]))
        elif work == "keep":
            keep(opened, arguments[0], int(arguments[1]), float(arguments[2]))
        elif work == "count":
            count(opened, arguments[0], Path(arguments[1]), float(arguments[2]))
        else:
            race(opened, int(arguments[0]))
