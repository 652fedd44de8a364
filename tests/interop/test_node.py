"""Locks shared with the real Node client, in its own rows: ``dialect=node-fail-open`` and ``dialect=node-fail-closed``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dlock_conformance.harness import Colour
from dlock_conformance.holder_process import holder

from dlock_core import AcquireTimeoutError, LockClient
from dlock_core.command.show import escape
from dlock_core.record import NO_TOKEN, State
from tests.interop.support import Speaker, hammer, hammer_s, node

OPEN, CLOSED = "interop-node-open", "interop-node-closed"
# Nobody is taken over by mistake on a busy machine: only where a test kills a holder is the lease short.
LONG_S, SHORT_S, SLACK_S = 60.0, 3.0, 20.0
LEAST = 3

Connect = Callable[..., LockClient]


def ours(join: Connect, **options: Any) -> LockClient:
    """Return a client of ours among fail-open ones."""
    return join(OPEN, "node-fail-open", **{"lease_duration": LONG_S, **options})


def ours_closed(join: Connect, **options: Any) -> LockClient:
    """Return a client of ours among fail-closed ones."""
    return join(CLOSED, "node-fail-closed", fail_closed=True, **options)


@pytest.fixture(scope="module")
def closed(endpoint: str, url: Callable[..., str]) -> Iterator[Speaker]:
    """One FailClosed client for these tests."""
    url(CLOSED, "node-fail-closed")
    with node(endpoint, CLOSED, "closed") as speaker:
        yield speaker


@pytest.fixture(scope="module", autouse=True)
def table(url: Callable[..., str]) -> None:
    """Make the table of the fail-open clients."""
    url(OPEN, "node-fail-open")


@pytest.mark.parametrize("trust", [False, True], ids=["observing", "trusting-local-time"])
def test_fail_open_clients_count_exactly(endpoint: str, join: Connect, counter: Path, *, trust: bool) -> None:
    """One counter that nothing but the lock protects. A Node client that waits sleeps the whole lease that it read."""
    client = ours(join, lease_duration=4)
    key = f"count-{trust}"

    with node(endpoint, OPEN, "open", lease_s=4, heartbeat_s=1, trust=trust) as speaker:
        speaker.tell("hammer", key, counter, hammer_s(), LEAST)
        done = hammer(client, key, counter, seconds=hammer_s(), least=LEAST, rest_s=0.05)
        theirs = int(speaker.answer())

    assert int(counter.read_text()) == done + theirs
    assert min(done, theirs) >= LEAST


def test_fail_closed_clients_count_exactly(closed: Speaker, join: Connect, counter: Path) -> None:
    """Presence of the row is the lock, for both."""
    client = ours_closed(join)

    closed.tell("hammer", "count", counter, hammer_s(), LEAST)
    done = hammer(client, "count", counter, seconds=hammer_s(), least=LEAST)
    theirs = int(closed.answer())

    assert int(counter.read_text()) == done + theirs
    assert min(done, theirs) >= LEAST


def test_fencing_tokens_count_on_over_both(endpoint: str, join: Connect) -> None:
    """The token stands in the row, and whoever takes the lock raises it."""
    client = ours(join)
    tokens: list[int] = []
    record = None

    with node(endpoint, OPEN, "open", lease_s=LONG_S) as speaker:
        for _ in range(2):
            with client.lock("tokens", timeout=SLACK_S) as lease:
                tokens.append(lease.fencing_token)
            tokens.append(int(speaker.ask("acquire", "tokens", 0).removeprefix("held ")))
            record = client.get("tokens")
            assert client.try_acquire("tokens") is None
            speaker.ask("release", "tokens")

    assert tokens == [1, 2, 3, 4]
    assert record is not None
    assert (record.state, record.owner, record.lease_ms, record.fencing_token) == (State.HELD, "node-host", 60_000, 4)


def test_a_heartbeat_of_ours_keeps_a_node_client_out(endpoint: str, join: Connect) -> None:
    """It sleeps our lease and then finds another guid; after the release it has the lock."""
    client = ours(join, lease_duration=SHORT_S)
    with node(endpoint, OPEN, "open", lease_s=LONG_S) as speaker, client.lock("kept") as lease:
        assert speaker.ask("acquire", "kept", 0) == "refused"
        assert lease.is_valid
        lease.release()
        assert speaker.ask("acquire", "kept", 0) == "held 2"


def test_a_client_that_trusts_its_clock_does_not_steal(endpoint: str, join: Connect) -> None:
    """Each write of ours has the time; without one it would take a held lock at once."""
    client = ours(join)
    with node(endpoint, OPEN, "open", lease_s=LONG_S, trust=True) as speaker:
        lease = client.acquire("trusted")
        speaker.tell("acquire", "trusted", 0)
        time.sleep(1)  # it would have taken it by now
        lease.renew()
        assert lease.is_valid
        lease.release()


def test_we_take_over_from_a_killed_node_client(endpoint: str, join: Connect) -> None:
    """While it renews, for more than a lease, it is left alone; after SIGKILL the lock is had, with the next token."""
    client = ours(join)
    with node(endpoint, OPEN, "open", lease_s=SHORT_S, heartbeat_s=SHORT_S / 4) as speaker:
        assert speaker.ask("acquire", "crash-node", 0) == "held 1"
        until = time.monotonic() + 1.2 * SHORT_S
        while time.monotonic() < until:
            assert client.try_acquire("crash-node") is None, "a lock that Node renews was taken over"
            time.sleep(0.1)  # a lease has to pass in real time
        assert speaker.ask("errors", "crash-node") == "none"
        speaker.kill()

        with client.lock("crash-node", timeout=SHORT_S + SLACK_S) as lease:
            assert lease.fencing_token == 2


def test_a_node_client_takes_over_from_a_killed_process_of_ours(endpoint: str, url: Callable[..., str]) -> None:
    """After SIGKILL, when it has slept our lease; with the next token."""
    with node(endpoint, OPEN, "open", lease_s=LONG_S) as speaker:
        address = url(OPEN, "node-fail-open")
        with holder(address, "crash-python", lease_s=SHORT_S, colour=Colour.SYNC) as (process, token):
            process.send_signal(signal.SIGKILL)
            process.wait()

            assert speaker.ask("acquire", "crash-python", 1) == f"held {token + 1}"


def test_fail_closed_clients_see_each_other(closed: Speaker, join: Connect) -> None:
    """Held, refused, released: the row is there or it is not."""
    client = ours_closed(join)

    lease = client.acquire("seen")
    assert (lease.fencing_token, lease.remaining) == (NO_TOKEN, float("inf"))
    assert closed.ask("acquire", "seen", 0) == "refused"
    lease.release()
    assert client.get("seen") is None
    assert closed.ask("acquire", "seen", 0) == "held -"
    with pytest.raises(AcquireTimeoutError, match="held by 'node-host'"):
        client.acquire("seen", timeout=0.2)
    assert [(record.owner, record.lease_ms) for record in client.scan("seen")] == [("node-host", None)]
    closed.ask("release", "seen")
    client.acquire("seen", timeout=SLACK_S).release()


def test_a_fail_closed_lock_of_a_dead_node_client_is_broken_by_an_operator(endpoint: str, join: Connect) -> None:
    """Nothing else ends it: it is held until its row is removed."""
    client = ours_closed(join)
    with node(endpoint, CLOSED, "closed") as speaker:
        speaker.ask("acquire", "dead", 0)
        speaker.kill()

    assert client.try_acquire("dead") is None
    seen = client.get("dead")
    assert seen is not None
    assert not client.break_lock("dead", fencing_token=0, rvn="f" * 32)
    assert client.break_lock("dead", fencing_token=0, rvn=seen.rvn)
    client.acquire("dead", timeout=SLACK_S).release()


def test_the_command_works_with_fail_closed_rows(url: Callable[..., str], closed: Speaker, join: Connect) -> None:
    """An operator sees and breaks what a Node client holds."""
    address = url(CLOSED, "node-fail-closed", fail_closed="true")
    closed.ask("acquire", "operated", 0)

    def dlock(*words: str) -> str:
        command = [sys.executable, "-m", "dlock_core", *words, "--url", address]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert "node-host" in dlock("ls")
    shown = json.loads(dlock("show", "operated", "-o", "json"))["rvn"]
    assert len(shown) == 64
    dlock("break", "operated", f"--rvn={escape(shown)}")
    assert ours_closed(join).get("operated") is None
