"""What ``mongodb://`` adds to the driver: claim and release of the store against the two bare commands, and what else a lock costs.

All sides work in turn, in rounds of one run, on one server, so that what else the machine does meets all of them. A ratio is that of the
times of one round. *bare* sends the two pipeline commands by ``Database.command`` with the least guard that a lock can do with, and reads
one field of each answer. Run: ``python -m benchmarks.bench_mongodb URL [--rounds N]``, for example on the URL that
``tools/servers/mongo-wire.sh start PORT`` prints: that server is a stand-in, and its figures are not MongoDB's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pymongo

from dlock_core.clock import now_ns
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore

_CYCLES = 50
_BATCH = 50
_DATABASE, _COLLECTION = "dlock_bench", "locks"
_CONCERN = {"w": "majority", "j": True, "wtimeout": 10_000}


def claim(key: str) -> Claim:
    """Return a request for *key*."""
    return Claim(LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "bench", 20_000), Expect.ANY)


def release_of(record: LockRecord) -> Release:
    """Return the request that frees *record*."""
    tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
    return Release(tomb, record.version)


def store_cycles(store: MongoDBStore) -> None:
    """Claim and release through the port."""
    for _ in range(_CYCLES):
        record = store.claim(claim("cycle/store"), timeout_s=10).record
        assert record is not None
        assert store.release(release_of(record), timeout_s=10).applied


async def async_cycles(store: AsyncMongoDBStore) -> None:
    """As :func:`store_cycles`, in an event loop."""
    for _ in range(_CYCLES):
        record = (await store.claim(claim("cycle/async"), timeout_s=10)).record
        assert record is not None
        assert (await store.release(release_of(record), timeout_s=10)).applied


def bare_claim(rvn: str) -> dict[str, Any]:
    """Return the command that takes a lock, and no more."""
    key = "cycle/bare"
    free = {"$or": [{"$eq": ["$$ROOT", {"_id": "$_id"}]}, {"$and": [{"$eq": ["$v", 1]}, {"$eq": ["$held", False]}]}]}
    new = {"_id": key, "v": {"$literal": 1}, "held": {"$literal": True}, "rvn": {"$literal": rvn}}
    new |= {"owner": {"$literal": "bench"}, "lease_ms": {"$literal": 20_000}}
    new["tok"] = {"$add": [{"$ifNull": ["$tok", 0]}, 1]}
    return bare_step(key, free, new, upsert=True)


def bare_release(rvn: str, token: int) -> dict[str, Any]:
    """Return the command that frees it."""
    mine = {"$and": [{"$eq": ["$rvn", {"$literal": rvn}]}, {"$eq": ["$held", True]}]}
    tomb = {"_id": "cycle/bare", "v": 1, "held": False, "rvn": os.urandom(16).hex(), "tok": token}
    return bare_step("cycle/bare", mine, {"$literal": tomb}, upsert=False)


def bare_step(key: str, guard: dict[str, Any], new: dict[str, Any], *, upsert: bool) -> dict[str, Any]:
    """Return one guarded step."""
    update = [{"$replaceWith": {"$cond": [guard, new, "$$ROOT"]}}]
    query = {"findAndModify": _COLLECTION, "query": {"_id": {"$eq": key}}, "update": update}
    return {**query, "new": True, "upsert": upsert, "writeConcern": _CONCERN}


def bare_cycles(database: Any) -> None:
    """Take and free a lock with one command each."""
    for _ in range(_CYCLES):
        rvn = os.urandom(16).hex()
        taken = database.command(bare_claim(rvn))["value"]
        assert taken["rvn"] == rvn
        assert not database.command(bare_release(rvn, taken["tok"]))["value"]["held"]


async def async_bare_cycles(database: Any) -> None:
    """As :func:`bare_cycles`, in an event loop."""
    for _ in range(_CYCLES):
        rvn = os.urandom(16).hex()
        taken = (await database.command(bare_claim(rvn)))["value"]
        assert taken["rvn"] == rvn
        assert not (await database.command(bare_release(rvn, taken["tok"])))["value"]["held"]


def timed(work: Callable[[], object], cycles: int = _CYCLES) -> tuple[float, float]:
    """Return the µs and the µs of this process's CPU of a cycle of *work*."""
    begin, cpu = now_ns(), time.process_time_ns()
    work()
    return (now_ns() - begin) / cycles / 1000, (time.process_time_ns() - cpu) / cycles / 1000


