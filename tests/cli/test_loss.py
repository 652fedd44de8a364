"""``dlock run`` when the lease cannot be kept."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dlock_core.clock import NANOS, now_ns
from tests.cli.support import PATIENCE_S, Shell, finish, finish_with_line, line
from tests.core.worlds import eventually

LEASE_S = 2.0
# Writes down when it was asked to end, by the clock that leases are measured with, and goes on.
STUBBORN = """
import os, signal, sys, time
alive = open('alive', 'wb', 0)
def asked(number, frame):
    alive.write(b'%d\\n' % time.clock_gettime_ns(time.CLOCK_BOOTTIME))
signal.signal(signal.SIGTERM, asked)
alive.write(b'ready\\n')
while True:
    signal.pause()
"""


class Stubborn:
    """A run whose command does not heed TERM."""

    def __init__(self, shell: Shell, *options: str) -> None:
        path: Path = shell.folder / "alive"
        os.mkfifo(path)
        self.process = shell.start("run", "--lease", str(LEASE_S), *options, "k", "--", sys.executable, "-c", STUBBORN)
        self.stream = path.open("rb", 0)
        assert self.stream.readline() == b"ready\n"

    def asked_at(self) -> int:
        """Wait until it is asked to end; return when."""
        return int(self.stream.readline())

    def ended_at(self) -> int:
        """Wait until it is dead; return when that was seen."""
        while self.stream.read(64):
            pass
        self.stream.close()
        return now_ns()


def test_an_outage_ends_the_child_before_the_lease_does(shell: Shell) -> None:
    """No renewal gets through: TERM comes ahead of the loss, and KILL still within the lease."""
    run = Stubborn(shell, "--grace", "0.4")
    with closing(sqlite3.connect(shell.folder / "locks.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        # What was applied, was applied before now: the lease ends a lease from here at the latest.
        lease_end = now_ns() + round(LEASE_S * NANOS)

        asked, ended = run.asked_at(), run.ended_at()
        blocker.execute("ROLLBACK")

    code, _, err = finish(run.process)
    assert asked < ended < lease_end
    assert ended - asked >= 0.3 * NANOS
    assert code == 76
    assert "could not be renewed" in err
    assert "exit code 76" in err


def test_max_hold_ends_the_child_in_time_and_says_so(shell: Shell) -> None:
    """It is not the lease that could not be kept; and a hold that is shorter than the lease has a grace of its own."""
    shell.environment["DLOCK_MAX_HOLD"] = "1"

    done = shell.run("run", "k", "--", sys.executable, "-c", "import time; print('ran', flush=True); time.sleep(60)")

    assert (done.returncode, done.stdout) == (76, "ran\n")
    assert "its max_hold of 1 s ends" in done.stderr
    assert "was held for its max_hold" in done.stderr
    assert "renewed" not in done.stderr


def test_a_lock_whose_session_could_not_be_kept_is_told_as_that(shell: Shell) -> None:
    """It has no lease of its own, and no bound."""
    shell.environment["DLOCK_RENEWAL"] = "session"
    process = shell.holding("--lease", "2", script="sleep 60")
    eventually(lambda: (record := shell.record()) is not None and record.session is not None)
    with closing(sqlite3.connect(shell.folder / "locks.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN EXCLUSIVE")
        code, _, err = finish(process)

    assert code == 76
    assert "lock 'k' (token 1) could not be renewed and ends in" in err
    assert "max_hold" not in err


def test_grace_must_fit_max_hold(shell: Shell) -> None:
    """Longer than half of it, the command would be ended before it has worked."""
    shell.environment["DLOCK_MAX_HOLD"] = "1"

    done = shell.run("run", "--grace", "3", "k", "--", "true")

    assert done.returncode == 64
    assert (
        done.stderr == "dlock: a grace of 3 s does not fit a max_hold of 1 s; give 0 to 0.5 s, or a longer max_hold\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the guard is found in /proc")
def test_guard_that_has_died_is_told(shell: Shell) -> None:
    """From then on nothing ends the command where dlock itself is stopped or killed; the run goes on."""
    process = shell.holding()
    command = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    [guard] = [int(pid) for pid in command if os.getsid(int(pid)) != os.getsid(process.pid)]

    os.kill(guard, signal.SIGKILL)

    assert "the guard process is gone" in line(process.stderr)
    assert finish_with_line(process) == 0


def test_a_guard_that_has_done_its_work_is_not_told_as_one_that_died(shell: Shell) -> None:
    """With TERM sent, and dlock standing still, the guard sends KILL and ends."""
    run = Stubborn(shell)
    assert shell.run("break", "k", "--token", "1").returncode == 0
    run.asked_at()

    os.kill(run.process.pid, signal.SIGSTOP)
    run.ended_at()
    os.kill(run.process.pid, signal.SIGCONT)

    code, _, err = finish(run.process)
    assert code == 76
    assert "guard" not in err


def test_an_outage_that_ends_in_time_is_survived(shell: Shell) -> None:
    """A renewal that succeeds later is a renewal: nobody is ended for a short outage."""
    process = shell.holding("--lease", "4")
    with closing(sqlite3.connect(shell.folder / "locks.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        time.sleep(1.2)  # the outage itself, longer than a heartbeat
        blocker.execute("ROLLBACK")
    time.sleep(3.5)  # until the lease would have ended without the renewal

    assert process.poll() is None
    process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_stopped_dlock_does_not_keep_its_child_alive(shell: Shell) -> None:
    """SIGSTOP beyond the lease: the guard ends the command within the lease; once continued, dlock exits with 76."""
    run = Stubborn(shell, "--grace", "0.4")
    run.process.send_signal(signal.SIGSTOP)
    lease_end = now_ns() + round(LEASE_S * NANOS)

    asked, ended = run.asked_at(), run.ended_at()
    run.process.send_signal(signal.SIGCONT)

    code, _, err = finish(run.process)
    assert asked < ended < lease_end
    assert code == 76
    assert "exit code 76" in err


def test_a_child_that_ended_on_terms_request_still_means_76(shell: Shell) -> None:
    """The work was cut short, whatever code the command chose."""
    process = shell.holding("--lease", "1", script="trap 'exit 0' TERM; echo armed; while :; do sleep 0.05; done")
    assert line(process.stdout) == "armed"
    process.send_signal(signal.SIGSTOP)
    assert finish_of_child(process.pid)
    process.send_signal(signal.SIGCONT)

    code, _, err = finish(process)
    assert code == 76
    assert "gets TERM" not in err  # it had it from the guard
    assert "was not renewed in time, and this process stood still" in err  # whatever kept it from being renewed before


@pytest.mark.parametrize("longer_s", [0, 1], ids=["held", "lost"])
def test_a_max_hold_that_ends_while_dlock_stands_still_is_told_as_that(shell: Shell, longer_s: float) -> None:
    """Whether dlock finds the lock held, or lost by then: nothing was wrong with the lease."""
    shell.environment["DLOCK_MAX_HOLD"] = "0.6"
    process = shell.holding("--lease", "60", script="trap 'exit 0' TERM; echo armed; while :; do sleep 0.05; done")
    assert line(process.stdout) == "armed"
    process.send_signal(signal.SIGSTOP)
    assert finish_of_child(process.pid)
    time.sleep(longer_s)  # beyond the max_hold
    process.send_signal(signal.SIGCONT)

    code, _, err = finish(process)
    assert code == 76
    assert "came to the end of its max_hold, and this process stood still" in err
    assert err.endswith("was held for its max_hold; exit code 76\n")


def finish_of_child(pid: int) -> bool:
    """Wait until the command of the stopped dlock *pid* is a zombie."""
    [child, _] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)  # nothing tells of a zombie but its parent, which is stopped
    return False


@pytest.mark.parametrize("options", [["--now"], []], ids=["freed", "quarantined"])
def test_a_broken_lock_ends_the_child(shell: Shell, options: list[str]) -> None:
    """The next renewal learns of it, and the child is ended: exit 76, with the reason."""
    process = shell.holding("--lease", "1", script="trap 'exit 5' TERM; echo armed; while :; do sleep 0.05; done")
    assert line(process.stdout) == "armed"
    record = shell.record()
    assert record is not None

    done = shell.run("break", "k", "--token", str(record.fencing_token), *options)

    assert done.returncode == 0, done.stderr
    code, _, err = finish(process)
    assert code == 76
    assert "was lost (broken)" in err
    assert "was lost: an operator broke it; exit code 76" in err


def have_it_asked_to_end(shell: Shell, process: subprocess.Popen[str], by: str) -> None:
    """Have the command asked to end by *dlock* itself, which loses its lock, or by *its guard*, since dlock stands still."""
    if by == "dlock":
        assert shell.run("break", "k", "--token", "1", "--now").returncode == 0
    else:
        process.send_signal(signal.SIGSTOP)


@pytest.mark.skipif(sys.platform != "linux", reason="the command is found in /proc")
@pytest.mark.parametrize("by", ["dlock", "its guard"])
def test_a_command_that_is_stopped_is_asked_to_end_too(shell: Shell, by: str) -> None:
    """It is continued, or it could not hear that."""
    process = shell.holding(
        "--lease", "2", script="trap 'echo asked; exit' TERM; echo armed; while :; do sleep 0.05; done"
    )
    assert line(process.stdout) == "armed"
    [child, _] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())

    os.kill(child, signal.SIGSTOP)
    have_it_asked_to_end(shell, process, by)

    assert line(process.stdout) == "asked"
    process.send_signal(signal.SIGCONT)
    assert finish(process)[0] == 76


@pytest.mark.parametrize("by", ["dlock", "its guard"])
def test_what_a_shell_leaves_when_it_is_asked_to_end_is_killed_too(shell: Shell, by: str) -> None:
    """Else a program of a script that ends slowly, or ignores TERM, would run on without the lock: the shell itself is gone at once."""
    script = "(trap 'echo asked' TERM; echo armed; while :; do sleep 0.05; done); true"
    process = shell.holding("--lease", "2", script=script)
    assert line(process.stdout) == "armed"

    have_it_asked_to_end(shell, process, by)
    assert line(process.stdout) == "asked"
    process.send_signal(signal.SIGCONT)

    code, _, err = finish(process)  # its output ends with the last of its group
    assert code == 76
    assert "the command was ended (code 143)" in err


def test_one_broken_lock_of_several_ends_the_child(shell: Shell) -> None:
    """The others that it holds are still valid, and protect nothing of what that one did."""
    script = "trap 'exit 5' TERM; echo armed; while :; do sleep 0.05; done"
    process = shell.start("run", "--lease", "2", "a", "b", "c", "--", "sh", "-c", script)
    assert line(process.stdout) == "armed"

    done = shell.run("break", "b", "--token", "1", "--now")

    assert done.returncode == 0, done.stderr
    code, _, err = finish(process)
    assert code == 76
    assert "lock 'b' (token 1) was lost (broken)" in err


def test_loss_that_only_the_release_finds_is_the_exit_code(shell: Shell) -> None:
    """The command has ended well, and may have run beside another one."""
    process = shell.holding("--lease", "60")
    shell.run("break", "k", "--token", "1", "--now")

    _, err = process.communicate("\n", timeout=PATIENCE_S)

    assert process.returncode == 76
    assert "the command had ended with code 0" in err


GUARDED = """
import subprocess, sys, time
from types import SimpleNamespace
from dlock_core.clock import NANOS, now_ns
from dlock_core.command.child import Guard

