"""Signals to ``dlock run`` in each phase: waiting, starting, running, releasing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.support import PATIENCE_S, Shell, finish, finish_with_line, line

ENDING = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
each_signal = pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)

# Raises the signal inside the command at one exact point of its way; everything else is the command's own code.
HOOK = """
import asyncio, contextlib, os, signal, sys
from dlock_core.command import child as _cli_child
from dlock_core import __main__, aio

phase, number = sys.argv[1], int(sys.argv[2])

def strike():
    os.kill(os.getpid(), number)

if phase == "granted":
    lock_all = aio.AsyncLockClient.lock_all
    @contextlib.asynccontextmanager
    async def struck(client, keys, **options):
        async with lock_all(client, keys, **options) as leases:
            strike()
            yield leases
    aio.AsyncLockClient.lock_all = struck
elif phase in ("before the start", "after the start"):
    start = _cli_child.Child.start
    def struck(child, environment):
        if phase == "before the start":
            strike()
        start(child, environment)
        if phase == "after the start":
            strike()
    _cli_child.Child.start = struck
elif phase == "releasing":
    release = aio.AsyncLease.release
    async def struck(lease, **more):
        strike()
        await asyncio.sleep(0)
        await release(lease, **more)
    aio.AsyncLease.release = struck

sys.argv[1:3] = []
__main__.main()
"""


def hooked(shell: Shell, phase: str, number: signal.Signals, *arguments: str) -> subprocess.Popen[str]:
    """Start the command with the signal raised at *phase*."""
    return shell.start(phase, str(number.value), *arguments, program=("-c", HOOK))


@each_signal
def test_a_signal_while_waiting_abandons_the_wait(shell: Shell, number: signal.Signals) -> None:
    """The wait ends at once, nothing is run, and no lock is left behind."""
    holder = shell.holding()
    waiter = shell.waiting()

    waiter.send_signal(number)

    code, out, err = finish(waiter)
    assert (code, out) == (128 + number, "")
    assert f"{number.name} while waiting for 'k'" in err
    assert finish_with_line(holder) == 0
    assert not shell.held()


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_signal_to_all_processes_while_waiting_abandons_the_wait(shell: Shell) -> None:
    """As of killall, or of systemd where it stops a service: the process that would become the command has it, too."""
    holder = shell.holding()
    waiter = shell.waiting()
    [child, _] = map(int, Path(f"/proc/{waiter.pid}/task/{waiter.pid}/children").read_text().split())
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing tells that dlock has buried it

    waiter.send_signal(signal.SIGTERM)

    code, _, err = finish(waiter)
    assert code == 128 + signal.SIGTERM
    assert "no process" not in err
    assert finish_with_line(holder) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_child_that_is_killed_while_dlock_waits_is_told_by_the_code(shell: Shell) -> None:
    """As where the system runs out of memory: the lock is had, and nothing can be run under it."""
    holder = shell.holding()
    waiter = shell.waiting()
    os.kill(children(waiter.pid)[0], signal.SIGKILL)

    assert finish_with_line(holder) == 0

    code, out, err = finish(waiter)
    assert (code, out) == (128 + signal.SIGKILL, "")
    assert "Traceback" not in err
    assert not shell.held()


@each_signal
@pytest.mark.parametrize("phase", ["before the start", "after the start"])
def test_a_signal_while_the_child_starts_reaches_it(shell: Shell, phase: str, number: signal.Signals) -> None:
    """Between the grant and the command's first instruction nothing is lost: the child dies of it."""
    process = hooked(shell, phase, number, "run", "k", "--", "sleep", "600")

    code, _, _ = finish(process)

    assert code == 128 + number
    assert not shell.held()


@each_signal
def test_a_signal_at_the_grant_ends_the_run(shell: Shell, number: signal.Signals) -> None:
    """The lock is had, the child not started: whichever comes first, the command does not outlive the signal."""
    process = hooked(shell, "granted", number, "run", "k", "--", "sleep", "600")

    code, _, _ = finish(process)

    assert code == 128 + number
    assert not shell.held()


@each_signal
def test_a_signal_while_the_child_runs_is_forwarded(shell: Shell, number: signal.Signals) -> None:
    """The command decides what it means; its code is the exit code."""
    script = f"trap 'echo caught; exit 7' {number.value}; echo armed; while :; do read line; done"
    process = shell.holding(script=script)
    assert line(process.stdout) == "armed"

    process.send_signal(number)

    assert line(process.stdout) == "caught"
    code, _, _ = finish(process)
    assert code == 7
    assert not shell.held()


