"""A Redis Cluster: every verb on it, nodes that fail or are silent, slots that move."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from dlock_conformance.servers import free_port
from redis.crc import key_slot

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.store import Claim, Expect, Grade, Replace
from dlock_redis import AsyncRedisStore, RedisStore
from dlock_redis._scripts import CLAIM, PUT, READ
from tests.cli.operator_support import Command
from tests.redis.support import (
    Blocking,
    Server,
    calls,
    claim,
    exercise,
    granted,
    held,
    release,
    renew,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Start three primaries that share the slots."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(3):
            nodes.append(Server(tmp_path_factory.mktemp("node"), "--cluster-enabled", "yes"))
            stack.callback(nodes[-1].stop)
        clients: list[Any] = [stack.enter_context(redis.Redis(port=node.port)) for node in nodes]
        for number, client in enumerate(clients):
            first, after = 16384 * number // 3, 16384 * (number + 1) // 3
            client.execute_command("CLUSTER", "ADDSLOTS", *range(first, after))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        until = time.monotonic() + 30
        while not all(client.cluster("info")["cluster_state"] == "ok" for client in clients):
            assert time.monotonic() < until
            time.sleep(0.1)  # the nodes get to know each other
        yield nodes


@contextmanager
def on_cluster(
    colour: str, port: int, remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None
) -> Iterator[Any]:
    """Open a store on the Cluster behind *port*, whose nodes are where they say, or where *remap* does."""
    if colour == "sync":
        with redis.RedisCluster(host="127.0.0.1", port=port, address_remap=remap) as client:
            store = RedisStore(client)
            yield store
            store.close()
        return
    made: list[Any] = []

    def opening() -> AsyncRedisStore:
        made.append(redis.asyncio.RedisCluster(host="127.0.0.1", port=port, address_remap=remap))
        return AsyncRedisStore(made[0])

    blocking = Blocking(opening)
    yield blocking
    blocking.close()
    blocking.run(made[0].aclose())
    blocking.end()


@pytest.fixture
def cluster_store(colour: str, cluster: list[Server]) -> Iterator[Any]:
    """Return a store on the Cluster."""
    with on_cluster(colour, cluster[0].port) as store:
        yield store


def test_cluster_serves_every_verb_whatever_the_braces(cluster_store: Any) -> None:
    """Record and place of a waiter share a slot; a batch goes slot by slot; a scan to every node."""
    exercise(cluster_store, f"{secrets.token_hex(4)}/")


def test_several_keys_in_one_slot_are_claimed_together(cluster_store: Any) -> None:
    """All or none; those in several slots certainly are not."""
    tag = secrets.token_hex(4)
    first, second, third = (f"{{{tag}}}{end}" for end in "abc")

    def claims(keys: Sequence[str]) -> list[Claim]:
        return [Claim(held(key), Expect.ANY) for key in keys]

    won = cluster_store.claim_many(claims([first, second]), timeout_s=5.0)
    refused = cluster_store.claim_many(claims([third, second]), timeout_s=5.0)
    apart = [key_on(0), key_on(1)]
    with pytest.raises(StoreUnavailableError, match="several slots"):
        cluster_store.claim_many(claims(apart), timeout_s=5.0)

    assert [cluster_store.read(key, timeout_s=5.0) for key in (first, second)] == [reply.record for reply in won]
    assert [(reply.applied, reply.record) for reply in refused] == [(False, None), (False, won[1].record)]
    assert [cluster_store.read(key, timeout_s=5.0) for key in (third, *apart)] == [None] * 3


def test_prune_removes_records_on_every_node_and_tokens_go_on(cluster_store: Any) -> None:
    """Each key by itself, wherever it lies; what is held stays."""
    keys = [key_on(node) for node in range(3)]
    free = []
    for key in keys:
        record = release(cluster_store, granted(cluster_store, key)).record
        assert record is not None
        free.append(record)
    stays = granted(cluster_store, key_on(1))
    time.sleep(0.05)  # a record gets older in real time only

    count = cluster_store.prune([*free, stays], older_than_ms=20, dry_run=False, timeout_s=5.0)

    assert count == len(keys)
    assert cluster_store.read(stays.key, timeout_s=5.0) == stays
    for record in free:
        assert granted(cluster_store, record.key).fencing_token > record.fencing_token


def test_cluster_is_unsafe_by_name(cluster_store: Any) -> None:
    """It must be asked for."""
    found = cluster_store.guarantees()

    assert found.grade is Grade.C
    assert [name for name, _ in found.unsafe] == ["redis-cluster"]
    assert "one node only" not in found.unsafe[0][1]


@pytest.mark.parametrize("number", range(3))
def test_node_that_may_drop_records_is_found_wherever_it_is(
    cluster_store: Any, cluster: list[Server], number: int
) -> None:
    """Every node is examined."""
    with node_client(cluster[number]) as node:
        node.config_set("maxmemory-policy", "allkeys-lru")
        found = cluster_store.guarantees()
        node.config_set("maxmemory-policy", "noeviction")

    assert "redis-allkeys-policy" in dict(found.unsafe)


@pytest.mark.parametrize("number", range(3))
def test_node_that_is_down_keeps_nobody_from_the_others(cluster: list[Server], number: int) -> None:
    """A client opens whichever it is. That of asyncio asks the first node for its commands itself."""
    nobody = free_port()

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        return (address[0], nobody) if address[1] == cluster[number].port else address

    with on_cluster("sync", cluster[number - 1].port, remap) as store:
        assert [name for name, _ in store.guarantees().unsafe] == ["redis-cluster"]


def test_doctor_examines_a_cluster(cluster: list[Server], capsys: pytest.CaptureFixture[str]) -> None:
    """By the URL of the node that has the key which the doctor reads, if the Cluster is accepted."""
    node = cluster[key_slot(b"dlock:dlock-doctor") * 3 // 16384]

    out = Command(capsys).refused(node.url, "redis-cluster")

    assert "remedy: keep locks on one server outside of the Cluster" in out
    assert "reaches and lists the locks of one node only" in out


@pytest.fixture(params=["gone", "cut off"])
def failing_over(
    colour: str, cluster: list[Server], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Any, list[bool]]]:
    """Return a store, and what says whether the second node's slots are at the address of that node.

    To the store that is a failover: who had the slots is gone, or says that the Cluster is down, as one that sees no other node any more.
    Who has them now is told by the other nodes.
    """
    with ExitStack() as stack:
        failed, over = free_port(), [False]
        if request.param == "cut off":
            alone = Server(tmp_path, "--cluster-enabled", "yes")
            stack.callback(alone.stop)
            failed = alone.port

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            host, port = address
            return (host, failed) if port == cluster[1].port and not over[0] else (host, port)

        yield stack.enter_context(on_cluster(colour, cluster[0].port, remap)), over


def key_on(node: int) -> str:
    """Return a key of the node of this number."""
    keys = (f"{secrets.token_hex(4)}" for _ in range(1000))
    return next(key for key in keys if 16384 * node // 3 <= key_slot(key.encode()) < 16384 * (node + 1) // 3)


def test_failover_of_a_cluster_is_found_though_who_failed_does_not_tell(failing_over: tuple[Any, list[bool]]) -> None:
    """A node that is gone or cut off sends nobody on to the one that has its slots now: the others have to be asked."""
    store, over = failing_over
    key = key_on(1)
    with pytest.raises(StoreUnavailableError):
        claim(store, key)
    over[0] = True

    reply, until = None, time.monotonic() + 3
    while reply is None:
        try:
            reply = claim(store, key)
        except StoreUnavailableError:
            assert time.monotonic() < until
            # Nobody holds it, so this only lets the event loop run.
            store.wait(held("other"), ticket="t", timeout_s=1.0)

    assert reply.applied or reply.record is not None
    known = {node.name for node in store._link._client.get_nodes()}
    while not known.issuperset(store._link._nodes):
        assert time.monotonic() < until + 3, "connections to a node that has left are kept for ever"
        store.wait(held("other"), ticket="t", timeout_s=0.02)  # the client asks for the slots beside its requests


def test_failover_of_a_cluster_is_found_though_who_failed_is_silent(
    colour: str, cluster: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last that is asked who has its slots now: redis-py waits for it for 5 s, and older versions for ever."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        over, key = [False], key_on(1)

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            host, port = address
            return (host, silent.getsockname()[1]) if port == cluster[1].port and not over[0] else (host, port)

        store = stack.enter_context(on_cluster(colour, cluster[0].port, remap))
        assert store.read(key_on(0), timeout_s=5.0) is None
        manager = store._link._client.nodes_manager
        manager.startup_nodes = dict(
            sorted(manager.startup_nodes.items(), key=lambda each: each[1].port != silent.getsockname()[1])
        )
        over[0] = True
        reply, until = None, time.monotonic() + 3
        while reply is None:
            try:
                reply = claim(store, key, timeout_s=0.2)
            except StoreError:
                assert time.monotonic() < until

        assert reply.applied


def test_silent_node_takes_the_time_of_its_own_locks_only(colour: str, cluster: list[Server]) -> None:
    """In a batch, too: the renewals for all other nodes are made within the time that is left."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        silenced = [False]

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            host, port = address
            return (host, silent.getsockname()[1]) if port == cluster[1].port and silenced[0] else (host, port)

        good = stack.enter_context(on_cluster(colour, cluster[0].port, remap))
        keys = [key_on(node) for node in (1, 1, 0, 2, 1)]
        records = [granted(good, key) for key in keys]
        silenced[0] = True
        store = stack.enter_context(on_cluster(colour, cluster[0].port, remap))

        requests = [Replace(held(each.key, each.fencing_token), each.version) for each in records]
        began = time.monotonic()
        results = store.replace_many(requests, timeout_s=1.2)

        assert [isinstance(result, StoreError) for result in results] == [True, True, False, False, True]
        assert all(result.applied for result in results[2:4])
        assert time.monotonic() - began < 5.0