command = subprocess.Popen(["sh", "-c", "trap '' TERM; echo armed; sleep 60 & wait; sleep 60"], stdout=-1, process_group=0)
command.stdout.readline()
guard = Guard(SimpleNamespace(pid=command.pid), grace_s=30)
guard.order(now_ns() + NANOS // 10, now_ns() + NANOS // 2)
print(command.wait(20), guard.look())
guard.dismiss()
"""


def test_the_guards_grace_ends_with_the_lease(shell: Shell) -> None:
    """A guard that comes late, as after a pause of the machine, kills the command before another may hold the lock."""
    ended = shell.start(program=("-c", GUARDED)).communicate(timeout=PATIENCE_S)

    assert ended == ("-9 True\n", "")


def test_on_lost_warn_leaves_the_child_alone(shell: Shell) -> None:
    """Only a message: the command runs on, and its code is the exit code."""
    process = shell.holding("--lease", "1", "--on-lost", "warn", script="read line; exit 3")
    record = shell.record()
    assert record is not None

    shell.run("break", "k", "--token", str(record.fencing_token), "--now")
    while "runs on without it" not in line(process.stderr):
        pass

    assert process.poll() is None
    process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == 3


def test_a_lost_lock_is_not_released_for_the_next_holder(shell: Shell) -> None:
    """The late release of a broken lock does nothing to whoever has it then."""
    process = shell.holding("--lease", "1", "--on-lost", "warn")
    record = shell.record()
    assert record is not None
    shell.run("break", "k", "--token", str(record.fencing_token), "--now")
    shell.holding("--owner", "next")

    process.communicate("\n", timeout=PATIENCE_S)

    record = shell.record()
    assert record is not None
    assert (record.held, record.owner) == (True, "next")


def test_dlock_ends_the_child_in_time_without_its_guard(shell: Shell) -> None:
    """The guard stands in for dlock, not the other way round: with it killed, TERM and KILL still come within the lease."""
    run = Stubborn(shell, "--grace", "0.4")
    [_, guard] = map(int, Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split())
    os.kill(guard, signal.SIGKILL)
    with closing(sqlite3.connect(shell.folder / "locks.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        lease_end = now_ns() + round(LEASE_S * NANOS)

        asked, ended = run.asked_at(), run.ended_at()
        blocker.execute("ROLLBACK")

    assert asked < ended < lease_end
    assert ended - asked >= 0.3 * NANOS
    assert finish(run.process)[0] == 76
