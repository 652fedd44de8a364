"""A job that tries once and ends, started again and again after its first run was killed."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.backends import SERVED, url_for
from tests.cli.support import PATIENCE_S, Shell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LEASE_S = 2
# The lease, the second by which a store's clock may step, a second between two starts, and what a busy machine adds.
SOON_S = 20.0


@pytest.fixture(params=["sqlite", *SERVED])
def store(request: pytest.FixtureRequest, shell: Shell, tmp_path: Path) -> str:
    """Name each store in turn, which the shell uses then."""
    name: str = request.param
    shell.environment["DLOCK_URL"] = url_for(name, tmp_path)
    shell.environment["DLOCK_PREFIX"] = f"{tmp_path.name}-{time.time_ns()}/"
    return name


def crash(shell: Shell, *options: str) -> None:
    """Leave the lock of a job behind that has died with its holder."""
    process = shell.holding("--lease", str(LEASE_S), *options)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)


def start_each_second(
    start: Callable[[], subprocess.CompletedProcess[str]],
) -> list[subprocess.CompletedProcess[str]]:
    """Start a job each second until it runs, or for :data:`SOON_S`; return what came of each."""
    runs: list[subprocess.CompletedProcess[str]] = []
    began = time.monotonic()
    while time.monotonic() < began + SOON_S and not any(run.stdout for run in runs):
        runs.append(start())
        time.sleep(1)  # cron's period: the lease has to pass in real time
    return runs


@pytest.mark.usefixtures("store")
def test_a_job_that_is_skipped_while_held_runs_again_after_a_crash(shell: Shell) -> None:
    """Each start says that it was skipped, and for whom, until the dead holder's lease has ended."""
    crash(shell)

    *skipped, last = start_each_second(lambda: shell.run("run", "--skip-if-held", "k", "--", "echo", "ran"))

    assert (last.stdout, last.returncode) == ("ran\n", 0), last.stderr
    assert [run.returncode for run in skipped] == [0] * len(skipped)
    assert all("skipped: lock" in run.stderr and "is held by" in run.stderr for run in skipped), skipped


@pytest.mark.usefixtures("store")
def test_a_job_that_never_waits_runs_again_after_a_break(shell: Shell) -> None:
    """The quarantine ends after one lease."""
    with shell.holding("--lease", str(LEASE_S)) as holder:
        assert shell.run("break", "k", "--token", str(shell.json("show", "k")["fencing_token"])).returncode == 0
        holder.communicate("\n", timeout=PATIENCE_S)

    *refused, last = start_each_second(lambda: shell.run("run", "--no-wait", "k", "--", "echo", "ran"))

    assert (last.stdout, last.returncode) == ("ran\n", 0), last.stderr
    assert [run.returncode for run in refused] == [75] * len(refused)


def test_where_nothing_can_tell_a_dead_holder_the_message_says_so(shell: Shell) -> None:
    """No clock of the store, and nothing kept from run to run."""
    shell.environment["DLOCK_SERVER_CLOCK"] = "false"
    crash(shell, "--lease", "600")

    done = shell.run("run", "--skip-if-held", "--observations", "", "k", "--", "echo", "ran")

    known = shell.run("run", "--skip-if-held", "k", "--", "echo", "ran")
    again = shell.run("run", "--skip-if-held", "k", "--", "echo", "ran")
    assert (done.returncode, known.returncode, again.returncode) == (0, 0, 0)
    assert "--clock-skew" in done.stderr
    assert "--clock-skew" in known.stderr
    assert "--clock-skew" not in again.stderr
