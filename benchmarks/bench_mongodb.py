"""MongoDB's language: a cycle beside the two bare pipeline commands and beside another library; a refusal, a read, renewals, a wake-up.

*bare* sends the commands by ``Database.command`` with the least guard that a lock can do with, and reads one field of each answer.
Where the server is the stand-in, which the report then says, the figures are not MongoDB's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from importlib.metadata import version as of
from typing import Any

import pymongo
from dlock_conformance.servers import resolve
from mongoelector import MongoLocker
from pymongo.monitoring import CommandListener, CommandStartedEvent
from shylock.backends.pymongo import ShylockPymongoBackend

from benchmarks._figures import Part, Section, Shown, atimed, compared, in_turn, percentile, spread, timed
from dlock_core import AsyncLockClient, LockClient
from dlock_core.clock import now_ns
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore

__all__ = ["cycles", "others", "version"]

CYCLES = 30
_BATCH, _WAKE_UPS, _REFUSALS = 50, 40, 50
_DATABASE, _COLLECTION = "dlock_bench", "locks"
_CONCERN = {"w": "majority", "j": True, "wtimeout": 10_000}


class Counted(CommandListener):
    """The commands that a client sends."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, event: CommandStartedEvent) -> None:
        """Count one."""
        self.count += 1

    def succeeded(self, _: Any) -> None:
        """Do nothing."""

    def failed(self, _: Any) -> None:
        """Do nothing."""


def claim(key: str) -> Claim:
    """Return a request for *key*."""
    return Claim(LockRecord(key, State.HELD, os.urandom(16).hex(), 1, "bench", 20_000), Expect.ANY)


def release_of(record: LockRecord) -> Release:
    """Return the request that frees *record*."""
    tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
    return Release(tomb, record.version)


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


