"""A holder in a process of its own: acquires, has effects, releases, as long as its parent lives.

``python -m proof.fault_workers KIND URL KEY BOOK LEASE``, where KIND is ``sync``, ``async``, ``run`` (``dlock run`` around a child that
has the effects), ``child`` (that child), or ``hasty``, a negative control that takes over after half a lease.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from proof.fault_book import Book

if TYPE_CHECKING:
    from dlock_core.record import LockRecord
    from dlock_core.states import Observation

__all__ = ["main"]

_COMPUTES = 12  # parts of a lease that a holder computes for, between looking and writing


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _span(lease_s: float) -> int:
    """How long to hold."""
    return _now() + int(random.uniform(1, 4) * lease_s * 1e9)


def _sync(url: str, key: str, book: Book, lease_s: float) -> None:
    from dlock_core import connect
    from dlock_core.errors import DLockError, LockLostError

    parent = os.getppid()
    with connect(url, lease_duration=lease_s) as client:
        while os.getppid() == parent:
            book.waiting(str(os.getpid()), _now())
            try:
                lease = client.acquire(key, timeout=20)
            except DLockError:
                continue  # the store is stopped, killed or cut off: try again
            token = lease.fencing_token
            book.granted(key, token, str(os.getpid()), _now())
            until = _span(lease_s)
            try:
                while _now() < until:
                    at = _now()
                    lease.ensure()
                    deadline = at + int(lease.remaining * 1e9)
                    seen = book.fence(key)
                    time.sleep(random.random() * 2 * lease_s / _COMPUTES)  # the work of the holder
                    book.use(key, token, at, deadline, seen)
                book.ended(key, token, "released", _now())
                lease.release()
            except LockLostError:
                book.ended(key, token, "lost", _now())
                book.use_naively(key, token)
            except DLockError:
                continue  # of the release, nothing is known


async def _async(url: str, key: str, book: Book, lease_s: float) -> None:
    from dlock_core import aconnect
    from dlock_core.errors import DLockError, LockLostError

    parent = os.getppid()
    async with aconnect(url, lease_duration=lease_s) as client:
        while os.getppid() == parent:
            book.waiting(str(os.getpid()), _now())
            try:
                lease = await client.acquire(key, timeout=20)
            except DLockError:
                continue  # the store is stopped, killed or cut off: try again
            token = lease.fencing_token
            book.granted(key, token, str(os.getpid()), _now())
            until = _span(lease_s)
            try:
                while _now() < until:
                    at = _now()
                    await lease.ensure()
                    deadline = at + int(lease.remaining * 1e9)
                    seen = book.fence(key)
                    await asyncio.sleep(random.random() * 2 * lease_s / _COMPUTES)
                    book.use(key, token, at, deadline, seen)
                book.ended(key, token, "released", _now())
                await lease.release()
            except LockLostError:
                book.ended(key, token, "lost", _now())
                book.use_naively(key, token)
            except DLockError:
                continue  # of the release, nothing is known


def _run(url: str, key: str, path: str, lease_s: float) -> None:
    """Let ``dlock run`` hold, again and again; its child has the effects."""
    child = [sys.executable, "-m", "proof.fault_workers", "child", url, key, path, str(lease_s), str(os.getpid())]
    parent = os.getppid()
    while os.getppid() == parent:
        command = [
            sys.executable,
            "-m",
            "dlock_core",
            "run",
            "-q",
            "--url",
            url,
            "--lease",
            str(lease_s),
            "--timeout",
            "20",
        ]
        subprocess.run([*command, key, "--", *child], stderr=subprocess.DEVNULL, check=False)


def _child(key: str, book: Book, lease_s: float, who: str) -> None:
    """Under ``dlock run`` nobody asks the lease: the command is ended before it is over."""
    token = int(os.environ["DLOCK_FENCING_TOKEN"])
    book.granted(key, token, who, _now())
    until = _span(lease_s)
    while _now() < until:
        seen = book.fence(key)
        time.sleep(random.random() * 2 * lease_s / _COMPUTES)
        book.use(key, token, 0, 0, seen)
    book.ended(key, token, "released", _now())


def _make_hasty() -> None:
    """Plant a bug: this waiter counts half of a lease."""
    from dlock_core import lease

    observe = lease.observe

    def hasty(record: LockRecord, now: int) -> Observation:
        seen = observe(record, now)
        return seen._replace(lease_ns=seen.lease_ns // 2)

    lease.observe = hasty


def main() -> None:
    """Hold until killed."""
    kind, url, key, path, lease, *rest = sys.argv[1:]
    book, lease_s = Book(path), float(lease)
    if kind == "child":
        _child(key, book, lease_s, rest[0])
    elif kind == "run":
        _run(url, key, path, lease_s)
    elif kind == "async":
        asyncio.run(_async(url, key, book, lease_s))
    else:
        if kind == "hasty":
            _make_hasty()
        _sync(url, key, book, lease_s)


if __name__ == "__main__":
    main()
