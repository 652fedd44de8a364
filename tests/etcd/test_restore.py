"""What an older snapshot brings back, and what the operator does about it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlock_core import connect
from tests.cli.operator_support import Command
from tests.etcd.support import TIMEOUT_S, administer, coded, until
from tests.scripted import ScriptedServer, stop


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    """Return a server that keeps its data in the folder of the test."""
    server = ScriptedServer("etcd.sh", DLOCK_TEST_DATA=str(tmp_path))
    yield server
    server.stop()


def granted(url: str, *, token_floor: int = 1) -> int:
    """Lock and release a key; return the token."""
    with connect(url, token_floor=token_floor) as client, client.lock("account/42") as lease:
        return lease.fencing_token


def copy(server: ScriptedServer, source: Path, target: Path) -> None:
    """Have *target* be as *source*, while the server is away."""
    server.crash()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    server.start()


def test_tokens_go_on_after_an_older_snapshot_was_restored_with_a_floor(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it they come again, as doctor says beside the revision that now stands."""
    url, data, snapshot = f"{server.told}/locks", tmp_path / f"etcd-{server.port}.data", tmp_path / "snapshot"
    first = granted(url)
    copy(server, data, snapshot)
    last = max(granted(url) for _ in range(5))
    copy(server, snapshot, data)

    _, told, _ = Command(capsys)("doctor", "--url", url)
    repeated = granted(url)
    risen = granted(url, token_floor=last + 1)

    assert first < repeated <= last < risen < granted(url)
    assert "set token_floor above them first" in " ".join(told.split())
    assert f"at revision {first + 1};" in told  # the claim and the release


def test_place_that_a_snapshot_brings_back_is_in_nobodys_way_for_long(server: ScriptedServer, tmp_path: Path) -> None:
    """Its client kept it, with those that it knows of: the lock was free, and nobody who waited got it as long as that client ran."""
    data, snapshot = tmp_path / f"etcd-{server.port}.data", tmp_path / "snapshot"
    address = server.told.removeprefix("etcd://")
    places = {"key": coded("locks/wait/"), "range_end": coded("locks/wait0")}
    with (
        connect(f"{server.told}/locks", lease_duration=6) as holder,
        connect(f"{server.told}/locks", lease_duration=6) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = holder.acquire("k")
        waiting = pool.submit(client.acquire, "k")
        until(lambda: "kvs" in administer(address, "kv/range", **places))
        stop(server.pid)
        shutil.copytree(data, snapshot)
        os.kill(server.pid, signal.SIGCONT)
        lease.release()
        waiting.result(TIMEOUT_S).release()

        copy(server, snapshot, data)

        for _ in range(2):  # the first takes the lock over, the second finds it free
            client.acquire("k", timeout=TIMEOUT_S).release()
