"""What it costs to keep many locks alive on Redis, beside the other libraries that can."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
import redis_lock

from benchmarks._figures import Part, Section
from dlock_core import LockClient
from dlock_redis import RedisStore

__all__ = ["renewals"]

_LOCKS, _LEASE_S = 500, 6


@contextmanager
def _dlock(client: redis.Redis) -> Iterator[None]:
    with LockClient(RedisStore(client), lease_duration=_LEASE_S) as locks:
        leases = [locks.acquire(f"renewed/{number}") for number in range(_LOCKS)]
        yield
        assert all(lease.is_valid for lease in leases)


@contextmanager
def _python_redis_lock(client: redis.Redis) -> Iterator[None]:
    with ExitStack() as held:
        for number in range(_LOCKS):
            held.enter_context(redis_lock.Lock(client, f"other/{number}", expire=_LEASE_S, auto_renewal=True))
        yield


@contextmanager
def _redis_py(client: redis.Redis) -> Iterator[None]:
    """It renews nothing by itself, so a thread does, as often as dlock."""
    locks = [client.lock(f"bare/{number}", timeout=_LEASE_S, thread_local=False) for number in range(_LOCKS)]
    for lock in locks:
        lock.acquire()
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_LEASE_S / 4):
            for lock in locks:
                lock.reacquire()

    thread = threading.Thread(target=renew)
    thread.start()
    yield
    ended.set()
    thread.join()
    for lock in locks:
        lock.release()


def renewals(port: int, _pid: int, rounds: int) -> Part:
    """Hold the same number of locks with each; twice, whatever *rounds*."""
    logging.getLogger("dlock").setLevel(logging.ERROR)
    sides: dict[str, Callable[[redis.Redis], Any]] = {
        "dlock": _dlock,
        "python-redis-lock, auto_renewal": _python_redis_lock,
        "redis-py Lock, renewed by a loop": _redis_py,
    }
    lines = []
    for name, holding in sides.items():
        with redis.Redis(port=port) as client:
            before = threading.active_count()
            with holding(client):
                cpu, sent, began = time.process_time(), _commands(client), time.monotonic()
                threads = threading.active_count() - before
                time.sleep(2 * _LEASE_S)
                took = time.monotonic() - began
                share = (time.process_time() - cpu) / took
                lines.append(
                    (name, f"{share:.2%}", str(threads), f"{(_commands(client) - sent) / took:.0f}")
                )  # fmt: skip
    how = (
        f"{_LOCKS} locks with a lease of {_LEASE_S} s, held for {2 * _LEASE_S} s. dlock renews after a "
        "quarter of the lease, python-redis-lock after "
        "two thirds. Commands include those that scripts run."
    )
    head = ("", "CPU of the client", "threads", "commands a second")
    return Part((Section("Redis, renewals beside other libraries", how, head, tuple(lines)),), ())


def _commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
