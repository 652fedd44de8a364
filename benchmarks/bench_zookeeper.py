"""ZooKeeper: a cycle beside two bare transactions and kazoo's lock recipe, renewals in a batch, a waiter that is woken, sixteen workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import closing, contextmanager
from importlib.metadata import version as of
from typing import TYPE_CHECKING, Any

from dlock_conformance.servers import resolve
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

from benchmarks._figures import Part, compared, cycles_in_loop, in_turn, timed
from benchmarks._parties import contended, held, of_dlock, renewed, wake_ups, window
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release
from dlock_zookeeper import ZooKeeperStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["contend", "cycles", "renewals", "version", "wake"]

CYCLES, WINDOWS_MAX = 60, 3
OURS, FLOOR, KAZOO = "dlock, client", "two bare transactions, the floor", "Lock of kazoo"
_VALUE = b"0123456789abcdef" * 10  # about as much as a record


def address() -> str:
    """Return host and port of the server."""
    return "{}:{}".format(*resolve("zookeeper").address)


def opened(at: str | None = None) -> ZooKeeperStore:
    """Return a store of the benchmarks' own root; a process of ours is told where the server is."""
    store = ZooKeeperStore(f"zookeeper://{at or address()}/bench")
    store.provision()
    return store


def version() -> str:
    """Return the versions of server and driver."""
    store = opened()
    found = store.guarantees().version
    store.close()
    return f"ZooKeeper {found}, kazoo {of('kazoo')}"


@contextmanager
def connected(at: str) -> Iterator[KazooClient]:
    """Yield a client of kazoo's."""
    client = KazooClient(at)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def bare_cycle(client: KazooClient) -> Callable[[], None]:
    """Return two guarded writes of one node, each a transaction."""
    client.ensure_path("/bare")
    client.set("/bare", b"")
    seen = client.get("/bare")[1].version

    def step() -> None:
        nonlocal seen
        transaction = client.transaction()
        transaction.check("/bare", seen)
        transaction.set_data("/bare", _VALUE)
        _, stat = transaction.commit()
        seen = stat.version

    def cycle() -> None:
        step()
        step()

    return cycle


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours, beside the floor and kazoo's recipe."""
    store = opened()

    def through_store() -> None:
        record = store.claim(Claim(held("cycle/store"), Expect.ANY), timeout_s=10).record
        assert record is not None
        tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
        assert store.release(Release(tomb, record.version), timeout_s=10).applied

    with connected(address()) as client, LockClient(ZooKeeperStore(client, root="bench")) as locks:
        recipe, bare = Lock(client, "/peer"), bare_cycle(client)

        def through_recipe() -> None:
            with recipe:
                pass

        sides = {
            FLOOR: timed(bare),
            "dlock, store": timed(through_store),
            OURS: timed(lambda: locks.acquire("cycle/client").release()),
            KAZOO: timed(through_recipe),
        }
        taken = in_turn(sides, rounds=rounds, cycles=CYCLES)
        how = (
            "One process, one lock, one cycle after the other, floor, client and recipe on one session; each write is synced. The floor "
            "checks a version and sets a value. kazoo's recipe makes an ephemeral node, lists the queue, and deletes the node."
        )
        sync = compared("ZooKeeper, one uncontended cycle", how, taken, aims={OURS: "zookeeper-cycle"})
        how = "One task, which uses kazoo through threads; the floor is as above, without an event loop."
        loop = cycles_in_loop(
            (FLOOR, bare), lambda: ZooKeeperStore(f"zookeeper://{address()}/bench"), rounds=rounds, cycles=CYCLES
        )
        tasks = compared("ZooKeeper, the same with asyncio", how, loop, aims={})
    store.close()
    return Part((*sync.sections, *tasks.sections), sync.shown)


def renewals(rounds: int) -> Part:
    """Renew a thousand locks, in as many transactions as a client needs."""
    with closing(opened()) as store:
        return renewed("ZooKeeper", store, rounds, aim="zookeeper-renewals")


def watcher(at: str, ready: Any, heard: Any) -> None:
    """Tell when each change of the bare node came; a watch of ZooKeeper tells of one, and is set again."""
    with connected(at) as client:
        client.ensure_path("/bare")

        def changed(_: object) -> None:
            heard.put(time.monotonic())
            client.get_async("/bare", watch=changed).rawlink(lambda _: ready.put(0.0))

        client.get("/bare", watch=changed)
        ready.put(0.0)
        while True:
            time.sleep(60)  # until it is killed


def wake(_rounds: int) -> Part:
    """How long after the call of ``release`` another process has the lock, and after a bare write hears of it."""
    context = multiprocessing.get_context("spawn")
    ready, heard = context.Queue(), context.Queue()
    watching = context.Process(target=watcher, args=(address(), ready, heard), daemon=True)
    watching.start()
    with connected(address()) as client:

        def bare() -> float:
            ready.get()
            began = time.monotonic()
            client.set("/bare", _VALUE)
            return float(heard.get() - began)

        how = (
            "for the floor from the call of a write to its arrival in another process that watches. A release is one synced write, and the "
            "claim after it another."
        )
        floor = {"bare write and watch, the floor": bare}
        part = wake_ups("ZooKeeper", opened, address(), floor, how=how, aim="zookeeper-wake")
    watching.kill()
    return part


@contextmanager
def recipes(at: str) -> Iterator[Callable[[], AbstractContextManager[object]]]:
    """Yield what gives a worker kazoo's lock."""
    with connected(at) as client:
        lock = Lock(client, "/peer")
        yield lambda: lock


def contend(rounds: int) -> Part:
    """Sixteen processes and one key, next to the queue of kazoo's recipe."""
    opened().close()  # makes the root
    windows: dict[str, list[list[int]]] = {KAZOO: [], "dlock": []}
    for _ in range(min(rounds, WINDOWS_MAX)):
        windows[KAZOO].append(window(recipes, address()))
        windows["dlock"].append(window(of_dlock(opened), address()))
    how = "The floor is kazoo's recipe, a queue of ephemeral nodes."
    return contended("ZooKeeper", windows, how=how, aims=("zookeeper-contend", "zookeeper-fair"))
