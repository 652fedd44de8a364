"""DynamoDB: a cycle beside boto3 itself and beside other libraries, and a round of 1,000 renewals. On DynamoDB Local.

The floor is two conditional UpdateItem calls of a tuned boto3 client (one attempt, no parameter validation, keep-alive) that store a
lock of the same five fields: one mints a token, one frees.
"""

from __future__ import annotations

import logging
import os
import time
from importlib.metadata import version as of
from typing import TYPE_CHECKING, Any

import boto3
import botocore
import dynalock
from botocore.config import Config
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import resolve
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

from benchmarks._figures import Part, Section, Shown, compared, in_turn, spread, timed
from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cycles", "renewals", "version"]

CYCLES = 40
COUNTED = 10
# The server compiles itself while it works: its first hundreds of requests take several times as long.
WARM = 400
_TABLE, _PEER_TABLE, _DYNALOCK_TABLE = "dlock-bench", "peer-bench", "dynalock-bench"
_REGION = "eu-west-1"
_LOCKS = 1000
_TIMEOUT_S = 10.0
_TUNED = Config(
    retries={"total_max_attempts": 1},
    parameter_validation=False,
    tcp_keepalive=True,
    connect_timeout=2.5,
    read_timeout=5,
    max_pool_connections=64,
)


def fresh() -> str:
    """Return a record version number."""
    return os.urandom(16).hex()


class Floor:
    """boto3 and nothing else."""

    def __init__(self, endpoint: str) -> None:
        self.client: Any = _session().client("dynamodb", endpoint_url=endpoint, config=_TUNED)

    def cycle(self, key: str) -> None:
        """Take and free a lock with one UpdateItem each."""
        rvn = fresh()
        taken = self.client.update_item(
            TableName=_TABLE,
            Key={"key": {"S": key}},
            UpdateExpression=(
                "SET rvn = :r, #o = :o, lease_ms = :l, #s = :held, #t = if_not_exists(#t, :zero) + :one REMOVE released"
            ),
            ConditionExpression="attribute_not_exists(#k) OR #s = :free",
            ExpressionAttributeNames={"#k": "key", "#o": "owner", "#s": "state", "#t": "token"},
            ExpressionAttributeValues={
                ":r": {"S": rvn},
                ":o": {"S": "host:1:bench"},
                ":l": {"N": "20000"},
                ":held": {"S": "held"},
                ":free": {"S": "free"},
                ":zero": {"N": "0"},
                ":one": {"N": "1"},
            },
            ReturnValues="ALL_NEW",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )["Attributes"]
        self.client.update_item(
            TableName=_TABLE,
            Key={"key": {"S": key}},
            UpdateExpression="SET rvn = :new, #o = :o, lease_ms = :l, #s = :free",
            ConditionExpression="#s = :held AND rvn = :r AND #t = :t",
            ExpressionAttributeNames={"#o": "owner", "#s": "state", "#t": "token"},
            ExpressionAttributeValues={
                ":r": {"S": rvn},
                ":t": taken["token"],
                ":new": {"S": fresh()},
                ":o": {"S": ""},
                ":l": {"NULL": True},
                ":held": {"S": "held"},
                ":free": {"S": "free"},
            },
            ReturnValues="ALL_NEW",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def renew(self, keys: list[str], rvns: list[str]) -> list[str]:
        """Renew one after the other, as the Java client's loop does."""
        following = [fresh() for _ in rvns]
        for key, rvn, new in zip(keys, rvns, following, strict=True):
            self.client.update_item(
                TableName=_TABLE,
                Key={"key": {"S": key}},
                UpdateExpression="SET rvn = :new, lease_ms = :l",
                ConditionExpression="rvn = :r",
                ExpressionAttributeValues={":new": {"S": new}, ":r": {"S": rvn}, ":l": {"N": "20000"}},
            )
        return following


def store_cycle(store: DynamoDBStore, key: str) -> None:
    """Claim and release through the port."""
    held = store.claim(Claim(_held(key), Expect.ANY), timeout_s=_TIMEOUT_S).record
    assert held is not None
    tombstone = LockRecord(key, State.FREE, fresh(), held.fencing_token, "", None)
    assert store.release(Release(tombstone, held.version), timeout_s=_TIMEOUT_S).applied


def version() -> str:
    """Return the versions of server, driver and peers."""
    store = DynamoDBStore(_session(), table=_made(resolve("dynamodb").url), endpoint_url=resolve("dynamodb").url)
    found = store.guarantees().version
    store.close()
    peers = ", ".join(f"{name} {of(name)}" for name in ("python-dynamodb-lock", "dynalock"))
    return f"{found}, boto3 {boto3.__version__}, botocore {botocore.__version__}; {peers}"


def sides(endpoint: str) -> tuple[dict[str, Callable[[], object]], Callable[[], None]]:
    """Return a cycle of each side on *endpoint*, and what ends them."""
    os.environ["AWS_ENDPOINT_URL_DYNAMODB"] = endpoint  # dynalock has no other way to be told
    floor, store = Floor(endpoint), DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
    client = LockClient(DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint))
    java_like = DynamoDBLockClient(_session().resource("dynamodb", endpoint_url=endpoint), table_name=_PEER_TABLE)
    simple = dynalock.DynaLock("dynalock", _REGION, _DYNALOCK_TABLE)

    def dynalock_cycle() -> None:
        with simple.lock():
            pass

    def end() -> None:
        client.close()
        store.close()
        java_like.close()

    return {
        "boto3 tuned, update + update, the floor": lambda: floor.cycle("floor"),
        "dlock, store": lambda: store_cycle(store, "store"),
        "dlock, client": lambda: client.acquire("client", timeout=0).release(),
        "python-dynamodb-lock": lambda: java_like.acquire_lock("peer").release(best_effort=False),
        "dynalock (no token, no renewal)": dynalock_cycle,
    }, end