@each_signal
def test_a_signal_that_ends_the_child_is_the_exit_code(shell: Shell, number: signal.Signals) -> None:
    """A child without a handler ends by it."""
    process = shell.start(
        "run", "k", "--", sys.executable, "-c", "import time; print('running', flush=True)\nwhile True: time.sleep(0.1)"
    )
    assert line(process.stdout) == "running"
    # Python turns SIGINT into an exception, and then ends itself by the signal; one that comes before a sleep begins waits for its end.

    process.send_signal(number)

    code, _, _ = finish(process)
    assert code == 128 + number
    assert not shell.held()


@each_signal
def test_a_signal_while_releasing_changes_nothing(shell: Shell, number: signal.Signals) -> None:
    """The work is done: the release is finished, and the code stays the command's."""
    process = hooked(shell, "releasing", number, "run", "k", "--", "sh", "-c", "exit 7")

    code, _, _ = finish(process)

    assert code == 7
    assert not shell.held()


def test_a_signal_reaches_the_whole_group(shell: Shell) -> None:
    """What the command has started in its group hears it, too."""
    script = "trap 'wait; exit 3' TERM; (trap 'echo inner caught; exit' TERM; echo inner armed; while :; do sleep 0.05; done) & wait"
    process = shell.holding(script=script)
    assert line(process.stdout) == "inner armed"

    process.terminate()

    assert line(process.stdout) == "inner caught"
    assert finish(process)[0] == 3


def test_lock_is_held_until_what_a_killed_shell_ran_has_ended(shell: Shell) -> None:
    """SIGTERM kills a shell at once, while the program that it waits for may take its time to end."""
    script = "(trap 'echo asked; read line; exit' TERM; echo armed; while :; do sleep 0.05; done); true"
    process = shell.holding(script=script)
    assert line(process.stdout) == "armed"
    [child, _] = children(process.pid)

    process.terminate()

    assert line(process.stdout) == "asked"
    while Path(f"/proc/{child}").exists():  # dlock has seen the end of the shell
        time.sleep(0.01)  # nothing else tells of that
    assert shell.run("run", "--no-wait", "k", "--", "true").returncode == 75
    assert finish_with_line(process) == 128 + signal.SIGTERM
    assert not shell.held()


def test_a_second_signal_while_running_is_forwarded_too(shell: Shell) -> None:
    """The first may have been refused."""
    process = shell.holding(
        script="trap 'echo one' HUP; trap 'echo two; exit 4' TERM; echo armed; while :; do read line; done"
    )
    assert line(process.stdout) == "armed"

    process.send_signal(signal.SIGHUP)
    assert line(process.stdout) == "one"
    process.send_signal(signal.SIGTERM)
    assert line(process.stdout) == "two"

    assert finish(process)[0] == 4


def test_the_end_of_the_child_is_seen_where_its_signal_was_blocked(shell: Shell) -> None:
    """By whoever started dlock, which would hold the lock for ever."""
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})"

    done = shell.run(
        "run", "k", "--", "false", program=("-c", f"{blocked}; from dlock_core.__main__ import main; main()")
    )

    assert done.returncode == 1
    assert not shell.held()


def test_sigkill_of_dlock_ends_the_child_and_its_group(shell: Shell) -> None:
    """Nobody renews any more: the command is asked to end, and killed, with all of its group, after the grace."""
    script = "trap '' TERM; exec 3>alive; echo armed; (while :; do sleep 0.05; done) & while :; do sleep 0.05; done"
    alive = fifo(shell)
    process = shell.holding("--grace", "0.3", script=script)
    reading = os.open(alive, os.O_RDONLY)
    assert line(process.stdout) == "armed"

    process.kill()

    assert os.read(reading, 1) == b""  # the end: nobody of the group is left
    os.close(reading)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_stop_of_dlock_at_the_start_leaves_its_guard_the_command(shell: Shell) -> None:
    """It knew of the lease before."""
    script = "trap 'echo asked; exit' TERM; while :; do sleep 0.05; done"
    process = hooked(shell, "after the start", signal.SIGSTOP, "run", "--lease", "2", "k", "--", "sh", "-c", script)

    assert line(process.stdout) == "asked"


