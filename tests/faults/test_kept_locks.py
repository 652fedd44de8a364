"""Real processes whose locks a session keeps, on every store that they can share: killed, and stopped for longer than a lease."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from dlock_core import connect
from tests.backends import SERVED, url_for
from tests.faults.test_processes import LEASE_S, line_of, worker

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core import LockClient

LOCKS = 40
WAIT_S = 60

pytestmark = pytest.mark.slow


@pytest.fixture(params=("sqlite", *SERVED))
def store(request: pytest.FixtureRequest) -> str:
    """Take each store in turn."""
    name: str = request.param
    return name


@pytest.fixture
def url(store: str, tmp_path: Path) -> str:
    """Return its URL, ready for use."""
    return url_for(store, tmp_path)


def taken(client: LockClient, run: str) -> list[int]:
    """Take all locks of *run* over, one after the other, and return their tokens."""
    tokens = []
    for number in range(LOCKS):
        with client.lock(f"{run}/{number}", timeout=WAIT_S) as lease:
            tokens.append(lease.fencing_token)
    return tokens


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_locks_of_a_holder_that_is_gone_are_all_taken_over(store: str, url: str, way: str) -> None:
    """Each with a greater token. One that was only stopped hears of each loss when it goes on, and no lease of it is valid then."""
    run, lease_s = f"kept/{random.randrange(1 << 62)}", LEASE_S.get(store, 2.0)
    with worker(url, "keep", run, LOCKS, lease_s) as holder, connect(url, lease_duration=lease_s) as client:
        tokens = [int(word) for word in line_of(holder)]
        assert len(tokens) == LOCKS
        record = client.get(f"{run}/0")
        assert record is not None
        assert record.session is not None
        holder.send_signal(signal.SIGSTOP if way == "stopped" else signal.SIGKILL)

        after = taken(client, run)

        assert all(new > old for new, old in zip(after, tokens, strict=True))
        if way == "stopped":
            holder.send_signal(signal.SIGCONT)
            assert line_of(holder) == ["lost", str(LOCKS), "valid", "0"]