def compare(name: str, ours: Callable[[], object], bare: Callable[[], object], rounds: int) -> None:
    """Print both times and their ratio; who goes first changes from round to round."""
    ours()
    bare()
    pairs = []
    for number in range(rounds):
        if number % 2:
            pairs.append((timed(ours), timed(bare)))
        else:
            first = timed(bare)
            pairs.append((timed(ours), first))
    ratios = [store[0] / floor[0] for store, floor in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    for label, side in (("store", 0), ("bare", 1)):
        wall, cpu = (statistics.median(pair[side][kind] for pair in pairs) for kind in (0, 1))
        print(f"{name} {label:<6} {wall:9.1f} us a cycle, {cpu:7.1f} us CPU of the client")
    print(f"{name} ratio  {middle:9.3f}    quartiles {low:.3f} to {high:.3f}, {rounds} rounds of {_CYCLES}")


def others(store: MongoDBStore, rounds: int) -> None:
    """Print what a refusal, a read and renewals cost."""
    held = store.claim(claim(f"held/{os.urandom(4).hex()}"), timeout_s=10).record
    assert held is not None
    refused, read = [], []
    for _ in range(rounds):
        refused.append(timed(lambda: [store.claim(claim(held.key), timeout_s=10) for _ in range(_CYCLES)])[0])
        read.append(timed(lambda: [store.read(held.key, timeout_s=10) for _ in range(_CYCLES)])[0])
    print(f"refused claim {statistics.median(refused):9.1f} us, one request")
    print(f"read          {statistics.median(read):9.1f} us")
    records: Sequence[LockRecord] = [held_one(store, f"batch/{os.urandom(4).hex()}/{place}") for place in range(_BATCH)]
    single, batch = [], []
    for _ in range(rounds):
        records, took = renewed(store, records, one_by_one=True)
        single.append(took)
        records, took = renewed(store, records, one_by_one=False)
        batch.append(took)
    print(
        f"renewal       {statistics.median(single):9.1f} us a lock one by one, {statistics.median(batch):.1f} in a batch of {_BATCH}"
    )


def held_one(store: MongoDBStore, key: str) -> LockRecord:
    """Return the record of a new hold."""
    record = store.claim(claim(key), timeout_s=10).record
    assert record is not None
    return record


def renewed(store: MongoDBStore, records: Sequence[LockRecord], *, one_by_one: bool) -> tuple[list[LockRecord], float]:
    """Renew all; return the records and the µs a lock."""
    requests = [Replace(claim(record.key).record, record.version, keep_payload=True) for record in records]
    requests = [
        each._replace(record=same_token(each.record, record.fencing_token))
        for each, record in zip(requests, records, strict=True)
    ]
    begin = now_ns()
    if one_by_one:
        results = [store.replace(request, timeout_s=10) for request in requests]
    else:
        results = list(store.replace_many(requests, timeout_s=10))  # type: ignore[arg-type]  # none is an error
    took = (now_ns() - begin) / len(requests) / 1000
    assert all(result.applied for result in results)
    return [request.record for request in requests], took


def same_token(record: LockRecord, token: int) -> LockRecord:
    """Return *record* with *token*."""
    return LockRecord(record.key, record.state, record.rvn, token, record.owner, record.lease_ms)


def wake_ups(store: MongoDBStore, other: MongoDBStore, rounds: int) -> None:
    """Print the delay from the call of ``release`` to the return of ``wait`` of another client."""
    delays = []
    for _ in range(rounds):
        record = held_one(store, f"wake/{os.urandom(4).hex()}")
        ended: list[int] = []

        def wait(record: LockRecord = record, ended: list[int] = ended) -> None:
            other.wait(record, ticket="bench", timeout_s=20)
            ended.append(now_ns())

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)  # it waits now; there is no sign of it
        begin = now_ns()
        store.release(release_of(record), timeout_s=10)
        thread.join()
        delays.append((ended[0] - begin) / 1000)
    cuts = statistics.quantiles(delays, n=20)
    print(f"wake-up across clients, commit included: p50 {cuts[9]:.0f} us, p95 {cuts[18]:.0f} us, {rounds} releases")


def main() -> None:
    """Measure on the server of *url*."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    client, second = (pymongo.MongoClient[dict[str, Any]](chosen.url) for _ in range(2))
    store, other = (MongoDBStore(each, database=_DATABASE, collection=_COLLECTION) for each in (client, second))
    store.provision()
    other.guarantees()
    print(
        f"Python {platform.python_version()}, pymongo {pymongo.version}, server {store.guarantees().version}, {os.cpu_count()} cores"
    )
    compare("sync ", lambda: store_cycles(store), lambda: bare_cycles(client[_DATABASE]), chosen.rounds)
    with asyncio.Runner() as runner:
        mine = runner.run(_opened(chosen.url))
        database = mine._client[_DATABASE]  # both sides on one client
        compare(
            "async",
            lambda: runner.run(async_cycles(mine)),
            lambda: runner.run(async_bare_cycles(database)),
            chosen.rounds,
        )
        runner.run(mine._client.close())
    others(store, chosen.rounds)
    wake_ups(store, other, 40)
    for each in (store, other):
        each.close()
    for driver in (client, second):
        driver.close()


async def _opened(url: str) -> AsyncMongoDBStore:
    store = AsyncMongoDBStore(pymongo.AsyncMongoClient(url), database=_DATABASE, collection=_COLLECTION)
    await store.guarantees()
    return store


if __name__ == "__main__":
    main()
