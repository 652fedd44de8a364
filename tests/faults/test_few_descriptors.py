"""A process with few descriptors keeps the locks that it holds, however many of its threads or tasks wait for others."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dlock_core import connect
from tests.backends import url_for
from tests.faults.crowd import BUSY, HELD, LEASE_S, TASKS, THREADS, lease_s_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the number of descriptors is limited"),
]

# So few that waiters, left to themselves, would take every descriptor before the first renewal needs one.
TIGHT = 16
USUAL = 100


@pytest.mark.parametrize(
    ("name", "colour", "descriptors"),
    [
        ("redis", "sync", TIGHT),
        ("redis", "async", TIGHT),
        ("postgres", "sync", TIGHT),
        ("postgres", "async", TIGHT),
        ("redis", "async", USUAL),
        ("mysql", "sync", TIGHT),
        ("mongodb", "async", USUAL),
        ("dynamodb", "sync", USUAL),
    ],
)
def test_waiters_take_no_descriptor_from_a_renewal(name: str, colour: str, descriptors: int, tmp_path: Path) -> None:
    """Each held lock is renewed and given back; each wait ends with its own time-out, or says that it can't connect."""
    url = url_for(name, tmp_path)
    with connect(url, lease_duration=lease_s_for(url)) as holder:
        leases = [holder.acquire(f"busy/{number}", timeout=LEASE_S) for number in range(BUSY)]

        ended = subprocess.run(
            [sys.executable, "-m", "tests.faults.crowd", url, colour, str(descriptors)],
            capture_output=True,
            check=True,
            timeout=120,
        )

        assert all(lease.is_valid for lease in leases)
    told = json.loads(ended.stdout)
    ends = told["ends"]
    assert told["held"] == HELD
    assert sum(ends.values()) == (THREADS if colour == "sync" else TASKS)
    assert ends.keys() <= {"AcquireTimeoutError", "StoreUnavailableError"}
