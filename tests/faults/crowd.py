"""A process with few descriptors, in which one client holds locks while many of its threads or tasks wait for others.

It prints how many of the locks were held all the time, and how the waits ended.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
from collections import Counter

from dlock_core import AcquireTimeoutError, aconnect, connect
from dlock_core.errors import StoreError

HELD, BUSY, THREADS, TASKS = 20, 5, 150, 400
# A server on the machine of the tests, whose Java is cold, needs seconds for the first hundred requests.
WAIT_S, LEASE_S, SLOW_LEASE_S = 10.0, 8.0, 20.0


def lease_s_for(url: str) -> float:
    """Return the seconds of a lease on the store of *url*; each lock is renewed during the waits."""
    return SLOW_LEASE_S if url.startswith("dynamodb:") else LEASE_S


def on_threads(url: str) -> dict[str, object]:
    """Hold and wait, blocking."""
    ends: Counter[str] = Counter()
    with connect(url, lease_duration=lease_s_for(url)) as locks:
        leases = [locks.acquire(f"held/{number}") for number in range(HELD)]

        def wait(number: int) -> None:
            try:
                locks.acquire(f"busy/{number % BUSY}", timeout=WAIT_S)
            except (AcquireTimeoutError, StoreError) as error:
                ends[type(error).__name__] += 1

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        held = sum(lease.is_valid for lease in leases)
        for lease in leases:
            lease.release()
    return {"held": held, "ends": ends}


async def in_tasks(url: str) -> dict[str, object]:
    """Hold and wait, with asyncio."""
    async with await aconnect(url, lease_duration=lease_s_for(url)) as locks:
        leases = [await locks.acquire(f"held/{number}") for number in range(HELD)]
        waits = [locks.acquire(f"busy/{number % BUSY}", timeout=WAIT_S) for number in range(TASKS)]
        ends = Counter(type(each).__name__ for each in await asyncio.gather(*waits, return_exceptions=True))
        held = sum(lease.is_valid for lease in leases)
        for lease in leases:
            await lease.release()
    return {"held": held, "ends": ends}


if __name__ == "__main__":
    opened, colour, descriptors = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    json.dump(on_threads(opened) if colour == "sync" else asyncio.run(in_tasks(opened)), sys.stdout)
