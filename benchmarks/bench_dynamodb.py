"""What dlock costs on DynamoDB beside boto3 itself: an uncontended cycle, and a round of 1,000 renewals.

The floor is two conditional UpdateItem calls of a tuned boto3 client (one attempt, no parameter validation, keep-alive) that store a
lock of the same five fields: one mints a token, one frees. All sides work in turn in rounds of one run and take turns at being first; a
ratio is that of the medians of one round, its spread that of the rounds.

Run: ``python -m benchmarks.bench_dynamodb [--endpoint URL]``; without an endpoint it starts a DynamoDB Local.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import botocore
from botocore.config import Config

from dlock_core import LockClient
from dlock_core.record import LockRecord, State
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPT = Path(__file__).parents[1] / "tools" / "servers" / "dynamodb-local.sh"
_TABLE = "dlock-bench"
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


def client_cycle(client: LockClient, key: str) -> None:
    """Acquire and release as a user does."""
    client.acquire(key, timeout=0).release()


def compare_cycles(endpoint: str, rounds: int, cycles: int) -> None:
    """Print the times of the three, and their ratios to the floor."""
    floor, store = Floor(endpoint), DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
    run = secrets.token_hex(4)
    with LockClient(DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)) as client:
        sides: dict[str, Callable[[], None]] = {
            "boto3 tuned, update + update": lambda: floor.cycle(f"floor-{run}"),
            "dlock, port": lambda: store_cycle(store, f"port-{run}"),
            "dlock, client": lambda: client_cycle(client, f"client-{run}"),
        }
        names = list(sides)
        for name in names:
            _measured(sides[name], 200)
        walls: dict[str, list[float]] = {name: [] for name in names}
        cpus: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            times: dict[str, list[float]] = {name: [] for name in names}
            for cycle in range(cycles):
                first = (number + cycle) % len(names)
                for name in names[first:] + names[:first]:
                    wall, cpu = _measured(sides[name], 1)
                    times[name].append(wall)
                    cpus[name].append(cpu)
            for name in names:
                walls[name].append(statistics.median(times[name]))
    store.close()
    print(
        f"\none uncontended cycle, {rounds} rounds of {cycles}, ms: median of the rounds' medians (least to most); CPU, mean"
    )
    for name in names:
        ratios = [ours / bare for ours, bare in zip(walls[name], walls[names[0]], strict=True)]
        spread = f"{min(walls[name]):.2f} to {max(walls[name]):.2f}"
        print(
            f"  {name:30} {statistics.median(walls[name]):6.2f} ({spread})   CPU {statistics.fmean(cpus[name]):.2f}"
            f"   × floor {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def compare_renewals(endpoint: str, rounds: int) -> None:
    """Print wall and CPU time of a round of renewals, by batches and one by one."""
    floor, store = Floor(endpoint), DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
    run = secrets.token_hex(4)
    keys = [f"renewed-{run}-{number:04}" for number in range(_LOCKS)]
    held = []
    for key in keys:
        record = store.claim(Claim(_held(key), Expect.ANY), timeout_s=_TIMEOUT_S).record
        assert record is not None
        held.append(record)
    bare_keys = [f"bare-{key}" for key in keys]
    rvns = [fresh() for _ in keys]
    for key, rvn in zip(bare_keys, rvns, strict=True):
        floor.client.put_item(TableName=_TABLE, Item={"key": {"S": key}, "rvn": {"S": rvn}})
    ours, bare = [], []
    for _ in range(rounds):
        began, cpu = time.monotonic(), time.process_time()
        held = _renewed(store, held)
        ours.append((time.monotonic() - began, time.process_time() - cpu))
        began, cpu = time.monotonic(), time.process_time()
        rvns = floor.renew(bare_keys, rvns)
        bare.append((time.monotonic() - began, time.process_time() - cpu))
    store.close()
    print(f"\n{_LOCKS} locks renewed once, {rounds} rounds, s: median (least to most)")
    for name, times in (("boto3 tuned, one by one", bare), ("dlock, batches of 25", ours)):
        for kind, column in (("wall", 0), ("CPU", 1)):
            seen = [each[column] for each in times]
            print(f"  {name:30} {kind:4} {statistics.median(seen):.3f} ({min(seen):.3f} to {max(seen):.3f})")


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


def _measured(cycle: Callable[[], None], times: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        cycle()
    return (time.perf_counter() - began) * 1000 / times, (time.process_time() - cpu) * 1000 / times


def _session() -> Any:
    return boto3.Session("bench", "bench", region_name="eu-west-1")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="dlock on DynamoDB beside boto3")
    parser.add_argument("--endpoint", help="of a server that runs; without it a DynamoDB Local is started")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=200)
    asked = parser.parse_args()
    port = str(_free_port())
    endpoint = (
        asked.endpoint
        or subprocess.run([_SCRIPT, "start", port], check=True, capture_output=True, text=True).stdout.strip()
    )
    try:
        store = DynamoDBStore(_session(), table=_TABLE, endpoint_url=endpoint)
        store.provision()
        print(
            f"{store.guarantees().version}, boto3 {boto3.__version__}, botocore {botocore.__version__}, "
            f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
        )
        store.close()
        compare_cycles(endpoint, asked.rounds, asked.cycles)
        compare_renewals(endpoint, asked.rounds)
    finally:
        if not asked.endpoint:
            subprocess.run([_SCRIPT, "stop", port], check=True)


if __name__ == "__main__":
    main()