def cycles(rounds: int) -> Part:
    """Acquire and release, and how many requests that is."""
    server = resolve("dynamodb")
    _made(server.url)
    made, end = sides(server.url)
    for cycle in made.values():
        timed(cycle)(WARM)
    taken = in_turn({name: timed(cycle) for name, cycle in made.items()}, rounds=rounds, cycles=CYCLES)
    end()
    proxy = FaultProxy(*server.address)
    through, end = sides(f"http://{proxy.address}")
    counts = {name: counted(proxy, cycle) for name, cycle in through.items()}
    end()
    proxy.close()
    how = "One process, one lock, one cycle after the other."
    part = compared(
        "DynamoDB Local, one uncontended cycle",
        how,
        taken,
        aims={"dlock, client": "dynamodb-cycle"},
        extra={name: f"{count:.1f}" for name, count in counts.items()},
    )
    return part._replace(shown=(*part.shown, Shown("dynamodb-requests", (counts["dlock, client"],))))


def counted(proxy: FaultProxy, cycle: Callable[[], object]) -> float:
    """Return the requests of one *cycle*, once it is warm."""
    cycle()
    before = proxy.requests()
    for _ in range(COUNTED):
        cycle()
    return (proxy.requests() - before) / COUNTED


def renewals(rounds: int) -> Part:
    """Renew 1,000 locks, by batches and one by one."""
    endpoint = resolve("dynamodb").url
    _made(endpoint)
    floor, store = Floor(endpoint), DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
    keys = [f"renewed-{number:04}" for number in range(_LOCKS)]
    held = [_claimed(store, key) for key in keys]
    bare_keys, rvns = [f"bare-{key}" for key in keys], [fresh() for _ in keys]
    for key, rvn in zip(bare_keys, rvns, strict=True):
        floor.client.put_item(TableName=_TABLE, Item={"key": {"S": key}, "rvn": {"S": rvn}})
    ours, bare = [], []
    for _ in range(max(3, rounds // 2)):
        began, cpu = time.monotonic(), time.process_time()
        held = _renewed(store, held)
        ours.append((time.monotonic() - began, time.process_time() - cpu))
        began, cpu = time.monotonic(), time.process_time()
        rvns = floor.renew(bare_keys, rvns)
        bare.append((time.monotonic() - began, time.process_time() - cpu))
    store.close()
    lines = tuple(
        (name, *(spread([each[column] for each in times], 3) for column in (0, 1)))
        for name, times in (("boto3 tuned, one by one", bare), ("dlock, batches of 25", ours))
    )
    how = f"{_LOCKS:,} locks renewed once, one request after the other."
    section = Section("DynamoDB Local, many renewals", how, ("", "wall, s", "CPU of the client, s"), lines)
    return Part((section,), (Shown("dynamodb-renewals", tuple(each[1] for each in ours)),))


def _claimed(store: DynamoDBStore, key: str) -> LockRecord:
    record = store.claim(Claim(_held(key), Expect.ANY), timeout_s=_TIMEOUT_S).record
    assert record is not None
    return record


def _renewed(store: DynamoDBStore, held: list[LockRecord]) -> list[LockRecord]:
    following = []
    for start in range(0, len(held), store.batch_limit):
        batch = [
            Replace(_held(old.key), old.version, keep_payload=True) for old in held[start : start + store.batch_limit]
        ]
        for result in store.replace_many(batch, timeout_s=_TIMEOUT_S):
            assert isinstance(result, Reply)
            assert result.applied
            assert result.record is not None
            following.append(result.record)
    return following


def _held(key: str) -> LockRecord:
    return LockRecord(key, State.HELD, fresh(), 1, "host:1:bench", 20_000)


def _made(endpoint: str) -> str:
    """Make the tables of all sides; return the name of ours."""
    logging.getLogger("python_dynamodb_lock").setLevel(logging.ERROR)
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    store = DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
    store.provision()
    store.close()
    client: Any = _session().client("dynamodb", endpoint_url=endpoint)
    present = client.list_tables()["TableNames"]
    if _PEER_TABLE not in present:
        DynamoDBLockClient.create_dynamodb_table(client, table_name=_PEER_TABLE)
    if _DYNALOCK_TABLE not in present:
        client.create_table(
            TableName=_DYNALOCK_TABLE,
            AttributeDefinitions=[{"AttributeName": "LockId", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "LockId", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
    client.close()
    return _TABLE


def _session() -> Any:
    return boto3.Session("bench", "bench", region_name=_REGION)
