"""The parts of the benchmarks, and how each is run in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import (
    bench_core,
    bench_crowds,
    bench_dynamodb,
    bench_elections,
    bench_etcd,
    bench_jobs,
    bench_mongodb,
    bench_mysql,
    bench_postgres,
    bench_postgres_waits,
    bench_redis,
    bench_redis_driver,
    bench_redis_renewals,
    bench_redis_waits,
    bench_sqlite,
    bench_start,
    bench_takeovers,
    bench_zookeeper,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._figures import Part

__all__ = ["OTHERS", "REDIS", "RUN_ON", "VERSIONS", "apart"]

REDIS: dict[str, Callable[[int, int, int], Part]] = {
    "redis-cycles": bench_redis.cycles,
    "redis-driver": bench_redis_driver.driver,
    "redis-wake": bench_redis_waits.wake,
    "redis-contend": bench_redis_waits.contend,
    "redis-held": bench_redis.held,
    "redis-renewals": bench_redis_renewals.renewals,
}
OTHERS: dict[str, Callable[[int], Part]] = {
    "core-cycles": bench_core.cycles,
    "core-held": bench_core.held,
    "core-kept": bench_core.kept,
    "core-wake": bench_core.wake,
    "core-start": bench_start.starts,
    "sqlite-cycles": bench_sqlite.cycles,
    "sqlite-wake": bench_sqlite.wake,
    "dynamodb-cycles": bench_dynamodb.cycles,
    "dynamodb-renewals": bench_dynamodb.renewals,
    "etcd-cycles": bench_etcd.cycles,
    "etcd-renewals": bench_etcd.renewals,
    "etcd-wake": bench_etcd.wake,
    "etcd-contend": bench_etcd.contend,
    "mongodb-cycles": bench_mongodb.cycles,
    "mongodb-others": bench_mongodb.others,
    "mysql-cycles": bench_mysql.cycles,
    "postgres-cycles": bench_postgres.cycles,
    "postgres-renewals": bench_postgres.renewals,
    "postgres-bloat": bench_postgres.bloat,
    "postgres-wake": bench_postgres_waits.wake,
    "postgres-contend": bench_postgres_waits.contend,
    "zookeeper-cycles": bench_zookeeper.cycles,
    "zookeeper-renewals": bench_zookeeper.renewals,
    "zookeeper-wake": bench_zookeeper.wake,
    "zookeeper-contend": bench_zookeeper.contend,
    "crowd-waiters": bench_crowds.waiters,
    "crowd-permits": bench_crowds.permits,
    "takeovers": bench_takeovers.takeovers,
    "failovers": bench_elections.failovers,
    "job-requests": bench_jobs.requests,
}
VERSIONS: dict[str, Callable[[], str]] = {
    "core": bench_core.version,
    "sqlite": bench_sqlite.version,
    "redis": bench_redis.version,
    "dynamodb": bench_dynamodb.version,
    "etcd": bench_etcd.version,
    "mongodb": bench_mongodb.version,
    "mysql": bench_mysql.version,
    "postgres": bench_postgres.version,
    "zookeeper": bench_zookeeper.version,
}


# Of parts whose name does not tell on what they run.
RUN_ON = {"takeovers": tuple(VERSIONS), "failovers": bench_elections.STORES, "job-requests": ("core",)} | dict.fromkeys(
    ("crowd-waiters", "crowd-permits"), ("redis", "postgres", "dynamodb")
)


def run(name: str, rounds: int, results: Any) -> None:
    """Run one part, or ask for the versions of what parts of that name ran on."""
    if name in VERSIONS:
        results.put(VERSIONS[name]())
    elif name in OTHERS:
        results.put(OTHERS[name](rounds))
    else:
        with bench_redis.server() as (port, pid):
            results.put(REDIS[name](port, pid, rounds))


def apart(name: str, rounds: int) -> Any:
    """Return what :func:`run` finds, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    process = context.Process(target=run, args=(name, rounds, results))
    began = time.monotonic()
    process.start()
    found = None
    while found is None and (process.is_alive() or not results.empty()):
        if results.empty():
            process.join(0.1)
        else:
            found = results.get()
    process.join()
    if found is None:
        raise SystemExit(f"{name} failed; its messages are above")
    sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    return found