def test_closed_store_leaves_the_client_alone(cluster: list[Server]) -> None:
    """A thread of the store that asks the client for its slots has ended when the store is closed: its owner may close it."""
    gone, key = [False], key_on(1)

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        time.sleep(0.05 if gone[0] else 0)  # so asking takes a while
        return (address[0], 1) if gone[0] and address[1] == cluster[1].port else address

    with on_cluster("sync", cluster[0].port, remap) as store:
        gone[0] = True
        with redis.RedisCluster(host="127.0.0.1", port=cluster[0].port, address_remap=remap) as client:
            failing = RedisStore(client)
            with pytest.raises(StoreUnavailableError):
                claim(failing, key)
            asking = [each for each in threading.enumerate() if each.name == "dlock-redis-slots"]
            failing.close()

        assert asking
        assert not any(each.is_alive() for each in asking)
        assert store.read(key, timeout_s=5.0) is None


def test_store_that_was_closed_refuses_on_a_cluster_too(cluster_store: Any) -> None:
    """Also for nodes that it never met."""
    cluster_store.close()

    with pytest.raises(StoreUnavailableError, match="closed"):
        claim(cluster_store, "k")


def test_plain_client_on_a_cluster_is_told_what_to_do(cluster: list[Server], open_store: Any) -> None:
    """A slot of another node: nothing was applied, and the message names the right client."""
    store = open_store(cluster[0].url)
    failed = []
    for number in range(20):
        try:
            claim(store, f"k{number}")
        except StoreUnavailableError as error:
            failed.append(str(error))

    assert failed
    assert all("RedisCluster" in each for each in failed)