def test_sigkill_of_dlock_leaves_the_command_time_to_end(shell: Shell) -> None:
    """It is asked to, at once, and not killed before the grace is over."""
    process = shell.holding(script="trap 'echo asked; exit' TERM; echo armed; while :; do sleep 0.05; done")
    assert line(process.stdout) == "armed"

    process.kill()

    assert line(process.stdout) == "asked"


def test_sigkill_of_dlock_after_sigterm_leaves_the_command_no_time(shell: Shell) -> None:
    """The command has had its time: so one in a dlock inside of another ends before the lock of the outer one does."""
    script = "trap 'echo asked' TERM; echo armed; while :; do sleep 0.05; done"
    process = shell.holding("--lease", "240", "--grace", "120", script=script)
    assert line(process.stdout) == "armed"
    process.terminate()
    assert line(process.stdout) == "asked"

    process.kill()

    assert finish(process)[0] == -signal.SIGKILL  # its output has ended, too


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of the end of a parent there")
def test_sigkill_of_dlock_ends_its_output_where_the_command_has_none(shell: Shell) -> None:
    """Whoever reads it, as cron or ssh, does not wait for the guard, which gives the command its grace."""
    alive = fifo(shell)
    script = "trap '' TERM; exec 3>alive; echo armed; echo $$ >&3; exec sleep 60 <&- >&- 2>&-"
    process = shell.holding("--grace", "4", script=script)
    reading = os.open(alive, os.O_RDONLY)
    assert line(process.stdout) == "armed"
    command = int(os.read(reading, 16))

    process.kill()

    assert finish(process)[1] == ""
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):  # the command runs still
        os.read(reading, 1)
    os.close(reading)
    os.kill(command, signal.SIGKILL)


def test_sigkill_of_dlock_and_its_guard_ends_the_child(shell: Shell) -> None:
    """The kernel does it then: PR_SET_PDEATHSIG."""
    alive = fifo(shell)
    process = shell.start(
        "run",
        "k",
        "--",
        sys.executable,
        "-c",
        "import os, time; f = open('alive', 'wb', 0); f.write(b'%d\\n' % os.getpid()); time.sleep(600)",
    )
    with alive.open("rb") as stream:
        child = int(stream.readline())
        [guard] = set(children(process.pid)) - {child}
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot act on the guard's end
        os.kill(guard, signal.SIGKILL)
        process.kill()

        assert stream.read() == b""


def test_sigkill_while_waiting_leaves_no_process(shell: Shell) -> None:
    """The child that waits for its start, and the guard, end with dlock; nothing is run."""
    shell.holding()
    waiter = shell.waiting()
    helpers = children(waiter.pid)
    ends = [os.pidfd_open(helper) for helper in helpers]

    waiter.kill()

    for end in ends:
        assert select.select([end], [], [], PATIENCE_S)[0]
        os.close(end)
    assert len(helpers) == 2
    assert finish(waiter)[1] == ""


def fifo(shell: Shell) -> Path:
    """Make a named pipe that the command opens for writing: its reader sees the end when the last process of the command is gone."""
    path = shell.folder / "alive"
    os.mkfifo(path)
    return path


def children(pid: int) -> list[int]:
    """Return the processes that the main thread of *pid* has forked."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


IGNORING = """
import runpy, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
runpy.run_module("dlock_core", run_name="__main__", alter_sys=True)
"""


def test_a_signal_that_is_ignored_stays_ignored(shell: Shell) -> None:
    """As under nohup, whose programs outlive the terminal: the wait goes on."""
    holder = shell.holding()
    process = shell.start("run", "--verbose", "k", "--", "echo", "ran", program=("-c", IGNORING))
    while "asking for" not in line(process.stderr):
        pass

    process.send_signal(signal.SIGHUP)

    assert finish_with_line(holder) == 0
    code, out, _ = finish(process)
    assert (code, out) == (0, "ran\n")


def test_a_stop_that_the_kernel_does_not_carry_out_is_not_told(shell: Shell) -> None:
    """Nobody of its session could resume it, as under setsid or a supervisor: the command goes on under the lock."""
    script = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT}); print('armed', flush=True); "
        "signal.sigwait({signal.SIGCONT}); print('resumed', flush=True); input()"
    )
    process = shell.start("run", "--lease", "60", "k", "--", sys.executable, "-c", script, start_new_session=True)
    assert line(process.stdout) == "armed"

    process.send_signal(signal.SIGTSTP)

    assert line(process.stdout) == "resumed"
    assert shell.held()
    _, err = process.communicate("over\n", timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
