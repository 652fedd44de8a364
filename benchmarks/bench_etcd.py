"""etcd: a cycle beside two bare transactions and beside other locks, renewals in a batch, a waiter that is woken, sixteen workers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from importlib.metadata import version as of
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from dlock_conformance.servers import resolve

from benchmarks._figures import Part, compared, cycles_in_loop, in_turn, timed
from benchmarks._parties import HOLD_S, WINDOW_S, WORKERS, contended, held, of_dlock, renewed, wake_ups, window
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release
from dlock_etcd import AsyncEtcdStore, EtcdStore, _schema
from dlock_etcd._schema import EQUAL, MODIFIED, TXN, Compare, Op, Put, Range, Txn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["contend", "cycles", "renewals", "version", "wake"]

CYCLES, WINDOWS_MAX = 60, 3
OURS, FLOOR, GO, GATEWAY = (
    "dlock, client",
    "two bare transactions, the floor",
    "etcd's own Mutex, Go",
    "Lock of etcd3gw",
)
_GO = Path(__file__).parent / "etcd_mutex"
_RVN = b"0123456789abcdef0123456789abcdef"


def address() -> str:
    """Return host and port of the server."""
    return "{}:{}".format(*resolve("etcd").address)


def opened(at: str | None = None) -> EtcdStore:
    """Return a store of the benchmarks' own root; a process of ours is told where the server is."""
    return EtcdStore(f"etcd://{at or address()}/bench")


def version() -> str:
    """Return the versions of server, drivers and peers."""
    store = opened()
    found = store.guarantees().version
    store.close()
    go = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout.split()[2]
    client = next(line.split()[-1] for line in (_GO / "go.mod").read_text().splitlines() if "etcd/client/v3" in line)
    return f"etcd {found}, grpcio {of('grpcio')}; etcd3gw {of('etcd3gw')}, etcd's client {client} with {go}"


def bare_cycle(channel: grpc.Channel) -> Callable[[], None]:
    """Return two guarded writes of one key, each a transaction that shows what stands where it is refused."""
    ask = channel.unary_unary(TXN.path, request_serializer=TXN.write, response_deserializer=TXN.read)
    key, seen = b"bare", 0

    def step() -> None:
        nonlocal seen
        unchanged = Compare(result=EQUAL, target=MODIFIED, key=key, mod_revision=seen)
        shows = Op(range=Range(key=key))
        answer = ask(Txn(compare=[unchanged], success=[Op(put=Put(key=key, value=_RVN))], failure=[shows]), timeout=10)
        if not answer.succeeded:
            seen = answer.responses[0].range.kvs[0].mod_revision
            step()
        else:
            seen = answer.header.revision

    def cycle() -> None:
        step()
        step()

    return cycle