def version() -> str:
    """Return the versions of server, driver and peer."""
    server = resolve("mongodb")
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        store = MongoDBStore(client, database=_DATABASE, collection=_COLLECTION)
        store.provision()
        found = store.guarantees().version
    peers = ", ".join(f"{name} {of(name)}" for name in ("mongoelector", "shylock"))
    what = "a stand-in, NOT MongoDB: its figures are not MongoDB's" if server.stand_in else "MongoDB"
    return f"MongoDB's language: {found} ({what}), pymongo {pymongo.version}; {peers}"


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours."""
    url = resolve("mongodb").url
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        database = client[_DATABASE]
        MongoDBStore(client, database=_DATABASE, collection=_COLLECTION).provision()
        store = MongoDBStore(client, database=_DATABASE, collection=_COLLECTION)
        peer = MongoLocker("bench", database)
        other = ShylockPymongoBackend.create(client, _DATABASE)

        def bare() -> None:
            rvn = os.urandom(16).hex()
            taken = database.command(bare_claim(rvn))["value"]
            assert taken["rvn"] == rvn
            assert not database.command(bare_release(rvn, taken["tok"]))["value"]["held"]

        def through_store() -> None:
            assert store.release(release_of(held_one(store, "cycle/store")), timeout_s=10).applied

        def mongoelector() -> None:
            assert peer.acquire(blocking=False)
            peer.release()

        def shylock() -> None:
            assert other.acquire("bench/shylock", block=False)
            other.release("bench/shylock")

        with LockClient(MongoDBStore(client, database=_DATABASE, collection=_COLLECTION)) as locks:
            sides: dict[str, Callable[[], object]] = {
                "bare pipeline commands, the floor": bare,
                "dlock, store": through_store,
                "dlock, client": lambda: locks.acquire("cycle/client").release(),
                "mongoelector (no token; insert and delete)": mongoelector,
                "shylock (no token, owner or lease; insert and delete)": shylock,
            }
            taken = in_turn({name: timed(cycle) for name, cycle in sides.items()}, rounds=rounds, cycles=CYCLES)
    how = "One process, one lock, one cycle after the other; every write with a majority and the journal, but the other libraries'."
    sync = compared("MongoDB's language, one uncontended cycle", how, taken, aims={"dlock, client": "mongodb-cycle"})
    tasks = compared("MongoDB's language, the same with asyncio", how, acycles(url, rounds), aims={})
    return Part(sync.sections + tasks.sections, sync.shown)


def acycles(url: str, rounds: int) -> dict[str, list[float]]:
    """As :func:`cycles`, in an event loop."""
    with asyncio.Runner() as runner:

        async def opened() -> tuple[Any, AsyncLockClient]:
            client: Any = pymongo.AsyncMongoClient(url)
            return client, await AsyncLockClient(AsyncMongoDBStore(client, database=_DATABASE, collection=_COLLECTION))

        client, locks = runner.run(opened())
        database = client[_DATABASE]

        async def bare() -> None:
            rvn = os.urandom(16).hex()
            taken = (await database.command(bare_claim(rvn)))["value"]
            assert taken["rvn"] == rvn
            assert not (await database.command(bare_release(rvn, taken["tok"])))["value"]["held"]

        async def ours() -> None:
            lease = await locks.acquire("cycle/async")
            await lease.release()

        sides = {"bare pipeline commands, the floor": bare, "dlock, client": ours}
        taken = in_turn({name: atimed(runner, side) for name, side in sides.items()}, rounds=rounds, cycles=CYCLES)
        runner.run(locks.close())
        runner.run(client.close())
    return taken


def others(rounds: int) -> Part:
    """What a refusal, a read, a renewal and a wake-up cost."""
    url, listener = resolve("mongodb").url, Counted()
    with (
        pymongo.MongoClient[dict[str, Any]](url, event_listeners=[listener]) as client,
        pymongo.MongoClient[dict[str, Any]](url) as second,
    ):
        store, other = (MongoDBStore(each, database=_DATABASE, collection=_COLLECTION) for each in (client, second))
        store.provision()
        other.guarantees()
        held = held_one(store, f"held/{os.urandom(4).hex()}")
        before = listener.count
        sides = {
            "refused claim": lambda: store.claim(claim(held.key), timeout_s=10),
            "read": lambda: store.read(held.key, timeout_s=10),
        }
        for _ in range(_REFUSALS):
            assert not store.claim(claim(held.key), timeout_s=10).applied
        requests = (listener.count - before) / _REFUSALS
        taken = in_turn({name: timed(side) for name, side in sides.items()}, rounds=rounds, cycles=CYCLES)
        single, batch = renewals(store, rounds)
        delays = wake_ups(store, other)
        store.close()
        other.close()
    figures = {**{name: [each * 1e6 for each in values] for name, values in taken.items()}}
    figures |= {
        "renewal, one by one": single,
        f"renewal, in a batch of {_BATCH}": batch,
        "wake-up across clients": delays,
    }
    lines = tuple((name, spread(values, 0)) for name, values in figures.items())
    lines += (("wake-up across clients, p95", f"{percentile(delays, 0.95):.0f}"),)
    section = Section("MongoDB's language, other steps", "Through the store.", ("", "µs"), lines)
    return Part((section,), (Shown("mongodb-refusal", (requests,)),))


def renewals(store: MongoDBStore, rounds: int) -> tuple[list[float], list[float]]:
    """Return the µs a lock, one by one and in a batch."""
    records = [held_one(store, f"batch/{os.urandom(4).hex()}/{place}") for place in range(_BATCH)]
    single, batch = [], []
    for _ in range(rounds):
        records, took = renewed(store, records, one_by_one=True)
        single.append(took)
        records, took = renewed(store, records, one_by_one=False)
        batch.append(took)
    return single, batch


def held_one(store: MongoDBStore, key: str) -> LockRecord:
    """Return the record of a new hold."""
    record = store.claim(claim(key), timeout_s=10).record
    assert record is not None
    return record


def renewed(store: MongoDBStore, records: list[LockRecord], *, one_by_one: bool) -> tuple[list[LockRecord], float]:
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
        results = list(store.replace_many(requests, timeout_s=10))  # none is an error
    took = (now_ns() - begin) / len(requests) / 1000
    assert all(result.applied for result in results)
    return [request.record for request in requests], took


def same_token(record: LockRecord, token: int) -> LockRecord:
    """Return *record* with *token*."""
    return LockRecord(record.key, record.state, record.rvn, token, record.owner, record.lease_ms)


def wake_ups(store: MongoDBStore, other: MongoDBStore) -> list[float]:
    """Return the µs from the call of ``release`` to the return of ``wait`` of another client."""
    delays = []
    for _ in range(_WAKE_UPS):
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
    return delays
