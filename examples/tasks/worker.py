"""A worker that takes whichever job no other worker has."""

from __future__ import annotations

from dlock_core import LockClient, connect

JOBS = ["invoice-1", "invoice-2", "invoice-3"]


def work(client: LockClient) -> list[str]:
    """Do the jobs that nobody else does, and return them."""
    done = []
    for job in JOBS:
        lease = client.try_acquire(f"jobs/{job}")
        if lease is None:
            continue
        with lease:
            done.append(job)
    return done


with connect() as first, connect() as second, first.lock("jobs/invoice-2"):
    print("the second worker did", work(second))