@contextmanager
def go_peer(*arguments: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield processes of etcd's own client."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/etcd_mutex"
        subprocess.run(["go", "build", "-o", program, "."], cwd=_GO, check=True)
        running = [
            subprocess.Popen([program, address(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        try:
            yield running
        finally:
            for process in running:
                process.communicate()


def order(process: subprocess.Popen[str], line: str) -> None:
    """Tell a peer what to do."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def answer_of(process: subprocess.Popen[str]) -> float:
    """Return what a peer has measured."""
    assert process.stdout is not None
    return float(process.stdout.readline())


def cycles(rounds: int) -> Part:
    """Acquire and release, both colours, beside the floor and the peers."""
    import etcd3gw

    store = opened()
    host, _, port = address().partition(":")
    gateway = etcd3gw.client(host=host, port=int(port), api_path="/v3/")

    def through_store() -> None:
        record = store.claim(Claim(held("cycle/store"), Expect.ANY), timeout_s=10).record
        assert record is not None
        tomb = LockRecord(record.key, State.FREE, os.urandom(16).hex(), record.fencing_token, "", None)
        assert store.release(Release(tomb, record.version), timeout_s=10).applied

    def through_gateway() -> None:
        with gateway.lock("peer/gateway", ttl=20):
            pass

    with grpc.insecure_channel(address()) as channel, LockClient(EtcdStore(channel, root="bench")) as locks:
        with go_peer("peer/go") as [go]:

            def through_go(count: int) -> float:
                order(go, f"cycles {count}")
                return answer_of(go)

            bare = bare_cycle(channel)
            sides = {
                FLOOR: timed(bare),
                "dlock, store": timed(through_store),
                OURS: timed(lambda: locks.acquire("cycle/client").release()),
                GO: through_go,
                GATEWAY: timed(through_gateway),
            }
            taken = in_turn(sides, rounds=rounds, cycles=CYCLES)
        how = (
            "One process, one lock, one cycle after the other, floor and client on one channel; each write is synced. etcd's own Mutex "
            "makes a key and lists its queue, in one transaction, and deletes the key; the session behind it has a lease of etcd's. The "
            "lock of etcd3gw talks JSON, and asks for a lease first."
        )
        sync = compared("etcd, one uncontended cycle", how, taken, aims={OURS: "etcd-cycle"})
        how = "One task; the floor is as above, without an event loop."
        taken = cycles_in_loop(
            (FLOOR, bare), lambda: AsyncEtcdStore(f"etcd://{address()}/bench"), rounds=rounds, cycles=CYCLES
        )
        tasks = compared("etcd, the same with asyncio", how, taken, aims={})
    store.close()
    return Part((*sync.sections, *tasks.sections), sync.shown)


def renewals(rounds: int) -> Part:
    """Renew a thousand locks, in as many transactions as a client needs."""
    with closing(opened()) as store:
        return renewed("etcd", store, rounds, aim="etcd-renewals")


def watcher(at: str, ready: Any, got: Any) -> None:
    """Tell when each change of the bare key came."""
    with grpc.insecure_channel(at) as channel:
        request = _schema.watch(b"bare", b"bare\0")
        request.message.create.ClearField("filters")  # dlock's own watch hears of removals alone
        method = request.method
        stream = channel.unary_stream(method.path, request_serializer=method.write, response_deserializer=method.read)
        for answer in stream(request.message):
            (got if answer.events else ready).put(time.monotonic())


def wake(_rounds: int) -> Part:
    """How long after the call of ``release`` another process has the lock, and after a bare put hears of it."""
    context = multiprocessing.get_context("spawn")
    ready, heard = context.Queue(), context.Queue()
    watching = context.Process(target=watcher, args=(address(), ready, heard), daemon=True)
    watching.start()
    ready.get()
    with grpc.insecure_channel(address()) as channel:
        ask = channel.unary_unary(TXN.path, request_serializer=TXN.write, response_deserializer=TXN.read)

        def bare() -> float:
            began = time.monotonic()
            ask(Txn(success=[Op(put=Put(key=b"bare", value=_RVN))]), timeout=10)
            return float(heard.get() - began)

        how = (
            "for the floor from the call of a put to its arrival in another process that watches. A release is one synced write, and the "
            "claim after it another."
        )
        floor = {"bare put and watch, the floor": bare}
        part = wake_ups("etcd", opened, address(), floor, how=how, aim="etcd-wake")
    watching.kill()
    return part


def contend(rounds: int) -> Part:
    """Sixteen processes and one key, next to the queue of etcd's own Mutex."""
    windows: dict[str, list[list[int]]] = {GO: [], "dlock": []}
    with go_peer("peer/busy", count=WORKERS) as peers:
        for _ in range(min(rounds, WINDOWS_MAX)):
            for peer in peers:
                order(peer, f"window {WINDOW_S} {HOLD_S * 1e3}")
            windows[GO].append([int(answer_of(peer)) for peer in peers])
            windows["dlock"].append(window(of_dlock(opened), address()))
    how = "The floor is etcd's own Mutex, in Go."
    return contended("etcd", windows, how=how, aims=("etcd-contend", "etcd-fair"))
