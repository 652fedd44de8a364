"""What an older snapshot brings back, and what the operator does about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlock_core import connect
from tests.cli.operator_support import Command
from tests.scripted import ScriptedServer


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


def test_tokens_go_on_after_an_older_snapshot_was_restored_with_a_floor(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it they come again, as doctor says beside the revision that now stands."""
    url, data, snapshot = f"{server.told}/locks", tmp_path / f"etcd-{server.port}.data", tmp_path / "snapshot"
    first = granted(url)
    server.crash()
    shutil.copytree(data, snapshot)
    server.start()
    last = max(granted(url) for _ in range(5))
    server.crash()
    shutil.rmtree(data)
    shutil.copytree(snapshot, data)
    server.start()

    _, told, _ = Command(capsys)("doctor", "--url", url)
    repeated = granted(url)
    risen = granted(url, token_floor=last + 1)

    assert first < repeated <= last < risen < granted(url)
    assert "set token_floor above them first" in " ".join(told.split())
    assert f"at revision {first + 1};" in told  # the claim and the release
