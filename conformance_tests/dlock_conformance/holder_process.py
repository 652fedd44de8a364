"""A process that holds a lock until somebody ends it: ``python -m dlock_conformance.holder_process URL KEY LEASE_SECONDS [async]``.

It prints the fencing token when it holds the lock, and ``lost`` if it loses it. It renews like any holder, and takes no care of its end.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlock_conformance.harness import Colour
from dlock_core import aconnect, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["holder"]

_START_S = 60.0


@contextmanager
def holder(url: str, key: str, *, lease_s: float, colour: Colour) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a holder; yield the process and its token. It is killed at the end at the latest."""
    command = [sys.executable, "-m", "dlock_conformance.holder_process", url, key, str(lease_s), colour]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(_START_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            assert told.strip().isdecimal(), (
                f"the holding process said {told!r} in place of its token; its errors are above"
            )
            yield process, int(told)
        finally:
            timer.cancel()
            process.kill()


def hold(url: str, key: str, lease_s: float) -> None:
    """Hold the lock by a thread's client."""
    with connect(url, prefix="") as client, client.lock(key, lease_duration=lease_s) as lease:
        print(lease.fencing_token, flush=True)  # noqa: T201  # the parent reads it
        lease.lost.wait()
        print("lost", flush=True)  # noqa: T201


async def ahold(url: str, key: str, lease_s: float) -> None:
    """Hold the lock by a task's client."""
    async with aconnect(url, prefix="") as client, client.lock(key, lease_duration=lease_s) as lease:
        print(lease.fencing_token, flush=True)  # noqa: T201  # the parent reads it
        await lease.lost.wait()
        print("lost", flush=True)  # noqa: T201


def main(url: str, key: str, lease_s: str, colour: str) -> None:
    """Hold by the client of *colour*."""
    if colour == Colour.ASYNC:
        asyncio.run(ahold(url, key, float(lease_s)))
    else:
        hold(url, key, float(lease_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
