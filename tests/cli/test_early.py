"""``dlock run`` and the locks of those that have died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.support import PATIENCE_S, Shell, line

# So long that no test could wait for it: what is had before is had early.
LONG = ("--lease", "600")


def killed(process: subprocess.Popen[str]) -> None:
    """End dlock as nothing can prevent it."""
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)


def test_lock_of_a_killed_dlock_and_its_dead_command_is_had_at_once(shell: Shell) -> None:
    """The guard ends the command; then nobody is left who could work under the lock."""
    process = shell.holding("--probe-owner", *LONG)
    killed(process)

    done = shell.run("run", "--probe-owner", *LONG, "--timeout", str(PATIENCE_S - 5), "k", "--", "echo", "ran")

    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_lock_of_a_killed_dlock_whose_command_lives_is_not_taken(shell: Shell) -> None:
    """It works on until the guard kills it, which is a quarter of the lease later; only its end frees the lock."""
    process = shell.holding("--probe-owner", *LONG, script="trap '' TERM; echo $$; while :; do sleep 0.05; done")
    command = int(line(process.stdout))
    killed(process)

    refused = shell.run("run", "--probe-owner", "--no-wait", "k", "--", "echo", "ran")
    alive = Path(f"/proc/{command}").exists()
    os.killpg(command, signal.SIGKILL)
    done = shell.run("run", "--probe-owner", "--timeout", str(PATIENCE_S - 5), "k", "--", "echo", "ran")

    assert alive
    assert (refused.stdout, refused.returncode) == ("", 75), refused.stderr
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_lock_of_a_dead_process_is_waited_for_without_the_flag(shell: Shell) -> None:
    """The default is observation, whatever the record says."""
    killed(shell.holding("--probe-owner", *LONG))

    assert shell.run("run", "--timeout", "0.3", "k", "--", "true").returncode == 75


def test_runs_that_try_once_go_on_with_each_others_observations(shell: Shell) -> None:
    """The second takes over what the first saw a lease ago."""
    killed(shell.holding("--lease", "1"))
    once = ("run", "--no-wait", "--no-server-clock", "--observations", "seen", "k", "--", "echo", "ran")
    assert shell.run(*once).returncode == 75
    time.sleep(1.1)  # a lease has to pass in real time

    done = shell.run(*once)

    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_first_run_takes_over_by_wall_clocks(shell: Shell) -> None:
    """It has seen nothing, and need not."""
    killed(shell.holding("--lease", "1", "--clock-skew", "0.2"))
    time.sleep(1.3)  # lease, drift and skew have to pass in real time
    assert shell.run("run", "--no-wait", "--no-server-clock", "k", "--", "true").returncode == 75

    assert shell.run("run", "--no-wait", "--no-server-clock", "--clock-skew", "0.2", "k", "--", "true").returncode == 0


def test_first_run_takes_over_by_the_stores_clock(shell: Shell) -> None:
    """It has seen nothing, and the holder knew of no such option."""
    killed(shell.holding("--lease", "1"))
    time.sleep(2.1)  # the lease, and the second by which the clock may step, have to pass in real time
    assert shell.run("run", "--no-wait", "--no-server-clock", "k", "--", "true").returncode == 75

    assert shell.run("run", "--no-wait", "k", "--", "true").returncode == 0


# A cron job, without the time that an interpreter takes to start: a new process each 0.3 s that tries once, and says from when to when.
CRON = """
import json, os, sys, time
from pathlib import Path
from dlock_core import connect
url, lease, keeps = sys.argv[1], float(sys.argv[2]), sys.argv[3]
seen = Path("seen")
began = time.monotonic()
while time.monotonic() - began < 6 * lease:
    tried = time.monotonic()
    pid = os.fork()
    if pid == 0:
        kept = {"file": "seen", "mapping": json.loads(seen.read_text()) if seen.exists() else {}, "nothing": None}[keeps]
        with connect(url, observations=kept, server_clock=False) as client:
            asked = time.monotonic()
            lock = client.try_acquire("k")
            print(asked, time.monotonic(), flush=True)
            if keeps == "mapping":
                seen.write_text(json.dumps(kept))
            os._exit(0 if lock else 75)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        sys.exit(0)
    time.sleep(max(0, tried + 0.3 - time.monotonic()))
sys.exit(75)
"""


def cron(shell: Shell, lease: float, keeps: str) -> tuple[int, list[tuple[float, float]]]:
    """Run the cron job after the owner's death; return whether it got the lock, and from when to when each process tried."""
    killed(shell.holding("--lease", str(lease)))
    done = subprocess.run(
        [sys.executable, "-c", CRON, shell.url, str(lease), keeps],
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    times = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return done.returncode, [(asked, answered) for asked, answered in times]


@pytest.mark.parametrize("keeps", ["file", "mapping"])
def test_cron_takes_over_a_dead_owners_lock_one_lease_after_its_first_try(shell: Shell, keeps: str) -> None:
    """By the first process that tries a lease after the first had its answer: within lease + 0.4 s, unless the machine is busy."""
    lease = 1.5

    code, tries = cron(shell, lease, keeps)

    assert code == 0
    assert tries[-1][1] >= tries[0][0] + lease
    assert tries[-2][0] < tries[0][1] + lease


def test_runs_that_try_once_keep_what_they_see_for_the_user(shell: Shell) -> None:
    """In the directory for state, which only the user may enter, a file for each store."""
    killed(shell.holding("--lease", "600"))

    shell.run("run", "--no-wait", "k", "--", "true")
    shell.run("run", "--no-wait", "--url", f"sqlite:///{shell.folder}/another.db", "k", "--", "true")

    folder = shell.folder / "dlock"
    assert folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.glob("observations-*.json"))) == 1


def test_relative_state_directory_counts_for_nothing(shell: Shell) -> None:
    """Each run would keep a file in the directory in which it began; the XDG standard has such a path ignored."""
    (shell.folder / "home").mkdir()
    shell.environment |= {"HOME": str(shell.folder / "home"), "XDG_STATE_HOME": "state"}
    killed(shell.holding("--lease", "600"))

    shell.run("run", "--no-wait", "k", "--", "true")

    assert not (shell.folder / "state").exists()
    assert list((shell.folder / "home/.local/state/dlock").glob("observations-*.json"))


def test_home_that_is_not_there_is_not_made(shell: Shell) -> None:
    """An account of a service may have none, and a folder that root makes in its place would be in the way."""
    home = shell.folder / "nobody"
    shell.environment |= {"HOME": str(home), "XDG_STATE_HOME": ""}

    assert shell.run("run", "--no-wait", "k", "--", "true").returncode == 0

    assert not home.exists()


def test_cron_that_keeps_nothing_never_takes_over(shell: Shell) -> None:
    """The negative control: six leases pass."""
    code, tries = cron(shell, 0.5, "nothing")

    assert code == 75
    assert len(tries) > 1