def node_client(node: Server) -> Any:
    """Return a client of one node."""
    return redis.Redis(port=node.port)


@contextmanager
def moving(cluster: list[Server], slot: int, keys: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Move *slot* from the first node to the second, *keys* already; give the function that ends the move. Afterwards it moves back."""
    with node_client(cluster[0]) as first, node_client(cluster[1]) as second, node_client(cluster[2]) as third:
        ids = [str(client.execute_command("CLUSTER", "MYID").decode()) for client in (first, second)]

        def begin(giver: Any, taker: Any, source: str, target: str) -> None:
            taker.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
            giver.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)

        def end(giver: Any, target: str, port: int) -> None:
            for key in giver.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                giver.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
            for client in (second, first, third):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)

        begin(first, second, ids[0], ids[1])
        for key in keys:
            first.execute_command("MIGRATE", "127.0.0.1", cluster[1].port, key, 0, 5000)
        yield lambda: end(first, ids[1], cluster[1].port)
        begin(second, first, ids[1], ids[0])
        end(second, ids[0], cluster[0].port)


def test_lock_in_a_slot_that_moves_is_renewed_and_released(colour: str, cluster: list[Server]) -> None:
    """The old node answers ASK, then MOVED: nothing was run there, so each script goes to the new one, once."""
    tag = key_on(0)
    keys = [f"{{{tag}}}{number}" for number in range(4)]
    with on_cluster(colour, cluster[0].port) as store, node_client(cluster[1]) as there:
        records = [granted(store, key) for key in keys]
        for each in (READ, CLAIM, PUT):
            there.script_load(each.text.decode())
        with moving(cluster, key_slot(tag.encode()), keys[:3]) as end:
            before = calls(there, "evalsha", "eval")
            reply = renew(store, records[0])
            assert reply.applied
            assert reply.record is not None
            assert calls(there, "evalsha", "eval") == before + 1
            assert not claim(store, keys[0]).applied
            requests = [
                Replace(held(each.key, each.fencing_token), each.version) for each in (reply.record, *records[1:])
            ]
            results = store.replace_many(requests, timeout_s=5.0)
            assert [getattr(result, "applied", result) for result in results] == [True] * 4
            store.wait(requests[1].record, ticket="t", timeout_s=0.05)
            assert store.read(keys[1], timeout_s=5.0) == requests[1].record
            assert release(store, requests[0].record).applied
            waits, began = Claim(held(keys[1]), Expect.ANY, ticket="u"), time.monotonic()
            assert not store.claim_when_free(waits, wait_s=0.5, timeout_s=5.0).applied
            assert time.monotonic() - began > 0.4, "it asks again at once, for as long as the slot moves"
            there.script_flush()
            assert release(store, requests[1].record).applied
            end()
            assert release(store, requests[2].record).applied
