"""Redis, nobody else there: a cycle beside the driver's client and beside other libraries, and ten thousand held locks.

Client and server share one core in the cycles, since the wake-up of an idle core costs more than the request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pottery
import redis
import redis.asyncio
import redis_lock
from dlock_conformance.servers import free_port
from tooz import coordination

from benchmarks._figures import Part, Section, Shown, atimed, compared, in_turn, resident_kib, timed
from dlock_core import AsyncLockClient, LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release
from dlock_redis import AsyncRedisStore, RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cycles", "held", "server", "version"]

CYCLES = 300
LOCKS, HELD_LEASE_S = 10_000, 6.0
FREE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Start a redis-server without persistence; yield its port and pid."""
    binary = shutil.which(os.environ.get("DLOCK_REDIS_SERVER", "redis-server"))
    if binary is None:
        raise SystemExit("redis-server is not on PATH; tools/servers/redis.sh install")
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        fixed = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "no"]
        with subprocess.Popen([binary, *fixed], stdout=subprocess.DEVNULL) as process:
            client = redis.Redis(port=port)
            while True:
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
            client.close()
            yield port, process.pid
            process.terminate()


def version() -> str:
    """Return the versions of server, driver and peers."""
    from importlib.metadata import version as of

    with server() as (port, _), redis.Redis(port=port) as client:
        found = client.info("server")["redis_version"]
    peers = ", ".join(f"{name} {of(name)}" for name in ("python-redis-lock", "pottery", "tooz"))
    return f"redis-server {found} without persistence, redis-py {redis.__version__}; {peers}"


def request(key: str, ticket: str) -> Claim:
    """Return a claim as the engine makes it."""
    record = LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "host-7:311:9f3c", 20000)
    return Claim(record, Expect.ANY, ticket=ticket)


def tombstone(record: LockRecord) -> Release:
    """Return the release of *record*."""
    free = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
    return Release(free, record.version, keep_payload=True)


def peers(client: redis.Redis) -> dict[str, Callable[[], object]]:
    """Return a cycle of each library that does the same job."""
    port = client.connection_pool.connection_kwargs["port"]
    coordinator = coordination.get_coordinator(f"redis://127.0.0.1:{port}?timeout=20", b"bench")
    coordinator.start()

    def redis_py() -> None:
        lock = client.lock("bench/redis-py", timeout=20)
        assert lock.acquire(blocking=False)
        lock.release()

    def python_redis_lock() -> None:
        lock = redis_lock.Lock(client, "bench/python-redis-lock", expire=20)
        assert lock.acquire(blocking=False)
        lock.release()

    def redlock() -> None:
        lock = pottery.Redlock(key="bench/pottery", masters={client}, auto_release_time=20)
        assert lock.acquire(blocking=False)
        lock.release()

    def tooz() -> None:
        lock = coordinator.get_lock(b"bench/tooz")
        assert lock.acquire(blocking=False)
        assert lock.release()

    return {
        "redis-py Lock": redis_py,
        "python-redis-lock": python_redis_lock,
        "pottery Redlock": redlock,
        "tooz (no token)": tooz,
    }


def cycles(port: int, pid: int, rounds: int) -> Part:
    """Acquire and release, both colours, on one core with the server."""
    os.sched_setaffinity(0, {0})
    os.sched_setaffinity(pid, {0})
    how = (
        "Client and server on one core. The floor, `client.set` and `client.evalsha`, has neither token nor tombstone; "
        "the store is the five verbs without the engine; the client is what users call."
    )
    client = redis.Redis(port=port)
    sha = client.script_load(FREE_IF_MINE)
    store, ticket = RedisStore(client), secrets.token_hex(16)

    def floor() -> None:
        mark = os.urandom(16).hex()
        client.set("bench/floor", mark, nx=True, px=20000)
        client.evalsha(sha, 1, "bench/floor", mark)

    def through_store() -> None:
        record = store.claim(request("bench/store", ticket), timeout_s=10.0).record
        assert record is not None
        assert store.release(tombstone(record), timeout_s=10.0).applied

    with LockClient(RedisStore(client)) as locks:
        sides: dict[str, Callable[[], object]] = {
            "floor": floor,
            "dlock, store": through_store,
            "dlock, client": lambda: locks.acquire("bench/client").release(),
            **peers(client),
        }
        taken = in_turn({name: timed(cycle) for name, cycle in sides.items()}, rounds=rounds, cycles=CYCLES)
    store.close()
    client.close()
    sync = compared("Redis, one uncontended cycle", how, taken, aims={"dlock, client": "redis-cycle"})
    tasks = compared(
        "Redis, the same with asyncio", how, acycles(port, sha, rounds), aims={"dlock, client": "redis-cycle-async"}
    )
    return Part(sync.sections + tasks.sections, sync.shown + tasks.shown)


def acycles(port: int, sha: str, rounds: int) -> dict[str, list[float]]:
    """As :func:`cycles`, for one task."""
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis(port=port)
        locks = AsyncLockClient(AsyncRedisStore(client))
        runner.run(locks.__aenter__())

        async def floor() -> None:
            mark = os.urandom(16).hex()
            await client.set("bench/floor", mark, nx=True, px=20000)
            await client.evalsha(sha, 1, "bench/floor", mark)

        async def ours() -> None:
            lease = await locks.acquire("bench/async")
            await lease.release()

        async def redis_py() -> None:
            lock = client.lock("bench/redis-py", timeout=20)
            assert await lock.acquire(blocking=False)
            await lock.release()

        sides = {"floor": floor, "dlock, client": ours, "redis-py Lock": redis_py}
        taken = in_turn({name: atimed(runner, side) for name, side in sides.items()}, rounds=rounds, cycles=CYCLES)
        runner.run(locks.close())
        runner.run(client.aclose())
    return taken


def held(port: int, _pid: int, rounds: int) -> Part:
    """Hold ten thousand locks over several heartbeats."""
    logging.getLogger("dlock").setLevel(logging.ERROR)  # what is lost is counted
    client, threads = redis.Redis(port=port), threading.active_count()
    with LockClient(RedisStore(client), lease_duration=HELD_LEASE_S) as locks:
        locks.acquire("warm-up").release()
        before, kept = resident_kib(), int(client.info("memory")["used_memory"])
        leases = [locks.acquire(f"bench/{number}") for number in range(LOCKS)]
        grown, server_kib = resident_kib() - before, (int(client.info("memory")["used_memory"]) - kept) / 1024
        shares = []
        for _ in range(max(2, rounds // 2)):
            cpu, began = time.process_time(), time.monotonic()
            time.sleep(HELD_LEASE_S / 2)  # two heartbeats
            shares.append((time.process_time() - cpu) / (time.monotonic() - began) * 100)
        lost = sum(not lease.is_valid for lease in leases)
        more = threading.active_count() - threads
    client.close()
    how = f"One client holds {LOCKS:,} locks with a lease of {HELD_LEASE_S:g} s and renews them in batches."
    figures: dict[str, Any] = {
        "redis-held-cpu": tuple(shares),
        "redis-held-threads": (float(more),),
        "redis-held-lost": (float(lost),),
        "redis-held-kib": (grown / LOCKS,),
    }
    line = (f"{max(shares):.1f} %", str(more), str(lost), f"{grown / LOCKS:.2f} KiB", f"{server_kib / LOCKS:.2f} KiB")
    head = ("CPU of the client, worst", "threads", "lost", "client's memory a lock", "server's memory a lock")
    section = Section("Redis, many held locks", how, head, (line,))
    return Part((section,), tuple(Shown(aim, values) for aim, values in figures.items()))
