"""The same program on any store: only the URL differs.

    python -m examples.swap_backend sqlite:////tmp/locks.db
    python -m examples.swap_backend redis://localhost/0
    DLOCK_URL=dynamodb://eu-west-1/locks python -m examples.swap_backend

A table (DynamoDB, PostgreSQL, MySQL) or a collection (MongoDB) is made beforehand, once: ``dlock init --url URL``.
A program that locks needs no right to.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from dlock_core import connect

if TYPE_CHECKING:
    from dlock_core import LockClient

KEY = "examples/swap-backend"
LEASE_S = 5
PATIENCE_S = 30


def work(client: LockClient, rival: LockClient) -> None:
    """Hold a lock, be refused as a rival, wait as a rival and be woken; say what happened."""
    guarantees = client.guarantees()
    print(f"on {guarantees.store} {guarantees.version}, grade {guarantees.grade.value}")

    with client.lock(KEY, timeout=PATIENCE_S, data=b"report 2026-11") as lease:
        first = lease.fencing_token
        print(f"held until released; valid: {lease.is_valid}")

        refused = rival.try_acquire(KEY)
        record = rival.get(KEY)
        assert record is not None
        print(
            f"the rival gets {refused}, and reads {record.data!r} with the same token: {record.fencing_token == first}"
        )

        tokens: list[int] = []
        waiting = threading.Thread(target=wait, args=(rival, tokens))
        waiting.start()
    waiting.join()
    print(f"the rival's turn; its token is greater: {tokens[0] > first}")


def wait(rival: LockClient, tokens: list[int]) -> None:
    """Wait for the lock as long as it takes, note the fencing token, and give it back."""
    with rival.lock(KEY, timeout=PATIENCE_S) as lease:
        tokens.append(lease.fencing_token)


def main() -> None:
    """Run on the store that the argument names, or else ``DLOCK_URL``."""
    url = sys.argv[1] if len(sys.argv) > 1 else None
    with connect(url, lease_duration=LEASE_S) as client, connect(url, lease_duration=LEASE_S) as rival:
        work(client, rival)


if __name__ == "__main__":
    main()
